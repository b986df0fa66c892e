"""``fedcohort plan``: show a design's distributions and each client's chance."""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
from rich.table import Table

from fedcohort._display import plain_table
from fedcohort._figures import checked_figure_path
from fedcohort._whole_file import replace_whole
from fedcohort.cli.options import (
    CohortSize,
    Plot,
    Seed,
    Sizes,
    a_design,
    option,
    plain_console,
    read_clients,
    reads_clients,
)
from fedcohort.client_files.table import Reading
from fedcohort.comparison.rows import first_design
from fedcohort.comparison.shown import note_on
from fedcohort.designs import Design, RowDesign
from fedcohort.designs.catalogue import named_recipe
from fedcohort.errors import InputError

DESIGN_HELP = "Which design; they are listed below."
ROWS_HELP = "Longest table to print; 0 prints everything."
#: A line for each client in each of its distributions.
CSV_HEADER = (
    "distribution", "client", "size", "units", "probability", "expected_draws", "chance",
    "most_draws",
)  # fmt: skip
#: Number of members of a distribution that the table names.
NAMED_MEMBERS = 4


@reads_clients
def plan(
    sizes: Sizes,
    cohort_size: CohortSize,
    design: Annotated[
        str,
        option("--design -d", "DESIGN", DESIGN_HELP, complete=a_design, default=True),
    ] = "size",
    seed: Seed = 0,
    rows: Annotated[int, option("--rows", "N", ROWS_HELP, default=True, least=0)] = 20,
    out: Annotated[
        Path | None, option("--out", "FILE", "Also write all of it to this CSV file.")
    ] = None,
    plot: Plot = None,
    *,
    reading: Reading,
) -> None:
    """Show a design's distributions and each client's chance to be drawn.

    With --plot: a bar for every distribution, cut into its clients' pieces.
    """
    if plot is not None:
        checked_figure_path(plot, "plan")
    clients = read_clients(sizes, reading)
    population, _ = clients.population.in_order_of_ids()
    built = first_design(named_recipe(design, cohort_size), population, seed=seed)
    if plot is not None:
        if not isinstance(built, RowDesign):
            raise InputError(
                f"plan: --plot draws distributions, and design {design!r} has none. Use "
                f"fedcohort compare --plot, or a design with rows such as size."
            )
        built.plan.plot(plot)
    if out is not None:
        replace_whole(out, lambda path: _write_csv(built.over_rounds(), path))
    console, law = plain_console(), built.over_rounds()
    if isinstance(built, RowDesign):
        console.print(_distributions(built, rows))
    else:
        console.print(f"{design} has no distributions; each client's chance:\n")
    console.print(_clients(law, rows))
    note = note_on(design, built)
    if note is not None:
        print(note, file=sys.stderr)


def _distributions(design: RowDesign, rows: int) -> Table:
    chances = "members and their chances in it"
    table = plain_table("distribution", "clients", chances, left=(chances,))
    for k in _some(design.cohort_size, rows):
        if k is None:
            table.add_row("...", "", "")
            continue
        members = sorted(_members(design, k), key=lambda member: -member[1])
        named = ", ".join(f"{name} {100 * chance:.3g}%" for name, chance in members[:NAMED_MEMBERS])
        more = len(members) - NAMED_MEMBERS
        table.add_row(str(k + 1), str(len(members)), named + (f", {more} more" if more > 0 else ""))
    return table


def _clients(design: Design, rows: int) -> Table:
    table = plain_table("client", "size", "expected draws", "chance to be drawn", "most draws")
    population = design.population
    order = np.argsort(-population.sizes, kind="stable")
    expected, chance = design.expected_counts(), design.inclusion_probability()
    most = design.max_count()
    for position in _some(population.n_clients, rows):
        if position is None:
            table.add_row("...", "", "", "", "")
            continue
        i = order[position]
        table.add_row(
            str(population.ids[i]),
            str(population.sizes[i]),
            f"{expected[i]:.4g}",
            f"{chance[i]:.4g}",
            str(most[i]),
        )
    return table


def _some(n: int, rows: int) -> Iterator[int | None]:
    """Yield 0 ... n - 1. If that is too long, yield both ends with None between them."""
    if rows == 0 or n <= rows:
        yield from range(n)
    else:
        yield from range(rows - rows // 2)
        yield None
        yield from range(n - rows // 2, n)


def _members(design: RowDesign, k: int) -> list[tuple[object, float]]:
    units, total = design.plan.units, design.plan.total
    entries = slice(units.indptr[k], units.indptr[k + 1])
    ids = design.population.ids
    pairs = zip(units.indices[entries], units.data[entries], strict=True)
    return [(ids[client], amount / total) for client, amount in pairs]


def _write_csv(design: Design, path: Path) -> None:
    """Write one line for each client in each of its distributions."""
    population = design.population
    expected, chance = design.expected_counts(), design.inclusion_probability()
    most = design.max_count()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(CSV_HEADER)
        for k, i, units, share in _entries(design):
            known = [population.ids[i], population.sizes[i], units, share]
            writer.writerow([k, *known, float(expected[i]), float(chance[i]), most[i]])


def _entries(design: Design) -> Iterator[tuple[object, int, object, object]]:
    """Yield distribution, client, units, probability. A client in no distribution gets one line."""
    alone = np.arange(design.population.n_clients)
    if isinstance(design, RowDesign):
        units = design.plan.units.tocoo()
        for k, i, amount in zip(*units.coords, units.data, strict=True):
            yield int(k) + 1, int(i), int(amount), float(amount / design.plan.total)
        alone = np.flatnonzero(design.population.sizes == 0)
    for i in alone:
        yield "", int(i), "", ""
