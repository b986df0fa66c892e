"""The noise floor of oracle rounds: what it is, how it is estimated, what it leaves alone."""

import math
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedcohort import (
    Balanced,
    Difference,
    Multinomial,
    Poisson,
    Population,
    Recipe,
    Regression,
    SizeClustered,
    Tournament,
    Uniform,
    recipe,
)
from fedcohort.designs import Design, MultinomialDesign
from fedcohort.simulation import FederatedData, LocalTraining, Run, Yardstick
from fedcohort.simulation.engine.evaluation import (
    Gradients,
    SecondTraining,
    sample_again,
    yardstick,
)
from fedcohort.simulation.engine.local_training import Lane
from fedcohort.simulation.engine.models import make_model
from fedcohort.streams import Stream, stream
from populations import rng
from simulation.federations import (
    DIGITS,
    TRAINING,
    UNEQUAL,
    assert_same,
    made,
    resumed,
    small_mlp,
    spans,
)
from simulation_twin import load, plain_update

#: Three clients, the equally likely updates of each, and predictions that do not know which.
SIZES = Population([1, 2, 3])
UPDATES = [
    np.array([[1.0, 0.0], [3.0, 2.0]]),
    np.array([[0.0, 4.0], [-2.0, 1.0], [5.0, 1.0]]),
    np.array([[2.0, 2.0], [2.0, -6.0]]),
]
H = np.array([[1.0, 1.0], [-2.0, 0.5], [4.0, 0.0]])
MEANS = np.array([own.mean(axis=0) for own in UPDATES])
NOISE = np.array([((own - own.mean(axis=0)) ** 2).sum(axis=1).mean() for own in UPDATES])
DESIGNS = [
    recipe_.build(SIZES, rng=0)
    for recipe_ in (Multinomial(2), SizeClustered(2), Tournament(2), Poisson(2), Uniform(2))
]


def outcomes() -> Iterator[NDArray[np.float64]]:
    """Yield every outcome of all clients' training; all are equally likely."""
    for rows in product(*UPDATES):
        yield np.array(rows)


def exact_floor(design: Design, noise: NDArray[np.float64]) -> float:
    return float((design.weight_variance() + design.bias() ** 2) @ noise)


@pytest.mark.parametrize("design", DESIGNS, ids=lambda each: each.name)
def test_the_variance_that_an_estimator_leaves_is_its_errors_and_the_floor(design: Design) -> None:
    """By enumeration of all batches; the best prediction is a client's mean update."""

    def left(h: NDArray[np.float64]) -> float:
        return float(np.mean([design.aggregate_variance(delta - h) for delta in outcomes()]))

    floor = exact_floor(design, NOISE)

    assert floor > 0
    assert left(H) == pytest.approx(design.aggregate_variance(MEANS - H) + floor, rel=1e-12)
    assert left(np.zeros_like(H)) == pytest.approx(
        design.aggregate_variance(MEANS) + floor, rel=1e-12
    )
    assert left(MEANS) == pytest.approx(floor, rel=1e-12)


def test_multinomial_samplings_floor_is_the_formula_of_the_docstring() -> None:
    p, design = SIZES.importance, MultinomialDesign(SIZES, 2)

    assert exact_floor(design, NOISE) == pytest.approx(p * (1 - p) @ NOISE / 2, rel=1e-12)


@pytest.mark.parametrize("draws", [1, 2, 3])
@pytest.mark.parametrize("design", DESIGNS, ids=lambda each: each.name)
def test_the_estimate_of_the_floor_is_unbiased(design: Design, draws: int) -> None:
    """By enumeration of the sample of clients and of both trainings; 3 draws take everyone."""
    p, mean = SIZES.importance, 0.0
    samples = [(np.arange(3), np.ones(3), 1.0)]
    if draws < 3:
        samples = []
        for drawn in product(range(3), repeat=draws):
            own, counts = np.unique(drawn, return_counts=True)
            samples.append((own, counts / (draws * p[own]), float(np.prod(p[list(drawn)]))))
    rows = [delta.astype(np.float32) for delta in outcomes()]
    for own, factors, chance in samples:
        floors = [
            SecondTraining(own, factors, second[own]).floor(design, first)
            for first in rows
            for second in rows
        ]
        mean += chance * float(np.mean(floors))

    assert mean == pytest.approx(exact_floor(design, NOISE), rel=1e-12)


def test_the_sample_has_the_factors_of_its_draws_and_nobody_of_importance_0() -> None:
    importance = np.array([0.5, 0.0, 0.25, 0.25])
    totals = np.zeros(4)
    for seed in range(4_000):
        clients, factors = sample_again(rng(seed), importance, draws=2)
        totals[clients] += factors
        # Factors are c / (k p): with p they give the counts back, which sum to k.
        assert factors * importance[clients] @ np.ones(len(clients)) == pytest.approx(1.0)
    clients, factors = sample_again(rng(0), importance, draws=3)

    # E[factor] = 1; its variance is (1 - p) / (2 p): up to 1.5. Five standard errors of the mean,
    # each passed in 1 of 1.7 million cases.
    assert totals[1] == 0
    assert totals[[0, 2, 3]] / 4_000 == pytest.approx(1, abs=5 * math.sqrt(1.5 / 4_000))
    assert clients.tolist() == [0, 2, 3]
    assert factors.tolist() == [1, 1, 1]


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def sample_gradients(model: nn.Module, data: FederatedData, client: int) -> NDArray[np.float64]:
    """Return the gradient of each sample of a client, shape (samples, size)."""
    found = []
    for at in data.train[client]:
        x = torch.from_numpy(data.dataset.x[[at]].astype(np.float32)) / 16
        loss = cross_entropy(model(x), torch.from_numpy(data.dataset.y[[at]]))
        parts = torch.autograd.grad(loss, list(model.parameters()))
        found.append(torch.cat([part.reshape(-1) for part in parts]).double().numpy())
    return np.array(found).reshape(len(found), -1)


def test_the_floor_of_a_single_step_is_that_of_a_sample_of_gradients() -> None:
    """With one step, an update is -lr times the mean gradient of b of the client's N samples.

    So its variance is known: lr^2 (1 - b / N) S^2 / b. A server that does not move plays the same
    round again and again. Three means over 300 rounds must lie within 5 standard errors of what
    they estimate, which fails by chance once in 600,000 cases; an error of 30 % would be seen.
    """
    size, lr, rounds = 6, 0.1, 300
    training = LocalTraining(steps=1, batch_size=size, lr=lr)
    options = {"oracle_every": 1, "floor_clients": 3, "server_lr": 0.0, "measure_every": 1000}
    run = Run(SizeClustered(3), UNEQUAL, 1)
    model = make_model(linear, seed=1)
    means, noise = np.zeros((5, 650)), np.zeros(5)
    for client, train in enumerate(UNEQUAL.train):
        if (n := len(train)) == 0:
            continue
        slopes = sample_gradients(model, UNEQUAL, client)
        means[client] = -lr * slopes.mean(axis=0)
        if n > size:
            squares = ((slopes - slopes.mean(axis=0)) ** 2).sum() / (n - 1)
            noise[client] = lr**2 * (1 - size / n) * squares / size
    design = run.recipe.build(UNEQUAL.population, rng=stream(1, use=Stream.TIES))
    multinomial = MultinomialDesign(UNEQUAL.population, 3)

    (history,) = made(run, model=linear, training=training, **options).run(rounds)

    sticks = [each.yardstick for each in history.rounds if each.yardstick is not None]
    for values, exact in (
        ([s.design_floor for s in sticks], exact_floor(design, noise)),
        ([s.multinomial_floor for s in sticks], exact_floor(multinomial, noise)),
        (
            [s.design_variance - s.design_floor for s in sticks],
            design.aggregate_variance(means),
        ),
    ):
        error = np.std(values, ddof=1) / math.sqrt(rounds)
        assert 0 < 5 * error < 0.3 * exact
        assert abs(np.mean(values) - exact) < 5 * error


def test_the_floor_is_0_if_training_is_not_random() -> None:
    """Every step uses all samples: only the rounding of two programs of 610 entries is left."""
    data = FederatedData(
        DIGITS.dataset, spans((0, 20), (20, 26), (26, 60)), spans((0, 3), (3, 5), (5, 9))
    )
    full = LocalTraining(steps=3, batch_size=40, lr=0.1)

    (history,) = made(Run(Multinomial(2), data), training=full, oracle_every=1).run(2)

    for each in history.rounds:
        stick = each.yardstick
        assert stick is not None
        assert 0 <= stick.design_floor == stick.multinomial_floor < 610 * 2.0**-48
        assert stick.multinomial_variance > 1e-6


def dropout_mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))


@pytest.mark.parametrize("draws", [2, 20], ids=["a sample", "everyone"])
@pytest.mark.parametrize("model", [small_mlp, dropout_mlp])
def test_the_floor_equals_that_of_plain_loops(model: Callable[[], nn.Module], draws: int) -> None:
    runs = [Run(Multinomial(4), UNEQUAL, 3), Run(Uniform(2), UNEQUAL, 3)]
    simulation = made(*runs, model=model, oracle_every=2, floor_clients=draws)
    simulation.run(2)
    before = simulation.models
    histories = simulation.run(1)
    address = stream(3, round_=2, use=Stream.FLOOR)
    other_seed, p = int(address.integers(2**63)), UNEQUAL.population.importance
    factors = (p > 0) * 1.0
    if draws == 2:
        counts = address.multinomial(2, p)
        factors = np.divide(counts, 2 * p, out=np.zeros(5), where=p > 0)

    for run, start, history in zip(runs, before, histories, strict=True):
        floor, multinomial = 0.0, 0.0
        theta, twin = torch.from_numpy(start), make_model(model, seed=3)
        design = run.recipe.build(UNEQUAL.population, rng=stream(3, use=Stream.TIES))
        for client in np.flatnonzero(factors).tolist():
            pair = [
                plain_update(
                    twin,
                    theta,
                    Lane(0, seed, client, UNEQUAL.train[client]),
                    TRAINING,
                    UNEQUAL.dataset,
                    2,
                ).double()
                for seed in (3, other_seed)
            ]
            noise = float(((pair[0] - pair[1]) ** 2).sum()) / 2
            spread = design.weight_variance()[client] + design.bias()[client] ** 2
            floor += factors[client] * spread * noise
            m = run.recipe.cohort_size
            multinomial += factors[client] * p[client] * (1 - p[client]) / m * noise
        load(twin, theta)
        stick = history.rounds[2].yardstick
        assert stick is not None
        assert floor > 0
        # As the yardstick's other numbers: float32 sums in another order.
        assert stick.design_floor == pytest.approx(floor, rel=1e-3)
        assert stick.multinomial_floor == pytest.approx(multinomial, rel=1e-3)


def floors(run: Run, **options: Any) -> list[tuple[float, float]]:
    (history,) = made(run, oracle_every=1, **options).run(2)
    sticks = [each.yardstick for each in history.rounds if each.yardstick is not None]
    return [(each.design_floor, each.multinomial_floor) for each in sticks]


def test_estimators_share_the_floor_of_their_first_round() -> None:
    """Later each of them has a model of its own."""
    plain, difference, regression = (
        floors(Run(Multinomial(4), DIGITS, estimator=each), floor_clients=5)
        for each in ("plain", Difference(), Regression(features=None))
    )

    assert plain[0] == difference[0] == regression[0]
    assert plain[0][0] > 0


def test_designs_without_a_formula_for_variance_may_have_a_floor() -> None:
    @recipe
    def first_clients(
        population: Population, known: object, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        return rng.choice(np.flatnonzero(population.sizes), 2, replace=False)

    balanced, estimated = floors(Run(Balanced(4), UNEQUAL)), floors(Run(first_clients(2), UNEQUAL))

    assert all(0 < own < multinomial for own, multinomial in balanced)
    assert all(math.isnan(own) and multinomial > 0 for own, multinomial in estimated)


def test_the_floor_changes_nothing_else() -> None:
    """Models, cohorts and every other number are the same bit for bit without it."""

    def played(floor_clients: int) -> Any:
        run = Run(SizeClustered(4), UNEQUAL)
        simulation = made(run, oracle_every=2, floor_clients=floor_clients)
        (history,) = simulation.run(4)
        rows = history.as_dicts(times=False)
        found = [row["yardstick"] for row in rows if row["yardstick"]]
        of_floor = [(each.pop("design_floor"), each.pop("multinomial_floor")) for each in found]
        return simulation.models, rows, of_floor

    with_floor, without = played(3), played(0)

    assert (with_floor[0] == without[0]).all()
    np.testing.assert_equal(with_floor[1], without[1])
    assert np.isnan(without[2]).all()
    assert np.isfinite(with_floor[2]).all()


@pytest.mark.parametrize("design", [Multinomial(4), SizeClustered(4)], ids=str)
def test_a_resumed_run_has_the_same_floors_bit_for_bit(design: Recipe, tmp_path: Path) -> None:
    def fresh() -> Any:
        return made(Run(design, DIGITS, 5, estimator="difference"), oracle_every=2, floor_clients=4)

    whole = fresh()
    whole.run(5)

    again = resumed(fresh, tmp_path / "checkpoint.state", stop=3, rounds=5)

    assert_same(again, whole)
    last = again.histories[0].rounds[4].yardstick
    assert last is not None
    assert last.design_floor > 0


def test_a_second_training_that_is_not_finite_leaves_the_other_numbers() -> None:
    updates = np.arange(6, dtype=np.float32).reshape(3, 2)
    facts = (MultinomialDesign(SIZES, 2), updates[0], updates, Gradients(1.0, 2.0))
    second = SecondTraining(np.array([1]), np.ones(1), np.array([[np.inf, 0]], np.float32))

    stick = yardstick(*facts, second=second)

    assert stick.multinomial_variance > 0
    assert math.isnan(stick.design_floor)
    assert math.isnan(stick.multinomial_floor)
    assert repr(stick) == repr(yardstick(*facts))


def test_rounds_of_older_versions_have_no_floor() -> None:
    old = Yardstick(1.0, 2.0, 3.0, 4.0, 5.0)

    assert math.isnan(old.design_floor)
