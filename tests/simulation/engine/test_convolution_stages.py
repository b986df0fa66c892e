"""Convolution stages against autograd: on a GPU, or with ``TRITON_INTERPRET=1`` on any machine."""

import os

import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

import torch
from torch import nn

from fedcohort.simulation import cnn
from fedcohort.simulation.engine import convolutions as stacked
from fedcohort.simulation.engine.convolutions import StackedConvolutionGradients
from fedcohort.simulation.engine.gradients import LanewiseGradients

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("there is no GPU, and TRITON_INTERPRET is not 1", allow_module_level=True)

ODD = nn.Sequential(
    nn.Conv2d(1, 5, 3, bias=False),
    nn.MaxPool2d(3),
    nn.Dropout(0.5),
    nn.Conv2d(5, 4, 2),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(36, 16),
    nn.Dropout(0.3),
    nn.Linear(16, 10),
)
OTHER_ORDER = nn.Sequential(
    nn.ReLU(),
    nn.Conv2d(1, 5, 3),
    nn.MaxPool2d(2),
    nn.ReLU(),
    nn.Dropout(0.5),
    nn.Conv2d(5, 4, 2),
    nn.Dropout(0.2),
    nn.MaxPool2d(2, 1),
    nn.Flatten(),
    nn.Linear(64, 10),
)


@pytest.mark.parametrize(
    ("model", "shape", "batch", "full"),
    [
        (cnn(), (3, 32, 32), 4, 256),
        (cnn(), (3, 32, 32), 10, 4),
        (ODD, (1, 14, 14), 4, 256),
        (OTHER_ORDER, (1, 14, 14), 4, 256),
    ],
    ids=["the paper's", "in two groups", "windows that leave a rest, no bias", "another order"],
)
def test_stages_give_autograds_gradients(
    model: nn.Sequential,
    shape: tuple[int, ...],
    batch: int,
    full: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stacked, "FULL", full)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    lanes = 2
    parameters = {
        name: torch.stack([p.detach() + 0.02 * torch.randn_like(p) for _ in range(lanes)])
        for name, p in model.named_parameters()
    }
    x, y = torch.randn(lanes, batch, *shape), torch.randint(10, (lanes, batch))
    weights = torch.rand(lanes, batch)
    stages, plain = StackedConvolutionGradients(model), LanewiseGradients(model)
    keys = torch.randint(-(2**31), 2**31 - 1, (lanes, stages.n_keys), dtype=torch.int32)

    moved = {name: tensor.to(DEVICE) for name, tensor in parameters.items()}
    found = stages(moved, *(part.to(DEVICE) for part in (x, y, weights, keys)))

    own = torch.cat([keys, torch.zeros(lanes, 1, dtype=torch.int32)], dim=1)
    expected = plain(parameters, x, y, weights, own)
    assert any(isinstance(layer, stacked.Stage) for _, layer, _ in stages.layers)
    for name, slope in expected.items():
        # float32 sums of a few thousand terms, in another order
        assert (found[name].cpu() - slope).norm() < 1e-5 * slope.norm(), name
