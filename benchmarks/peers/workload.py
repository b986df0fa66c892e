"""The work that every peer does: the paper's figure 1, from one file of data.

A hundred clients with 500 images of one digit each, ten drawn in a round, 784-50-10, 50 steps of
plain SGD on batches of 50. Needs numpy alone: every peer's environment imports it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CLIENTS, SAMPLES, TEST_SAMPLES = 100, 500, 80
COHORT = 10
INPUTS, HIDDEN, CLASSES = 784, 50, 10
STEPS, BATCH, LR = 50, 50, 0.01
#: Where a peer works in passes over a client's samples: as many as give STEPS.
EPOCHS = STEPS * BATCH // SAMPLES
#: Samples that are evaluated at a time, where a peer is told.
EVALUATION_BATCH = 500

#: Weights and biases of the two layers, as ``torch.nn.Linear`` keeps them.
Parameters = tuple[NDArray[np.float32], ...]
ARRAYS = ("x", "y", "test_x", "test_y")
SHAPES = ((HIDDEN, INPUTS), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,))


@dataclass(frozen=True, eq=False)
class Federation:
    """The clients' samples and the model that training starts from.

    Attributes
    ----------
    source
        ``mnist``, or ``synthetic`` where MNIST was not there.
    x, y
        Bytes of shape (clients, samples, inputs), and labels of shape (clients, samples).
    test_x, test_y
        The same for testing.
    start
        The initial parameters.
    """

    source: str
    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    test_x: NDArray[np.uint8]
    test_y: NDArray[np.int64]
    start: Parameters

    def save(self, path: Path) -> None:
        """Write everything to a file."""
        arrays: dict[str, Any] = {name: getattr(self, name) for name in ARRAYS}
        arrays |= {f"start_{k}": array for k, array in enumerate(self.start)}
        np.savez(path, source=np.array(self.source), **arrays)

    @classmethod
    def load(cls, path: Path) -> Federation:
        """Read what :meth:`save` wrote."""
        with np.load(path) as file:
            return cls(
                str(file["source"]),
                **{name: file[name] for name in ARRAYS},
                start=tuple(file[f"start_{k}"] for k in range(len(SHAPES))),
            )


def as_floats(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return pixels from 0 to 1, samples by inputs."""
    return np.divide(pixels.reshape(-1, INPUTS), 255, dtype=np.float32)


def distance(one: Parameters, other: Parameters) -> float:
    """Return how far two models are from each other."""
    squares = [np.sum((a - b) ** 2) for a, b in zip(one, other, strict=True)]
    return float(np.sqrt(np.sum(squares)))


def judge(parameters: Parameters, federation: Federation) -> tuple[float, float]:
    """Return the mean training loss over all clients and the test accuracy.

    In numpy, whoever trained: no peer judges its own work.
    """
    scores = _scores(parameters, federation.x)
    labels = federation.y.reshape(-1)
    top = scores.max(axis=1)
    totals = top + np.log(np.exp(scores - top[:, None]).sum(axis=1))
    loss = np.mean(totals - scores[np.arange(len(labels)), labels])
    hits = _scores(parameters, federation.test_x).argmax(axis=1) == federation.test_y.reshape(-1)
    return float(loss), float(hits.mean())


def _scores(parameters: Parameters, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    hidden, hidden_bias, out, out_bias = parameters
    activity = np.maximum(as_floats(pixels) @ hidden.T + hidden_bias, 0)
    return np.asarray(activity @ out.T + out_bias, dtype=np.float32)
