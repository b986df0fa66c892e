"""How often would each client train? A line per design, for your client sizes."""

from fedcohort import CohortMean, Multinomial, Poisson, SizeClustered, compare
from fedcohort.synthetic import unbalanced_sizes

sizes = unbalanced_sizes(100, seed=0)  # or yours: a list, or {"Nice": 500, ...}
designs = [Multinomial(10), SizeClustered(10), Poisson(10), CohortMean(10)]
comparison = compare(sizes, 10, designs=designs)
sentence = comparison.answer  # what to use, in words
comparison.plot("chances.png")
