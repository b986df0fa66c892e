"""The round loop: what it computes, records and repeats."""

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

import torch
from threadpoolctl import threadpool_info, threadpool_limits
from torch import nn
from torch.nn.functional import cross_entropy

from fedcohort import (
    Balanced,
    Multinomial,
    Poisson,
    Population,
    Recipe,
    Regression,
    SimilarityClustered,
    SizeClustered,
    Target,
    Uniform,
    diagnostics,
)
from fedcohort._archive import json_array, json_value, read_archive, write_archive
from fedcohort._updates import largest_entries
from fedcohort.designs import Knowledge, MultinomialDesign, RowDesign, SimilarityClusteredDesign
from fedcohort.errors import SimulationError
from fedcohort.memory.regression import RegressionEstimator
from fedcohort.optimizers import SGD
from fedcohort.similarity import measures
from fedcohort.simulation import (
    FederatedData,
    History,
    LocalTraining,
    Options,
    Quality,
    Run,
    Simulation,
    mlp,
    round_loop,
)
from fedcohort.simulation.engine.evaluation import ClientQuality, Evaluator, _lowest_tenth
from fedcohort.simulation.engine.local_training import Lane
from fedcohort.simulation.engine.models import flat_parameters, make_model
from fedcohort.simulation.live_run import LiveRun
from fedcohort.simulation.runs import KIND
from fedcohort.streams import Stream, stream
from populations import rng
from simulation.federations import (
    DIGITS,
    TRAINING,
    UNEQUAL,
    assert_same,
    interrupt,
    made,
    resumed,
    small_mlp,
)
from simulation_twin import load, plain_update


def simulate(
    *recipes: Recipe,
    data: FederatedData = DIGITS,
    rounds: int = 3,
    **settings: Any,
) -> tuple[Simulation, list[History]]:
    simulation = made(*(Run(recipe, data) for recipe in recipes), **settings)
    return simulation, simulation.run(rounds)


def plain_federation(
    recipe: Recipe, data: FederatedData, rounds: int, server_lr: float
) -> torch.Tensor:
    """The pseudo-code, one client after the other."""
    model = make_model(small_mlp, seed=0)
    theta = flat_parameters(model)
    design = recipe.build(data.population, rng=stream(0, use=Stream.TIES))
    for round_ in range(rounds):
        cohort = design.draw(stream(0, round_=round_, use=Stream.COHORT))
        move = torch.zeros_like(theta)
        for client, weight in zip(cohort.clients.tolist(), cohort.weights.tolist(), strict=True):
            lane = Lane(0, 0, client, data.train[client])
            move += weight * plain_update(model, theta, lane, TRAINING, data.dataset, round_)
        theta = theta + server_lr * move
    return theta


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
@pytest.mark.parametrize(
    "recipe", [Multinomial(4), SizeClustered(4), Uniform(3), Uniform(3, unbiased=True), Poisson(3)]
)
def test_rounds_equal_the_pseudo_code(recipe: Recipe, server_lr: float) -> None:
    simulation, _ = simulate(recipe, data=UNEQUAL, server_lr=server_lr)

    plain = plain_federation(recipe, UNEQUAL, 3, server_lr)

    torch.testing.assert_close(torch.from_numpy(simulation.models[0]), plain, rtol=1e-4, atol=1e-5)


def test_metrics_equal_those_computed_by_hand() -> None:
    simulation, (history,) = simulate(Multinomial(4), data=UNEQUAL)
    model = make_model(small_mlp, seed=0).eval()
    load(model, torch.from_numpy(simulation.models[0]))
    dataset = UNEQUAL.dataset
    losses, accuracies, weights = [], [], []
    for train, test, share in zip(
        UNEQUAL.train, UNEQUAL.test, UNEQUAL.population.importance, strict=True
    ):
        x = torch.from_numpy(dataset.x[train].astype(np.float32)) / 16
        if len(train):
            losses.append(
                share * cross_entropy(model(x), torch.from_numpy(dataset.y[train])).item()
            )
        if len(test):
            x = torch.from_numpy(dataset.test_x[test].astype(np.float32)) / 16
            hits = model(x).argmax(1) == torch.from_numpy(dataset.test_y[test])
            accuracies.append(hits.float().mean().item())
            weights.append(share)

    quality = history.rounds[-1].quality

    assert quality is not None
    mean = np.average(accuracies, weights=weights)
    spread = np.sqrt(np.average((np.array(accuracies) - mean) ** 2, weights=weights))
    assert quality.loss == pytest.approx(sum(losses), rel=1e-5)
    assert quality.accuracy == pytest.approx(mean, rel=1e-6)
    assert quality.accuracy_spread == pytest.approx(spread, rel=1e-6)
    worst = sorted(accuracies)[: math.ceil(len(accuracies) / 10)]
    assert quality.worst_accuracy == pytest.approx(np.mean(worst), abs=1e-6)


def test_every_client_is_judged_on_its_own_samples() -> None:
    simulation, (history,) = simulate(SizeClustered(3), rounds=2, data=UNEQUAL)

    (found,) = simulation.client_quality()

    quality, share = history.rounds[-1].quality, UNEQUAL.population.importance
    has_train, has_test = (np.array([len(p) > 0 for p in s]) for s in (UNEQUAL.train, UNEQUAL.test))
    assert quality is not None
    assert (np.isnan(found.loss) == ~has_train).all()
    assert (np.isnan(found.accuracy) == ~has_test).all()
    assert share[has_train] @ found.loss[has_train] == pytest.approx(quality.loss, rel=1e-12)
    weights = share[has_test]
    mean = np.average(found.accuracy[has_test], weights=weights)
    assert mean == pytest.approx(quality.accuracy, rel=1e-12)


@pytest.mark.parametrize(("n_clients", "n_worst"), [(1, 1), (9, 1), (10, 1), (11, 2), (25, 3)])
def test_the_worst_tenth_is_rounded_up(n_clients: int, n_worst: int) -> None:
    values = np.random.default_rng(0).permutation(np.arange(n_clients, dtype=np.float64))

    assert _lowest_tenth(values) == np.mean(range(n_worst))


def test_a_round_records_its_cohort_and_its_classes() -> None:
    _, (history,) = simulate(SizeClustered(6), rounds=4)
    classes = DIGITS.main_class()

    for round_, each in enumerate(history.rounds):
        assert each.round_ == round_
        assert sum(each.counts) == 6
        assert each.weights == [count / 6 for count in each.counts]
        assert each.residual == 0.0
        assert each.distinct_clients == len(each.clients)
        assert each.distinct_classes == len(set(classes[each.clients]))
        assert min(each.draw_seconds, each.train_seconds, each.measure_seconds) > 0


def test_only_every_so_many_rounds_and_the_last_are_measured() -> None:
    _, (history,) = simulate(Multinomial(3), rounds=8, measure_every=3)

    assert [each.round_ for each in history.measured] == [2, 5, 7]


def test_two_designs_on_one_seed_share_the_initial_model_and_local_randomness() -> None:
    """Both draw all clients: the same model, however they draw it."""
    recipes = [Uniform(5), Poisson(5)]
    data = replace(DIGITS, train=DIGITS.train[:5], test=DIGITS.test[:5])

    simulation, _ = simulate(*recipes, data=data)

    np.testing.assert_allclose(simulation.models[0], simulation.models[1], rtol=1e-4, atol=1e-6)


def test_runs_together_equal_runs_alone() -> None:
    recipes = [Multinomial(4), SimilarityClustered(4), SizeClustered(4)]

    together, histories = simulate(*recipes, rounds=4)

    for k, recipe in enumerate(recipes):
        alone, (history,) = simulate(recipe, rounds=4)
        np.testing.assert_allclose(together.models[k], alone.models[0], rtol=1e-3, atol=1e-5)
        assert [r.clients for r in histories[k].rounds] == [r.clients for r in history.rounds]


def test_runs_have_learning_rates_of_their_own() -> None:
    rates = [(0.3, None, 0.5), (None, 0.4, None), (None, None, 2.0), (None, None, None)]
    runs = [Run(Multinomial(4), DIGITS, lr=lr, mu=mu, server_lr=server) for lr, mu, server in rates]
    together = Simulation(runs, small_mlp, TRAINING, Options(device="cpu", server_lr=1.5))

    together.run(3)

    for k, (lr, mu, server) in enumerate(rates):
        training = replace(TRAINING, lr=lr or TRAINING.lr, mu=mu or 0.0)
        options = Options(device="cpu", server_lr=server or 1.5)
        alone = Simulation([Run(Multinomial(4), DIGITS)], small_mlp, training, options)
        alone.run(3)
        np.testing.assert_allclose(together.models[k], alone.models[0], rtol=1e-3, atol=1e-5)
    apart = [np.abs(together.models[k] - together.models[3]).max() for k in range(3)]
    assert min(apart) > 0.01


def test_a_checkpoint_of_other_learning_rates_is_refused(tmp_path: Path) -> None:
    first, second = (
        Simulation([Run(Multinomial(4), DIGITS, lr=lr)], small_mlp, TRAINING, Options(device="cpu"))
        for lr in (0.1, 0.2)
    )
    first.save(tmp_path / "saved")

    with pytest.raises(SimulationError, match="another simulation; runs differ"):
        second.resume(tmp_path / "saved")


def test_a_run_refuses_a_learning_rate_below_0() -> None:
    with pytest.raises(SimulationError, match="Run: lr must be a number of at least 0"):
        Run(Multinomial(4), DIGITS, lr=-0.1)


@pytest.mark.parametrize("devices", [5, "phones", [1.0, 2.0], True])
def test_a_run_refuses_devices_that_are_none(devices: Any) -> None:
    with pytest.raises(SimulationError, match=r"^Run: devices must be a Devices; got .+\. Pass"):
        Run(Multinomial(4), DIGITS, devices=devices)


def test_an_update_is_scanned_once_in_its_round_and_once_at_the_next_draw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The trainer's norms show what is not finite; the design checks what is remembered."""
    scanned: list[tuple[str, int]] = []
    norm, isfinite, checked = torch.Tensor.norm, np.isfinite, largest_entries

    def noted_norm(rows: torch.Tensor, *args: Any, **options: Any) -> Any:
        scanned.append(("norm", rows.numel()))
        return norm(rows, *args, **options)

    def noted_isfinite(values: Any) -> Any:
        scanned.append(("isfinite", np.size(values)))
        return isfinite(values)

    def noted_check(rows: Any) -> Any:
        if sys._getframe(1).f_code.co_name == "checked_updates":  # measures only scale with it
            scanned.append(("check", rows.size))
        return checked(rows)

    simulation, _ = simulate(SimilarityClustered(4), rounds=2)
    size = simulation.models.size
    monkeypatch.setattr(torch.Tensor, "norm", noted_norm)
    monkeypatch.setattr(np, "isfinite", noted_isfinite)
    monkeypatch.setattr(measures, "largest_entries", noted_check)
    (history,) = simulation.run(1)
    monkeypatch.undo()

    n_trained, n_clients = len(history.rounds[-1].clients), DIGITS.n_clients
    assert sum(n for name, n in scanned if name == "norm") == n_trained * size
    assert [n for name, n in scanned if name == "check" and n >= size] == [n_clients * size]
    assert not [n for name, n in scanned if name == "isfinite" and n > size]


def test_a_seed_gives_the_same_run_again_bit_for_bit() -> None:
    first, _ = simulate(SimilarityClustered(4), rounds=4)
    again, _ = simulate(SimilarityClustered(4), rounds=4)

    assert_same(first, again)


def test_a_fixed_design_keeps_its_ties_and_a_learning_one_learns() -> None:
    """Ten classes, three clients each, one row per class once every client was seen."""
    training = LocalTraining(steps=20, batch_size=20, lr=0.1)

    _, (similarity, multinomial) = simulate(
        SimilarityClustered(10), Multinomial(10), rounds=40, training=training
    )

    late = [
        np.mean([r.distinct_classes for r in h.rounds[-10:]]) for h in (similarity, multinomial)
    ]
    assert late[0] > 9.5 > 8 > late[1]


def test_target_covers_every_class_in_every_round() -> None:
    _, (history,) = simulate(Target(10), rounds=5)

    assert [each.distinct_classes for each in history.rounds] == [10] * 5


def test_the_yardstick_compares_with_full_participation() -> None:
    simulation, (history,) = simulate(Multinomial(4), data=UNEQUAL, rounds=1, oracle_every=1)
    model = make_model(small_mlp, seed=0)
    theta = flat_parameters(model)
    updates = np.zeros((5, len(theta)), dtype=np.float32)
    gradients = np.zeros((5, len(theta)))
    dataset, importance = UNEQUAL.dataset, UNEQUAL.population.importance
    for client, train in enumerate(UNEQUAL.train):
        if not len(train):
            continue
        lane = Lane(0, 0, client, train)
        updates[client] = plain_update(model, theta, lane, TRAINING, dataset, 0).numpy()
        x = torch.from_numpy(dataset.x[train].astype(np.float32)) / 16
        load(model, theta.clone())
        loss = cross_entropy(model(x), torch.from_numpy(dataset.y[train]))
        parts = torch.autograd.grad(loss, list(model.parameters()))
        gradients[client] = torch.cat([part.reshape(-1) for part in parts]).numpy()

    stick = history.rounds[0].yardstick

    assert stick is not None
    error = simulation.models[0] - theta.numpy() - importance @ updates
    squares = importance @ (gradients**2).sum(axis=1)
    mean = ((importance @ gradients) ** 2).sum()
    design = MultinomialDesign(UNEQUAL.population, 4)
    assert stick.squared_error == pytest.approx(float(error @ error), rel=1e-3)
    assert stick.design_variance == stick.multinomial_variance
    assert stick.design_variance == pytest.approx(
        diagnostics.aggregate_variance(design, updates), rel=1e-4
    )
    assert stick.beta_squared == pytest.approx(squares / mean, rel=1e-4)
    assert stick.kappa_squared == pytest.approx(squares - mean, rel=1e-4)


def test_the_yardsticks_variances_are_those_of_the_design_and_of_multinomial() -> None:
    _, (history,) = simulate(SizeClustered(4), data=UNEQUAL, rounds=1, oracle_every=1)
    stick = history.rounds[0].yardstick

    assert stick is not None
    assert 0 < stick.design_variance < 0.95 * stick.multinomial_variance


def test_the_yardstick_of_a_design_without_a_formula_has_no_variance(tmp_path: Path) -> None:
    """Also after a checkpoint, which is JSON."""
    path = tmp_path / "checkpoint.state"
    run = Run(Balanced(4), UNEQUAL)

    again = resumed(lambda: made(run, oracle_every=1), path, stop=1, rounds=2)

    (history,) = again.histories
    assert len(history.rounds) == 2
    for each in history.rounds:
        assert each.yardstick is not None
        assert np.isnan(each.yardstick.design_variance)
        assert 0 <= each.yardstick.squared_error < np.inf
        assert 0 < each.yardstick.multinomial_variance < np.inf


def dropout_mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))


def test_models_are_measured_and_compared_with_dropout_off() -> None:
    """The loss and the gradients of a model without its dropout."""
    training = replace(TRAINING, lr=0.0)
    _, (history,) = simulate(
        Multinomial(4), data=UNEQUAL, rounds=1, model=dropout_mlp, training=training, oracle_every=1
    )
    model = make_model(dropout_mlp, seed=0).eval()
    dataset, importance = UNEQUAL.dataset, UNEQUAL.population.importance
    losses, slopes = np.zeros(5), np.zeros((5, 650))
    for client, train in enumerate(UNEQUAL.train):
        if len(train):
            x = torch.from_numpy(dataset.x[train].astype(np.float32)) / 16
            loss = cross_entropy(model(x), torch.from_numpy(dataset.y[train]))
            parts = torch.autograd.grad(loss, list(model.parameters()))
            slopes[client] = torch.cat([part.reshape(-1) for part in parts]).numpy()
            losses[client] = loss.item()

    quality, stick = history.rounds[0].quality, history.rounds[0].yardstick
    assert quality is not None
    assert stick is not None
    assert quality.loss == pytest.approx(importance @ losses, rel=1e-5)
    mean = importance @ slopes
    spread = importance @ (slopes**2).sum(axis=1) - mean @ mean
    assert stick.kappa_squared == pytest.approx(spread, rel=1e-4)


def test_the_memory_is_sketched_where_that_is_asked_for() -> None:
    simulation, _ = simulate(SimilarityClustered(4), rounds=2, sketch=16)

    state = simulation._live[0].state()
    assert state["selector.records.memory.updates"].shape == (30, 16)


def test_a_fixed_design_keeps_its_ties_over_rounds_and_after_a_resume(tmp_path: Path) -> None:
    """Equal sizes: with other ties other clients would be drawn."""

    def fresh() -> Simulation:
        return made(Run(SizeClustered(6), DIGITS))

    whole = fresh()
    whole.run(6)
    again = resumed(fresh, tmp_path / "checkpoint.state", stop=3, rounds=6)
    design = SizeClustered(6).build(DIGITS.population, rng=stream(0, use=Stream.TIES))

    for round_ in range(6):
        expected = design.draw(stream(0, round_=round_, use=Stream.COHORT)).clients.tolist()
        for simulation in (whole, again):
            assert simulation.histories[0].rounds[round_].clients == expected


def test_going_on_gives_the_history_of_a_run_that_never_stopped(tmp_path: Path) -> None:
    """The last round is measured; when it turns out not to be the last, it no longer is."""
    whole, parts = (other_run(measure_every=3) for _ in range(2))

    whole.run(10)
    for rounds in (1, 4, 5):
        parts.run(rounds)

    assert [r.round_ for r in parts.histories[0].measured] == [2, 5, 8, 9]
    assert_same(parts, whole)


def test_checkpoints_are_written_every_so_many_rounds(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.state"
    seen: list[bool] = []

    other_run().run(5, checkpoint=path, every=3, progress=lambda *_: seen.append(path.exists()))

    assert seen == [False, False, True, True, True]
    assert other_run().resume(path) == 5


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_an_interrupted_round_can_be_played_again(overlap: bool, looks: bool) -> None:
    recipes = [SimilarityClustered(4), Multinomial(4)]
    whole, _ = simulate(*recipes, rounds=5, overlap=overlap)
    broken, _ = simulate(*recipes, rounds=2, overlap=overlap)

    interrupt(broken, run=1, rounds=3)
    if looks:
        broken.next_designs()
    broken.run(3)

    assert_same(broken, whole)


def test_what_an_interrupted_round_measured_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = made(*[Run(Multinomial(4), DIGITS)] * 2, measure_every=3)

    with monkeypatch.context() as patch:
        infinite = Quality(math.inf, 0.1, 0.0)
        patch.setattr(simulation._live[0].evaluator, "quality", lambda model: infinite)
        interrupt(simulation, run=1)
    simulation.run(3)

    assert [history.diverged_at for history in simulation.histories] == [None, None]


@dataclass(frozen=True)
class WatchedSimilarity(SimilarityClustered):  # type: ignore[misc]
    """Notes which thread builds."""

    threads: list[str] = field(default_factory=list, compare=False)

    def design(self, population: Population, known: Knowledge) -> SimilarityClusteredDesign:
        self.threads.append(threading.current_thread().name)
        return super().design(population, known)


def test_with_overlap_designs_are_built_beside_the_training_and_none_too_many() -> None:
    recipes = [WatchedSimilarity(4), WatchedSimilarity(4)]
    simulate(recipes[0], rounds=4, overlap=True)
    simulate(recipes[1], rounds=4)

    main = threading.main_thread().name
    assert [thread == main for thread in recipes[0].threads] == [True, False, False, False]
    assert [thread == main for thread in recipes[1].threads] == [True] * 4


class Clock:
    """Replaces the time; it moves only where a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def tick(self) -> None:
        self.now += 1.0


@dataclass(frozen=True)
class TimedSimilarity(SimilarityClustered):  # type: ignore[misc]
    """Does something while it builds that takes time."""

    pause: Callable[[], object] = field(default=int, compare=False)

    def design(self, population: Population, known: Knowledge) -> SimilarityClusteredDesign:
        self.pause()
        return super().design(population, known)


class Unhurried:
    """A pool that begins with its work when somebody waits for the result."""

    def __init__(self, workers: int) -> None: ...

    def submit(self, work: Callable[[], object]) -> Future[Any]:
        class Late(Future[Any]):
            def exception(self, timeout: float | None = None) -> BaseException | None:
                self.set_result(work())
                return super().exception(timeout)

        return Late()


def test_waiting_for_an_overlapped_design_is_counted_as_drawing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first design was built when the simulation was made."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(round_loop, "ThreadPoolExecutor", Unhurried)

    _, (history,) = simulate(TimedSimilarity(4, pause=clock.tick), rounds=4, overlap=True)

    assert [each.draw_seconds for each in history.rounds] == [0.0, 1.0, 1.0, 1.0]
    assert {each.train_seconds + each.measure_seconds for each in history.rounds} == {0.0}


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.features: torch.Tensor
        self.register_buffer("features", torch.randn(64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1) @ self.features)  # type: ignore[no-any-return]


def test_seeds_that_differ_in_what_is_not_trained_are_refused() -> None:
    runs = [Run(Multinomial(4), DIGITS, seed) for seed in (0, 1)]

    with pytest.raises(SimulationError, match="frozen parameters or buffers differ between seeds"):
        made(*runs, model=Frozen)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: mlp(63), r"does not take inputs of shape \(1, 8, 8\)"),
        (lambda: mlp(64, 8, classes=9), r"must give \(batch, 10\) outputs, one per class; got"),
        (lambda: nn.Conv2d(1, 10, 3), r"must give \(batch, 10\) outputs"),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_refused(model: Any, message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        other_run(model=model)


def test_training_that_diverges_goes_on_and_is_marked() -> None:
    simulation = other_run(training=replace(TRAINING, lr=1e30))
    start = simulation.models

    (history,) = simulation.run(3)

    assert history.diverged_at == 0
    assert [each.diverged for each in history.rounds] == [True] * 3
    assert [each.clients for each in history.rounds] == [[]] * 3
    assert all(each.failed for each in history.rounds)
    assert (simulation.models == start).all()


def test_the_yardstick_changes_nothing() -> None:
    asked, _ = simulate(SimilarityClustered(4), rounds=4, oracle_every=2)
    unasked, _ = simulate(SimilarityClustered(4), rounds=4)

    assert (asked.models == unasked.models).all()
    assert [r.yardstick is None for r in asked.histories[0].rounds] == [False, True, False, True]


def test_overlap_builds_the_next_design_from_updates_up_to_the_round_before() -> None:
    """Round 1 still knows nothing; without overlap it knows round 0."""
    late, _ = simulate(SimilarityClustered(10), rounds=3, overlap=True)
    prompt, _ = simulate(SimilarityClustered(10), rounds=3)

    def cohorts(simulation: Simulation) -> list[list[int]]:
        return [each.clients for each in simulation.histories[0].rounds]

    recipe, population = SimilarityClustered(10), DIGITS.population
    blind = recipe.build(population, round_=1, rng=stream(0, round_=1, use=Stream.TIES))
    second = blind.draw(stream(0, round_=1, use=Stream.COHORT))
    assert cohorts(late)[0] == cohorts(prompt)[0]
    assert cohorts(late)[1] == second.clients.tolist() != cohorts(prompt)[1]


@pytest.mark.parametrize("options", [{}, {"overlap": True}, {"sketch": 16}])
def test_a_resumed_run_ends_where_an_uninterrupted_one_ends(
    options: dict[str, Any], tmp_path: Path
) -> None:
    runs = [Run(recipe, DIGITS) for recipe in (SimilarityClustered(4), Poisson(4))]

    def fresh() -> Simulation:
        return made(*runs, **options)

    whole = fresh()
    whole.run(7)

    assert_same(resumed(fresh, tmp_path / "checkpoint.state", stop=4, rounds=7), whole)


def tanh_model() -> nn.Module:
    """As many parameters in other layers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))


def rescaled() -> FederatedData:
    """The same partition of other numbers."""
    return replace(DIGITS, dataset=replace(DIGITS.dataset, scale=1 / 8))


def other_run(
    recipe: Recipe = Multinomial(4),  # noqa: B008 - it is frozen
    data: FederatedData = DIGITS,
    seed: int = 0,
    **settings: Any,
) -> Simulation:
    return made(Run(recipe, data, seed), **settings)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"recipe": Multinomial(5)}, "runs"),
        ({"seed": 1}, "runs"),
        ({"training": replace(TRAINING, lr=0.2)}, "training"),
        ({"server_lr": 0.5}, "options"),
        ({"model": lambda: mlp(64, 9)}, "model"),
        ({"model": tanh_model}, "model"),
        ({"data": rescaled()}, "data"),
        ({"data": replace(DIGITS, test=DIGITS.test[::-1])}, "data"),
        ({"data": DIGITS.renumbered(rng(1))}, "data"),
    ],
)
def test_a_foreign_checkpoint_is_refused(
    changes: dict[str, Any], name: str, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.state"
    other_run().run(1, checkpoint=path)

    with pytest.raises(SimulationError, match=rf"another simulation; {name} differ"):
        other_run(**changes).resume(path)


@pytest.mark.parametrize("cut", [0, 10, 1000, -1])
def test_a_corrupt_checkpoint_is_refused(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.state"
    other_run().run(1, checkpoint=path)
    path.write_bytes(path.read_bytes()[:cut])

    with pytest.raises(SimulationError, match=r"checkpoint\.state: cannot be read"):
        other_run().resume(path)


def without(name: str) -> Callable[[dict[str, Any]], object]:
    """Return what removes an array of a checkpoint."""
    return lambda arrays: arrays.pop(name)


def with_head(**changes: Any) -> Callable[[dict[str, Any]], object]:
    """Return what replaces values in a checkpoint's head; None removes them."""

    def change(arrays: dict[str, Any]) -> None:
        head = {**json_value(arrays["head"]), **changes}
        arrays["head"] = json_array({k: v for k, v in head.items() if v is not None})

    return change


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (without("1.selector.head"), r"cannot be used \(it has no head\)"),
        (without("1.now"), r"cannot be used \(it has no 'now'\)"),
        (without("models"), r"cannot be used \(it has no 'models'\)"),
        (
            lambda arrays: arrays.update(models=arrays["models"][:1]),
            r"models have the shape \(1",
        ),
        (with_head(histories=[[]]), "cannot be used .*shorter"),
        (with_head(histories=[[], [{}]]), "these are not the rounds of a history"),
        (with_head(rounds_done=None), r"cannot be used \(it has no 'rounds_done'\)"),
    ],
)
def test_a_checkpoint_of_which_a_part_is_damaged_changes_nothing(
    damage: Callable[[dict[str, Any]], object], why: str, tmp_path: Path
) -> None:
    """A simulation that has run goes on afterwards as if nothing had been read."""
    path = tmp_path / "checkpoint.state"
    runs = [
        Run(Multinomial(2), DIGITS, seed, optimizer=SGD(momentum=0.9), estimator="difference")
        for seed in (0, 1)
    ]
    Simulation(runs, small_mlp, TRAINING).run(1, checkpoint=path)
    arrays = read_archive(path, KIND)
    damage(arrays)
    write_archive(path, KIND, arrays)
    one, two = (Simulation(runs, small_mlp, TRAINING) for _ in range(2))
    for each in (one, two):
        each.run(2)

    with pytest.raises(SimulationError, match=why):
        one.resume(path)

    assert one.rounds_done == 2
    for each in (one, two):
        each.run(1)
    assert_same(one, two)


def test_a_missing_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match=r"none: cannot be read"):
        other_run().resume(tmp_path / "none")


def test_progress_is_told_after_every_round() -> None:
    told: list[tuple[int, int]] = []

    other_run().run(
        3, progress=lambda done, histories: told.append((done, len(histories[0].rounds)))
    )

    assert told == [(1, 1), (2, 2), (3, 3)]


def threads_now() -> set[int]:
    """Return the threads of torch and of the libraries that multiply numpy's matrices."""
    pools = threadpool_info()
    return {torch.get_num_threads()} | {
        each["num_threads"] for each in pools if each["user_api"] == "blas"
    }


@pytest.fixture
def three_threads() -> Iterator[None]:
    """Let torch and numpy compute on three threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    with threadpool_limits(limits=3, user_api="blas"):
        yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize(("threads", "expected"), [(None, 1), (1, 1), (2, 2)])
def test_a_simulation_computes_on_one_thread_or_as_many_as_asked_for(
    threads: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    seen: list[set[int]] = []
    simulation = other_run(threads=threads)
    answer = LiveRun.answer

    def spied(*args: Any) -> None:
        seen.append(threads_now())
        answer(*args)

    monkeypatch.setattr(LiveRun, "answer", spied)
    simulation.run(2)
    simulation.next_designs()

    assert seen == 3 * [{expected}]
    assert threads_now() == {3}


@pytest.mark.usefixtures("three_threads")
def test_clients_are_judged_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[int]] = []
    simulation, judge = other_run(), Evaluator.client_quality

    def spied(*args: Any) -> ClientQuality:
        seen.append(threads_now())
        return judge(*args)

    monkeypatch.setattr(Evaluator, "client_quality", spied)
    simulation.client_quality()

    assert seen == [{1}]
    assert threads_now() == {3}


@pytest.mark.usefixtures("three_threads")
def test_the_number_of_threads_is_restored_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        other_run().run(1, progress=lambda *_: 1 // 0)

    assert threads_now() == {3}


@pytest.mark.usefixtures("three_threads")
def test_there_are_never_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    seen: list[int] = []

    other_run(threads=10**9).run(1, progress=lambda *_: seen.append(torch.get_num_threads()))

    assert seen == [2]


@pytest.mark.parametrize("seed", [-1, 0.5, None, "0", True, np.random.default_rng(0)])
def test_the_seed_of_a_run_is_an_integer(seed: Any) -> None:
    with pytest.raises(SimulationError, match="Run: seed must be a whole number of at least 0"):
        Run(Multinomial(4), DIGITS, seed)


def test_bad_options_are_refused() -> None:
    with pytest.raises(SimulationError, match="at least one run, all on one data set; got 0"):
        Simulation([], small_mlp, TRAINING)
    for every in (0, None):
        with pytest.raises(SimulationError, match="measure_every must be a whole number of at"):
            Options(measure_every=every)  # type: ignore[arg-type]
    with pytest.raises(SimulationError, match="device must be one of auto, cpu, cuda; got 'tpu'"):
        Options(device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(SimulationError, match="device 'cuda' is not available"):
            Options(device="cuda").torch_device()


def test_designs_that_are_built_at_once_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two take one second together; their first ones were built before, one after the other."""
    clock, is_made = Clock(monkeypatch), threading.Event()
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    both = threading.Barrier(2, action=clock.tick, timeout=60)
    recipe = TimedSimilarity(4, pause=lambda: is_made.is_set() and both.wait())
    simulation = made(*(Run(recipe, DIGITS, seed) for seed in (0, 1)))
    is_made.set()

    for history in simulation.run(3):
        assert [each.draw_seconds for each in history.rounds] == [0.0, 0.5, 0.5]


def test_the_next_designs_are_those_of_the_next_round() -> None:
    simulation, _ = simulate(SimilarityClustered(4))

    (design,) = simulation.next_designs()

    simulation.run(1)
    cohort = design.draw(stream(0, round_=3, use=Stream.COHORT))
    assert cohort.clients.tolist() == simulation.histories[0].rounds[3].clients


def test_rows_are_noted_where_they_are_asked_for() -> None:
    simulation, (rows, uniform) = simulate(SizeClustered(4), Uniform(4), rows_every=2)

    (design, _) = simulation.next_designs()
    assert isinstance(design, RowDesign)
    assert [each.rows is None for each in rows.rounds] == [False, True, False]
    assert rows.rounds[2].rows == design.plan.main_rows().tolist()
    assert all(each.rows is None for each in uniform.rounds)


def test_what_is_no_recipe_or_no_data_is_refused() -> None:
    with pytest.raises(SimulationError, match=r"^Run: recipe must be a Recipe; got <class "):
        Run(Multinomial, DIGITS)  # type: ignore[arg-type]
    with pytest.raises(SimulationError, match=r"^Run: data must be a FederatedData; got 3"):
        Run(Multinomial(2), 3)  # type: ignore[arg-type]


def test_arguments_of_another_kind_are_refused() -> None:
    run = Run(Multinomial(2), DIGITS)
    for arguments, message in (
        ((run, small_mlp, TRAINING), "runs must be a list of Run; got Run"),
        (([3], small_mlp, TRAINING), r"runs must be a list of Run; got \[3\]"),
        (([run], small_mlp, 3), "training must be a LocalTraining; got 3"),
        (([run], small_mlp, TRAINING, 3), "options must be Options or None; got 3"),
    ):
        with pytest.raises(SimulationError, match=f"^Simulation: {message}"):
            Simulation(*arguments)
    with pytest.raises(SimulationError, match=r"^model: needs an nn\.Module or a .*; got 3\."):
        Simulation([run], 3, TRAINING)  # type: ignore[arg-type]


@pytest.mark.parametrize(("output", "n_features"), [("1.bias", 8), ("3.bias", 10), (1, 8), (3, 10)])
def test_features_are_learned_from_a_parameter_by_its_name_or_position(
    output: str | int, n_features: int
) -> None:
    """The names are those of the model's ``state_dict``: here 8 hidden units and 10 classes."""
    run = Run(Multinomial(4), DIGITS, estimator=Regression("output", output=output))
    simulation = made(run)

    simulation.run(2)

    estimator = simulation._live[0].selector.estimator
    assert isinstance(estimator, RegressionEstimator)
    assert estimator.n_features == n_features
    assert list(small_mlp().state_dict())[1::2] == ["1.bias", "3.bias"]


@pytest.mark.parametrize("output", ["head.bias", 4, -1])
def test_an_output_that_the_model_does_not_have_is_refused_at_once(output: str | int) -> None:
    run = Run(Multinomial(4), DIGITS, estimator=Regression("output", output=output))

    with pytest.raises(SimulationError) as refused:
        made(run)

    assert str(refused.value).startswith(
        f"Simulation: Regression: needs the array {output!r} to learn features from; updates have "
    )
