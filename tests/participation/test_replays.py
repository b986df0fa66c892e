"""Replays on given presences are what the simulator gives on the same ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedcohort import Multinomial, Recipe, SizeClustered, Uniform, audit
from fedcohort.errors import InputError
from fedcohort.participation.law import drawn_weights, law_of
from fedcohort.participation.replay import answers_if_asked, renormalised, replayed_weights
from fedcohort.participation.table import Entry, made
from participation.runs import run

ROUNDS = 12


@pytest.mark.parametrize("on_failure", ["keep", "redraw", "renormalise"])
@pytest.mark.parametrize("recipe", [Multinomial(5), SizeClustered(5), Uniform(5)])
def test_replays_equal_the_simulator(recipe: Recipe, on_failure: Any) -> None:
    pytest.importorskip("torch", reason="the extra 'sim' is not installed")
    from fedcohort.simulation import Run
    from simulation.federations import DIGITS
    from simulation.federations import made as simulation

    if on_failure == "redraw" and recipe.name == "uniform":
        pytest.skip("biased: it cannot replace draws")
    settings = Run(recipe, DIGITS, 7, failures=0.4, on_failure=on_failure)
    (history,) = simulation(settings).run(ROUNDS)
    n = DIGITS.n_clients
    answers = np.array([~settings.failing(round_) for round_ in range(ROUNDS)])
    entries = [
        Entry(each.round_, str(client), client not in each.failed, weight=0.1)
        for each in history.rounds
        for client in [*each.clients, *each.failed]
    ]
    own = made(
        "a simulation", "a table", entries, rounds=range(ROUNDS),
        ids=list(map(str, range(n))), sizes=DIGITS.population.sizes.astype(float),
    )  # fmt: skip

    weights, drawn = replayed_weights(own, recipe, on_failure=on_failure, answers=answers, seed=7)

    expected = np.zeros_like(weights)
    for each in history.rounds:
        expected[each.round_, each.clients] = each.weights
    assert (weights == expected).all()
    if on_failure == "keep":
        renormal, _ = replayed_weights(
            own, recipe, on_failure="renormalise", answers=answers, seed=7
        )
        assert renormalised(weights, drawn) == pytest.approx(renormal, abs=1e-15)


def test_what_the_log_shows_is_kept_and_the_rest_is_as_at_the_nearest_round() -> None:
    entries = [
        Entry(0, "a", answered=True), Entry(4, "a", answered=False), Entry(2, "b", answered=True),
    ]  # fmt: skip
    own = made("a log", "a table", entries, rounds=range(5), ids=["a", "b"])

    answers = answers_if_asked(own, np.random.default_rng(0))

    assert answers[[0, 1, 3, 4], 0].tolist() == [True, True, False, False]
    assert answers[:, 1].all()


def test_the_same_draws_with_another_rule() -> None:
    """Two equal clients; one fails in half of the rounds: it has 1/3 if kept, 1/4 if "
    "renormalised."""
    entries = [
        Entry(round_, client, answered=client == "a" or round_ % 2 == 0)
        for round_ in range(10)
        for client in "ab"
    ]
    found = audit(made("a log", "a table", entries), seed=0)
    by_name = {each.name: each for each in found.replays}

    assert by_name["same draws, keep"].bias.mean == pytest.approx(2 * (1 / 2 - 1 / 3))
    assert by_name["same draws, renormalise"].bias.mean == pytest.approx(2 * (1 / 2 - 1 / 4))
    assert by_name["same draws, keep"].kept.mean == pytest.approx(1 / 4)


def test_the_parts_of_the_bias_add_up() -> None:
    own = run(cohort_size=10, fault=lambda round_, client, rng: client == 3 and round_ > 20)
    bias = audit(own, replay=False).bias

    assert bias is not None
    assert bias.design + bias.absence + bias.luck + bias.dropouts == pytest.approx(bias.total)


def test_a_design_that_learns_cannot_be_replayed() -> None:
    from fedcohort import SimilarityClustered

    with pytest.raises(InputError, match="similarity cannot be replayed: it draws by what clients"):
        audit(run(n_rounds=5), designs=[SimilarityClustered(5)])


def test_weights_as_drawn_are_the_designs() -> None:
    own = run(n_clients=6, n_rounds=4, cohort_size=3, rate=0.0)
    law = law_of(own, Uniform(3))

    weights = drawn_weights(own, law)

    sizes = own.sizes
    assert sizes is not None
    assert weights == pytest.approx((sizes / sizes.sum())[own.client])
