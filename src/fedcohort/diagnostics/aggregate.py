"""How far a cohort's aggregate lies from full participation."""

from numpy.typing import ArrayLike

from fedcohort.designs.base import Design


def aggregate_variance(design: Design, updates: ArrayLike) -> float:
    r"""Return :math:`E\|\sum_i w_i \Delta_i - \sum_i p_i \Delta_i\|^2`, squared bias included.

    For row designs this is B of Fraboni et al. (2021), appendix A. ``updates`` has shape
    (n_clients, dimension).

    Examples
    --------
    >>> from fedcohort import MultinomialDesign, Population
    >>> aggregate_variance(MultinomialDesign(Population([6, 2]), cohort_size=3), [[1.0], [5.0]])
    1.0
    """
    return design.aggregate_variance(updates)
