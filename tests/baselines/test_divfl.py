"""Greedy facility location."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcohort import DivFL, Population, diagnostics
from fedcohort.designs import DivFLDesign
from fedcohort.errors import DesignError
from fedcohort.testing import agree
from populations import rng


def test_by_hand_each_cluster_has_its_own() -> None:
    """On a line: 0, 1, 2 | 10, 11 with sizes 1, 1, 1, 2, 1, total 6.

    One place: costs 22, 18, 16, 18, 22 at 0, 1, 2, 10, 11 (sum of size * distance). First is 2;
    then 10 leaves 2 + 1 + 1 = 4, 11 leaves 3 + 2 = 5, 0 leaves 1 + 16 + 9 = 26. Behind 2 stand
    0, 1, 2 (3/6), behind 10 the others (3/6).
    """
    population = Population([1, 1, 1, 2, 1])
    design = DivFLDesign(population, 2, [[0.0], [1.0], [2.0], [10.0], [11.0]], rng=rng())

    cohort = design.draw(rng())

    assert cohort.clients.tolist() == [2, 3]
    assert cohort.weights.tolist() == [0.5, 0.5]
    assert cohort.residual == 0.0
    np.testing.assert_allclose(diagnostics.bias(design), [-1 / 6, -1 / 6, 1 / 3, 1 / 6, -1 / 6])
    # The aggregate is 6, full participation's 34 / 6: the bias squared.
    v = diagnostics.aggregate_variance(design, [[0.0], [1.0], [2.0], [10.0], [11.0]])
    assert v == pytest.approx((6 - 34 / 6) ** 2)


def plain_greedy(points: np.ndarray, sizes: np.ndarray, number: int) -> list[float]:
    """Return the cost after every step of the plain algorithm."""
    distances = np.linalg.norm(points[:, None] - points[None, :], axis=2)
    chosen: list[int] = []
    costs = []
    for _ in range(number):
        trials = {
            i: float(sizes @ distances[[*chosen, i]].min(axis=0))
            for i in np.flatnonzero(sizes).tolist()
            if i not in chosen
        }
        chosen.append(min(trials, key=trials.__getitem__))
        costs.append(trials[chosen[-1]])
    return costs


@given(st.integers(2, 25), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_the_lazy_choice_costs_what_the_plain_one_does(n: int, m: int, seed: int) -> None:
    """Points in general position: no ties but by clients of size 0, which have no say."""
    generator = rng(seed)
    points, sizes = generator.standard_normal((n, 3)), generator.integers(1, 9, size=n)
    sizes[generator.random(n) < 0.2] = 0
    sizes[0] = 1
    m = min(m, int(np.count_nonzero(sizes)))

    design = DivFLDesign(Population(sizes), m, points, rng=generator)

    distances = np.linalg.norm(points[:, None] - points[None, :], axis=2)
    cost = float(sizes @ distances[design.chosen].min(axis=0))
    assert cost == pytest.approx(plain_greedy(points, sizes, m)[-1], rel=1e-9, abs=1e-9)
    nearest = distances[design.chosen].argmin(axis=0)
    held = np.bincount(nearest, weights=sizes, minlength=m) / sizes.sum()
    np.testing.assert_allclose(design.weight_per_draw()[design.chosen], held, rtol=1e-15)


def test_the_error_is_at_most_the_mean_distance() -> None:
    points = rng().standard_normal((40, 6))
    design = DivFLDesign(Population([1] * 40), 8, points, rng=rng())

    error = np.sqrt(diagnostics.aggregate_variance(design, points))

    distances = np.linalg.norm(points[:, None] - points[None, :], axis=2)
    assert 0 < error <= distances[design.chosen].min(axis=0).mean()


def test_before_the_first_update_anyone_is_chosen_and_the_rest_stand_behind_anyone() -> None:
    """Five equal clients, two of them, 3000 seeds; false alarms 1e-6 each; sees .05.

    Each of the three others is behind either: all behind one in a quarter of the cases.
    """
    seen, lopsided = np.zeros(5), 0
    for seed in range(3000):
        design = DivFL(2).build(Population([1] * 5), rng=rng(seed))
        seen += design.expected_counts()
        weights = sorted(design.weight_per_draw()[design.weight_per_draw() > 0].tolist())
        assert weights in ([0.2, 0.8], [0.4, 0.6])
        lopsided += weights == [0.2, 0.8]

    assert agree(seen, np.full(5, 1200.0), np.full(5, np.sqrt(3000 * 0.24)))
    assert agree(np.array([float(lopsided)]), np.array([750.0]), np.sqrt([3000 * 3 / 16]))


def test_a_chosen_client_stands_for_itself_among_its_equals() -> None:
    design = DivFLDesign(Population([1] * 5), 5, np.zeros((5, 2)), rng=rng())

    assert design.weight_per_draw().tolist() == [0.2] * 5


def test_too_many_clients_are_refused() -> None:
    population = Population(np.ones(20_001, dtype=int))

    with pytest.raises(DesignError, match=r"DivFLDesign: .* at most 20000 clients; got 20001"):
        DivFLDesign(population, 2, np.zeros((20_001, 1)), rng=rng())


def test_updates_that_are_not_finite_are_refused() -> None:
    with pytest.raises(DesignError, match="DivFLDesign: updates must be finite"):
        DivFLDesign(Population([1, 1]), 1, [[np.nan], [0.0]], rng=rng())
