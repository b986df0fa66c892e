"""Signals reach a recipe exactly for the clients that it asks; what is known of the past stays."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

import torch
from torch.nn.functional import cross_entropy

from fedcohort import Multinomial, Population, Recipe, SimilarityClustered, Uniform
from fedcohort.designs.signals import AskedSignal, Request, SignalName
from fedcohort.errors import SelectorError, SimulationError
from fedcohort.simulation import Devices, Run, Simulation
from fedcohort.simulation.engine.local_training import Lane, LocalTrainer
from fedcohort.simulation.engine.models import flat_parameters, make_model
from fedcohort.streams import Stream, stream
from scripted_recipes import Asking, Scripted
from simulation.federations import (
    TRAINING,
    UNEQUAL,
    assert_same,
    interrupt,
    made,
    resumed,
    small_mlp,
)
from simulation_twin import load, plain_update

DEVICES = Devices.generated(5, 7, jitter=0.3)
#: Losses and norms are float32 sums of at most 610 terms; sums in another order differ by less
#: than 610 roundings of 2^-24 on numbers of order 1.
ROUNDING = 610 * 2.0**-24


def simulation_of(*recipes: Recipe, devices: Devices | None = DEVICES) -> Simulation:
    return made(*(Run(recipe, UNEQUAL, devices=devices) for recipe in recipes))


def losses_by_hand(flat: np.ndarray, client: int) -> np.ndarray:
    model = make_model(small_mlp, seed=0).eval()
    load(model, torch.from_numpy(flat))
    part = UNEQUAL.train[client]
    x = torch.from_numpy(UNEQUAL.dataset.x[part].astype(np.float32)) / 16
    losses = cross_entropy(model(x), torch.from_numpy(UNEQUAL.dataset.y[part]), reduction="none")
    return losses.detach().double().numpy()


def test_signals_reach_a_recipe_exactly_for_the_asked_clients() -> None:
    """Each round's signal against one client after the other in plain PyTorch."""
    recipe = Asking(
        2,
        draws=((0, 1), (2, 4), (0,)),
        asks=(("update_norm", (0, 2, 4)), ("loss", (1, 2)), ("duration", (0, 4))),
    )
    simulation = simulation_of(recipe)
    models = []
    for _ in range(3):
        models.append(simulation.models[0])
        simulation.run(1)

    model = make_model(small_mlp, seed=0)
    norms = {
        client: plain_update(
            model, flat_parameters(model), Lane(0, 0, client, UNEQUAL.train[client]), TRAINING,
            UNEQUAL.dataset, 0,
        ).norm().item()
        for client in (0, 2, 4)
    }  # fmt: skip
    losses = {client: losses_by_hand(models[1], client).mean() for client in (1, 2)}
    delays = DEVICES.delays(0, 2)
    durations = {
        client: 2440 / DEVICES.down[client]
        + delays[client] * 18 / DEVICES.speed[client]
        + 2440 / DEVICES.up[client]
        for client in (0, 4)
    }
    expected = [("update_norm", norms), ("loss", losses), ("duration", durations)]
    for (name, values), told in zip(expected, recipe.told[-3:], strict=True):
        assert told is not None
        assert set(told) == {name, "past_loss", "past_duration", "past_round"}
        assert np.flatnonzero(~np.isnan(told[name])).tolist() == sorted(values)
        for client, value in values.items():
            assert told[name][client] == pytest.approx(value, rel=ROUNDING)


def test_the_past_is_what_drawn_clients_told() -> None:
    recipe = Asking(2, draws=((0, 1), (1, 2), (4,)))
    simulation = simulation_of(recipe)
    models = []
    for _ in range(3):
        models.append(simulation.models[0])
        simulation.run(1)

    first, second, third = recipe.told
    assert first is not None
    assert second is not None
    assert third is not None
    nan = np.nan
    for name in ("past_loss", "past_duration", "past_round"):
        assert np.isnan(first[name]).all()
    np.testing.assert_array_equal(second["past_round"], [0, 0, nan, nan, nan])
    np.testing.assert_array_equal(third["past_round"], [0, 1, 1, nan, nan])
    for client, round_ in ((0, 0), (1, 1), (2, 1)):
        root = np.sqrt((losses_by_hand(models[round_], client) ** 2).mean())
        assert third["past_loss"][client] == pytest.approx(root, rel=ROUNDING)
        work = DEVICES.delays(0, round_)[client] * 3 * min(6, len(UNEQUAL.train[client]))
        line = 2440 / DEVICES.down[client] + 2440 / DEVICES.up[client]
        took = line + work / DEVICES.speed[client]
        assert third["past_duration"][client] == pytest.approx(took, rel=10 * 2.0**-53)
    assert np.isnan(third["past_loss"][3:]).all()


def test_a_recipe_that_declares_nothing_is_told_nothing() -> None:
    recipe = Scripted(1)

    simulation_of(recipe).run(2)

    assert recipe.told == [None, None]


class Counting:
    """Counts how often each client trains."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trained: list[list[int]] = []
        original = LocalTrainer.updates

        def updates(trainer: LocalTrainer, models: Any, lanes: Any, round_: int) -> Any:
            self.trained.append([lane.client for lane in lanes])
            return original(trainer, models, lanes, round_)

        monkeypatch.setattr(LocalTrainer, "updates", updates)


def test_clients_that_trained_for_their_norm_do_not_train_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Client 4 was not asked, and trains after the draw; the model is that of a plain round."""
    counted = Counting(monkeypatch)
    draws = ((0, 2, 4),)
    asking = simulation_of(Asking(3, draws=draws, asks=(("update_norm", (0, 1, 2)),)))
    plain = simulation_of(Scripted(3, draws=draws))

    asking.run(1)

    assert counted.trained == [[0, 1, 2], [4]]
    plain.run(1)
    # Lanes that train together may be summed in another order.
    np.testing.assert_allclose(asking.models, plain.models, atol=ROUNDING)


def test_asked_and_plain_runs_train_together() -> None:
    """One asks for norms, one for losses, one for nothing: each as it would alone."""
    recipes = [
        Asking(2, draws=((0, 4), (1, 2)), asks=(("update_norm", (0, 1, 2, 4)),)),
        Asking(2, draws=((1, 4), (0, 2)), asks=(("loss", (1, 4)),)),
        Multinomial(2),
    ]
    together = simulation_of(*recipes)
    together.run(4)

    for k, recipe in enumerate(recipes):
        alone = simulation_of(recipe)
        alone.run(4)
        np.testing.assert_allclose(together.models[k], alone.models[0], rtol=1e-3, atol=1e-5)


@dataclass(frozen=True)
class Candidates(Scripted):
    """Asks two random clients for their loss, and draws the first of them."""

    signals: ClassVar[tuple[SignalName, ...]] = ("loss",)

    def ask(self, population: Population, round_: int, rng: np.random.Generator) -> Request | None:
        asked = np.sort(rng.choice(np.flatnonzero(population.sizes), size=2, replace=False))
        return Request("loss", asked)


def test_candidates_come_from_a_stream_of_their_own() -> None:
    """The same for every recipe on one seed and round, other in another round."""
    recipes = [Candidates(1), Candidates(1, draws=((4,),))]
    simulation_of(*recipes).run(6)

    asked = [
        [np.flatnonzero(~np.isnan(told["loss"])).tolist() for told in recipe.told[-6:] if told]
        for recipe in recipes
    ]
    twins = [
        np.sort(
            stream(0, round_=round_, use=Stream.CANDIDATES).choice([0, 1, 2, 4], 2, replace=False)
        ).tolist()
        for round_ in range(6)
    ]
    assert asked[0] == asked[1] == twins
    assert len({tuple(each) for each in twins}) > 1


def test_durations_are_the_same_for_all_designs() -> None:
    """Whoever is drawn how: a client's duration has the address (seed, round, client)."""
    everyone: tuple[tuple[AskedSignal, tuple[int, ...]], ...] = (("duration", (0, 1, 2, 4)),)
    recipes = [Asking(1, asks=everyone), Asking(3, draws=((1, 2, 4), (0,)), asks=everyone)]
    simulation_of(*recipes).run(3)

    for one, two in zip(recipes[0].told[-3:], recipes[1].told[-3:], strict=True):
        assert one is not None
        assert two is not None
        np.testing.assert_array_equal(one["duration"], two["duration"])
    first, second = (told["duration"] for told in recipes[0].told[-2:] if told)
    assert (first != second)[[0, 1, 2, 4]].all()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_resumed_run_knows_the_past_bit_for_bit(overlap: bool, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.state"
    devices = Devices.generated(5, 7, jitter=0.3, awake=0.25, day=5.0, speed=50.0)

    heard: list[list[Scripted]] = []

    def fresh() -> Simulation:
        recipes: list[Scripted] = [Asking(1, draws=((0,),)), Candidates(1)]
        runs = [
            Run(recipe, UNEQUAL, devices=replace(devices, availability=None)) for recipe in recipes
        ]
        runs += [Run(r, UNEQUAL, devices=devices) for r in (SimilarityClustered(3), Uniform(2))]
        runs += [Run(Multinomial(3), UNEQUAL, estimator="difference", devices=devices)]
        heard.append(recipes)
        return made(*runs, overlap=overlap, oracle_every=2)

    whole = fresh()
    whole.run(9)

    assert_same(resumed(fresh, path, stop=4, rounds=9), whole)
    for recipe, again in zip(heard[0], heard[-1], strict=True):
        for before, after in zip(recipe.told[-5:], again.told[-5:], strict=True):
            assert before is not None
            assert after is not None
            assert set(before) == set(after)
            for name, values in before.items():
                np.testing.assert_array_equal(values, after[name])
    # Somebody was away, and nobody was there: what is compared is not trivial.
    lengths = {len(each.clients) for each in whole.histories[2].rounds}
    assert 0 in lengths
    assert len(lengths) > 1


def test_an_interrupted_round_with_signals_can_be_played_again() -> None:
    recipe = Asking(2, draws=((0, 4), (1, 2)), asks=(("update_norm", (0, 1, 2, 4)),))
    whole, broken = simulation_of(recipe), simulation_of(recipe)
    whole.run(4)
    broken.run(2)

    interrupt(broken, run=0, rounds=2)
    broken.run(2)

    assert_same(broken, whole)


@pytest.mark.parametrize(
    "asked",
    [("loss", (1, 0)), ("loss", (1, 1)), ("loss", (0, 3)), ("loss", (5,)), ("speed", (0,))],
)
def test_a_request_for_clients_that_cannot_be_asked_is_refused(
    asked: tuple[AskedSignal, tuple[int, ...]],
) -> None:
    with pytest.raises(SelectorError, match=r"scripted: must ask for one of update_norm, loss"):
        simulation_of(Asking(1, asks=(asked,)))


def test_an_answer_that_is_not_finite_is_none_and_marks_the_run() -> None:
    """Training with this rate overflows in the first round."""
    recipe = Asking(1, draws=((4,),), asks=(("update_norm", (0, 1)),))
    runs = [Run(recipe, UNEQUAL), Run(Multinomial(2), UNEQUAL)]
    simulation = made(*runs, training=replace(TRAINING, lr=1e30))

    asking, plain = simulation.run(3)

    assert all(told is not None and np.isnan(told["update_norm"]).all() for told in recipe.told[1:])
    assert asking.diverged_at == plain.diverged_at == 0
    assert (simulation.models[0] == simulation.models[1]).all()
    assert [each.failed for each in asking.rounds] == [[4]] * 3


def test_the_next_design_of_an_asking_recipe_is_that_of_the_next_round() -> None:
    recipe = Asking(1, asks=(("update_norm", (0, 1)),))
    simulation = simulation_of(recipe)
    simulation.run(2)

    simulation.next_designs()

    simulation.run(1)
    before, after = recipe.told[-2:]
    assert before is not None
    assert after is not None
    for name, values in before.items():
        np.testing.assert_array_equal(values, after[name])


def test_a_checkpoint_of_other_devices_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.state"
    simulation_of(Multinomial(2)).run(1, checkpoint=path)
    simulation_of(Multinomial(2)).resume(path)

    for devices in (None, Devices.generated(5, 8, jitter=0.3), replace(DEVICES, jitter=0.2)):
        with pytest.raises(SimulationError, match="another simulation; runs differ"):
            simulation_of(Multinomial(2), devices=devices).resume(path)


def test_a_checkpoint_of_other_hours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.state"
    there = Devices.generated(5, 7, awake=0.5)
    simulation_of(Multinomial(2), devices=there).run(1, checkpoint=path)
    simulation_of(Multinomial(2), devices=there).resume(path)

    for changes in ({"awake": 0.6}, {"awake": 0.5, "day": 80_000.0}, {}):
        other = Devices.generated(5, 7, **changes)
        with pytest.raises(SimulationError, match="another simulation; runs differ"):
            simulation_of(Multinomial(2), devices=other).resume(path)


def test_devices_must_fit_the_clients() -> None:
    with pytest.raises(SimulationError, match="devices must be one per client, 5; got 4"):
        simulation_of(Multinomial(2), devices=Devices.equal(4))
