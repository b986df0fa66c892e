"""The first to answer."""

import numpy as np
import pytest

from fedcohort import FirstResponders, Population, diagnostics
from fedcohort.designs import FirstRespondersDesign
from fedcohort.errors import DesignError
from fedcohort.testing import agree
from populations import rng


def test_by_hand_the_two_fastest_are_averaged() -> None:
    design = FirstRespondersDesign(Population([5, 3, 2]), 2, [9.0, 1.0, 4.0], rng=rng())

    cohort = design.draw(rng(1))

    assert cohort.clients.tolist() == [1, 2]
    assert cohort.weights.tolist() == [0.5, 0.5]
    assert cohort.residual == 0.0
    assert diagnostics.bias(design).tolist() == [-0.5, 0.2, 0.3]
    # (w - p) z = -0.5 * 2 + 0.2 * 10 + 0.3 * 0 = 1
    assert diagnostics.aggregate_variance(design, [[2.0], [10.0], [0.0]]) == pytest.approx(1.0)


def test_a_client_of_size_zero_does_not_count_however_fast() -> None:
    assert FirstRespondersDesign(
        Population([5, 0, 2]), 1, [9.0, 0.0, 4.0], rng=rng()
    ).chosen.tolist() == [2]


def test_where_fewer_answer_the_cohort_is_those() -> None:
    design = FirstRespondersDesign(Population([5, 3, 2]), 2, [np.nan, np.nan, 4.0], rng=rng())

    cohort = design.draw(rng())

    assert (cohort.clients.tolist(), cohort.weights.tolist()) == ([2], [1.0])


def test_where_nobody_answers_the_cohort_is_empty() -> None:
    design = FirstRespondersDesign(Population([5, 3, 2]), 2, [np.nan] * 3, rng=rng())

    cohort = design.draw(rng())

    assert len(cohort) == 0
    assert cohort.residual == 1.0
    assert design.draw_many(3, rng()).shape == (3, 3)
    assert diagnostics.bias(design).tolist() == [-0.5, -0.3, -0.2]


def test_of_equally_fast_clients_each_is_as_often_the_first() -> None:
    """Three at one second, 3000 seeds: a third each; false alarms 1e-6, seen from .05 on."""
    first = np.zeros(4)
    for seed in range(3000):
        design = FirstRespondersDesign(Population([1] * 4), 1, [1.0, 1.0, 2.0, 1.0], rng=rng(seed))
        first[design.chosen] += 1

    deviation = np.sqrt(3000 * 2 / 9) * np.array([1, 1, 0, 1])
    assert agree(first, np.array([1000.0, 1000.0, 0.0, 1000.0]), deviation)


@pytest.mark.parametrize(
    ("signals", "message"),
    [
        (None, r"FirstResponders: needs the signal 'duration', but it was not collected"),
        ({"duration": np.array([1.0, -3.0])}, r"at least 0; client 1 has -3.0"),
        ({"duration": np.ones(1)}, r"shape \(2,\); got float64 of shape \(1,\)"),
    ],
)
def test_durations_that_cannot_be_used_are_refused(signals: object, message: str) -> None:
    with pytest.raises(DesignError, match=message):
        FirstResponders(1).build(Population([1, 2]), signals=signals, rng=rng())  # type: ignore[arg-type]


def test_the_recipe_asks_all_clients_with_samples() -> None:
    request = FirstResponders(1).ask(Population([1, 0, 3]), 0, rng())

    assert request is not None
    assert (request.signal, request.clients.tolist()) == ("duration", [0, 2])
