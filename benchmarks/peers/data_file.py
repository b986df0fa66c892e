"""Makes the one file of data that every peer reads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import DataError
from fedcohort.simulation import Dataset, load_dataset, one_class_shards
from peers.workload import CLASSES, HIDDEN, INPUTS, SAMPLES, SHAPES, TEST_SAMPLES, Federation


def make_federation(*, synthetic: bool) -> Federation:
    """Give every client images of one digit, client numbers shuffled: figure 1's federation.

    The images are synthetic where that is asked for, or where MNIST is neither here nor reached.
    """
    source, dataset = ("synthetic", blots()) if synthetic else _mnist()
    shards = one_class_shards(dataset, seed=0, train_size=SAMPLES, test_size=TEST_SAMPLES)
    data = shards.renumbered(np.random.default_rng(0))
    train, test = np.stack(data.train), np.stack(data.test)
    rng = np.random.default_rng(0)
    # As torch.nn.Linear begins: uniform within one over the root of the number of inputs.
    bounds = np.repeat([INPUTS, HIDDEN], 2) ** -0.5
    start = tuple(
        rng.uniform(-bound, bound, size=shape).astype(np.float32)
        for shape, bound in zip(SHAPES, bounds, strict=True)
    )
    return Federation(
        source,
        _pixels(dataset.x, train),
        dataset.y[train],
        _pixels(dataset.test_x, test),
        dataset.test_y[test],
        start,
    )


def _mnist() -> tuple[str, Dataset]:
    try:
        return "mnist", load_dataset("mnist")
    except DataError:
        return "synthetic", blots()


def blots() -> Dataset:
    """Images of MNIST's shape: a random blot for every class, and noise."""
    rng = np.random.default_rng(0)
    centres = rng.integers(0, 64, size=(CLASSES, INPUTS), dtype=np.uint8)
    y, test_y = (np.repeat(np.arange(CLASSES), 10 * each) for each in (SAMPLES, TEST_SAMPLES))
    x, test_x = (
        centres[labels] + rng.integers(0, 192, size=(len(labels), INPUTS), dtype=np.uint8)
        for labels in (y, test_y)
    )
    return Dataset(x, y, test_x, test_y, n_classes=CLASSES, scale=1 / 255)


def _pixels(images: NDArray[np.generic], rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    return images[rows].reshape(*rows.shape, INPUTS).astype(np.uint8)
