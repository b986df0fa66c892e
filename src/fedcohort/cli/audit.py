"""``fedcohort audit``: say who took part in a run, and what that did."""

from __future__ import annotations

import json
import os
import secrets
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from fedcohort._arguments import name_of
from fedcohort._display import NOTHING, plain_table
from fedcohort._whole_file import reason_of
from fedcohort.cli.options import (
    AsJson,
    Seed,
    a_design,
    argument,
    option,
    plain_console,
    read_clients,
    reads_clients,
    some_designs,
)
from fedcohort.client_files.table import Reading
from fedcohort.designs import Recipe
from fedcohort.designs.catalogue import named_recipe
from fedcohort.errors import InputError
from fedcohort.participation import Audit, read_participation
from fedcohort.participation.law import law_of
from fedcohort.participation.summary import ALPHA, COLUMNS, audit_of, number

LOG_HELP = (
    "A log of a selector or a plug-in; a table of rounds and clients (CSV, Excel, JSON, JSON "
    "lines); "
    "a FLARE server's log or a job's workspace; a Fed-BioMed researcher's or a Flower server's log."
)
SIZES_HELP = "CSV, JSON or Excel file of client sizes, optional groups. Default: those in the log."
DESIGN_HELP = "The design that the run claims. Default: the one in the log, else uniform draws."
REPLAY_HELP = "More designs to replay on the same presences, separated by commas. Default: size."
PAGE_HELP = "Also write one HTML page to this file, which opens offline."
ALPHA_HELP = "Share of runs without faults in which the audit may find one."
KEY_HELP = (
    "Replace ids and groups by hashes with the key in this file, which is made if it is not there."
)
ROWS_HELP = "Longest table to print; 0 prints everything."
#: The columns of the printed table, and their headings.
SHOWN = {
    "client": "client", "size": "size", "asked": "asked", "expected": "expected",
    "answered": "answered", "last_answer": "last", "share": "share", "intended_share": "intended",
    "finding": "finding",
}  # fmt: skip


@reads_clients
def audit(
    log: Annotated[str, argument("LOG", LOG_HELP)],
    sizes: Annotated[str | None, option("--sizes", "FILE", SIZES_HELP)] = None,
    design: Annotated[
        str | None, option("--design -d", "DESIGN", DESIGN_HELP, complete=a_design)
    ] = None,
    cohort_size: Annotated[
        int | None, option("--cohort-size -m", "M", "Draws in a round, with --design.", least=1)
    ] = None,
    replay: Annotated[
        str | None, option("--replay", "DESIGNS", REPLAY_HELP, complete=some_designs)
    ] = None,
    no_replay: Annotated[
        bool, typer.Option("--no-replay", help="Replay nothing: faster for large logs.")
    ] = False,
    out: Annotated[Path | None, option("--out -o", "FILE", PAGE_HELP)] = None,
    table: Annotated[
        Path | None, option("--csv", "FILE", "Also write the table of clients to this file.")
    ] = None,
    pseudonyms: Annotated[Path | None, option("--pseudonyms", "KEYFILE", KEY_HELP)] = None,
    alpha: Annotated[float, option("--alpha", "SHARE", ALPHA_HELP, default=True)] = ALPHA,
    rows: Annotated[int, option("--rows", "N", ROWS_HELP, default=True, least=0)] = 20,
    seed: Seed = 0,
    json_: AsJson = False,
    *,
    reading: Reading,
) -> None:
    """Say who took part in a run, and what that did to the model.

    Is it chance or a fault that clients are missing? It reads the log that a run left, with any
    framework and any sampler. Nothing leaves this machine.
    """
    if not 0 < alpha <= 0.5:
        raise InputError(f"audit: --alpha must be above 0 and at most 0.5; got {alpha}. Try 0.01.")
    recipe = _recipe(design, cohort_size)
    key = None if pseudonyms is None else _key(pseudonyms)
    clients = None
    if sizes is not None:
        clients = read_clients(sizes, reading).population
    own = read_participation(log, clients)
    if not own.n_rounds:
        raise InputError(f"audit: {own.source} has no round. Audit it when a round has ended.")
    notes = own.notes
    own = own if key is None else own.with_pseudonyms(key)
    law = law_of(own, recipe)
    m = cohort_size or (law.recipe.cohort_size if law.recipe is not None else 1)
    designs = [named_recipe(each, m) for each in (replay or "").split(",") if each.strip()]
    found = audit_of(own, law, alpha, designs=designs, replay=not no_replay, seed=seed)
    if table is not None:
        found.save(table)
    if out is not None:
        from fedcohort.report.audit_page import write_audit

        write_audit(found, out)
    if json_:
        content = found.to_dict()
        columns = found.columns()
        content["clients"] = [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
        print(json.dumps(content, default=str))
        return
    for each in notes if key is None else ():
        print(each, file=sys.stderr)
    _print(found, rows)
    for path in (table, out):
        if path is not None:
            print(path)


def _recipe(design: str | None, cohort_size: int | None) -> Recipe | None:
    if (design is None) != (cohort_size is None):
        missing = "--cohort-size" if cohort_size is None else "--design"
        raise InputError(f"audit: needs {missing} too, to know the claimed design. Give both.")
    return None if design is None or cohort_size is None else named_recipe(design, cohort_size)


def _key(path: Path) -> bytes:
    """Read the key of the pseudonyms; make one if there is none, for its owner only."""
    try:
        if not path.exists():
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(32))
            print(f"{path}: made a key; keep it, and keep it secret.", file=sys.stderr)
        key = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{name_of(path)}: cannot be used ({reason_of(error)}). Name another."
        ) from error
    if len(key) < 16:
        raise InputError(
            f"{path}: a key needs at least 16 bytes; it has {len(key)}. Name a new file."
        )
    return key


def _print(found: Audit, rows: int) -> None:
    """Print the sentences, a table of replays and one of clients."""
    console = plain_console()
    own = found.participation
    print(f"{own.source}: {own.kind}\n")
    for each in found.sentences():
        console.print(f"* {each}", soft_wrap=False)
    if found.replays:
        print()
        console.print(_replays(found))
    if own.counts is None:
        print()
        console.print(_clients(found, rows))
    print()
    console.print(found.method())


def _replays(found: Audit) -> Table:
    headings = ("same presences", "away from samples", "effective clients", "weight lost")
    table = plain_table(*headings, min_width=12)
    assert found.bias is not None  # for mypy: replays need clients
    half = found.bias.total / 2
    table.add_row("as it was", f"{100 * half:.1f} %", number(found.effective_clients), NOTHING)
    for each in found.replays:
        low, mean, high = (100 * v / 2 for v in (each.bias.low, each.bias.mean, each.bias.high))
        n, is_exact = each.effective, each.repeats == 1
        span = "" if is_exact else f" ({low:.1f} to {high:.1f})"
        ns = "" if is_exact else f" ({number(n.low)} to {number(n.high)})"
        lost = f"{100 * max(0.0, each.kept.mean):.1f} %"
        table.add_row(each.name, f"{mean:.1f} %{span}", f"{number(n.mean)}{ns}", lost)
    return table


def _clients(found: Audit, rows: int) -> Table:
    columns = found.columns()
    taken = {name: heading for name, heading in SHOWN.items() if name in columns}
    table = plain_table(*taken.values(), left=("finding",), min_width=8)
    # Those with a finding first, then those that are the farthest from their share.
    off = np.abs(found.realised - found.intended)
    is_fine = np.array([not each for each in columns["finding"]], dtype=bool)
    order = np.lexsort((-off, is_fine)).tolist()
    for k in order[: rows or None]:
        cells = ((columns[name][k], COLUMNS[name]) for name in taken)
        table.add_row(*(NOTHING if cell is None else write(cell) for cell, write in cells))
    if rows and len(order) > rows:
        table.add_row("...", *[""] * (len(taken) - 1))
    return table
