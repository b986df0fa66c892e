"""Makes the one file of data that every peer reads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import DataError
from fedcohort.simulation import Dataset, load_dataset, one_class_shards
from peers.workload import CLASSES, INPUTS, SAMPLES, SHAPES, TEST_SAMPLES, Federation


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
    widths = [shape[-1] if len(shape) == 2 else None for shape in SHAPES]
    fans = [widths[k] or widths[k - 1] for k in range(len(SHAPES))]
    start = tuple(
        rng.uniform(-1, 1, size=shape).astype(np.float32) / np.float32(np.sqrt(fan))
        for shape, fan in zip(SHAPES, fans, strict=True)
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
    centres = rng.integers(0, 256, size=(CLASSES, INPUTS))
    arrays = []
    for per_class in (10 * SAMPLES, 10 * TEST_SAMPLES):
        y = np.repeat(np.arange(CLASSES), per_class)
        noise = rng.integers(0, 256, size=(len(y), INPUTS))
        arrays += [((centres[y] + 3 * noise) // 4).astype(np.uint8), y]
    return Dataset(*arrays, n_classes=CLASSES, scale=1 / 255)


def _pixels(images: NDArray[np.generic], rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    return images[rows].reshape(*rows.shape, INPUTS).astype(np.uint8)
