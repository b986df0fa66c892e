"""``fedcohort compare``: what each design would do for these sizes, side by side."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedcohort.cli.comparison import Baseline, Line, Task, baseline, compared
from fedcohort.cli.comparison_table import print_table, ratio
from fedcohort.cli.completion import some_designs
from fedcohort.cli.design_names import notes_on
from fedcohort.cli.figure_file import check_figure_path, save_figure
from fedcohort.cli.options import AsJson, Plot, Seed
from fedcohort.cli.run_costs import compare_run
from fedcohort.cli.sizes_file import read_federation
from fedcohort.cli.updates_file import read_updates
from fedcohort.designs import AutoDesign
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
    given = None if updates is None else read_updates(updates, federation)
    task = Task(federation, cohort_size, seed, given)
    multinomial = baseline(task)
    lines, notes = compared(task, designs)
    if plot is not None:
        from fedcohort.report.inclusion import inclusion_figure

        save_figure(inclusion_figure({line.spec: line.design for line in lines}), plot)
    if as_json:
        print(json.dumps(_content(task, lines, multinomial), indent=2))
    else:
        print_table(task, lines, multinomial)
    for note in notes_on({line.spec: line.design for line in lines}):
        print(note, file=sys.stderr)
    for note in notes:
        print(f"left out: {note}", file=sys.stderr)


def _content(task: Task, lines: list[Line], multinomial: Baseline) -> dict[str, object]:
    population = task.federation.population
    head = {"n_clients": population.n_clients, "total": population.total}
    if task.given is not None:
        head["dimension"] = task.given.updates.shape[1]
    rows = [_row(line, multinomial) for line in lines]
    return {**head, "cohort_size": task.cohort_size, "designs": rows}


def _row(line: Line, multinomial: Baseline) -> dict[str, object]:
    row = {
        "design": line.spec,
        **asdict(line.summary),
        "weight_variance_ratio": ratio(line.summary.weight_variance, multinomial.weight_variance),
    }
    if line.variance is not None:
        row["aggregate_variance"] = line.variance.value
        row["aggregate_variance_exact"] = line.design.exact_moments
        row["aggregate_variance_standard_error"] = line.variance.standard_error
        row["aggregate_variance_ratio"] = ratio(line.variance.value, multinomial.aggregate_variance)
        if isinstance(line.design, AutoDesign):
            row["choice"], row["predicted"] = line.design.choice, line.design.predicted
    return {**row, "build_seconds": line.build_seconds, "draw_seconds": line.draw_seconds}
