"""``fedcohort compare``: what each design would do for these sizes, side by side."""

import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fedcohort.cli.design_names import HELP, build_design
from fedcohort.cli.figure_file import check_figure_path, save_figure
from fedcohort.cli.options import CohortSize, Plot, Seed, Sizes
from fedcohort.cli.plain_console import plain_console
from fedcohort.cli.sizes_file import Federation, read_federation
from fedcohort.designs import Design, MultinomialDesign
from fedcohort.diagnostics import Summary, summary
from fedcohort.errors import DesignError
from fedcohort.streams import Stream, stream

#: Compared where nothing else is asked for: all that need nothing but sizes.
EVERYONE = "uniform,uniform:unbiased,multinomial,poisson,size,size:whole_rows_first"
HEADINGS = (
    "\nbias",
    "weight\nvar.",
    "vs\nMD",
    "min.\nincl.",
    "mean\nincl.",
    "distinct\nclients",
    "max\ndraws",
    "\nbuild",
    "\ndraw",
)
EXPLANATION = """
bias         sum over clients of |E[w] - p|: w aggregation weight, p importance
weight var.  sum over clients of Var[w]; vs MD: divided by multinomial's
incl.        chance to be in the cohort: smallest, and importance-weighted mean
max draws    how often one client can be drawn in one round"""
#: Draws that the time of one draw is the median of.
TIMED_DRAWS = 15


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One design of the comparison."""

    spec: str
    design: Design
    summary: Summary
    build_seconds: float
    draw_seconds: float


def compare(
    sizes: Sizes,
    cohort_size: CohortSize,
    designs: Annotated[
        str | None,
        typer.Option(
            "--designs",
            "-d",
            show_default=False,
            help=f"Designs, separated by commas: {HELP}. Default: all that need only sizes.",
        ),
    ] = None,
    seed: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    plot: Plot = None,
) -> None:
    """Compare designs on a list of client sizes: bias, variance, inclusion and time.

    With --plot: the chance to be drawn against the client's size, for each design.
    """
    if plot is not None:
        check_figure_path(plot, "compare")
    federation = read_federation(sizes)
    multinomial = summary(MultinomialDesign(federation.population, cohort_size))
    lines, notes = _lines(federation, cohort_size, designs, seed)
    if plot is not None:
        from fedcohort.report.inclusion import inclusion_figure

        save_figure(inclusion_figure({line.spec: line.design for line in lines}), plot)
    if as_json:
        _print_json(federation, cohort_size, lines, multinomial)
    else:
        _print_table(federation, cohort_size, lines, multinomial)
    for note in notes:
        print(f"left out: {note}", file=sys.stderr)


def _lines(
    federation: Federation, cohort_size: int, designs: str | None, seed: int
) -> tuple[list[Line], list[str]]:
    """Build, judge and time the designs; of those not asked for by name, note what cannot be."""
    lines, notes = [], []
    specs = (EVERYONE if designs is None else designs).split(",")
    errors = Console(stderr=True)
    bar = track(specs, "designs", console=errors, transient=True, disable=not errors.is_terminal)
    for spec in bar:
        try:
            lines.append(_line(spec.strip(), federation, cohort_size, seed))
        except DesignError as error:
            if designs is not None:
                raise
            notes.append(str(error))
    return lines, notes


def _line(spec: str, federation: Federation, cohort_size: int, seed: int) -> Line:
    start = time.perf_counter()
    design = build_design(spec, federation, cohort_size, seed)
    built = time.perf_counter()
    draws = []
    for round_ in range(TIMED_DRAWS):
        rng = stream(seed, round_=round_, use=Stream.COHORT)
        before = time.perf_counter()
        design.draw(rng)
        draws.append(time.perf_counter() - before)
    return Line(spec, design, summary(design), built - start, float(np.median(draws)))


def _print_json(
    federation: Federation, cohort_size: int, lines: list[Line], multinomial: Summary
) -> None:
    rows = [
        {
            "design": line.spec,
            **asdict(line.summary),
            "weight_variance_ratio": _ratio(line.summary, multinomial),
            "build_seconds": line.build_seconds,
            "draw_seconds": line.draw_seconds,
        }
        for line in lines
    ]
    population = federation.population
    head = {"n_clients": population.n_clients, "total": population.total}
    print(json.dumps({**head, "cohort_size": cohort_size, "designs": rows}, indent=2))


def _print_table(
    federation: Federation, cohort_size: int, lines: list[Line], multinomial: Summary
) -> None:
    population = federation.population
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("\ndesign", overflow="fold", min_width=16)
    for name in HEADINGS:
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        numbers = line.summary
        table.add_row(
            line.spec.replace(":", ":\n"),
            "none" if numbers.unbiased else f"{numbers.bias:.3f}",
            _short(numbers.weight_variance),
            _short(_ratio(numbers, multinomial)),
            _short(numbers.smallest_inclusion),
            _short(numbers.mean_inclusion),
            _short(numbers.expected_distinct, digits=4),
            _short(numbers.max_count, digits=4),
            _seconds(line.build_seconds),
            _seconds(line.draw_seconds),
        )
    console = plain_console()
    console.print(
        f"{cohort_size} draws from {population.n_clients} clients, {population.total} samples\n"
    )
    console.print(table)
    console.print(EXPLANATION)


def _ratio(numbers: Summary, multinomial: Summary) -> float | None:
    """Return the summed weight variance over multinomial's; None where multinomial has none."""
    if multinomial.weight_variance == 0:
        return None
    return numbers.weight_variance / multinomial.weight_variance


def _short(value: float | None, digits: int = 3) -> str:
    """Write a number in at most six characters."""
    if value is None:
        return "-"
    if value == 0 or 1e-2 <= abs(value) < 10 ** (digits + 1):
        return f"{value:.{digits}g}"
    for places in (1, 0):
        mantissa, _, exponent = f"{value:.{places}e}".partition("e")
        text = f"{mantissa.removesuffix('.0')}e{int(exponent)}"
        if len(text) <= 6:
            break
    return text


def _seconds(seconds: float) -> str:
    """Write a time in at most six characters."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * size:
            return (
                f"{seconds / size:.3g} {unit}"
                if seconds < 100 * size
                else f"{seconds / size:.0f} {unit}"
            )
    return f"{seconds / 1e-6:.0f} us"
