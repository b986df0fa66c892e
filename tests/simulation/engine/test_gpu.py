"""The GPU's engine against the CPU's; runs where there is a GPU."""

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

import torch
from torch import nn

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

from fedcohort import Multinomial, SimilarityClustered
from fedcohort.simulation import (
    Dataset,
    LocalTraining,
    Options,
    Run,
    Simulation,
    cnn,
    iid,
    mlp,
)
from fedcohort.simulation.engine.gradients import ResidentData
from fedcohort.simulation.engine.local_training import Lane, LocalTrainer
from fedcohort.simulation.engine.models import flat_parameters, make_model


def images(channels: int, side: int, n: int = 300) -> Dataset:
    rng = np.random.default_rng(0)
    y = rng.integers(10, size=n)
    x = rng.integers(0, 256, size=(n, channels, side, side), dtype=np.uint8)
    x[np.arange(n), :, y % side] //= 4
    return Dataset(x, y, x[:60], y[:60], n_classes=10, scale=2 / 255, shift=-1.0)


def small_mlp() -> nn.Module:
    return mlp(64, 16)


def own_module() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(256, 10)
    )


@pytest.fixture(autouse=True)
def full_precision() -> None:
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize(
    "training",
    [
        LocalTraining(steps=5, batch_size=16, lr=0.05),
        LocalTraining(steps=5, batch_size=16, lr=0.05, momentum=0.9, weight_decay=0.01, mu=0.1),
        LocalTraining(epochs=2, batch_size=16, lr=0.05, lr_decay=0.9),
    ],
)
@pytest.mark.parametrize(
    ("source", "data"),
    [(small_mlp, images(1, 8)), (cnn, images(3, 32)), (own_module, images(1, 8))],
    ids=["mlp", "cnn with dropout", "own module"],
)
def test_the_graph_gives_the_cpus_updates(
    source: Callable[[], nn.Module], data: Dataset, training: LocalTraining
) -> None:
    """Two rounds, fewer lanes than slots, clients smaller than a batch."""
    lanes = [Lane(0, 0, k, np.arange(40 * k, 40 * k + n)) for k, n in enumerate((30, 7, 16, 40))]
    found = {}
    for name in ("cpu", "cuda"):
        device = torch.device(name)
        model = make_model(source, seed=0).to(device)
        trainer = LocalTrainer(model, training, ResidentData(data, device), slots=6)
        start = flat_parameters(model)[None]
        found[name] = [trainer.updates(start, lanes, round_=r).cpu() for r in (0, 1)]
    for cpu, cuda in zip(found["cpu"], found["cuda"], strict=True):
        assert cpu.abs().max() > 1e-3
        torch.testing.assert_close(cuda, cpu, rtol=2e-3, atol=2e-5)


def test_a_simulation_on_the_gpu_follows_the_cpus() -> None:
    data = iid(images(1, 8), n_clients=20, seed=0)
    runs = [
        Run(Multinomial(5), data),
        Run(SimilarityClustered(5), data),
        Run(Multinomial(5), data, 1),
        Run(Multinomial(5), data, 1, lr=0.1, mu=0.2, server_lr=0.5),
    ]
    histories = {}
    for device in ("cpu", "cuda"):
        options = Options(device=device, oracle_every=3)
        simulation = Simulation(runs, small_mlp, LocalTraining(steps=4, lr=0.05), options)
        histories[device] = simulation.run(4)
    for cpu, cuda in zip(histories["cpu"], histories["cuda"], strict=True):
        assert [r.clients for r in cpu.rounds] == [r.clients for r in cuda.rounds]
        for one, other in zip(cpu.measured, cuda.measured, strict=True):
            assert one.quality is not None
            assert other.quality is not None
            assert other.quality.loss == pytest.approx(one.quality.loss, rel=1e-3)
