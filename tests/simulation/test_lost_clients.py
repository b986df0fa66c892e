"""Clients that fail or diverge: what becomes of their weight, and that nobody else stops."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

import torch

from fedcohort import Multinomial, Recipe, Selector, SizeClustered, Uniform
from fedcohort.errors import SimulationError
from fedcohort.selector.settings import OnFailure
from fedcohort.simulation import Devices, History, Run, Simulation
from fedcohort.simulation.engine.local_training import LocalTrainer
from fedcohort.streams import Stream, stream
from simulation.federations import DIGITS, TRAINING, assert_same, made, resumed

N = DIGITS.n_clients
#: Bytes of a model.
MODEL = 4 * 610


def played(recipe: Recipe, rounds: int = 8, **settings: Any) -> History:
    (history,) = made(Run(recipe, DIGITS, 7, **settings)).run(rounds)
    return history


def failing(round_: int, chances: Any) -> np.ndarray:
    """Say by hand who fails in a round of seed 7."""
    return np.asarray(stream(7, round_=round_, use=Stream.FAILURES).random(N) < chances)


def test_without_chances_nobody_fails() -> None:
    never, none = played(Multinomial(4), failures=0.0), played(Multinomial(4))

    assert never.as_dicts(times=False) == none.as_dicts(times=False)
    assert all(each.failed == [] for each in none.rounds)


def test_a_round_in_which_everyone_fails_has_not_diverged() -> None:
    history = played(Multinomial(4), failures=1.0)

    assert all(each.failed and not each.clients for each in history.rounds)
    assert history.diverged_at is None


def test_who_fails_has_a_stream_of_its_own() -> None:
    """Half of the clients never fail; the others often: the same ones whatever the design."""
    chances = np.where(np.arange(N) < 15, 0.0, 0.7)
    histories = [played(recipe, failures=chances) for recipe in (Multinomial(6), SizeClustered(6))]

    for history, recipe in zip(histories, (Multinomial(6), SizeClustered(6)), strict=True):
        selector = Selector(recipe, DIGITS.population, seed=7)
        for each in history.rounds:
            drawn, fails = selector.draw(), failing(each.round_, chances)
            assert each.failed == [i for i in drawn.clients.tolist() if fails[i]]
            assert each.clients == [i for i in drawn.clients.tolist() if not fails[i]]
            selector.skip()
    assert sum(len(each.failed) for each in histories[0].rounds) > 5


@pytest.mark.parametrize("on_failure", ["keep", "redraw", "renormalise"])
def test_weights_are_those_of_a_selector_with_the_same_losses(on_failure: OnFailure) -> None:
    history = played(SizeClustered(5), rounds=12, failures=0.5, on_failure=on_failure, tries=3)

    selector = Selector(SizeClustered(5), [30] * N, seed=7, on_failure=on_failure, tries=3)
    for each in history.rounds:
        selector.draw()
        fails = failing(each.round_, 0.5)
        while selector.redraw([i for i in selector.asked if fails[i]]):
            pass
        settled = selector.settle([i for i in selector.asked if not fails[i]])
        assert each.clients == settled.clients.tolist()
        assert each.weights == settled.weights.tolist()
        assert each.residual == settled.residual
        selector.skip()
    sums = {sum(each.weights) for each in history.rounds}
    assert (sums == {1.0}) is (on_failure == "renormalise")


def test_with_extra_draws_the_fastest_count() -> None:
    devices = Devices.generated(N, 3)
    history = played(SizeClustered(4), extra=3, devices=devices)

    selector = Selector(SizeClustered(7), [30] * N, seed=7)
    samples = 3 * 6
    seconds = MODEL / devices.down + samples / devices.speed + MODEL / devices.up
    for each in history.rounds:
        drawn = selector.draw()
        order = sorted(drawn.clients.tolist(), key=seconds.__getitem__)
        assert each.clients == sorted(order[: len(each.clients)])
        assert sum(each.counts) >= 4 > sum(each.counts) - each.counts[0]
        assert each.residual == 0.0
        selector.skip()


def test_a_client_that_fails_costs_the_model_and_no_time() -> None:
    """Whoever answers takes the same time; the others get the model and send nothing."""
    history = played(Uniform(10), failures=0.5)

    for each in history.rounds:
        assert each.cost is not None
        assert each.cost.contacted == len(each.clients) + len(each.failed) == 10
        assert each.cost.bytes_down == 10 * MODEL
        assert each.cost.bytes_up == len(each.clients) * MODEL
        assert each.cost.client_seconds == pytest.approx(len(each.clients) * 0.018)


def test_a_resumed_run_loses_the_same_clients(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"

    def fresh(**changes: Any) -> Simulation:
        settings: dict[str, Any] = {"failures": 0.4, "on_failure": "redraw", "tries": 4} | changes
        kept = settings | {"on_failure": "keep"}  # the difference estimator refuses redraws
        return made(
            Run(Multinomial(4), DIGITS, 7, **settings),
            Run(Multinomial(4), DIGITS, 7, estimator="difference", **kept),
        )

    whole = fresh()
    whole.run(7)

    assert_same(resumed(fresh, path, stop=3, rounds=7), whole)
    for changes in ({"failures": 0.5}, {"tries": 5}, {"on_failure": "keep"}, {"failures": None}):
        with pytest.raises(SimulationError, match="another simulation; runs differ"):
            fresh(**changes).resume(path)


@pytest.mark.parametrize("failures", [-0.1, 1.1, math.nan, [0.1, 0.2], [[0.1] * N]])
def test_chances_that_are_none_are_refused(failures: Any) -> None:
    with pytest.raises(SimulationError, match="Run: failures must be a chance from 0 to 1"):
        Run(Multinomial(4), DIGITS, failures=failures)


def test_a_rule_that_is_none_is_refused() -> None:
    with pytest.raises(SimulationError, match=r"^Run: extra must be 0 with on_failure='redraw'"):
        Run(Multinomial(4), DIGITS, on_failure="redraw", extra=2)


def poisoned(monkeypatch: pytest.MonkeyPatch, run: int, client: int, from_round: int) -> None:
    """Let one client of one run train to NaN from a round on."""
    original = LocalTrainer.updates

    def updates(trainer: LocalTrainer, models: Any, lanes: Any, round_: int) -> torch.Tensor:
        found = original(trainer, models, lanes, round_)
        for k, lane in enumerate(lanes):
            if (lane.model, lane.client) == (run, client) and round_ >= from_round:
                found[k, 3] = math.nan
        return found

    monkeypatch.setattr(LocalTrainer, "updates", updates)


def test_a_client_that_diverges_counts_as_failed_and_stops_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Client 5 of the first run, from round 3 on; the second run goes on as it would alone."""
    runs = [Run(Multinomial(8), DIGITS, 7), Run(SizeClustered(8), DIGITS, 7)]
    before, alone = made(*runs).run(9)
    drawn = [each.round_ for each in before.rounds if 5 in each.clients and each.round_ >= 3]
    poisoned(monkeypatch, run=0, client=5, from_round=3)
    simulation = made(*runs)

    bad, good = simulation.run(9)

    np.testing.assert_equal(good.as_dicts(times=False), alone.as_dicts(times=False))
    assert bad.diverged_at is None
    assert [each.round_ for each in bad.rounds if each.failed == [5]] == drawn
    for each, whole in zip(bad.rounds, before.rounds, strict=True):
        lost = [w for client, w in zip(whole.clients, whole.weights, strict=True) if client == 5]
        assert each.residual == (sum(lost) if each.round_ in drawn else 0.0)
    assert np.isfinite(simulation.models).all()


def test_a_round_of_which_no_update_is_finite_marks_the_run_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One draw a round: there is no other client in the round of the poisoned one."""
    run = Run(Multinomial(1), DIGITS, 7)
    (before,) = made(run).run(6)
    clients = [client for each in before.rounds for client in each.clients]
    poisoned(monkeypatch, run=0, client=clients[3], from_round=0)
    first = clients.index(clients[3])

    (history,) = made(run).run(6)

    assert history.diverged_at == first
    assert [each.round_ for each in history.rounds if each.diverged] == list(range(first, 6))


def test_a_client_that_only_the_oracle_trains_stops_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = [Run(Uniform(2), DIGITS, 7), Run(SizeClustered(4), DIGITS, 7)]
    before, alone = made(*runs, oracle_every=2).run(4)
    idle = next(i for i in range(30) if not any(i in each.clients for each in before.rounds))
    poisoned(monkeypatch, run=0, client=idle, from_round=2)

    bad, good = made(*runs, oracle_every=2).run(4)

    np.testing.assert_equal(good.as_dicts(times=False), alone.as_dicts(times=False))
    assert bad.diverged_at is None
    assert [each.clients for each in bad.rounds] == [each.clients for each in before.rounds]
    stick = bad.rounds[2].yardstick
    assert stick is not None
    assert not stick.is_finite
    assert bad.rounds[0].yardstick == before.rounds[0].yardstick


def test_a_model_that_would_leave_the_floats_stays_where_it_is() -> None:
    run, training = Run(Multinomial(4), DIGITS, 7), replace(TRAINING, lr=1e3)
    simulation = made(run, training=training, server_lr=1e38)

    (history,) = simulation.run(2)

    assert history.diverged_at is not None
    assert np.isfinite(simulation.models).all()


def huge(monkeypatch: pytest.MonkeyPatch, client: int) -> None:
    """Let one client of all runs train to a huge, finite update from round 1 on."""
    original = LocalTrainer.updates

    def updates(trainer: LocalTrainer, models: Any, lanes: Any, round_: int) -> torch.Tensor:
        found = original(trainer, models, lanes, round_)
        for k, lane in enumerate(lanes):
            if lane.client == client and round_ >= 1:
                found[k] *= 1e6
        return found

    monkeypatch.setattr(LocalTrainer, "updates", updates)


@pytest.mark.parametrize("estimator", ["plain", "difference"])
@pytest.mark.parametrize("bound", [1.0, "auto"])
def test_a_huge_update_does_not_destroy_a_model_with_a_bound(
    bound: Any, estimator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client 5 is drawn in several rounds; run 0 has no bound, run 1 has."""
    given: dict[str, Any] = {"estimator": estimator}
    runs = [Run(Multinomial(8), DIGITS, 7, **given, max_norm=each) for each in (None, bound)]
    (usual, _) = made(*runs).run(12)
    huge(monkeypatch, 5)
    simulation = made(*runs)

    free, bounded = simulation.run(12)

    drawn = [each.round_ for each in free.rounds if 5 in each.clients and each.round_ >= 1]
    assert len(drawn) > 1
    assert all(5 in bounded.rounds[round_].scaled for round_ in drawn)
    assert not any(each.scaled for each in free.rounds)
    last = [history.last_quality for history in (usual, free, bounded)]
    losses = [quality.loss for quality in last if quality is not None]
    assert losses[1] > 100 * losses[0]
    assert losses[2] < 2 * losses[0]
    assert "scaled_clients" in bounded._repr_html_()
    assert "scaled_clients" not in free._repr_html_()
    assert bounded.to_frame()["scaled_clients"].sum() >= len(drawn)


def test_the_yardstick_is_that_of_the_scaled_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """All updates are longer than the bound: a factor for all of them changes no number."""
    bound = 1e-3
    run = Run(Multinomial(8), DIGITS, 7, max_norm=bound)
    original = LocalTrainer.updates
    sticks = {}
    for factor in (1.0, 64.0):

        def updates(*facts: Any, factor: float = factor) -> torch.Tensor:
            found = original(*facts)
            assert (found.norm(dim=1) > bound).all()
            return factor * found

        monkeypatch.setattr(LocalTrainer, "updates", updates)
        (history,) = made(run, oracle_every=1, floor_clients=4).run(1)
        sticks[factor] = history.rounds[0].yardstick

    stick = sticks[1.0]
    assert stick is not None
    assert stick == sticks[64.0]
    assert 0 < stick.squared_error < 4 * bound**2
    assert 0 < stick.design_variance == stick.multinomial_variance < 4 * bound**2
    assert 0 < stick.design_floor < 4 * bound**2


def test_a_run_with_a_bound_goes_on_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    huge(monkeypatch, 5)
    run = Run(Multinomial(8), DIGITS, 7, estimator="difference", max_norm="auto")
    whole = made(run)
    whole.run(16)

    again = resumed(lambda: made(run), tmp_path / "checkpoint", stop=3, rounds=16)

    assert_same(again, whole)
    assert any(each.scaled for each in again.histories[0].rounds[3:])
