"""The batched engine against one client after the other."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

import torch
from torch import nn

from fedcohort.errors import SimulationError
from fedcohort.simulation import Dataset, LocalTraining, Options, cnn, load_dataset, mlp
from fedcohort.simulation.engine import convolutions
from fedcohort.simulation.engine.convolutions import StackedConvolutionGradients
from fedcohort.simulation.engine.gradients import (
    Gradients,
    LanewiseGradients,
    ParameterLayout,
    ResidentData,
    StackedLinearGradients,
    VmappedGradients,
    gradients_of,
)
from fedcohort.simulation.engine.local_training import Lane, LocalTrainer, make_schedule
from fedcohort.simulation.engine.models import Stacked, flat_parameters, make_model
from populations import rng
from simulation_twin import plain_update

CPU = torch.device("cpu")


def small_images(n: int = 60) -> Dataset:
    """Random images of CIFAR's shape."""
    x = rng(1).integers(0, 256, size=(n, 3, 32, 32), dtype=np.uint8)
    y = rng(2).integers(10, size=n)
    return Dataset(x, y, x[:0], y[:0], n_classes=10, scale=2 / 255, shift=-1.0)


def small_mlp() -> nn.Module:
    return mlp(64, 12)


def own_module() -> nn.Module:
    """A module of a user's own: a normalisation, dropout inside, a layer without bias."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh()),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(144, 10, bias=False),
    )


TRAININGS = {
    "steps": LocalTraining(steps=4, batch_size=8, lr=0.1),
    "momentum": LocalTraining(steps=4, batch_size=8, lr=0.1, momentum=0.9),
    "weight decay": LocalTraining(steps=4, batch_size=8, lr=0.1, weight_decay=0.01),
    "FedProx": LocalTraining(steps=4, batch_size=8, lr=0.1, mu=0.5),
    "everything": LocalTraining(
        steps=4, batch_size=8, lr=0.1, lr_decay=0.9, momentum=0.5, weight_decay=0.1, mu=0.1
    ),
    "epochs": LocalTraining(epochs=2, batch_size=8, lr=0.1, momentum=0.9, weight_decay=0.1),
}


def lanes_of(sizes: list[int], n: int) -> list[Lane]:
    """Lanes with these numbers of samples, from two models and two seeds."""
    return [
        Lane(k % 2, k % 2, k, rng(k).choice(n, size, replace=False)) for k, size in enumerate(sizes)
    ]


def trained(
    source: Callable[[], nn.Module], data: Dataset, training: LocalTraining, lanes: list[Lane]
) -> tuple[torch.Tensor, torch.Tensor, nn.Module]:
    models = [make_model(source, seed=seed) for seed in (0, 1)]
    starts = torch.stack([flat_parameters(model) for model in models])
    trainer = LocalTrainer(models[0], training, ResidentData(data, CPU))
    return trainer.updates(starts, lanes, round_=3), starts, models[0]


@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS)
@pytest.mark.parametrize("source", [small_mlp, own_module], ids=["mlp", "own module"])
@pytest.mark.parametrize("mus", [(0.0, 0.0), (0.0, 0.7)], ids=["no mu", "mu"])
def test_lanes_with_rates_of_their_own_equal_one_client_after_the_other(
    source: Callable[[], nn.Module], training: LocalTraining, mus: tuple[float, float]
) -> None:
    data = load_dataset("digits")
    lanes = lanes_of([3, 8, 20, 1, 17], len(data.y))
    own = [replace(training, lr=lr, mu=mu) for lr, mu in zip((0.3, 0.02), mus, strict=True)]
    models = [make_model(source, seed=seed) for seed in (0, 1)]
    starts = torch.stack([flat_parameters(model) for model in models])
    trainer = LocalTrainer(models[0], training, ResidentData(data, CPU), trainings=own)

    updates = trainer.updates(starts, lanes, round_=3)

    for lane, update in zip(lanes, updates, strict=True):
        plain = plain_update(models[0], starts[lane.model], lane, own[lane.model], data, 3)
        torch.testing.assert_close(update, plain, rtol=1e-4, atol=1e-6)
        assert plain.abs().max() > 1e-3


@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS)
@pytest.mark.parametrize("source", [small_mlp, own_module], ids=["mlp", "own module"])
def test_batched_clients_equal_one_client_after_the_other(
    source: Callable[[], nn.Module], training: LocalTraining
) -> None:
    """Mixed sizes: fewer samples than a batch, exactly one batch, several."""
    data = load_dataset("digits")
    lanes = lanes_of([3, 8, 20, 1, 17], len(data.y))

    updates, starts, model = trained(source, data, training, lanes)

    for lane, update in zip(lanes, updates, strict=True):
        plain = plain_update(model, starts[lane.model], lane, training, data, 3)
        torch.testing.assert_close(update, plain, rtol=1e-4, atol=1e-6)
        assert plain.abs().max() > 1e-3


@pytest.mark.parametrize("name", ["steps", "FedProx", "momentum"])
def test_the_papers_cnn_trains_as_one_client_after_the_other(name: str) -> None:
    data, training = small_images(), TRAININGS[name]
    lanes = lanes_of([5, 12], len(data.y))

    updates, starts, model = trained(cnn, data, training, lanes)

    for lane, update in zip(lanes, updates, strict=True):
        plain = plain_update(model, starts[lane.model], lane, training, data, 3)
        torch.testing.assert_close(update, plain, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("source", [small_mlp, own_module], ids=["mlp", "own module"])
def test_a_client_gives_the_same_update_in_another_lane_and_cohort(
    source: Callable[[], nn.Module],
) -> None:
    data = load_dataset("digits")
    lanes = lanes_of([30, 12, 20, 9], len(data.y))
    training = TRAININGS["everything"]

    together, _, _ = trained(source, data, training, lanes)
    elsewhere, _, _ = trained(source, data, training, [lanes[3], lanes[1]])

    torch.testing.assert_close(elsewhere[0], together[3], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(elsewhere[1], together[1], rtol=1e-4, atol=1e-6)


def test_many_lanes_train_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_dataset("digits")
    lanes = lanes_of([30, 12, 20, 9, 5], len(data.y))
    whole, starts, _ = trained(small_mlp, data, TRAININGS["steps"], lanes)

    monkeypatch.setattr(
        "fedcohort.simulation.engine.local_training.LANE_BYTES", 2 * 4 * starts.shape[1]
    )

    parts, _, _ = trained(small_mlp, data, TRAININGS["steps"], lanes)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)


def test_samples_that_are_floats_train_as_bytes_do() -> None:
    data = load_dataset("digits")
    floats = replace(data, x=data.x.astype(np.float32), test_x=data.test_x.astype(np.float32))
    lanes, training = lanes_of([300, 30], len(data.y)), TRAININGS["steps"]

    updates, _, _ = trained(small_mlp, floats, training, lanes)

    assert torch.equal(updates, trained(small_mlp, data, training, lanes)[0])


def test_clients_that_have_finished_take_no_more_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    data, training = load_dataset("digits"), TRAININGS["epochs"]
    model, lanes = make_model(small_mlp, seed=0), lanes_of([3, 20, 12], len(data.y))
    n_lanes, gradients = [], StackedLinearGradients.__call__

    def counted(own: StackedLinearGradients, parameters: Stacked, *batch: torch.Tensor) -> Stacked:
        n_lanes.append(len(batch[0]))
        return gradients(own, parameters, *batch)

    monkeypatch.setattr(StackedLinearGradients, "__call__", counted)
    trainer = LocalTrainer(model, training, ResidentData(data, CPU))
    trainer.updates(flat_parameters(model)[None].expand(2, -1), lanes, round_=3)

    # Two epochs of 3, 2 and 1 batches of 8.
    assert n_lanes == [3, 3, 2, 2, 1, 1]


@pytest.mark.parametrize(
    ("first", "shape"),
    [([nn.Flatten()], (3, 4)), ([], (12,))],
    ids=["flattens", "flat samples"],
)
def test_both_ways_give_the_same_gradients(first: list[nn.Module], shape: tuple[int, ...]) -> None:
    model = nn.Sequential(
        *first,
        nn.Linear(12, 7),
        nn.ReLU(),
        nn.Linear(7, 5, bias=False),
        nn.ReLU(),
        nn.Linear(5, 3),
    )
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(4, flat_parameters(model).numel(), generator=generator)
    parameters = ParameterLayout(model).stacked(flat)
    x = torch.randn(4, 6, *shape, generator=generator)
    y = torch.randint(3, (4, 6), generator=generator)
    weights = torch.rand(4, 6, generator=generator)
    keys = torch.zeros(4, 0, dtype=torch.int32)

    assert StackedLinearGradients.fits(model)
    torch.testing.assert_close(
        StackedLinearGradients(model)(parameters, x, y, weights, keys),
        VmappedGradients(model)(parameters, x, y, weights, keys),
        rtol=1e-5,
        atol=1e-6,
    )


def test_all_ways_give_the_same_gradients_of_convolutions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without Triton's kernels, which take no tensors of the CPU."""
    monkeypatch.setattr(convolutions, "_kernels_work", lambda: False)
    model = nn.Sequential(
        nn.Conv2d(2, 3, (3, 2)),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 2, bias=False),
        nn.Flatten(),
        nn.Linear(16, 6, bias=False),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(6, 3),
    )
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(4, flat_parameters(model).numel(), generator=generator)
    x = torch.randn(4, 5, 2, 9, 8, generator=generator)
    y = torch.randint(3, (4, 5), generator=generator)
    weights = torch.rand(4, 5, generator=generator)
    keys = torch.randint(-(2**31), 2**31, (4, 3), generator=generator).int()
    parameters = ParameterLayout(model).stacked(flat)

    assert StackedConvolutionGradients.fits(model)
    for dropout in (True, False):
        ways: list[Gradients] = [
            StackedConvolutionGradients(model, dropout=dropout),
            VmappedGradients(model, dropout=dropout),
            LanewiseGradients(model, dropout=dropout),
        ]
        stacked, vmapped, lanewise = (
            way(parameters, x, y, weights, keys[:, : way.n_keys]) for way in ways
        )
        # Sums of a hundred terms of up to 10 in float32.
        torch.testing.assert_close(stacked, vmapped, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(lanewise, vmapped, rtol=1e-4, atol=1e-4)


def test_every_model_has_its_way_on_every_device() -> None:
    def way(model: nn.Module, device: str) -> type:
        return type(gradients_of(model, torch.device(device)))

    assert way(mlp(), "cpu") is way(mlp(), "cuda") is StackedLinearGradients
    assert way(cnn(), "cuda") is StackedConvolutionGradients
    assert way(own_module(), "cuda") is VmappedGradients
    assert way(cnn(), "cpu") is way(own_module(), "cpu") is LanewiseGradients


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(4, 2)),
        nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.Flatten(), nn.Linear(4, 2)),
        nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten(), nn.Linear(4, 2)),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, padding=1), nn.Flatten()),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4, 2)),
        nn.Sequential(nn.Flatten(), nn.Linear(4, 2)),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.LayerNorm(4)),
    ],
)
def test_other_models_are_not_taken_for_chains_of_convolutions(model: nn.Module) -> None:
    assert not StackedConvolutionGradients.fits(model)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Flatten()),
        nn.Sequential(nn.Tanh(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 2), nn.Flatten()),
        nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Dropout(0.5), nn.Linear(2, 2)),
        nn.Sequential(nn.Flatten(2), nn.Linear(4, 2)),
        nn.Linear(4, 2),
    ],
)
def test_other_models_are_not_taken_for_linear_chains(model: nn.Module) -> None:
    assert not StackedLinearGradients.fits(model)


def test_the_papers_models_have_the_papers_numbers_of_parameters() -> None:
    assert flat_parameters(mlp()).numel() == 39_760
    assert flat_parameters(cnn()).numel() == 122_570


def test_batch_norm_is_refused_with_the_reason_and_the_way_out() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    with pytest.raises(SimulationError, match=r"model: 1 is batch norm, .* Use nn\.GroupNorm"):
        make_model(model, seed=0)


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(SimulationError, match="no parameters to train"):
        make_model(nn.Sequential(nn.ReLU()), seed=0)


def test_a_new_model_comes_from_the_seed_and_leaves_torchs_generator_alone() -> None:
    before = torch.random.get_rng_state()

    first, again, other = (flat_parameters(make_model(mlp, seed=seed)) for seed in (5, 5, 6))

    assert (first == again).all()
    assert (first != other).any()
    assert (torch.random.get_rng_state() == before).all()


def test_batches_are_distinct_samples_and_all_of_a_small_client() -> None:
    lanes = [Lane(0, 0, 0, np.arange(30)), Lane(0, 0, 1, np.arange(5))]

    schedule = make_schedule(lanes, LocalTraining(steps=50, batch_size=8), round_=0, n_keys=0)

    for step in range(50):
        assert len(set(schedule.positions[step, 0])) == 8
        assert sorted(schedule.positions[step, 1, :5]) == [0, 1, 2, 3, 4]
    assert (schedule.sample_weights[:, 0] == np.float32(1 / 8)).all()
    assert (schedule.sample_weights[:, 1, :5] == np.float32(1 / 5)).all()
    assert (schedule.sample_weights[:, 1, 5:] == 0).all()


def test_every_sample_is_as_likely_in_a_batch() -> None:
    """Binomial counts; false alarms 1e-6 over 20 samples: 5.5 deviations."""
    lane = Lane(0, 0, 0, np.arange(20))

    schedule = make_schedule([lane], LocalTraining(steps=20_000, batch_size=5), round_=0, n_keys=0)

    counts = np.bincount(schedule.positions[:, 0].ravel(), minlength=20)
    assert np.abs(counts - 5000).max() < 5.5 * np.sqrt(20_000 * 0.25 * 0.75)


def test_an_epoch_passes_over_every_sample_once() -> None:
    lanes = [Lane(0, 0, 0, np.arange(20)), Lane(0, 0, 1, np.arange(3))]

    schedule = make_schedule(lanes, LocalTraining(epochs=2, batch_size=8), round_=0, n_keys=0)

    assert schedule.active[:, 0].tolist() == [1] * 6
    assert schedule.active[:, 1].tolist() == [1, 1, 0, 0, 0, 0]
    for epoch in (0, 3):
        seen = schedule.positions[epoch : epoch + 3, 0]
        used = schedule.sample_weights[epoch : epoch + 3, 0] > 0
        assert sorted(seen[used]) == list(range(20))
    assert schedule.sample_weights[2, 0, :4].tolist() == [0.25] * 4


def test_rounds_and_seeds_and_clients_see_other_batches() -> None:
    def first(seed: int, round_: int, client: int) -> tuple[int, ...]:
        lane = Lane(0, seed, client, np.arange(100))
        training = LocalTraining(steps=1, batch_size=10)
        return tuple(make_schedule([lane], training, round_=round_, n_keys=0).positions[0, 0])

    seen = {
        first(seed, round_, client) for seed in (0, 1) for round_ in (0, 1) for client in (0, 1)
    }

    assert len(seen) == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs either steps or epochs; got steps=None"),
        ({"steps": 1, "epochs": 1}, "needs either steps or epochs"),
        ({"steps": 0}, r"steps must be a whole number of at least 1; got 0"),
        ({"epochs": 10**10}, r"epochs must be at most 10\^9; got 10000000000"),
        ({"steps": 1, "batch_size": 1.5}, "batch_size must be a whole number"),
        ({"steps": 1, "lr": -1.0}, "lr must be a number of at least 0 and below 3.4e38"),
        ({"steps": 1, "lr": float("nan")}, "lr must be"),
        (
            {"steps": 1, "momentum": 1.0},
            "momentum must be a number of at least 0 and below 1",
        ),
        ({"steps": 1, "mu": -0.1}, "mu must be"),
    ],
)
def test_training_that_cannot_be_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        LocalTraining(**options)  # type: ignore[arg-type]


def shared_relu() -> nn.Module:
    relu = nn.ReLU()
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), relu, nn.Linear(8, 8), relu, nn.Linear(8, 10)
    )


def tied_weights() -> nn.Module:
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), nn.Linear(64, 10))


class Doubled(nn.Module):
    """A dropout that is called twice, a scalar parameter, one that is not used, a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 8), nn.Linear(8, 10)
        self.drop, self.scale = nn.Dropout(0.4), nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.full((8,), 0.5), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(self.first(self.drop(x.flatten(1)))).relu() * self.scale
        return self.second(hidden + self.frozen)  # type: ignore[no-any-return]


@pytest.mark.parametrize("source", [shared_relu, tied_weights, Doubled])
def test_unusual_modules_train_as_one_client_after_the_other(
    source: Callable[[], nn.Module],
) -> None:
    data, training = load_dataset("digits"), TRAININGS["steps"]
    lanes = lanes_of([20, 9], len(data.y))

    updates, starts, model = trained(source, data, training, lanes)

    for lane, update in zip(lanes, updates, strict=True):
        plain = plain_update(model, starts[lane.model], lane, training, data, 3)
        torch.testing.assert_close(update, plain, rtol=1e-4, atol=1e-6)


def test_a_hooked_layer_is_no_plain_chain() -> None:
    model = mlp(64, 8)
    assert StackedLinearGradients.fits(model)

    model[1].register_forward_hook(lambda module, inputs, outputs: outputs * 2)

    assert not StackedLinearGradients.fits(model)


def two_d_dropout() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(144, 10))


def test_what_a_module_draws_for_itself_comes_from_the_lanes_stream_too() -> None:
    """Same update again and in another lane, and torch's own generator is left alone."""
    data, training = load_dataset("digits"), TRAININGS["steps"]
    lanes = lanes_of([20, 9, 12], len(data.y))
    before = torch.random.get_rng_state()

    together, _, _ = trained(two_d_dropout, data, training, lanes)
    torch.rand(7)
    moved = torch.random.get_rng_state()
    elsewhere, _, _ = trained(two_d_dropout, data, training, [lanes[2]])

    torch.testing.assert_close(elsewhere[0], together[2], rtol=1e-4, atol=1e-6)
    assert (torch.random.get_rng_state() == moved).all()
    assert (before != moved).any()


def test_on_a_gpu_modules_that_draw_for_themselves_are_refused() -> None:
    model = two_d_dropout()
    parameters = ParameterLayout(model).stacked(flat_parameters(model)[None])
    x, y = torch.rand(1, 5, 1, 8, 8), torch.zeros(1, 5, dtype=torch.int64)

    with pytest.raises(SimulationError, match=r"draws random numbers other than .*nn\.Dropout"):
        VmappedGradients(model)(
            parameters, x, y, torch.ones(1, 5), torch.zeros(1, 0, dtype=torch.int32)
        )


def test_a_norm_with_running_means_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, track_running_stats=True))

    with pytest.raises(SimulationError, match=r"1 is a norm with running means"):
        make_model(model, seed=0)
    with pytest.raises(SimulationError, match=r"needs an nn.Module or a function .* got None"):
        make_model(lambda: None, seed=0)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("server_lr", [math.nan, math.inf, 1e39, -1.0, True, "1", None])
def test_a_servers_learning_rate_that_float32_cannot_hold_is_refused(server_lr: object) -> None:
    with pytest.raises(
        SimulationError, match=r"Options: server_lr must be a number of at least 0 and below 3.4"
    ):
        Options(server_lr=server_lr)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", ["x", 0, 2.5, True, None])
def test_layers_without_a_width_are_refused(width: Any) -> None:
    for name, make in (
        ("mlp: hidden", lambda: mlp(64, width)),
        ("cnn: classes", lambda: cnn(width)),
    ):
        with pytest.raises(SimulationError, match=f"^{name} must be a whole number of at least 1"):
            make()


def test_a_rate_falls_with_the_root_of_the_rounds() -> None:
    """FedAWE's rate, eta / sqrt(t / 10 + 1), alone and with a decay."""
    training = LocalTraining(steps=1, lr=0.1, lr_root=10)
    both = replace(training, lr_decay=0.5)

    for t in (0, 1, 30, 1990):
        assert training.lr_at(t) == pytest.approx(0.1 / math.sqrt(t / 10 + 1), rel=4 * 2.0**-53)
    assert both.lr_at(30) == pytest.approx(0.05 * 0.5**30, rel=4 * 2.0**-53)
    with pytest.raises(SimulationError, match=r"lr_root must be a number .*; got 0"):
        LocalTraining(steps=1, lr_root=0)


def test_a_learning_rate_that_grows_beyond_float32_is_infinite() -> None:
    training = LocalTraining(steps=1, lr=1.0, lr_decay=1e30)

    assert (training.lr_at(1), training.lr_at(2), training.lr_at(99)) == (1e30, math.inf, math.inf)
