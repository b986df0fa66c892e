"""``fedcohort export``: write the tables of a run for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcohort._display import counted
from fedcohort._whole_file import make_folder, write_whole
from fedcohort.cli.options import RunDir, option
from fedcohort.errors import InputError


def export(
    folder: RunDir,
    as_csv: Annotated[bool, typer.Option("--csv", help="Write CSV files.")] = False,
    as_parquet: Annotated[bool, typer.Option("--parquet", help="Write Parquet files.")] = False,
    as_latex: Annotated[
        bool, typer.Option("--latex", help="Write the table of designs, table.tex, for booktabs.")
    ] = False,
    out: Annotated[
        Path | None,
        option("--out -o", "DIR", "The folder to write to. Default: export/ in the run folder."),
    ] = None,
) -> None:
    """Write the tables of a run as CSV or Parquet, or one for LaTeX.

    The tables cover all panels, designs and seeds: rounds, cohorts, rows, laws, trees, federations;
    devices if clients differ, and tuning if there was a grid.
    """
    from fedcohort.experiments import read_results
    from fedcohort.experiments.tables import write_table
    from fedcohort.experiments.tuning import tuning_table
    from fedcohort.report.summary import summary_latex

    given = {"--csv": as_csv, "--parquet": as_parquet, "--latex": as_latex}
    chosen = [name for name, is_given in given.items() if is_given]
    if len(chosen) != 1:
        raise InputError(
            f"export: needs one of {', '.join(given)}; got {' and '.join(chosen) or 'none'}. Pass "
            f"one."
        )
    results = read_results(folder)
    latex = summary_latex(results) if as_latex else ""
    target = folder / "export" if out is None else out
    make_folder(target)
    if as_latex:
        path = target / "table.tex"
        write_whole(path, latex.encode())
        print(f"{path}: {counted(len(latex.splitlines()), 'line')}")
        return
    tables = {**results.tables, "federations": results.federations}
    others = {"devices": results.devices, "tuning": tuning_table(results.folder)}
    tables |= {name: table for name, table in others.items() if table.num_rows}
    for name, table in tables.items():
        path = target / f"{name}.{'csv' if as_csv else 'parquet'}"
        write_table(path, table)
        print(f"{path}: {table.num_rows} lines")
