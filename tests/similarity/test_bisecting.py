"""Mass-capped bisecting 2-means."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from fedcohort import Population
from fedcohort.designs import MultinomialDesign, TournamentDesign
from fedcohort.similarity import bisected, grouping
from fedcohort.synthetic import clustered_updates, dirichlet_updates, unbalanced_sizes
from fedcohort.testing import FALSE_ALARM
from populations import rng
from trees import depth, held, is_tree, partition

SCALES = [1.0, 1e-30, 1e30]


@st.composite
def clouds(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Points that are all different, of few kinds, or all equal; masses fifteen orders apart."""
    generator = rng(draw(st.integers(0, 2**32 - 1)))
    n, dimension = draw(st.integers(1, 40)), draw(st.integers(1, 5))
    points = generator.normal(size=(n, dimension)) * draw(st.sampled_from(SCALES))
    kinds = draw(st.sampled_from([1, 2, 3, n]))
    if kinds < n:
        points = points[generator.integers(kinds, size=n)]
    capacity = 10 ** draw(st.integers(0, 15))
    masses = np.ceil(capacity * capacity ** -generator.random(n)).astype(np.int64)
    return points.astype(np.float32), np.minimum(masses, capacity), capacity


@given(clouds(), st.integers(0, 2**32 - 1))
def test_groups_fit_and_are_maximal(cloud: tuple[np.ndarray, np.ndarray, int], seed: int) -> None:
    """No group exceeds the capacity, and every merge, of two groups or of more, does."""
    points, masses, capacity = cloud
    before = points.copy(), masses.copy()

    tree = bisected(points, masses, capacity, rng(seed))

    n_groups = len(tree.merges) + 1
    mass = held(tree, masses)
    assert is_tree(tree)
    assert max(mass[:n_groups]) <= capacity
    assert all(units > capacity for units in mass[n_groups:])
    assert (points == before[0]).all()
    assert (masses == before[1]).all()


def test_one_point_is_one_group() -> None:
    tree = bisected(np.ones((1, 3), dtype=np.float32), np.array([5]), 5, rng())

    assert tree.groups.tolist() == [0]
    assert tree.merges.shape == (0, 2)


@pytest.mark.parametrize(("capacity", "n_groups"), [(2, 1), (1, 2)])
@pytest.mark.parametrize("other", [1.0, 2.0])
def test_two_points_are_one_group_or_two(capacity: int, n_groups: int, other: float) -> None:
    points = np.array([[1.0], [other]], dtype=np.float32)

    tree = bisected(points, np.array([1, 1]), capacity, rng())

    assert len(set(tree.groups.tolist())) == n_groups


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dimension", [1, 3, 64, 65])
def test_equal_points_are_halved(dimension: int, scale: float) -> None:
    """A thousand in parts of 8: seven halvings; a few more where rounding told some apart.

    Were they peeled off a few at a time, the tree of a million clients would never end.
    """
    point = (scale * rng(1).normal(size=(1, dimension))).astype(np.float32)

    tree = bisected(np.repeat(point, 1000, axis=0), np.ones(1000, dtype=int), 8, rng())

    assert depth(tree) <= 10
    assert np.bincount(tree.groups).min() >= 1


@pytest.mark.parametrize("scale", SCALES)
def test_kinds_that_fit_a_group_are_kept_together(scale: float) -> None:
    """Ten kinds of ten clients each, capacity ten: one group a kind."""
    kinds = rng(1).permutation(np.repeat(np.arange(10), 10))
    points = (scale * (np.eye(10)[kinds] + 0.01 * rng(2).normal(size=(100, 10)))).astype(np.float32)

    tree = bisected(points, np.ones(100, dtype=int), 10, rng())

    assert partition(tree.groups) == partition(kinds)


@pytest.mark.parametrize("shift", [-20.0, 0.0, 20.0])
def test_the_two_centres_part_the_points_halfway(shift: float) -> None:
    """0 and 1 against 10, 11 and 12, wherever the origin lies."""
    points = np.array([[0.0], [1.0], [10.0], [11.0], [12.0]], dtype=np.float32) + np.float32(shift)

    for seed in range(20):
        tree = bisected(points, np.ones(5, dtype=int), 3, rng(seed))

        assert partition(tree.groups) == {frozenset([0, 1]), frozenset([2, 3, 4])}


def test_heavy_points_decide_where_to_split() -> None:
    """On a line, 0 and 1 are heavy and 5 is light: the split by mass leaves 5 with 1."""
    points = np.array([[0.0], [1.0], [5.0]], dtype=np.float32)

    heavy = bisected(points, np.array([1000, 1000, 1]), 1001, rng())
    light = bisected(points, np.array([1, 1, 1]), 2, rng())

    assert partition(heavy.groups) == {frozenset([0]), frozenset([1, 2])}
    assert partition(light.groups) == {frozenset([0, 1]), frozenset([2])}


def test_centres_found_on_a_sample_serve_all_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "SAMPLE", 64)
    kinds = rng(1).integers(4, size=2000)
    points = (np.eye(4)[kinds] + 0.05 * rng(2).normal(size=(2000, 4))).astype(np.float32)

    tree = bisected(points, np.ones(2000, dtype=int), 600, rng())

    assert is_tree(tree)
    assert partition(tree.groups) == partition(kinds)


def test_the_same_generator_gives_the_same_tree() -> None:
    points = rng(1).normal(size=(200, 3)).astype(np.float32)
    masses = np.ones(200, dtype=int)

    tree, again = (bisected(points, masses, 9, rng(4)) for _ in range(2))

    assert (tree.groups == again.groups).all()
    assert (tree.merges == again.merges).all()


def test_the_order_of_the_clients_does_not_matter_to_the_quality() -> None:
    """Mean spread within the groups, 300 trees of one cloud in its order and in reverse.

    Two-sided z-test, false alarms 1e-6. The difference of the means has a deviation of .1 %: one
    of 1 % is seen.
    """
    points = dirichlet_updates(120, alpha=10, seed=3)
    points = points[np.argsort(points[:, 0])]
    masses = np.ones(120, dtype=int)

    def within(cloud: np.ndarray, seed: int) -> float:
        groups = bisected(cloud, masses, 12, rng(seed)).groups
        means = np.stack([cloud[groups == g].mean(axis=0) for g in range(groups.max() + 1)])
        return float(((cloud - means[groups]) ** 2).sum())

    forward = np.array([within(points, seed) for seed in range(300)])
    backward = np.array([within(points[::-1], seed) for seed in range(300, 600)])

    error = math.hypot(forward.std(), backward.std()) / math.sqrt(300)
    assert 0 < error <= 0.002 * forward.mean()
    assert abs(forward.mean() - backward.mean()) <= norm.isf(FALSE_ALARM / 2) * error


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kind", ["clusters", "Dir 0.1", "Dir 10"])
def test_the_variance_is_within_a_tenth_of_the_exact_trees(kind: str, seed: int) -> None:
    """2000 clients, 100 draws: at most 4 % above Ward's tree when this was written."""
    population = Population(unbalanced_sizes(2000, seed=seed))
    if kind == "clusters":
        updates = clustered_updates(2000, seed=seed)
    else:
        updates = dirichlet_updates(2000, alpha=float(kind.split()[1]), seed=seed)

    fast, exact = (
        TournamentDesign(population, 100, updates, tree=tree, rng=rng(seed)).aggregate_variance(
            updates
        )
        for tree in ("bisecting", "exact")
    )

    assert fast <= 1.1 * exact
    assert fast <= MultinomialDesign(population, 100).aggregate_variance(updates)
