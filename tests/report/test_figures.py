"""Figures show the numbers that they are made from."""

import numpy as np
import pytest

from fedcohort import Population
from fedcohort.designs import SizeClusteredDesign
from populations import CIFAR_SIZES, rng

pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedcohort.errors import InputError
from fedcohort.report.allocation import allocation_figure
from fedcohort.report.figures import draw_class_samples, draw_class_shares


def spans(axes: Axes) -> list[tuple[float, float]]:
    """Return left end and width of every piece."""
    pieces = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return [(piece.get_x(), piece.get_width()) for piece in pieces]


def test_pieces_that_go_on_come_last_and_those_that_came_on_first() -> None:
    """Sizes 6, 5, 5, 4, m = 2: 12, 8 | 2, 10, 8: the middle client's larger piece goes on."""
    design = SizeClusteredDesign(Population([6, 5, 5, 4], ids=list("abcd")), 2, rng=rng())

    axes = allocation_figure(design).axes[0]

    rows = design.plan.units.toarray()
    split = int(np.flatnonzero((rows > 0).all(axis=0))[0])
    first, second = rows[0, split] / 20, rows[1, split] / 20
    found = [(round(left, 9), round(width, 9)) for left, width in spans(axes)]
    assert (round(1 - first, 9), round(first, 9)) in found
    assert (1.0, round(second, 9)) in found


def test_long_names_are_cut_and_narrow_pieces_have_no_edge() -> None:
    sizes = [100, 1, *[1] * 99]
    ids = ["a" * 20, *map(str, range(100))]
    design = SizeClusteredDesign(Population(sizes, ids=ids), 1, rng=rng())

    axes = allocation_figure(design).axes[0]

    assert axes.texts[0].get_text() == "a" * 10 + "\N{HORIZONTAL ELLIPSIS}"
    assert {patch.get_linewidth() for patch in axes.patches} == {0.8, 0.0}


def test_a_hundred_distributions_are_drawn_and_more_pieces_than_pixels_are_refused() -> None:
    assert allocation_figure(SizeClusteredDesign(Population([1] * 200), 100, rng=rng())).axes

    with pytest.raises(InputError, match=r"at most 100 distributions of 10000 pieces"):
        allocation_figure(SizeClusteredDesign(Population([1] * 10_001), 1, rng=rng()))


def test_every_distribution_is_a_full_box_of_its_clients_pieces() -> None:
    design = SizeClusteredDesign(Population(CIFAR_SIZES), 12, rng=rng())

    lines = allocation_figure(design).axes

    widths = [width for axes in lines for _, width in spans(axes)]
    assert len(lines) == 3
    assert len(widths) == design.plan.units.nnz
    assert sum(widths) == pytest.approx(12)


def test_the_pieces_of_a_split_client_meet_at_the_cut() -> None:
    """[5, 4, 1], m = 3: the line is 10 | 5, 5 | 7, 3."""
    design = SizeClusteredDesign(Population([5, 4, 1], ids=["a", "b", "c"]), 3, rng=rng())

    axes = allocation_figure(design).axes[0]

    rounded = [(round(left, 9), round(width, 9)) for left, width in spans(axes)]
    assert rounded == [(0, 1), (1, 0.5), (1.5, 0.5), (2, 0.7), (2.7, 0.3)]
    names = [text.get_text() for text in axes.texts if not text.get_text().startswith("$")]
    assert names == ["a", "a", "b", "b", "c"]
    colours = np.array([p.get_facecolor() for p in axes.patches])
    assert (colours[0] == colours[1]).all()
    assert (colours[2] == colours[3]).all()
    assert (colours[1] != colours[2]).any()


def test_class_shares_stack_to_one_and_samples_are_counted() -> None:
    counts = np.array([[5, 0, 5], [0, 4, 0], [1, 1, 2], [0, 0, 0]])

    left, right = Figure().subplots(1, 2)
    draw_class_shares(left, counts)
    draw_class_samples(right, counts)

    heights = np.array([patch.get_height() for patch in left.patches]).reshape(3, 4)
    assert heights.sum(axis=0).tolist() == [1, 1, 1, 0]
    assert heights[:, 2].tolist() == [0.25, 0.25, 0.5]
    assert [width for _, width in spans(right)] == [6, 5, 7]
