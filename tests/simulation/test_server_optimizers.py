"""Runs with a server optimiser, other forms of memory, rare designs and a sample of clients."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

import torch

from fedcohort import Difference, Multinomial, Poisson, SimilarityClustered, Tournament
from fedcohort.errors import SimulationError
from fedcohort.optimizers import SGD, Adagrad, Adam, ServerOptimizer, Yogi
from fedcohort.simulation import Options, Run
from fedcohort.simulation.engine.local_training import Lane
from fedcohort.simulation.engine.models import flat_parameters, make_model
from fedcohort.simulation.live_run import LiveRun
from fedcohort.streams import Stream, stream
from simulation.federations import (
    TRAINING,
    UNEQUAL,
    assert_same,
    made,
    resumed,
    small_mlp,
)
from simulation_twin import plain_update

OPTIMIZERS = [
    SGD(lr=0.8),
    SGD(momentum=0.9),
    SGD(momentum=0.9, damped=True),
    SGD(momentum=0.5, nesterov=True),
    Adagrad(lr=0.05),
    Adam(lr=0.02),
    Adam(lr=0.02, convention="flower"),
    Yogi(lr=0.02),
]


def plain_rounds(optimizer: ServerOptimizer, rounds: int, server_lr: float) -> torch.Tensor:
    """Train one client after the other, and let the optimiser step along their weighted sum."""
    model, design = make_model(small_mlp, seed=0), Multinomial(3).build(UNEQUAL.population)
    theta, state = flat_parameters(model), None
    for round_ in range(rounds):
        cohort = design.draw(stream(0, round_=round_, use=Stream.COHORT))
        v = np.zeros(len(theta))
        for client, weight in zip(cohort.clients.tolist(), cohort.weights, strict=True):
            lane = Lane(0, 0, client, UNEQUAL.train[client])
            update = plain_update(model, theta, lane, TRAINING, UNEQUAL.dataset, round_)
            v += weight * update.numpy()
        step, state = optimizer.step(v, state)
        theta = (theta.double() + server_lr * torch.from_numpy(step)).float()
    return theta


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_rounds_equal_the_pseudo_code(optimizer: ServerOptimizer) -> None:
    """float32 rounding of v passes through a quotient by tau or more in the adaptive ones."""
    simulation = made(Run(Multinomial(3), UNEQUAL, optimizer=optimizer), server_lr=0.7)

    simulation.run(5)

    plain = plain_rounds(optimizer, 5, 0.7)
    torch.testing.assert_close(torch.from_numpy(simulation.models[0]), plain, rtol=1e-3, atol=1e-4)


def test_runs_with_other_optimisers_train_together() -> None:
    runs = [Run(Multinomial(3), UNEQUAL, optimizer=each) for each in (None, *OPTIMIZERS[1:])]

    together = made(*runs)
    together.run(4)

    for k, run in enumerate(runs):
        alone = made(run)
        alone.run(4)
        np.testing.assert_allclose(together.models[k], alone.models[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        *(Difference(keep="int8"), Difference(keep="float16")),
        *(Difference(keep="rank", rank=3), Difference(max_remembered=2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("recipe", [Multinomial(3), Tournament(3)], ids=lambda each: each.name)
def test_a_resumed_run_ends_bit_for_bit(recipe: Any, settings: Difference, tmp_path: Path) -> None:
    """Optimiser, every form of memory and a design between two rebuilds, stopped in round 3."""
    arguments: dict[str, Any] = {"rebuild_every": 4}
    run = Run(recipe, UNEQUAL, estimator=settings, optimizer=Adam(lr=0.02))
    whole = made(run, **arguments)
    whole.run(8)

    path = tmp_path / "checkpoint"
    again = resumed(lambda: made(run, **arguments), path, stop=3, rounds=8)

    assert_same(again, whole)


def test_a_round_without_an_answer_leaves_model_and_optimiser() -> None:
    """The drawn client fails: there is no aggregate. Momentum must not carry the model on."""
    run = Run(Multinomial(1), UNEQUAL, failures=0.5, optimizer=SGD(momentum=0.9))
    simulation = made(run)
    answered, moved = [], []
    for _ in range(20):
        before = simulation.models
        simulation.run(1)
        answered.append(bool(simulation.histories[0].rounds[-1].clients))
        moved.append(not np.array_equal(simulation.models, before))

    assert False in answered[answered.index(True) :]
    assert moved == answered


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), Adam(lr=0.02)], ids=str)
def test_a_step_that_is_not_finite_leaves_model_and_optimiser(
    optimizer: ServerOptimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next round goes on from the state before, as without an optimiser."""
    simulation = made(Run(Multinomial(3), UNEQUAL, optimizer=optimizer))
    simulation.run(2)
    before, receive = simulation.models, LiveRun.receive
    with monkeypatch.context() as patched:
        patched.setattr(LiveRun, "receive", lambda *each: receive(*each) * math.inf)
        simulation.run(1)

    assert np.array_equal(simulation.models, before)
    assert simulation.histories[0].rounds[-1].diverged
    simulation.run(1)
    assert np.abs(simulation.models - before).max() > 0


def test_a_cohort_that_is_empty_by_design_has_an_aggregate() -> None:
    """Coins that all fall on no: v is 0, and the momentum goes on, or E[v] would be wrong."""
    run = Run(Poisson(1), UNEQUAL, optimizer=SGD(momentum=0.9))
    simulation = made(run)
    moved = []
    for _ in range(40):
        before = simulation.models
        simulation.run(1)
        moved.append(float(np.abs(simulation.models - before).max()))
    empty = [not each.clients for each in simulation.histories[0].rounds]

    first = empty.index(False)
    assert any(empty[first + 1 :])
    assert all(step > 0 for step in moved[first:])


def test_a_design_is_rebuilt_in_every_third_round_only() -> None:
    simulation = made(Run(SimilarityClustered(3), UNEQUAL), rebuild_every=3)
    plain = made(Run(SimilarityClustered(3), UNEQUAL))
    simulation.run(1)
    plain.run(1)

    assert np.array_equal(simulation.models, plain.models)
    seen = []
    for _ in range(6):
        simulation.run(1)
        seen.append(simulation._live[0].selector.design)
    assert seen[0] is seen[1]
    assert seen[2] is seen[3] is seen[4]
    assert seen[1] is not seen[2]


def test_a_sample_of_clients_estimates_the_loss_with_its_error() -> None:
    """The mean over 200 seeds of (estimate - loss) / error: a t statistic of nearly normal numbers.

    With 5 standard errors a correct estimator fails less than once in a million such tests. A bias
    of half an error would be seen.
    """
    whole = made(Run(Multinomial(3), UNEQUAL))
    whole.run(1)
    loss = whole.histories[0].rounds[-1].quality
    assert loss is not None
    assert loss.loss_error == 0.0
    scores = []
    for seed in range(200):
        simulation = made(Run(Multinomial(3), UNEQUAL), measure_clients=40)
        evaluator, p = simulation._live[0].evaluator, UNEQUAL.population.importance
        sampled = type(evaluator)(
            small_mlp(), evaluator._data, UNEQUAL, importance=p, sample=40, seed=seed
        ).quality(torch.from_numpy(whole.models[0]))
        assert sampled.loss_error > 0
        scores.append((sampled.loss - loss.loss) / sampled.loss_error)

    assert abs(np.mean(scores)) < 5 * np.std(scores) / math.sqrt(200)
    assert 0.7 < np.std(scores) < 1.4


def test_a_sample_as_large_as_the_federation_is_all_of_it() -> None:
    whole, sampled = (
        made(Run(Multinomial(3), UNEQUAL), measure_clients=size)
        for size in (None, UNEQUAL.n_clients)
    )

    whole.run(1)
    sampled.run(1)

    assert sampled.histories[0].last_quality == whole.histories[0].last_quality


def test_only_the_clients_of_the_sample_are_judged_one_by_one() -> None:
    """The losses are equal up to rounding, which depends on how many samples a product has.

    Each logit is a sum of products of 64 + 1 and 8 + 1 terms, wrong by at most 74 roundings of the
    sum of their sizes. A loss is the logarithm of a sum of ten exponentials less a logit: twice
    that, and 12 roundings more. Both losses are rounded.
    """
    whole, sampled = (made(Run(Multinomial(3), UNEQUAL), measure_clients=k) for k in (None, 3))

    (everyone,), (some,) = whole.client_quality(), sampled.client_quality()

    judged = ~np.isnan(some.loss)
    assert 1 <= judged.sum() <= 3 < UNEQUAL.n_clients
    sizes = make_model(small_mlp, seed=0)
    absolute = torch.from_numpy(np.abs(whole.models[0]))
    torch.nn.utils.vector_to_parameters(absolute, sizes.parameters())
    with torch.no_grad():
        terms = float(sizes(torch.ones(1, 64)).max())  # pixels are at most 1
    bound = 2 * 2 * (74 + 12) * 2.0**-24 * terms
    assert np.abs(some.loss - everyone.loss)[judged].max() <= bound
    # Other clients' losses would be seen.
    assert np.diff(np.sort(everyone.loss[~np.isnan(everyone.loss)])).min() > 10 * bound


def test_bad_options_are_refused() -> None:
    with pytest.raises(SimulationError, match="Options: measure_clients must be"):
        Options(measure_clients=0)
    with pytest.raises(SimulationError, match="Run: rebuild_every must be"):
        Run(Multinomial(3), UNEQUAL, rebuild_every=0)


def test_an_optimiser_of_another_kind_is_refused() -> None:
    with pytest.raises(SimulationError, match=r"Run: optimizer must be a ServerOptimizer; got"):
        Run(Multinomial(3), UNEQUAL, optimizer="adam")  # type: ignore[arg-type]
