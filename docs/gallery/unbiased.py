"""What is bias? Each client's mean weight over 4,000 rounds, against its share of the samples."""

import matplotlib.pyplot as plt
import numpy as np

from fedcohort import CohortMean, Selector, SizeClustered

rng = np.random.default_rng(0)
sizes = rng.lognormal(5, 1.2, 100).astype(int)  # a few clients have most of the samples
shares = sizes / sizes.sum()
for recipe, marker in ((CohortMean(10), "o"), (SizeClustered(10), "x")):
    selector, total = Selector(recipe, sizes, seed=0), np.zeros(100)
    for _ in range(4000):
        cohort = selector.draw()
        total[cohort.clients] += cohort.weights
        selector.skip()  # no training here
    plt.plot(100 * shares, total / 40, marker, label=recipe.name)
plt.axline((1, 1), slope=1, color="black", linewidth=1, label="unbiased")
plt.xscale("log")
plt.yscale("log")
plt.xlabel("share of all samples, %")
plt.ylabel("mean weight, %")
plt.legend()
plt.savefig("unbiased.png")
