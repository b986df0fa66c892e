"""Figures on the command line: checked before the work, written whole or not at all."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from fedcohort._extras import import_extra
from fedcohort._whole_file import replace_whole
from fedcohort.errors import InputError

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
    with warnings.catch_warnings():
        # Ids in scripts that the font lacks are drawn as boxes; the file is no worse for saying so.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        replace_whole(path, lambda temporary: figure.savefig(temporary, format=kind))
