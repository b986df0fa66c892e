"""How much luck is in a round? The variance of the weights, for cohorts of 5 to 50 clients."""

import matplotlib.pyplot as plt

from fedcohort import Multinomial, Poisson, Population, SizeClustered, Uniform
from fedcohort.synthetic import unbalanced_sizes

clients = Population(unbalanced_sizes(100, seed=0))
cohort_sizes = range(5, 51, 5)
ways = {
    "multinomial": Multinomial,
    "uniform, unbiased": lambda m: Uniform(m, unbiased=True),
    "poisson": Poisson,
    "size": SizeClustered,
}
for name, recipe in ways.items():
    designs = [recipe(m).build(clients, rng=0) for m in cohort_sizes]
    plt.plot(cohort_sizes, [design.weight_variance().sum() for design in designs], label=name)
plt.yscale("log")
plt.xlabel("clients drawn in a round")
plt.ylabel("variance of the weights")
plt.legend()
plt.savefig("variance.png")
