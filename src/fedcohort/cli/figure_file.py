"""Figures on the command line: checked before the work, written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedcohort.cli.whole_file import replace_whole
from fedcohort.errors import InputError
from fedcohort.extras import import_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")


def check_figure_path(path: Path, owner: str) -> None:
    """Refuse what cannot be drawn, before the work is done."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"{owner}: --plot must end in {', '.join(SUFFIXES)}; got {path.name!r}. Rename it."
        )
    import_extra("matplotlib.figure", extra="report", owner=f"{owner} --plot")


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the path's suffix."""
    kind = path.suffix.lower()[1:]
    replace_whole(path, lambda temporary: figure.savefig(temporary, format=kind))
