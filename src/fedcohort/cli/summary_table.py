"""The table at the end of a run."""

from __future__ import annotations

import math

import numpy as np
from rich import box
from rich.table import Table

from fedcohort.cli.plain_console import plain_console
from fedcohort.experiments import Results
from fedcohort.experiments.summary import DesignSummary, Numbers, PanelSummary, summarise

HEADINGS = (
    "rounds\nneeded",
    "final\nloss",
    "\naccuracy",
    "distinct\nclasses",
    "difference\nin loss",
)


def print_summary(results: Results) -> None:
    """Print a table per panel, and where everything is."""
    console = plain_console()
    experiment = results.folder.experiment
    for panel in experiment.panels:
        summary = summarise(results, panel)
        if summary is None:
            continue
        title = panel.label if len(experiment.panels) > 1 else experiment.title or experiment.name
        console.print(f"\n{title}: {_counted(summary.rounds, 'round')}, {_seeds(summary.seeds)}\n")
        console.print(_table(summary))
        console.print(
            f"rounds needed  until the rolling loss reaches {summary.level:.4g}, where "
            f"{summary.baseline} ends\n"
            f"final          mean of the last {_counted(summary.window, 'round')} ± standard "
            f"deviation over seeds\n"
            f"difference     to {summary.baseline}, seed by seed, ± 95 % confidence interval"
        )
        if any(design.divergence for design in summary.designs):
            console.print(
                "diverged       updates that are not finite count as lost; lower lr or server_lr"
            )
    console.print(f"\nrun folder: {results.folder.path}", soft_wrap=True)


def _table(summary: PanelSummary) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("\ndesign", overflow="fold", min_width=12)
    for heading in HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for design in summary.designs:
        table.add_row(
            f"{design.label} ({design.divergence})" if design.divergence else design.label,
            _needed(design.rounds_needed),
            _spread(design.final_loss, "{:.3f}"),
            _spread(100 * design.final_accuracy, "{:.1f}", " %"),
            f"{np.mean(design.classes):.2f}",
            _difference(design),
        )
    return table


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _seeds(seeds: list[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"


def _needed(rounds: Numbers) -> str:
    """Write the mean over the seeds that got there, and how many did where not all did."""
    reached = rounds[~np.isnan(rounds)]
    if not len(reached):
        return "never"
    part = "" if len(reached) == len(rounds) else f" ({len(reached)}/{len(rounds)})"
    return f"{reached.mean():.0f}{part}"


def _spread(values: Numbers, form: str, unit: str = "") -> str:
    if np.isnan(values).any():
        return "-"
    mean = form.format(np.mean(values))
    if len(values) < 2:
        return f"{mean}{unit}"
    return f"{mean} ± {form.format(np.std(values, ddof=1))}{unit}"


def _difference(design: DesignSummary) -> str:
    found = design.difference
    if found is None:
        return "baseline"
    if math.isnan(found.mean):
        return "-"
    if math.isinf(found.high):
        return f"{found.mean:+.3f}"
    return f"{found.mean:+.3f} ± {found.high - found.mean:.3f}"
