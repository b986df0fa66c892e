"""Arguments and options that commands share."""

from pathlib import Path
from typing import Annotated

import typer

Sizes = Annotated[
    str,
    typer.Argument(
        metavar="SIZES",
        show_default=False,
        help="CSV or JSON file of client sizes, optional ids and groups; - is standard input.",
    ),
]
CohortSize = Annotated[
    int,
    typer.Option("--cohort-size", "-m", show_default=False, help="Draws in a round."),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the order of equal clients and of draws.")]
Plot = Annotated[
    Path | None,
    typer.Option(show_default=False, help="Also draw a figure: a .png, .svg or .pdf file."),
]
