"""What the designs of a run paid for its loss, side by side."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from fedcohort._extras import import_extra
from fedcohort._figures import save_figure
from fedcohort.cli.plain_console import plain_console
from fedcohort.errors import InputError

if TYPE_CHECKING:
    from fedcohort.experiments.costs import Price

HEADINGS = ("final\nloss", "\nrounds", "mega-\nbytes", "client\nhours", "simulated\nhours")


def compare_run(folder: Path, *, as_json: bool, plot: Path | None) -> None:
    """Print what each design of a run folder paid to reach the baseline's final loss."""
    import_extra("pyarrow", extra="sim", owner="compare")
    from fedcohort.experiments import read_results
    from fedcohort.experiments.costs import prices

    results = read_results(folder)
    found = [(panel.label, prices(results, panel)) for panel in results.folder.experiment.panels]
    known = [(label, *price) for label, price in found if price is not None]
    if not known:
        raise InputError(f"compare: {folder} has no rounds yet. Run the experiment first.")
    if plot is not None:
        import_extra("matplotlib.figure", extra="report", owner="compare --plot")
        from fedcohort.report.figures import static_figures

        figures = static_figures(results)
        if "costs" not in figures:
            raise InputError(
                f"compare: {folder} was written before costs were counted. Run it again."
            )
        save_figure(figures["costs"], plot)
    if as_json:
        content = [
            {"panel": label, "level": level, "designs": [asdict(price) for price in each]}
            for label, level, each in known
        ]
        print(json.dumps(content, indent=2))
        return
    console = plain_console()
    for label, level, each in known:
        console.print(f"{label}: what it takes until the rolling loss is at most {level:.4g}\n")
        console.print(_table(each))
    console.print(
        "\nmeans over the seeds that get there; in brackets how many, where not all do\n"
        "client hours: simulated computing of all clients that trained or looked at their samples"
    )


def _table(each: list[Price]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("\ndesign", overflow="fold", min_width=15)
    for heading in HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for price in each:
        part = "" if price.n_reached in (0, price.n_seeds) else f" ({price.n_reached})"
        rounds = "never" if price.rounds is None else f"{price.rounds:.0f}{part}"
        costs = ("-" if cost is None else f"{cost:.3g}" for cost in price.costs.values())
        table.add_row(price.design, f"{price.final_loss:.3f}", rounds, *costs)
    return table
