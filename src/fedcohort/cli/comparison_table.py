"""The table that ``fedcohort compare`` prints: at most 80 columns."""

from collections.abc import Callable

from rich import box
from rich.table import Table

from fedcohort.cli.comparison import MEASURED_COHORTS, Baseline, Line, Task
from fedcohort.cli.plain_console import plain_console
from fedcohort.designs import AutoDesign

Cell = Callable[[Line, Baseline], str]

#: Heading and content of every column after the design's name.
SIZES_COLUMNS: dict[str, Cell] = {
    "\nbias": lambda line, md: "none" if line.summary.unbiased else f"{line.summary.bias:.3f}",
    "weight\nvar.": lambda line, md: short(line.summary.weight_variance),
    "vs\nMD": lambda line, md: short(ratio(line.summary.weight_variance, md.weight_variance)),
    "min.\nincl.": lambda line, md: short(line.summary.smallest_inclusion),
    "mean\nincl.": lambda line, md: short(line.summary.mean_inclusion),
    "distinct\nclients": lambda line, md: short(line.summary.expected_distinct, digits=4),
    "max\ndraws": lambda line, md: short(line.summary.max_count, digits=4),
    "\nbuild": lambda line, md: in_seconds(line.build_seconds),
    "\ndraw": lambda line, md: in_seconds(line.draw_seconds),
}
UPDATES_COLUMNS: dict[str, Cell] = {
    "\nV": lambda line, md: _variance(line),
    "V vs\nMD": lambda line, md: _variance(line, md.aggregate_variance),
}
#: Columns that make room for V; JSON has them.
LEFT_OUT = ("min.\nincl.", "mean\nincl.", "max\ndraws")

WEIGHTS_TEXT = """
bias         sum over clients of |E[w] - p|: w aggregation weight, p importance
weight var.  sum over clients of Var[w]; vs MD: divided by multinomial's"""
SIZES_TEXT = f"""{WEIGHTS_TEXT}
incl.        chance to be in the cohort: smallest, and importance-weighted mean
max draws    how often one client can be drawn in one round"""
UPDATES_TEXT = f"""
V            E|sum w u - sum p u|^2, u the updates: how far a cohort's aggregate
             is from everyone's, bias included; vs MD: divided by multinomial's{WEIGHTS_TEXT}"""
MEASURED_TEXT = f"""\
~            no formula: estimated by Monte Carlo on {MEASURED_COHORTS} drawn cohorts; --json
             has the standard error"""


def print_table(task: Task, lines: list[Line], multinomial: Baseline) -> None:
    """Print a row per design, and what the columns say."""
    console, population = plain_console(), task.federation.population
    columns, text = SIZES_COLUMNS, SIZES_TEXT
    head = (
        f"{task.cohort_size} draws from {population.n_clients} clients, {population.total} samples"
    )
    if task.given is not None:
        kept = {name: cell for name, cell in SIZES_COLUMNS.items() if name not in LEFT_OUT}
        columns, text = UPDATES_COLUMNS | kept, UPDATES_TEXT
        head += f", updates of {task.given.updates.shape[1]} numbers"
    console.print(f"{head}\n")
    console.print(_table(columns, lines, multinomial))
    console.print(text)
    if task.given is not None:
        if not all(line.design.exact_moments for line in lines):
            console.print(MEASURED_TEXT)
        for line in lines:
            if isinstance(line.design, AutoDesign):
                console.print(f"\n{_choice(line.spec, line.design)}")


def _table(columns: dict[str, Cell], lines: list[Line], multinomial: Baseline) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("\ndesign", overflow="fold", min_width=16)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        cells = [cell(line, multinomial) for cell in columns.values()]
        table.add_row(line.spec.replace(":", ":\n"), *cells)
    return table


def _choice(spec: str, design: AutoDesign) -> str:
    predicted = ", ".join(f"{name} {short(v)}" for name, v in design.predicted.items())
    return f"{spec} draws from {design.choice}; predicted V: {predicted}"


def _variance(line: Line, divisor: float | None = 1.0) -> str:
    """Write V, or V over multinomial's; ``~`` where it was measured."""
    if line.variance is None or divisor is None:
        return "-"
    return ("" if line.design.exact_moments else "~") + short(line.variance.value / divisor)


def ratio(value: float, divisor: float | None) -> float | None:
    """Divide; None where there is nothing to divide by."""
    return None if divisor is None else value / divisor


def short(value: float | None, digits: int = 3) -> str:
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


def in_seconds(seconds: float) -> str:
    """Write a time in at most six characters."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * size:
            return (
                f"{seconds / size:.3g} {unit}"
                if seconds < 100 * size
                else f"{seconds / size:.0f} {unit}"
            )
    return f"{seconds / 1e-6:.0f} us"
