"""Rounds over the clients that are there: never another one, and never a hang."""

import logging
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort import (
    Balanced,
    Difference,
    Multinomial,
    Poisson,
    Population,
    Recipe,
    SimilarityClustered,
    SizeClustered,
    Target,
    Tournament,
    Uniform,
)
from fedcohort.designs import Knowledge, UniformDesign
from fedcohort.designs.signals import Request
from fedcohort.errors import DesignError, SelectorError, SimulationError
from fedcohort.simulation import (
    Devices,
    FederatedData,
    Intervals,
    LocalTraining,
    Run,
    Simulation,
)
from fedcohort.simulation.devices.cost import Clock
from fedcohort.streams import Stream, stream
from scripted_recipes import Asking
from simulation.federations import assert_same, made, shards

DATA = shards(1, 20, 5)
N = DATA.n_clients
TRAINING = LocalTraining(steps=2, batch_size=5, lr=0.1)
#: A round takes 1.02 seconds or so: 10 samples at 10 a second.
SLOW = Devices.equal(N, speed=10.0)


def devices_of(*intervals: tuple[int, float, float]) -> Devices:
    client, start, end = (np.array(column) for column in zip(*intervals, strict=True))
    return replace(SLOW, availability=Intervals(client, start, end))


def simulation_of(
    *recipes: Recipe, devices: Devices | None, data: FederatedData = DATA, **options: Any
) -> Simulation:
    estimator = options.pop("estimator", "plain")
    runs = [Run(recipe, data, 0, devices, estimator=estimator) for recipe in recipes]
    return made(*runs, training=TRAINING, **options)


RECIPES: list[Recipe] = [
    Multinomial(4),
    SizeClustered(4),
    SimilarityClustered(4),
    Tournament(4),
    Balanced(4),
    Poisson(4),
    Uniform(4),
    Uniform(4, unbiased=True),
    Target(4),
]


@pytest.mark.parametrize("estimator", ["plain", "difference", Difference(keep="rank", rank=2)])
def test_only_clients_that_are_there_are_drawn(estimator: Any) -> None:
    """Each client is there for half a day of four seconds; 16 rounds are four days."""
    devices = Devices.generated(N, 1, speed=10.0, awake=0.5, day=4.0)
    simulation = simulation_of(*RECIPES, devices=devices, estimator=estimator, oracle_every=4)

    for history in simulation.run(16):
        now, seen = 0.0, set()
        for each in history.rounds:
            assert each.cost is not None
            assert devices.available(now)[each.clients].all()
            now += each.cost.simulated_seconds
            seen |= set(each.clients)
        assert len(seen) > N // 2


def test_the_design_is_that_of_the_recipe_over_the_available() -> None:
    """Clients 0 to 4 first, 3 to 9 later; its ties are those of round 0."""
    early = [(client, 0.0, 2.0) for client in range(5)]
    late = [(client, 2.0, 99.0) for client in range(3, N)]

    (history,) = simulation_of(SizeClustered(3), devices=devices_of(*early, *late)).run(6)

    now = 0.0
    for each in history.rounds:
        here = np.arange(N) < 5 if now < 2 else np.arange(N) >= 3
        population = DATA.population.restricted(here)
        design = SizeClustered(3).build(population, rng=stream(0, use=Stream.TIES))
        cohort = design.draw(stream(0, round_=each.round_, use=Stream.COHORT))
        assert each.clients == cohort.clients.tolist()
        assert each.weights == cohort.weights.tolist()
        assert each.cost is not None
        now += each.cost.simulated_seconds


def test_too_few_for_a_design_without_replacement_give_a_smaller_cohort(
    caplog: pytest.LogCaptureFixture,
) -> None:
    devices = devices_of((1, 0.0, 99.0), (2, 0.0, 99.0))
    recipes = [Uniform(4), Poisson(4), Multinomial(4)]

    with caplog.at_level(logging.INFO):
        uniform, poisson, multinomial = simulation_of(*recipes, devices=devices).run(2)

    for history in (uniform, poisson):
        assert [each.clients for each in history.rounds] == [[1, 2], [1, 2]]
        assert [each.weights for each in history.rounds] == [[0.5, 0.5]] * 2
    # With replacement four can be drawn of two.
    assert [sum(each.counts) for each in multinomial.rounds] == [4, 4]
    assert caplog.text.count("uniform: draws all 2 available clients, not 4") == 1
    assert "multinomial: draws" not in caplog.text


def test_too_large_a_cohort_is_refused_where_nobody_is_ever_away() -> None:
    with pytest.raises(DesignError, match="cohort_size must be at most the 10 clients"):
        simulation_of(Uniform(N + 1), devices=SLOW).run(1)


@pytest.mark.parametrize("estimator", ["plain", "difference"])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_round_without_anybody_passes(estimator: Any, overlap: bool) -> None:
    """Everybody is there in the first second and after 50; the model stays in between."""
    intervals = [(client, *span) for client in range(N) for span in ((0.0, 1.0), (50.0, 99.0))]
    recipes = [SimilarityClustered(3), Multinomial(3)]
    simulation = simulation_of(
        *recipes,
        devices=devices_of(*intervals),
        estimator=estimator,
        overlap=overlap,
        oracle_every=1,
        rows_every=1,
    )
    models = [simulation.models]
    for _ in range(4):
        simulation.run(1)
        models.append(simulation.models)

    moved = [bool((before != after).any()) for before, after in pairwise(models)]
    assert moved == [True, False, True, True]
    for history in simulation.histories:
        idle = history.rounds[1]
        assert (idle.clients, idle.weights, idle.residual) == ([], [], 1.0)
        assert idle.yardstick is None
        assert idle.rows is None
        assert idle.cost is not None
        first = history.rounds[0].cost
        assert first is not None
        assert first.simulated_seconds + idle.cost.simulated_seconds == pytest.approx(50.0)
        assert history.rounds[2].yardstick is not None


def test_only_those_who_are_there_can_be_asked() -> None:
    """By default all who are there are."""

    class AsksAll(Asking):
        def ask(self, population: Any, round_: int, rng: np.random.Generator) -> Request | None:
            return Request("loss", np.flatnonzero(population.sizes))

    recipe = AsksAll(1, draws=((2,),))
    devices = devices_of((1, 0.0, 99.0), (2, 0.0, 99.0))
    simulation_of(recipe, devices=devices).run(1)
    stranger = Asking(1, asks=(("loss", (0, 1)),))

    told = recipe.told[-1]
    assert told is not None
    assert np.flatnonzero(~np.isnan(told["loss"])).tolist() == [1, 2]
    with pytest.raises(SelectorError, match="clients that are available and have samples"):
        simulation_of(stranger, devices=devices).run(1)


def test_the_yardstick_is_full_participation_of_those_who_are_there() -> None:
    """All who are there are drawn: the cohort's aggregate is that of all of them."""
    devices = devices_of((1, 0.0, 99.0), (2, 0.0, 99.0), (7, 0.0, 99.0))

    (history,) = simulation_of(Uniform(3), devices=devices, oracle_every=1).run(1)

    stick = history.rounds[0].yardstick
    assert stick is not None
    # Squares of float32 roundings of updates of order 1.
    assert stick.squared_error < 610 * 2.0**-48
    assert stick.multinomial_variance > 1e-6


@pytest.mark.parametrize(
    "estimator", ["difference", Difference(0.5), Difference(keep="rank", rank=2)]
)
def test_what_is_remembered_of_absent_clients_is_left_out(estimator: Any) -> None:
    """All are drawn, then all of the three who are left: again the aggregate of full participation.

    What is remembered of the others would move the model otherwise.
    """
    intervals = [(client, 0.0, 99.0 if client in (1, 2, 7) else 1.0) for client in range(N)]
    recipe = Uniform(N, unbiased=True)

    (history,) = simulation_of(
        recipe, devices=devices_of(*intervals), estimator=estimator, oracle_every=1
    ).run(3)

    assert [each.distinct_clients for each in history.rounds] == [N, 3, 3]
    for each in history.rounds:
        assert each.yardstick is not None
        # Squares of float32 roundings of updates of order 1, a few for each of 10 clients.
        assert each.yardstick.squared_error < 100 * 610 * 2.0**-48
        assert each.yardstick.multinomial_variance > 1e-6


@dataclass(frozen=True)
class Picky(Uniform):  # type: ignore[misc]
    """Refuses cohorts of fewer than three."""

    name: ClassVar[str] = "picky"

    def design(self, population: Population, known: Knowledge) -> UniformDesign:
        if self.cohort_size < 3:
            raise DesignError("too few draws for its taste")
        return UniformDesign(population, self.cohort_size)


def test_a_cohort_that_is_refused_for_another_reason_is_not_changed() -> None:
    devices = devices_of(*((client, 0.0, 99.0) for client in range(5)))

    with pytest.raises(DesignError, match="too few draws for its taste"):
        simulation_of(Picky(2), devices=devices).run(1)


def test_nobody_with_samples_ever_there_is_refused() -> None:
    data = replace(DATA, train=(np.empty(0, dtype=int), *DATA.train[1:]))

    with pytest.raises(SimulationError, match="at least one client with samples be available"):
        simulation_of(Multinomial(2), devices=devices_of((0, 0.0, 9.0)), data=data)


def test_always_there_is_as_without_availability_but_for_the_object() -> None:
    """Intervals that hold everybody for ever change nothing."""
    always = devices_of(*((client, 0.0, np.inf) for client in range(N)))
    recipes = [SimilarityClustered(4), SizeClustered(4), Uniform(4)]

    first, second = (simulation_of(*recipes, devices=devices) for devices in (always, SLOW))
    first.run(4)
    second.run(4)

    assert_same(first, second)


def test_somebody_who_comes_for_half_a_second_is_met() -> None:
    """An idle round takes until somebody comes, not longer."""
    waits = []
    for devices in (devices_of((0, 0.5, 1.0)), SLOW):
        clock = Clock(devices, DATA.population, TRAINING, n_parameters=1, seed=0)
        waits.append(clock.idle().simulated_seconds)

    assert waits[0] == 0.5
    assert waits[1] > 0
