"""Runs with the difference estimator: against the pseudo-code, resumed, and against plain ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

import torch

from difference_twin import PlainLowRank, PlainUpdates
from fedcohort import (
    MIFA,
    Auto,
    Difference,
    FedStale,
    Multinomial,
    Poisson,
    Population,
    Recipe,
    SimilarityClustered,
    SizeClustered,
    Tournament,
    Uniform,
    UpdateMemory,
)
from fedcohort.designs import MultinomialDesign
from fedcohort.errors import SimulationError
from fedcohort.memory import Keep
from fedcohort.optimizers import SGD
from fedcohort.simulation import FederatedData, LocalTraining, Options, Run, Simulation
from fedcohort.simulation.engine import evaluation
from fedcohort.simulation.engine.evaluation import Gradients, yardstick
from fedcohort.simulation.engine.local_training import Lane
from fedcohort.simulation.engine.models import flat_parameters, make_model
from fedcohort.streams import Stream, stream
from populations import rng
from simulation.federations import (
    TRAINING,
    UNEQUAL,
    assert_same,
    interrupt,
    made,
    resumed,
    shards,
    small_mlp,
)
from simulation_twin import plain_update

DIGITS = shards(2, [10, 40], 8).renumbered(rng())
Estimator = Any


def all_updates(
    theta: torch.Tensor, data: FederatedData, round_: int, clients: Any = None
) -> np.ndarray:
    """Train all clients or these from a model, one after the other; shape (n_clients, size)."""
    model = make_model(small_mlp, seed=0)
    updates = np.zeros((data.n_clients, len(theta)))
    for client, samples in enumerate(data.train):
        if len(samples) and (clients is None or client in clients):
            lane = Lane(0, 0, client, samples)
            updates[client] = plain_update(
                model, theta, lane, TRAINING, data.dataset, round_
            ).numpy()
    return updates


def plain_rounds(
    recipe: Recipe,
    data: FederatedData,
    settings: Difference,
    rounds: int,
    *,
    server_lr: float = 1.0,
    delay: int = 0,
) -> tuple[list[torch.Tensor], np.ndarray]:
    """Return the pseudo-code's model after every round, and h after the last but one.

    v is written out over all clients; with ``delay`` designs know all but the last rounds' updates.
    """
    theta = flat_parameters(make_model(small_mlp, seed=0))
    n, size, p = data.n_clients, len(theta), data.population.importance
    twin = (
        PlainLowRank(n, size, settings.rank) if settings.keep == "rank" else PlainUpdates(n, size)
    )
    known = [np.zeros((n, size))]
    models, h = [], np.zeros((n, size))
    for round_ in range(rounds):
        address = round_ if recipe.learns else 0
        memory = UpdateMemory.of(known[max(0, round_ - delay)])
        ties = stream(0, round_=address, use=Stream.TIES)
        design = recipe.build(data.population, memory=memory, round_=round_, rng=ties)
        cohort = design.draw(stream(0, round_=round_, use=Stream.COHORT))
        updates = all_updates(theta, data, round_, cohort.clients)
        h = settings.shrink * twin.h()
        v = np.zeros(size)
        weights = p[cohort.clients] if settings.weights == "importance" else cohort.weights
        for client, weight in zip(cohort.clients, weights, strict=True):
            v += weight * (updates[client] - h[client])
        for client in range(n):
            v += p[client] * h[client]
        theta = (theta.double() + server_lr * torch.from_numpy(v)).float()
        models.append(theta)
        twin.record(cohort.clients, updates[cohort.clients])
        latest = known[-1].copy()
        latest[cohort.clients] = updates[cohort.clients]
        known.append(latest)
    return models, h


def assert_near(simulation: Simulation, plain: torch.Tensor) -> None:
    """As near as plain aggregation comes to its own twin."""
    torch.testing.assert_close(torch.from_numpy(simulation.models[0]), plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        Difference(),
        FedStale(),
        MIFA(),
        Difference(keep="rank", rank=2),
        Difference(0.7, keep="rank"),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "recipe",
    [Multinomial(3), SizeClustered(4), Uniform(2, unbiased=True), Uniform(2), Poisson(2)],
    ids=lambda recipe: recipe.name,
)
def test_rounds_equal_the_pseudo_code(recipe: Recipe, settings: Difference) -> None:
    simulation = made(Run(recipe, UNEQUAL, estimator=settings), server_lr=0.8)
    simulation.run(6)

    models, _ = plain_rounds(recipe, UNEQUAL, settings, 6, server_lr=0.8)

    assert_near(simulation, models[-1])


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("recipe", [Tournament(6), Auto(6)], ids=lambda recipe: recipe.name)
def test_rounds_of_a_learning_design_equal_the_pseudo_code(recipe: Recipe, overlap: bool) -> None:
    """With overlap designs know one round less, and h knows as much as ever."""
    simulation = made(Run(recipe, DIGITS, estimator="difference"), overlap=overlap)
    simulation.run(5)

    models, _ = plain_rounds(recipe, DIGITS, Difference(), 5, delay=int(overlap))

    assert_near(simulation, models[-1])


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("keep", ["float32", "rank"])
def test_a_shrink_of_zero_is_the_plain_run_bit_for_bit(keep: Keep, overlap: bool) -> None:
    recipes = [Multinomial(3), SimilarityClustered(3), Poisson(3), Uniform(20)]
    options: dict[str, Any] = {"overlap": overlap, "oracle_every": 4}
    plain = made(*(Run(recipe, DIGITS) for recipe in recipes), **options)
    shrunk = made(
        *(Run(recipe, DIGITS, estimator=Difference(0.0, keep)) for recipe in recipes), **options
    )

    plain.run(5)
    shrunk.run(5)

    assert_same(plain, shrunk)


def test_the_first_round_is_the_plain_one_bit_for_bit() -> None:
    """Nothing is remembered yet; afterwards something is."""
    runs = [Run(Multinomial(3), DIGITS), Run(Multinomial(3), DIGITS, estimator="difference")]
    simulation = made(*runs)

    simulation.run(1)
    assert (simulation.models[0] == simulation.models[1]).all()

    simulation.run(1)
    assert (simulation.models[0] != simulation.models[1]).any()


@pytest.mark.parametrize(
    "options", [{}, {"overlap": True}, {"sketch": 16, "oracle_every": 4}], ids=str
)
@pytest.mark.parametrize("stop", [1, 4])
def test_a_resumed_run_ends_where_an_uninterrupted_one_ends(
    options: dict[str, Any], stop: int, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.state"
    runs = [
        Run(SimilarityClustered(4), DIGITS, estimator="difference"),
        Run(Poisson(4), DIGITS, estimator=Difference(0.5, keep="rank", rank=3)),
        Run(Multinomial(4), DIGITS),
    ]
    whole = made(*runs, **options)
    whole.run(7)

    assert_same(resumed(lambda: made(*runs, **options), path, stop=stop, rounds=7), whole)


def test_an_interrupted_round_can_be_played_again() -> None:
    """Nothing was remembered of it."""
    runs = [Run(Multinomial(4), DIGITS, estimator=e) for e in ("difference", "plain")]
    whole, broken = made(*runs), made(*runs)
    whole.run(5)
    broken.run(2)

    interrupt(broken, run=1, rounds=3)
    broken.run(3)

    assert_same(broken, whole)


@pytest.mark.parametrize(
    "settings", [Difference(), Difference(0.5), Difference(keep="rank", rank=2)], ids=str
)
@pytest.mark.parametrize(
    "recipe", [SizeClustered(4), Uniform(2)], ids=["unbiased", "with a squared bias"]
)
def test_the_yardstick_measures_what_is_not_remembered(
    recipe: Recipe, settings: Difference
) -> None:
    """B is the design's on Delta - h; B_MD is multinomial's on Delta, as without the estimator."""
    simulation = made(Run(recipe, UNEQUAL, estimator=settings), oracle_every=1)
    (history,) = simulation.run(4)
    models, h = plain_rounds(recipe, UNEQUAL, settings, 4)
    updates = all_updates(models[2], UNEQUAL, 3)
    population = UNEQUAL.population
    design = recipe.build(population, rng=stream(0, use=Stream.TIES))

    stick = history.rounds[3].yardstick

    assert stick is not None
    assert np.abs(h).max() > 0
    multinomial = MultinomialDesign(population, recipe.cohort_size)
    error = (models[3] - models[2]).double().numpy() - population.importance @ updates
    # The engine's and the twin's models agree to 1e-4, and squares of what they lead to to 1e-2.
    assert stick.design_variance == pytest.approx(design.aggregate_variance(updates - h), rel=1e-2)
    assert stick.multinomial_variance == pytest.approx(
        multinomial.aggregate_variance(updates), rel=1e-2
    )
    assert stick.squared_error == pytest.approx(float(error @ error), rel=1e-2)


@pytest.mark.parametrize("numbers", [1, 12, 35])
def test_the_yardstick_of_some_columns_at_a_time_is_that_of_all(
    numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(3)
    updates, h = generator.normal(size=(2, 5, 7)).astype(np.float32)
    design = SizeClustered(3).build(Population([1, 2, 3, 4, 5]), rng=0)
    facts = (design, updates[0], updates, Gradients(1.0, 2.0), h)
    whole = yardstick(*facts)
    monkeypatch.setattr(evaluation, "NUMBERS_AT_ONCE", numbers)

    parts = yardstick(*facts)

    assert parts.design_variance == pytest.approx(design.aggregate_variance(updates - h), rel=1e-12)
    assert replace(parts, design_variance=whole.design_variance) == whole


def test_what_was_measured_is_what_the_estimator_promises() -> None:
    """Full participation remembered: the next round's error comes from what changed since."""
    runs = [Run(Uniform(20), DIGITS), Run(Multinomial(5), DIGITS, estimator="difference")]
    simulation = made(*runs, oracle_every=1)

    (full, difference) = simulation.run(40)

    last = [each.yardstick for each in difference.rounds[-20:]]
    assert all(
        each.yardstick is not None and each.yardstick.squared_error < 1e-9 for each in full.rounds
    )
    ratios = [s.design_variance / s.multinomial_variance for s in last if s is not None]
    assert np.mean(ratios) < 0.5


@pytest.mark.parametrize("estimator", ["plain", "difference", Difference(keep="rank", rank=2)])
def test_full_participation_is_uniform_sampling_of_all(estimator: Estimator) -> None:
    """Whatever is remembered: the remembered is taken away and added again."""
    simulation = made(Run(Uniform(4), UNEQUAL, estimator=estimator))
    (history,) = simulation.run(4)
    theta, p = flat_parameters(make_model(small_mlp, seed=0)), UNEQUAL.population.importance

    for round_ in range(4):
        theta = (theta.double() + torch.from_numpy(p @ all_updates(theta, UNEQUAL, round_))).float()

    assert all(each.clients == [0, 1, 2, 4] for each in history.rounds)
    assert_near(simulation, theta)


def test_full_participation_with_fewer_than_all_is_told_from_it() -> None:
    """The test before would see one client's absence."""
    simulation = made(Run(Uniform(3), UNEQUAL))
    simulation.run(1)
    theta, p = flat_parameters(make_model(small_mlp, seed=0)), UNEQUAL.population.importance

    with pytest.raises(AssertionError):
        assert_near(
            simulation, theta + torch.from_numpy(p @ all_updates(theta, UNEQUAL, 0)).float()
        )


@pytest.mark.parametrize("estimator", ["nonsense", None, 1.0, ["plain"]])
def test_an_unknown_estimator_is_refused(estimator: Estimator) -> None:
    with pytest.raises(
        SimulationError, match=r"^Run: estimator must be one of plain, diff.* such as Diff.*got "
    ):
        Run(Multinomial(3), DIGITS, estimator=estimator)


@pytest.mark.parametrize(
    "estimator",
    ["difference", Difference(0.5), Difference(keep="rank", rank=2), Difference(0.0)],
    ids=str,
)
def test_a_checkpoint_of_another_estimator_is_refused(estimator: Estimator, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.state"
    run = Run(Multinomial(4), DIGITS, estimator=Difference(keep="rank", rank=7))
    made(run).run(1, checkpoint=path)
    plain = tmp_path / "plain.state"
    made(replace(run, estimator="plain")).run(1, checkpoint=plain)

    for written in (path, plain):
        with pytest.raises(SimulationError, match="another simulation; runs differ"):
            made(replace(run, estimator=estimator)).resume(written)


def test_an_estimator_by_name_goes_on_with_the_same_by_its_settings(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.state"
    made(Run(Multinomial(4), DIGITS, estimator="difference")).run(1, checkpoint=path)

    assert made(Run(Multinomial(4), DIGITS, estimator=Difference(shrink=1))).resume(path) == 1


def test_auto_learns_in_a_simulation() -> None:
    """Ten classes of two clients: once all are known, nearly every class comes in every round."""
    data = shards(2, 40, 8).renumbered(rng())
    training = LocalTraining(steps=20, batch_size=20, lr=0.1)
    runs = [Run(Auto(10), data), Run(Multinomial(10), data)]
    simulation = made(*runs, training=training)

    histories = simulation.run(30)

    late = [np.mean([r.distinct_classes for r in h.rounds[-10:]]) for h in histories]
    (design, _) = simulation.next_designs()
    assert late[0] > 9.5 > 8 > late[1]
    assert design.predicted["tournament"] < 0.2 * design.predicted["multinomial"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "settings", [{}, {"sketch": 8}, {"overlap": True}, {"max_norm": 1e-3}], ids=str
)
def test_a_cohort_is_copied_to_the_host_at_most_once(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU would have to send: the memory of the design keeps numpy arrays."""
    copied: list[torch.Size] = []

    def noting(tensor: torch.Tensor, *args: Any, **keywords: Any) -> torch.Tensor:
        copied.append(tensor.shape)
        return to_host(tensor, *args, **keywords)

    run = Run(SimilarityClustered(4), DIGITS, estimator="difference", **settings)
    simulation = Simulation([run], small_mlp, TRAINING, Options(device="cpu"))
    simulation.run(2)
    to_host, size = torch.Tensor.cpu, simulation.models.shape[1]
    monkeypatch.setattr(torch.Tensor, "cpu", noting)
    simulation.run(1)

    assert [shape for shape in copied if len(shape) == 2 and shape[1] == size] == [(4, size)]


def test_weights_that_are_not_the_designs_have_no_variance_of_it() -> None:
    """The yardstick of MIFA knows the error of a round, and no variance of the design."""
    runs = [Run(Multinomial(3), UNEQUAL, estimator=own) for own in (MIFA(), Difference())]
    simulation = made(*runs, oracle_every=1)
    simulation.run(2)

    mifa, difference = (history.rounds[-1].yardstick for history in simulation.histories)
    assert mifa is not None
    assert difference is not None
    assert np.isnan(mifa.design_variance)
    assert mifa.squared_error >= 0
    assert difference.design_variance > 0


def test_mifa_moves_with_an_optimiser_although_nobody_answers() -> None:
    """Half of the answers of two clients are lost: in some rounds both are."""
    moved: dict[str, set[bool]] = {}
    for estimator in ("mifa", "difference"):
        run = Run(
            Uniform(2),
            UNEQUAL,
            estimator=estimator,
            optimizer=SGD(lr=1.0, momentum=0.5),
            failures=0.5,
        )
        simulation = made(run)
        found = set()
        for _ in range(15):
            before = np.array(simulation.models[0])
            (history,) = simulation.run(1)
            knows = any(each.clients for each in history.rounds)
            if knows and not history.rounds[-1].clients:
                found.add(not np.array_equal(before, simulation.models[0]))
        moved[estimator] = found

    assert moved == {"mifa": {True}, "difference": {False}}
