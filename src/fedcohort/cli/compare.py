"""``fedcohort compare``: compare designs on client sizes, or by the costs of a run."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fedcohort._display import decimals_of, fitting_unit, fixed, plain_table
from fedcohort._figures import checked_figure_path, save_figure
from fedcohort._lazy import import_extra
from fedcohort.cli.options import (
    READING,
    SIZES_HELP,
    AsJson,
    Plot,
    Seed,
    argument,
    option,
    plain_console,
    read_clients,
    reads_clients,
    some_designs,
)
from fedcohort.client_files.table import Reading
from fedcohort.comparison import CohortSizes, Comparison
from fedcohort.comparison import compare as compare_designs
from fedcohort.comparison.rows import FEW, Row
from fedcohort.comparison.shown import Shown
from fedcohort.designs import AutoDesign
from fedcohort.designs.catalogue import text_of
from fedcohort.errors import InputError

if TYPE_CHECKING:
    from fedcohort.experiments import Results
    from fedcohort.experiments.costs import Cost, Price

DESIGNS_HELP = (
    "Which designs; they are listed below. Default: all that need only sizes, and with --updates "
    "those that learn."
)
UPDATES_HELP = (
    "The clients' last updates, a row per client in the order of the sizes. Adds V, the variance "
    "of the aggregate."
)
#: Headings of the variances of a run, shown if they were measured.
VARIANCE_HEADINGS = {
    "variance": "\nV / V_MD",
    "floor": "noise\nfloor",
    "above_floor": "above\nfloor",
}


@reads_clients
def compare(
    sizes: Annotated[str, argument("FILE", f"{SIZES_HELP} Or a run folder.")],
    cohort_size: Annotated[
        str | None,
        option(
            "--cohort-size -m",
            "M,...",
            "Draws in a round; needed for sizes. Several, such as 5,10,20, are compared.",
        ),
    ] = None,
    designs: Annotated[
        str | None, option("--designs -d", "DESIGN,...", DESIGNS_HELP, complete=some_designs)
    ] = None,
    updates: Annotated[Path | None, option("--updates", "FILE.npy", UPDATES_HELP)] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    plot: Plot = None,
    all_columns: Annotated[
        bool, typer.Option("--all", help="Show all columns of the table.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Explain the columns of the table.")
    ] = False,
    *,
    reading: Reading,
) -> None:
    """Compare designs on client sizes, or by the costs of a run.

    With sizes: the bias and variance of each design's weights, which design to use, and the lines
    that use it.

    With --updates: also V, the mean squared distance of a cohort's aggregate from everyone's.

    With --plot: each design's chance to be drawn against the client's size, and its variance.

    With a run folder: the rounds, bytes, client work and simulated time that each design needed to
    reach the baseline's final loss. With --plot: the loss against each of these.
    """
    draws = [] if cohort_size is None else _cohort_sizes(cohort_size)
    if plot is not None and len(draws) > 1:
        raise InputError(
            f"compare: --plot needs one cohort size; got {len(draws)}. Drop the others."
        )
    if plot is not None:
        checked_figure_path(plot, "compare")
    if Path(sizes).is_dir():
        is_read = reading != Reading(on_command_line=True)
        if designs or updates or cohort_size is not None or is_read or all_columns or explain:
            raise InputError(
                "compare: a run folder needs no --cohort-size, --designs, --updates, --all or "
                "--explain, and no options for reading a file; got some. Drop them."
            )
        _compare_run(Path(sizes), as_json=as_json, plot=plot)
        return
    if cohort_size is None:
        raise InputError(
            "compare: needs --cohort-size, the number of draws in a round; got none. Add "
            "--cohort-size 10."
        )
    clients = read_clients(sizes, reading)
    each = {}
    for m in draws:
        found = compare_designs(
            clients.population, m, designs=designs, updates=updates, seed=seed, progress=_bar
        )
        each[m] = replace(found, source=_source(sizes, reading, found))
    if plot is not None:
        found.plot(plot)
    if as_json:
        content = [_content(one, clients.row_notes) for one in each.values()]
        print(json.dumps(content if len(draws) > 1 else content[0], indent=2))
    elif len(draws) > 1:
        _print(CohortSizes(each))
    else:
        _print(each[draws[0]].shown(all_columns=all_columns, explain=explain))
        _print_next_steps(each[draws[0]], sizes, reading)


def _cohort_sizes(text: str) -> list[int]:
    """Parse the value of --cohort-size."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise InputError(
            f"compare: --cohort-size must be a whole number of draws, or several; got {text!r}. "
            f"Write 10, or 5,10,20."
        )
    return list(map(int, parts))


def _source(path: str, reading: Reading, found: Comparison) -> str:
    """Write in Python how the clients are read."""
    population = found.population
    if path == "-" and population.n_clients <= FEW and population.groups is None:
        sizes = population.sizes.tolist()
        named = not isinstance(population.ids, range)
        return repr(dict(zip(population.ids, sizes, strict=True)) if named else sizes)
    more = "".join(f", {name}={value!r}" for name, value in _given(reading).items())
    return f"read_clients({'sizes.csv' if path == '-' else path!r}{more})"


def _given(reading: Reading) -> dict[str, Any]:
    """Return the settings that the user gave."""
    values = {name: getattr(reading, name) for name in READING}
    return {name: value for name, value in values.items() if value is not None}


def _print_next_steps(found: Comparison, path: str, reading: Reading) -> None:
    """Print lines to paste, and the command that draws cohorts."""
    for where, lines in found.next_steps.items():
        print(f"\n{where}:\n{lines}")
    best = found.best
    if best is not None and not (best.recipe.learns or best.recipe.signals):
        words = ["fedcohort", "draw", path, "-m", best.recipe.cohort_size]
        design = text_of(best.recipe)
        words += ["--design", design] if design != "size" else []
        words += ["--seed", found.seed] if found.seed else []
        for name, value in _given(reading).items():
            words += [reading.name(name), value]
        print(f"\nBy hand, or from another language:\n{shlex.join(map(str, words))}")


def _compare_run(folder: Path, *, as_json: bool, plot: Path | None) -> None:
    """Print the costs at which each design of a run reached the baseline's final loss."""
    import_extra("pyarrow", extra="sim", owner="compare")
    from fedcohort.experiments import read_results
    from fedcohort.experiments.costs import prices

    results = read_results(folder)
    found = [(panel.label, prices(results, panel)) for panel in results.folder.experiment.panels]
    known = [(label, *price) for label, price in found if price is not None]
    if not known:
        raise InputError(f"compare: {folder} has no rounds yet. Run the experiment first.")
    if plot is not None:
        _plot_costs(results, plot)
    if as_json:
        content = [
            {"panel": label, "level": _known(level), "designs": _with_rates(results, label, each)}
            for label, level, each in known
        ]
        print(json.dumps(content, indent=2))
    else:
        _print_costs(results, known)


def _with_rates(results: Results, panel: str, each: list[Price]) -> list[dict[str, object]]:
    """Return the prices as plain values, with what each design trained with."""
    from fedcohort.experiments.tuning import known_rates

    own = results.folder.experiment.panel(panel)
    rates = [known_rates(results.folder, own, price.design) for price in each]
    pairs = zip(each, rates, strict=True)
    return [
        asdict(price) | {"final_loss": _known(price.final_loss), "rates": found and found._asdict()}
        for price, found in pairs
    ]


def _known(loss: float) -> float | None:
    """Return a loss for JSON, which has no NaN."""
    return None if math.isnan(loss) else loss


def _plot_costs(results: Results, path: Path) -> None:
    import_extra("matplotlib.figure", extra="report", owner="compare --plot")
    from fedcohort.report.figures import static_figures

    figures = static_figures(results)
    if "costs" not in figures:
        raise InputError(
            f"compare: {results.folder.path} was written before costs were counted. Run it again."
        )
    save_figure(figures["costs"], path)


def _print_costs(results: Results, known: list[tuple[str, float, list[Price]]]) -> None:
    """Print a table for each panel: its label, the level of the loss, and the designs' prices."""
    from fedcohort.experiments.tuning import worded_choice
    from fedcohort.experiments.units import baseline_of

    console = plain_console()
    for label, level, each in known:
        own = results.folder.experiment.panel(label)
        goal = f"cost until the smoothed loss is at most {level:.4g}"
        if math.isnan(level):
            goal = f"there is no loss to reach, since {baseline_of(own)} has no final loss"
        console.print(f"{label}: {goal}\n")
        costs, variances = _columns_of_costs(each, level), _columns_of_variances(each)
        whole = _table(each, costs | variances)
        if (
            console.measure(whole, options=console.options.update(width=10**4)).maximum
            <= console.width
        ):
            console.print(whole)
        else:
            console.print(_table(each, costs))
            if variances:
                console.print()
                console.print(_table(each, variances))
        if choice := worded_choice(results.folder, own):
            console.print(f"tuned: {choice}")
    console.print(
        "\nmeans over the seeds that get there; in brackets how many, where not all do\n"
        "client work: simulated computing of all clients that trained or looked at their samples"
    )
    if any(price.variance is not None for _, _, each in known for price in each):
        console.print(
            "V / V_MD: variance of the aggregate, over that of multinomial sampling\n"
            "noise floor: the part of it that random batches cause and no estimator can remove; "
            "above floor: what is left of the rest"
        )


#: The cells of some designs, by the heading of their column.
Columns = dict[str, list[str]]


def _columns_of_costs(each: list[Price], level: float) -> Columns:
    from fedcohort.experiments.costs import COSTS

    decimals = max(3, decimals_of(price.final_loss for price in each))
    costs = (_costs(cost, [price.costs[name] for price in each]) for name, cost in COSTS.items())
    return {
        "final\nloss": [fixed(price.final_loss, decimals) for price in each],
        "\nrounds": [_rounds(price, level) for price in each],
        **dict(costs),
    }


def _columns_of_variances(each: list[Price]) -> Columns:
    """Return the variances that were measured."""
    found = {}
    for name, heading in VARIANCE_HEADINGS.items():
        values = [getattr(price, name) for price in each]
        if any(value is not None for value in values):
            found[heading] = ["-" if value is None else fixed(value, 3) for value in values]
    return found


def _table(each: list[Price], columns: Columns) -> Table:
    table = plain_table("\ndesign", *columns, min_width=15)
    for price, *cells in zip(each, *columns.values(), strict=True):
        table.add_row(price.design, *cells)
    return table


def _rounds(price: Price, level: float) -> str:
    part = "" if price.n_reached in (0, price.n_seeds) else f" ({price.n_reached})"
    never = "-" if math.isnan(level) else "never"
    return never if price.rounds is None else f"{price.rounds:.0f}{part}"


def _costs(cost: Cost, values: list[float | None]) -> tuple[str, list[str]]:
    """Return the heading of a cost with the unit that fits, and its cells."""
    known = [value for value in values if value is not None]
    _, short, size = fitting_unit(max(known, default=0.0), cost.units)
    decimals = decimals_of(value / size for value in known)
    cells = ["-" if value is None else fixed(value / size, decimals) for value in values]
    return f"{cost.heading} ({short})", cells


def _bar(labels: list[str]) -> Iterable[str]:
    """Show a progress bar if standard error is a terminal."""
    errors = Console(stderr=True)
    return track(labels, "designs", console=errors, transient=True, disable=not errors.is_terminal)


def _print(found: Shown | CohortSizes) -> None:
    """Print the comparison: styled on a terminal, in ASCII if the output is not UTF-8."""
    console, is_unicode = plain_console(), sys.stdout.encoding.lower().startswith("utf")
    if console.is_terminal and is_unicode:
        console.print(found)
    else:
        text = repr(found)
        print(text if is_unicode else text.replace("─", "-").replace("±", "+-"))


def _content(found: Comparison, row_notes: Sequence[str]) -> dict[str, object]:
    population = found.population
    head = {"n_clients": population.n_clients, "total": population.total}
    if found.dimension is not None:
        head["dimension"] = found.dimension
    rows = [_row(row, found) for row in found.rows.values()]
    missing = [{"design": name, "reason": reason} for name, reason in found.left_out.items()]
    return {
        **head,
        "cohort_size": found.cohort_size,
        "answer": found.answer,
        "next_steps": found.next_steps,
        "designs": rows,
        "left_out": missing,
        "notes": [*row_notes, *found.notes],
    }


def _row(row: Row, found: Comparison) -> dict[str, object]:
    values = row.values()
    if found.dimension is not None and isinstance(row.design, AutoDesign):
        values |= {"choice": row.design.choice, "predicted": row.design.predicted}
    return values
