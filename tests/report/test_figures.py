"""Figures show the numbers that they are made from."""

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedcohort.report.figures import draw_class_samples, draw_class_shares


def spans(axes: Axes) -> list[tuple[float, float]]:
    """Return left end and width of every piece."""
    pieces = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return [(piece.get_x(), piece.get_width()) for piece in pieces]


def test_class_shares_stack_to_one_and_samples_are_counted() -> None:
    counts = np.array([[5, 0, 5], [0, 4, 0], [1, 1, 2], [0, 0, 0]])

    left, right = Figure().subplots(1, 2)
    draw_class_shares(left, counts)
    draw_class_samples(right, counts)

    heights = np.array([patch.get_height() for patch in left.patches]).reshape(3, 4)
    assert heights.sum(axis=0).tolist() == [1, 1, 1, 0]
    assert heights[:, 2].tolist() == [0.25, 0.25, 0.5]
    assert [width for _, width in spans(right)] == [6, 5, 7]
