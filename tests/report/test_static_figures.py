"""Figures of runs: which there are, what they show, and that drawing again gives the same bytes."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")
pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")

import pyarrow as pa
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from fedcohort.colours import (
    CLASSES,
    DESIGNS,
    class_colours,
    design_colours,
    design_dashes,
)
from fedcohort.errors import InputError
from fedcohort.experiments import Results
from fedcohort.experiments.units import PlannedRun
from fedcohort.report.figures import save_figures, static_figures
from fedcohort.report.page_data import design_labels

LABELS = ["multinomial", "size", "similarity", "similarity l2"]


@pytest.fixture(scope="module")
def drawn_once(two_panels: Results) -> bytes:
    return pickle.dumps(static_figures(two_panels))


@pytest.fixture
def figures(drawn_once: bytes) -> dict[str, Figure]:
    """The figures of two panels, a copy for every test."""
    return dict(pickle.loads(drawn_once))


def luminance(colour: str) -> float:
    """Relative luminance, as the accessibility guidelines define it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def test_only_figures_that_apply_are_drawn(
    figures: dict[str, Figure], one_seed: Results, partition: Results
) -> None:
    assert list(figures) == ["loss", "curves", "costs", "cohorts", "partition"]
    assert list(static_figures(one_seed)) == ["loss", "curves", "costs", "overview", "partition"]
    assert list(static_figures(partition)) == ["partition"]


def test_the_loss_is_smoothed_and_a_mean_over_seeds_in_the_designs_colour(
    two_panels: Results, figures: dict[str, Figure]
) -> None:
    axes = figures["loss"].axes[0]

    line = axes.lines[1]
    runs = [
        two_panels.column("rounds", PlannedRun("alpha = 0.01", "size", s), "loss") for s in (0, 1)
    ]
    expected = np.mean([np.average(run, weights=0.5 ** np.arange(12)[::-1]) for run in runs])
    assert np.asarray(line.get_ydata())[-1] == pytest.approx(expected)
    assert np.asarray(line.get_xdata()).tolist() == list(range(1, 13))
    assert to_hex(str(line.get_color())) == design_colours(LABELS)["size"]
    assert len(axes.collections) == 4  # a band each


def test_raw_curves_have_a_row_per_panel(two_panels: Results, figures: dict[str, Figure]) -> None:
    axes = figures["curves"].axes

    assert [each.get_ylabel() for each in axes] == ["training loss", "test accuracy"] * 2
    loss = two_panels.column("rounds", PlannedRun("alpha = 10", "size", 0), "loss")
    other = two_panels.column("rounds", PlannedRun("alpha = 10", "size", 1), "loss")
    drawn = np.asarray(axes[2].lines[1].get_ydata())
    assert drawn.tolist() == pytest.approx(((loss + other) / 2).tolist())


def test_costs_are_loss_against_what_was_spent(
    two_panels: Results, figures: dict[str, Figure]
) -> None:
    axes = figures["costs"].axes

    assert [each.get_xlabel() for each in axes[:4]] == [
        "rounds",
        "data down and up (megabytes)",
        "client work (seconds)",
        "simulated time (milliseconds)",
    ]
    assert [each.get_xscale() for each in axes[:4]] == ["linear", "log", "log", "log"]
    assert len(axes) == 8
    losses = [np.asarray(each.lines[1].get_ydata()).tolist() for each in axes[:4]]
    assert losses == [losses[0]] * 4
    runs = [PlannedRun("alpha = 0.01", "size", seed) for seed in (0, 1)]
    down, up = (
        np.mean([two_panels.column("rounds", run, name) for run in runs], axis=0)
        for name in ("bytes_down", "bytes_up")
    )
    drawn = np.asarray(axes[1].lines[1].get_xdata())
    np.testing.assert_allclose(drawn, np.cumsum(down + up) / 1e6, rtol=1e-12)


def test_older_runs_have_no_costs(two_panels: Results) -> None:
    table = two_panels.tables["rounds"]
    place = table.schema.get_field_index("bytes_up")
    nothing = pa.nulls(table.num_rows, table.schema.field(place).type)
    older = table.set_column(place, "bytes_up", nothing)

    figures = static_figures(replace(two_panels, tables={**two_panels.tables, "rounds": older}))

    assert "costs" not in figures


def test_one_seed_has_no_band_and_a_hostile_label_is_in_the_legend(one_seed: Results) -> None:
    figure = static_figures(one_seed)["overview"]

    assert all(not axes.collections for axes in figure.axes)
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts[0].strip() == design_labels([one_seed])[0]
    assert texts[1] == "similarity"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_drawing_again_gives_the_same_bytes(kind: str, one_seed: Results, tmp_path: Path) -> None:
    first = save_figures(one_seed, tmp_path / "first", kind)
    again = save_figures(one_seed, tmp_path / "again", kind)

    assert [path.name for path in first] == [
        f"{name}.{kind}" for name in ("loss", "curves", "costs", "overview", "partition")
    ]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]


def test_other_kinds_and_folders_that_cannot_be_made_are_refused(
    partition: Results, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"figures: must be png, svg, pdf; got 'gif'"):
        save_figures(partition, tmp_path, "gif")

    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot be made \(.*\)\. Choose another path"):
        save_figures(partition, tmp_path / "file" / "figures", "png")


def test_colours_are_distinct_and_visible_on_white_and_on_black() -> None:
    assert len(set(DESIGNS)) == len(DESIGNS)
    assert len(set(class_colours(62))) == 62
    assert class_colours(3) == list(CLASSES[:3])
    for colour in DESIGNS:
        light, dark = luminance("#ffffff"), luminance("#14171b")
        assert (light + 0.05) / (luminance(colour) + 0.05) >= 3
        assert (luminance(colour) + 0.05) / (dark + 0.05) >= 3


def test_where_colours_repeat_lines_differ() -> None:
    labels = [f"design {k}" for k in range(3 * len(DESIGNS))]
    colours, dashes = design_colours(labels), design_dashes(labels)

    assert len({(colours[label], dashes[label]) for label in labels}) == len(labels)
    assert dashes["design 0"] == "solid"


def test_a_design_keeps_its_colour_in_every_run(two_panels: Results, one_seed: Results) -> None:
    labels = design_labels([two_panels, one_seed])

    assert labels[:4] == LABELS
    assert labels.count("multinomial") == 1
    assert len(labels) == 5  # "similarity" is in both


def test_the_legend_lies_inside_every_figure(two_panels: Results, one_seed: Results) -> None:
    for results in (two_panels, one_seed):
        for name, figure in static_figures(results).items():
            if name == "partition":
                continue
            FigureCanvasAgg(figure).draw()  # type: ignore[no-untyped-call]
            (legend,) = figure.legends

            extent = legend.get_window_extent()

            assert extent.x0 >= 0, name
            assert extent.x1 <= figure.bbox.width, name
