"""The first two moments of the aggregation weights."""

import numpy as np
from numpy.typing import NDArray

from fedcohort.designs.base import Design, checked_design


def bias(design: Design) -> NDArray[np.float64]:
    """Return E[w] - p, shape (n_clients,); exactly 0 for a design that claims to be unbiased.

    Examples
    --------
    >>> from fedcohort import Population
    >>> from fedcohort.designs import UniformDesign
    >>> bias(UniformDesign(Population([6, 2]), cohort_size=1)).tolist()
    [-0.375, -0.125]
    """
    return checked_design(design).bias()


def weight_variance(design: Design) -> NDArray[np.float64]:
    """Return Var[w], shape (n_clients,).

    Examples
    --------
    >>> from fedcohort import Population
    >>> from fedcohort.designs import MultinomialDesign
    >>> weight_variance(MultinomialDesign(Population([6, 2]), cohort_size=3)).tolist()
    [0.0625, 0.0625]
    """
    return checked_design(design).weight_variance()


def weight_covariance(design: Design) -> NDArray[np.float64]:
    """Return Cov[w], shape (n_clients, n_clients); for small populations.

    Examples
    --------
    >>> from fedcohort import Population
    >>> from fedcohort.designs import MultinomialDesign
    >>> weight_covariance(MultinomialDesign(Population([6, 2]), cohort_size=3)).tolist()
    [[0.0625, -0.0625], [-0.0625, 0.0625]]
    """
    return checked_design(design).weight_covariance()
