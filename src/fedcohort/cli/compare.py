"""``fedcohort compare``: what each design would do for these sizes, side by side."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from fedcohort._comparison_row import Row
from fedcohort._figures import check_figure_path
from fedcohort.cli.completion import some_designs
from fedcohort.cli.options import AsJson, Plot, Seed
from fedcohort.cli.run_costs import compare_run
from fedcohort.cli.sizes_file import Federation, read_federation
from fedcohort.cli.updates_file import read_updates
from fedcohort.comparison import Comparison
from fedcohort.comparison import compare as compare_designs
from fedcohort.designs import AutoDesign
from fedcohort.designs.catalogue import named_recipe
from fedcohort.errors import InputError


def compare(
    sizes: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            show_default=False,
            help="CSV or JSON file of client sizes, optional ids and groups; - is standard input. "
            "Or a run folder.",
        ),
    ],
    cohort_size: Annotated[
        int | None,
        typer.Option(
            "--cohort-size",
            "-m",
            metavar="M",
            show_default=False,
            help="Draws in a round; needed for sizes.",
        ),
    ] = None,
    designs: Annotated[
        str | None,
        typer.Option(
            "--designs",
            "-d",
            metavar="DESIGN,...",
            show_default=False,
            help="Which designs; they are listed below. Default: all that need only sizes, and "
            "with --updates those that learn.",
            autocompletion=some_designs,
        ),
    ] = None,
    updates: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npy",
            show_default=False,
            help="The clients' last updates, a row per client in the order of the sizes. Adds V, "
            "the variance of the aggregate.",
        ),
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    plot: Plot = None,
) -> None:
    """Compare designs on client sizes, or what those of a run have cost.

    With sizes: bias, variance of the weights, chance to be drawn, and time of each design.

    With --updates: also V, how far a cohort's aggregate is from everyone's.

    With --plot: the chance to be drawn against the client's size, for each design.

    With a run folder: the rounds, bytes, client work and simulated time that each of its designs
    took to the baseline's final loss; --plot draws the loss against each.
    """
    if plot is not None:
        check_figure_path(plot, "compare")
    if Path(sizes).is_dir():
        if designs or updates or cohort_size is not None:
            raise InputError(
                "compare: a run folder needs no --cohort-size, --designs or --updates; got some. "
                "Drop them."
            )
        compare_run(Path(sizes), as_json=as_json, plot=plot)
        return
    if cohort_size is None:
        raise InputError(
            "compare: needs --cohort-size, the number of draws in a round; got none. Add "
            "--cohort-size 10."
        )
    federation = read_federation(sizes)
    found = compare_designs(
        federation.population,
        cohort_size,
        None if designs is None else _names(designs, cohort_size, federation),
        None if updates is None else read_updates(updates, federation),
        seed=seed,
        progress=_bar,
    )
    if plot is not None:
        found.plot(plot)
    print(json.dumps(_content(found), indent=2) if as_json else _printable(repr(found)))
    for note in found.notes:
        print(note, file=sys.stderr)
    for name, reason in found.left_out.items():
        print(f"left out: {name}: {reason}", file=sys.stderr)


def _names(designs: str, cohort_size: int, federation: Federation) -> list[str]:
    """Return the designs that were typed; each must be known, and find the groups that it needs."""
    names = designs.split(",")
    for name in names:
        federation.check_groups(named_recipe(name, cohort_size))
    return names


def _bar(labels: list[str]) -> Iterable[str]:
    """Show a bar on a terminal."""
    errors = Console(stderr=True)
    return track(labels, "designs", console=errors, transient=True, disable=not errors.is_terminal)


def _printable(text: str) -> str:
    """Write the table's rule in ASCII where the output has nothing else."""
    return text if sys.stdout.encoding.lower().startswith("utf") else text.replace("─", "-")


def _content(found: Comparison) -> dict[str, object]:
    population = found.population
    head = {"n_clients": population.n_clients, "total": population.total}
    if found.dimension is not None:
        head["dimension"] = found.dimension
    rows = [_row(row, found) for row in found.rows.values()]
    return {**head, "cohort_size": found.cohort_size, "designs": rows}


def _row(row: Row, found: Comparison) -> dict[str, object]:
    values = row.values()
    if found.dimension is not None and isinstance(row.design, AutoDesign):
        values |= {"choice": row.design.choice, "predicted": row.design.predicted}
    return values
