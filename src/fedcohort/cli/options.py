"""Arguments and options that commands share."""

from pathlib import Path
from typing import Annotated

import typer

from fedcohort.cli.completion import a_run_folder

Sizes = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        show_default=False,
        help="CSV or JSON file of client sizes, optional ids and groups; - is standard input.",
    ),
]
CohortSize = Annotated[
    int,
    typer.Option("--cohort-size", "-m", metavar="M", show_default=False, help="Draws in a round."),
]
Seed = Annotated[
    int,
    typer.Option(min=0, metavar="N", help="Seed of the order of equal clients and of draws."),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="Also draw a figure: a .png, .svg or .pdf file.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
RunDir = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", show_default=False, help="A run folder.", autocompletion=a_run_folder
    ),
]
