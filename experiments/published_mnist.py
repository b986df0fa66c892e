"""MNIST and the model of the benchmark that FedML and FLUTE publish as LR on MNIST.

``published-mnist.toml`` names both. The division follows T. Li et al., "Federated optimization in
heterogeneous networks", MLSys 2020: 1,000 clients of two digits each, with sizes by a power law.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedcohort.simulation import Dataset, FederatedData, load_dataset
from fedcohort.streams import Stream, stream

CLIENTS, DIGITS = 1000, 10
#: Training samples of each digit that a client has at least, and the spread of the others' number.
LEAST, SPREAD = 5, 2.0


def power_law(folder: Path) -> FederatedData:
    """Return MNIST, every pixel standardised, divided among 1,000 clients of two digits each."""
    pixels = load_dataset("mnist", folder)
    mean, deviation = (
        getattr(pixels.x, name)(axis=0, dtype=np.float64) for name in ("mean", "std")
    )
    x, test_x = (
        ((part - mean) / (deviation + 1e-3)).astype(np.float32)
        for part in (pixels.x, pixels.test_x)
    )
    dataset = Dataset(x, pixels.y, test_x, pixels.test_y, n_classes=DIGITS)
    rng = stream(0, use=Stream.PARTITION)
    shares = rng.lognormal(sigma=SPREAD, size=(DIGITS, 2 * CLIENTS // DIGITS))
    shares /= shares.sum(axis=1, keepdims=True)
    train, test = (
        _divided(labels, shares, least, rng)
        for labels, least in ((pixels.y, LEAST), (pixels.test_y, 0))
    )
    return FederatedData(dataset, train, test)


def _divided(
    labels: NDArray[np.int64], shares: NDArray[np.float64], least: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], ...]:
    """Give every sample to a client: client k has the digits k and k + 1, modulo 10."""
    parts: list[list[NDArray[np.int64]]] = [[] for _ in range(CLIENTS)]
    for digit, own in enumerate(shares):
        members = rng.permutation(np.flatnonzero(labels == digit))
        ends = np.rint(np.cumsum(own) * (len(members) - least * len(own)))
        ends = (ends + least * np.arange(1, len(own) + 1)).astype(np.int64)
        clients = [k for k in range(CLIENTS) if digit in (k % DIGITS, (k + 1) % DIGITS)]
        for client, part in zip(clients, np.split(members, ends[:-1]), strict=True):
            parts[client].append(part)
    return tuple(np.concatenate(part) for part in parts)


def logistic(data: Dataset) -> nn.Module:
    """Return logistic regression whose outputs go through a sigmoid, as FedML and FLUTE have it."""
    return nn.Sequential(nn.Flatten(), nn.Linear(data.x[0].size, DIGITS), nn.Sigmoid())
