"""Draw the figures of the explanation pages: ``python docs/figures.py FOLDER``.

Every file of ``docs/drawings`` is a figure of its name, made by the function ``draw`` in it. A
figure is computed by fedcohort when it is drawn, from fixed seeds: the same versions of the
libraries give the same file. Nothing is downloaded; all of them take some seconds.
"""

from __future__ import annotations

import importlib.util
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from fedcohort.colours import DESIGNS

DRAWINGS = Path(__file__).parent / "drawings"
NAMES = [
    "multinomial",
    "size",
    "similarity",
    "tournament",
    "target",
    "poisson",
    "balanced",
    "uniform",
]
#: A design has one colour in all figures.
COLOURS = MappingProxyType(dict(zip(NAMES, DESIGNS, strict=False)))
#: Figures are at most 5.2 inches wide: at the width of a phone letters are still 9 pixels high.
STYLE: dict[Any, Any] = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "font.size": 9.5,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "fedcohort",
}


def names() -> list[str]:
    """Return the names of all figures."""
    return sorted(path.stem for path in DRAWINGS.glob("*.py"))


def draw_all(folder: Path, kind: str = "svg") -> list[Path]:
    """Draw every figure into the folder, which is made where it is missing; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.{kind}" for name in names()]
    for path in files:
        with mpl.rc_context(STYLE):
            drawn = _drawing(path.stem)(COLOURS)
            # Without the date, the same figure is the same file.
            drawn.savefig(path, metadata={"Date": None} if kind == "svg" else None, dpi=200)
    return files


def _drawing(name: str) -> Callable[[MappingProxyType[str, str]], Figure]:
    """Load what draws a figure from its file."""
    spec = importlib.util.spec_from_file_location(f"drawing_{name}", DRAWINGS / f"{name}.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"figures: there is no drawing {name!r} in {DRAWINGS}.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    draw: Callable[[MappingProxyType[str, str]], Figure] = module.draw
    return draw


if __name__ == "__main__":
    parser = ArgumentParser(description="Draw the figures of the explanation pages.")
    parser.add_argument("folder", type=Path, help="where to draw; made where it is missing")
    parser.add_argument("--kind", default="svg", help="svg, or png to look at")
    given = parser.parse_args()
    draw_all(given.folder, given.kind)
