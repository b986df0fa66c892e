"""FedCS: who is in time."""

from itertools import combinations

import numpy as np
import pytest

from fedcohort import Deadline, Population, diagnostics
from fedcohort.designs import DeadlineDesign
from fedcohort.errors import DesignError
from fedcohort.testing import agree
from populations import rng

DURATIONS = [9.0, 1.0, 4.0, 6.0, np.nan]


@pytest.mark.parametrize(
    ("deadline", "cohort_size", "chosen"),
    [(5.0, 3, [1, 2]), (4.0, 3, [1, 2]), (3.9, 3, [1]), (100.0, 2, [1, 2]), (np.inf, 3, [1, 2, 3])],
)
def test_by_hand_those_in_time_are_taken_the_fastest_first(
    deadline: float, cohort_size: int, chosen: list[int]
) -> None:
    population = Population([5, 3, 2, 2, 8])
    design = DeadlineDesign(population, cohort_size, DURATIONS, deadline=deadline, rng=rng())

    cohort = design.draw(rng())

    assert cohort.clients.tolist() == chosen
    assert cohort.weights.tolist() == [1 / len(chosen)] * len(chosen)


def test_where_nobody_is_in_time_the_cohort_is_empty() -> None:
    design = DeadlineDesign(Population([1] * 5), 2, DURATIONS, deadline=0.5, rng=rng())

    assert len(design.draw(rng())) == 0


@pytest.mark.parametrize("deadline", [0.0, -1.0, np.nan])
def test_a_deadline_that_is_not_positive_is_refused(deadline: float) -> None:
    with pytest.raises(DesignError, match=r"DeadlineDesign: deadline must be a number above 0"):
        DeadlineDesign(Population([1] * 5), 2, DURATIONS, deadline=deadline, rng=rng())


def test_three_candidates_are_asked_for_every_place_and_at_most_all() -> None:
    for n, asked in ((20, 6), (5, 5)):
        request = Deadline(2).ask(Population([1] * n), 0, rng())

        assert request.signal == "duration"
        assert len(set(request.clients.tolist())) == asked
        assert (np.diff(request.clients) > 0).all()


@pytest.mark.parametrize("candidates", [1, -1])
def test_fewer_candidates_than_places_are_refused(candidates: int) -> None:
    with pytest.raises(DesignError, match=r"candidates must be .* at least cohort_size, 2, or 0"):
        Deadline(2, candidates=candidates).ask(Population([1] * 5), 0, rng())


@pytest.mark.slow
def test_the_schemes_bias_is_that_of_all_sets_of_candidates() -> None:
    """Three of five asked, the fastest two in time averaged, enumerated over the ten sets.

    False alarms: 1e-6 over the clients, at 5,000 rounds; sees a bias that is .04 off.
    """
    population, deadline = Population([4, 3, 2, 1, 0, 2]), 6.0
    durations = np.array([9.0, 1.0, 4.0, 6.0, 0.5, 5.0])
    exact = -population.importance
    for asked in combinations([0, 1, 2, 3, 5], 3):
        in_time = sorted((i for i in asked if durations[i] <= deadline), key=durations.__getitem__)
        for i in in_time[:2]:
            exact[i] += 1 / len(in_time[:2]) / 10
    recipe = Deadline(2, candidates=3, deadline=deadline)

    found = diagnostics.estimated_bias(
        recipe, population, signals={"duration": durations}, rng=rng(), rounds=5_000
    )

    assert agree(found.values, exact, found.standard_errors)
    assert found.standard_errors.max() < 0.04 / 5.3
    assert exact[0] == -4 / 12
    assert exact[1] == pytest.approx(0.05)


def test_negative_durations_are_refused() -> None:
    with pytest.raises(DesignError, match=r"DeadlineDesign: .*client 0 has -1.0"):
        Deadline(1).build(Population([1]), signals={"duration": np.array([-1.0])}, rng=rng())
