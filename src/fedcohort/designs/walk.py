"""The Gram-Schmidt walk with a fixed sum: round chances to 0 or 1 while the sum hardly moves."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedcohort.similarity.measures import largest_entries

Numbers = NDArray[np.float64]

#: A chance that is as near to 0 or 1 as this has arrived. Less than any chance at the start: those
#: are whole numbers over a total below 2^63.
ARRIVED = 2.0**-70
#: Entries of updates that are worked on at a time, 32 MB.
BLOCK_ENTRIES = 2**22


def centred_points(
    updates: NDArray[np.floating], clients: NDArray[np.int64], chances: Numbers
) -> Numbers:
    """Return the clients' updates around their mean by chance, the longest of length 1.

    Shape (K, at most K): of longer updates, points at the same distances. Equal updates give 0.

    Examples
    --------
    >>> updates = np.array([[5.0, 1.0], [9.0, 9.0], [9.0, 1.0]])
    >>> centred_points(updates, np.array([0, 2]), np.array([0.75, 0.25])).round(3).tolist()
    [[-0.333, 0.0], [1.0, 0.0]]
    """
    k, dimension = len(clients), updates.shape[1]
    if not k:
        return np.empty((0, 0))
    shares = chances / chances.sum()
    # By the largest entry first: squares of 1e-200 would vanish.
    unit = float(largest_entries(updates[clients]).max()) or 1.0
    if dimension <= k:
        points = _centred(updates[clients], shares, unit)
        squares = np.einsum("ij,ij->i", points, points)
    else:
        step = max(1, BLOCK_ENTRIES // k)
        products = np.zeros((k, k))
        for start in range(0, dimension, step):
            part = _centred(updates[clients, start : start + step], shares, unit)
            products += part @ part.T
        values, axes = np.linalg.eigh(products)
        points, squares = axes * np.sqrt(np.maximum(values, 0.0)), np.diag(products)
    scaled: Numbers = points / (math.sqrt(squares.max()) or 1.0)
    return scaled


def _centred(updates: NDArray[np.floating], shares: Numbers, unit: float) -> Numbers:
    part = updates.astype(np.float64) / unit
    return part - shares @ part


def walked(
    low: Numbers,
    high: Numbers,
    points: Numbers,
    ridge: float,
    goes_up: Callable[[float], bool],
) -> NDArray[np.bool_]:
    r"""Select some of K candidates, each with its chance, so that their points' sum varies little.

    From :math:`x` = ``low`` on, every step moves the *alive* candidates, those with
    :math:`0 < x_i < 1`, along the direction

    .. math:: u = \arg\min \Big\|\sum_i u_i b_i\Big\|^2 + \text{ridge} \cdot \|u\|^2
        \quad\text{where}\quad u_{pivot} = 1,\ \sum_i u_i = 0,

    up or down until one of them arrives at 0 or 1; the chances of up and down are such that x
    stays where it is on average. The pivot is the one alive with the longest point, so that it has
    the most others to be set against. At most K - 1 steps of O(K d + d^2) each.

    Parameters
    ----------
    low, high
        The chances and one minus them, each to its own digits; shape (K,). ``low`` sums to a
        whole number: so many are selected.
    points
        The points :math:`b_i`, shape (K, d). A common shift makes no difference but to the digits.
    ridge
        More than 0, in the unit of the points' squared lengths.
    goes_up
        Decides a step, given the chance of up.

    Examples
    --------
    Two of four points on a line: one from each side, but for a chance that the ridge leaves.

    >>> half, points = np.full(4, 0.5), np.array([[-1.0], [-1.0], [1.0], [1.0]])
    >>> walked(half, half, points, 1e-4, lambda chance: chance > 0.4).tolist()
    [True, False, True, False]
    """
    selected = high <= ARRIVED
    missing = round(float(low.sum())) - np.count_nonzero(selected)
    # The longest points come first; the first one alive is the pivot.
    order = np.argsort(-np.einsum("ij,ij->i", points, points), kind="stable")
    alive = order[(low[order] > ARRIVED) & (high[order] > ARRIVED)]
    low, high, points = low[alive], high[alive], points[alive]
    gram = points.T @ points + ridge * np.eye(points.shape[1])
    inverse = np.linalg.inv(gram).astype(np.float64)
    # Every step has one alive less, and never do more arrive at 1 than are missing, or fewer stay
    # alive: their chances sum to ``missing``, up to rounding.
    while 0 < missing < len(alive):
        u = _direction(points, inverse)
        step, first = _step(u, low, high, goes_up)
        low, high = low + step, high - step
        # Whatever the rounding, the first one arrives.
        (high if step[first] > 0 else low)[first] = 0.0
        stays = (low > ARRIVED) & (high > ARRIVED)
        for point in points[~stays]:
            inverse = _without(inverse, point)
        ends = alive[high <= ARRIVED]
        selected[ends] = True
        missing -= len(ends)
        alive, low, high, points = alive[stays], low[stays], high[stays], points[stays]
    selected[alive] = missing > 0
    return selected


def _direction(points: Numbers, inverse: Numbers) -> Numbers:
    """Return u for the first point as the pivot.

    With S the inverse of (b_i . b_j) + ridge, u is the combination of S e_1 and S 1 that has
    u_1 = 1 and sum 0. By Woodbury's identity ridge S = 1 - B ``inverse`` B^T.
    """
    columns = np.stack([points[0], points.sum(axis=0)], axis=1)
    own, ones = -(points @ (inverse @ columns)).T
    own[0] += 1.0
    ones += 1.0
    u: Numbers = ones.sum() * own - ones[0] * ones
    u /= u[0]
    # The pivot is exact now; the sum, up to rounding.
    u[1:] -= u.sum() / (len(u) - 1)
    return u


def _step(
    u: Numbers, low: Numbers, high: Numbers, goes_up: Callable[[float], bool]
) -> tuple[Numbers, int]:
    """Return a step along u or against it, up to a border, and who arrives there first."""
    is_rising = u > 0
    with np.errstate(divide="ignore"):
        steepness = 1.0 / np.abs(u)
    upward = np.where(is_rising, high, low) * steepness
    downward = np.where(is_rising, low, high) * steepness
    top, bottom = int(upward.argmin()), int(downward.argmin())
    up, down = float(upward[top]), float(downward[bottom])
    return (up * u, top) if goes_up(down / (up + down)) else (-down * u, bottom)


def _without(inverse: Numbers, point: Numbers) -> Numbers:
    """Take a point out of the sum of b b^T whose inverse this is (Sherman and Morrison)."""
    image = inverse @ point
    return inverse + np.multiply.outer(image / (1.0 - point @ image), image)
