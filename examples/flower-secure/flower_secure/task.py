"""The task: softmax regression on the digits that come with scikit-learn, with numpy alone.

Client k of n holds a share of the images that is proportional to k + 1. Training has no
randomness: full gradient steps.
"""

import numpy as np
from numpy.typing import NDArray

PIXELS, CLASSES = 64, 10
Arrays = list[NDArray[np.float32]]


def load_data(partition: int, n_partitions: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the images and labels of one client."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    ends = np.cumsum(np.arange(n_partitions + 1)) * len(labels) // sum(range(n_partitions + 1))
    own = slice(ends[partition], ends[partition + 1])
    return (images[own] / 16).astype(np.float32), labels[own].astype(np.int64)


def new_model() -> Arrays:
    """Return weights and biases, zero."""
    return [np.zeros((PIXELS, CLASSES), dtype=np.float32), np.zeros(CLASSES, dtype=np.float32)]


def train(
    model: Arrays, data: tuple[NDArray[np.float32], NDArray[np.int64]], steps: int, lr: float
) -> tuple[Arrays, float]:
    """Take gradient steps on all images; return the model and the loss before them."""
    weights, bias = (part.copy() for part in model)
    images, labels = data
    rows = np.arange(len(labels))
    loss = float(-np.log(_chances(images, weights, bias)[rows, labels]).mean())
    for _ in range(steps):
        slope = _chances(images, weights, bias)
        slope[rows, labels] -= 1
        weights -= lr * images.T @ slope / len(labels)
        bias -= lr * slope.mean(axis=0)
    return [weights, bias], loss


def _chances(
    images: NDArray[np.float32], weights: NDArray[np.float32], bias: NDArray[np.float32]
) -> NDArray[np.float32]:
    scores = images @ weights + bias
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(scores / scores.sum(axis=1, keepdims=True), dtype=np.float32)
