"""The task: softmax regression on images, with numpy alone.

Handwritten digits of 8 x 8 pixels that come with scikit-learn; MNIST where ``FEDCOHORT_DATA``
has its files. Client k of n holds the digits k, k + n, k + 2n ...: no two hold the same.
"""

import gzip
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CLASSES = 10
Arrays = list[NDArray[np.float32]]


def load_data(partition: int, n_partitions: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the images and labels of one client."""
    images, labels = _mnist() if _mnist_folder() else _digits()
    own = labels % n_partitions == partition
    return images[own], labels[own]


def new_model() -> Arrays:
    """Return weights and biases, zero."""
    pixels = 784 if _mnist_folder() else 64
    return [
        np.zeros((pixels, CLASSES), dtype=np.float32),
        np.zeros(CLASSES, dtype=np.float32),
    ]


def train(
    model: Arrays,
    data: tuple[NDArray[np.float32], NDArray[np.int64]],
    steps: int,
    lr: float,
    seed: int,
) -> tuple[Arrays, float]:
    """Take gradient steps on random batches; return the model and the loss before them."""
    weights, bias = (part.copy() for part in model)
    images, labels = data
    rng = np.random.default_rng(seed)
    loss = float(-np.log(_chances(images, weights, bias)[np.arange(len(labels)), labels]).mean())
    for _ in range(steps):
        batch = rng.choice(len(labels), size=min(50, len(labels)), replace=False)
        slope = _chances(images[batch], weights, bias)
        slope[np.arange(len(batch)), labels[batch]] -= 1
        weights -= lr * images[batch].T @ slope / len(batch)
        bias -= lr * slope.mean(axis=0)
    return [weights, bias], loss


def _chances(
    images: NDArray[np.float32], weights: NDArray[np.float32], bias: NDArray[np.float32]
) -> NDArray[np.float32]:
    scores = images @ weights + bias
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(scores / scores.sum(axis=1, keepdims=True), dtype=np.float32)


def _digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return (images / 16).astype(np.float32), labels.astype(np.int64)


def _mnist_folder() -> Path | None:
    folder = Path(os.environ.get("FEDCOHORT_DATA", "")) / "mnist"
    return folder if (folder / "train-images-idx3-ubyte.gz").is_file() else None


def _mnist() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    folder = _mnist_folder()
    assert folder is not None
    with gzip.open(folder / "train-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), dtype=np.uint8, offset=16).reshape(-1, 784)
    with gzip.open(folder / "train-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), dtype=np.uint8, offset=8)
    return (images / 255).astype(np.float32), labels.astype(np.int64)
