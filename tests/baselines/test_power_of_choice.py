"""Power of choice: the largest losses among candidates."""

from itertools import permutations

import numpy as np
import pytest

from fedcohort import Population, PowerOfChoice, diagnostics
from fedcohort.designs import PowerOfChoiceDesign
from fedcohort.errors import DesignError
from fedcohort.testing import agree
from populations import rng


def test_by_hand_the_two_largest_losses_are_averaged() -> None:
    design = PowerOfChoiceDesign(Population([5, 3, 2, 2]), 2, [0.1, np.nan, 0.7, 0.4], rng=rng())

    cohort = design.draw(rng())

    assert (cohort.clients.tolist(), cohort.weights.tolist()) == ([2, 3], [0.5, 0.5])


def test_where_no_candidate_answers_the_cohort_is_empty() -> None:
    assert len(PowerOfChoiceDesign(Population([1, 1]), 1, [np.nan] * 2, rng=rng()).chosen) == 0


def successive(sizes: list[int], number: int) -> dict[tuple[int, ...], float]:
    """Draw one after the other, by size among those left: the chance of every order."""
    law = {}
    for order in permutations(range(len(sizes)), number):
        chance, left = 1.0, sum(sizes)
        for i in order:
            chance, left = chance * sizes[i] / left, left - sizes[i]
        law[order] = chance
    return law


def test_candidates_are_drawn_one_after_the_other_by_importance() -> None:
    """Pairs of four, 20,000 rounds; false alarms 1e-6. Sees a pair whose chance is .02 off."""
    sizes, rounds = [6, 3, 2, 1], 20_000
    generator, recipe, seen = rng(), PowerOfChoice(1, candidates=2), np.zeros((4, 4))
    for round_ in range(rounds):
        low, high = recipe.ask(Population(sizes), round_, generator).clients
        seen[low, high] += 1
    exact = np.zeros((4, 4))
    for (i, j), chance in successive(sizes, 2).items():
        exact[min(i, j), max(i, j)] += chance
    pairs = np.triu_indices(4, 1)

    deviation = np.sqrt(rounds * exact * (1 - exact))
    assert agree(seen[pairs], rounds * exact[pairs], deviation[pairs])


@pytest.mark.slow
def test_the_schemes_bias_is_that_of_all_candidates() -> None:
    """One of two candidates, exact by enumeration; false alarms 1e-6; sees .04."""
    sizes, losses = [6, 3, 2, 1], np.array([0.1, 0.4, 0.3, 0.9])
    population = Population(sizes)
    exact = -population.importance
    for order, chance in successive(sizes, 2).items():
        exact[max(order, key=losses.__getitem__)] += chance

    found = diagnostics.estimated_bias(
        PowerOfChoice(1, candidates=2),
        population,
        signals={"loss": losses},
        rng=rng(),
        rounds=5_000,
    )

    assert agree(found.values, exact, found.standard_errors)
    assert found.standard_errors.max() < 0.04 / 5.1
    assert exact[0] == pytest.approx(-0.5)
    assert exact[3] > 0.1


@pytest.mark.parametrize(
    ("signals", "message"),
    [
        (None, r"PowerOfChoice: needs the signal 'loss'"),
        ({"loss": np.array([1.0, -1.0])}, r"client 1 has -1.0"),
    ],
)
def test_losses_that_cannot_be_used_are_refused(signals: object, message: str) -> None:
    with pytest.raises(DesignError, match=message):
        PowerOfChoice(1).build(Population([1, 2]), signals=signals, rng=rng())  # type: ignore[arg-type]


def test_fewer_candidates_than_places_are_refused() -> None:
    with pytest.raises(DesignError, match=r"PowerOfChoice: candidates must be .*; got 2"):
        PowerOfChoice(3, candidates=2)
