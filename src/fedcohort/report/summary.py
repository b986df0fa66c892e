"""The table of a run's designs: as text, for notebooks, and for LaTeX."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from fedcohort._display import counted, decimals_of, html_table, per_cent, plain_table
from fedcohort.errors import ExperimentError
from fedcohort.experiments.results import (
    DesignSummary,
    Numbers,
    PanelSummary,
    Results,
    summarise,
)
from fedcohort.experiments.tuning import worded_choice

if TYPE_CHECKING:
    from rich.table import Table

HEADINGS = (
    "rounds\nneeded",
    "final\nloss",
    "\naccuracy",
    "distinct\nclasses",
    "difference\nin loss",
)


def summary_parts(results: Results) -> Iterator[str | Table]:
    """Yield a table per panel with its legend, as texts and tables of rich."""
    experiment = results.folder.experiment
    for panel in experiment.panels:
        summary = summarise(results, panel)
        if summary is None:
            continue
        title = panel.label if len(experiment.panels) > 1 else experiment.heading
        yield f"\n{title}: {counted(summary.rounds, 'round')}, {_seeds(summary.seeds)}\n"
        table = plain_table("\ndesign", *HEADINGS, min_width=12)
        for cells in _lines(summary):
            table.add_row(*cells)
        yield table
        yield "\n".join(_legend(summary, worded_choice(results.folder, panel)))


def _legend(summary: PanelSummary, choice: str) -> Iterator[str]:
    """Yield what the columns mean, and what happened beside the training."""
    if not math.isnan(summary.level):
        yield (
            f"rounds needed  until the smoothed loss reaches {summary.level:.4g}, where "
            f"{summary.baseline} ends\n"
            f"smoothed       exponential mean with a half-life of "
            f"{counted(summary.half_life, 'round')}"
        )
    yield (
        f"final          mean of the last {counted(summary.window, 'round')} ± standard "
        f"deviation over seeds"
    )
    yield f"difference     to {summary.baseline}, seed by seed, ± 95 % confidence interval"
    if choice:
        yield f"tuned          {choice}"
    if known := [each for each in summary.designs if not np.isnan(each.variance).any()]:
        values = ", ".join(f"{each.label} {np.mean(each.variance):.3f}" for each in known)
        yield f"V / V_MD       of the aggregate: {values}"
    if lost := [each for each in summary.designs if each.lost and not each.divergence]:
        shares = ", ".join(f"{each.label} {_share(each.lost)}" for each in lost)
        yield f"lost           updates that failed or are not finite: {shares}"
    if scaled := [each for each in summary.designs if each.scaled]:
        shares = ", ".join(f"{each.label} {_share(each.scaled)}" for each in scaled)
        yield f"scaled         updates of a norm above max_norm: {shares}"
    for each in summary.designs:
        if each.divergence:
            yield f"diverged       {each.label} {each.divergence}; lower lr or server_lr"


def _lines(summary: PanelSummary) -> list[list[str]]:
    """Return the cells of every design."""
    return [
        [
            f"{design.label} (diverged)" if design.divergence else design.label,
            "-" if math.isnan(summary.level) else _needed(design.rounds_needed),
            _spread(design.final_loss, "{:.3f}"),
            _spread(100 * design.final_accuracy, "{:.1f}", " %"),
            _spread(np.mean(design.classes, keepdims=True), "{:.2f}"),
            _difference(design),
        ]
        for design in summary.designs
    ]


def summary_html(results: Results) -> str:
    """Return the tables for a notebook."""
    names = ["design", *(" ".join(each.split()) for each in HEADINGS)]
    experiment = results.folder.experiment
    return "".join(
        html_table(
            f"{panel.label if len(experiment.panels) > 1 else experiment.heading}: "
            f"{counted(summary.rounds, 'round')}, {_seeds(summary.seeds)}",
            names,
            lines := _lines(summary),
            most=len(lines),
        )
        for panel in experiment.panels
        if (summary := summarise(results, panel)) is not None
    )


#: Characters that mean something to LaTeX.
LATEX = {
    **{each: f"\\{each}" for each in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def summary_latex(results: Results) -> str:
    """Return the tables as one LaTeX ``tabular``, which needs the package booktabs.

    The lowest loss and the highest accuracy of a panel are bold.
    """
    panels = results.folder.experiment.panels
    found = [each for panel in panels if (each := summarise(results, panel)) is not None]
    if not found:
        raise ExperimentError(
            f"{results.folder.path}: has no round of every design yet, so there is no table. Run: "
            f"{results.folder.resume_command}"
        )
    lines = [
        f"% {results.folder.experiment.heading}. Needs \\usepackage{{booktabs}}.",
        "% Loss and accuracy: mean +- standard deviation over seeds, of the last rounds; the best "
        "means are bold.",
        "% Difference: paired by seed, +- 95 % confidence interval. In brackets: seeds that get "
        "there.",
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        r"design & rounds needed & final loss & accuracy & difference in loss \\",
    ]
    for summary in found:
        lines.append(r"\midrule")
        rounds = f"{counted(summary.rounds, 'round')}, {_seeds(summary.seeds)}"
        lines.append(f"% {summary.label}: {rounds}, means of the last {summary.window}")
        if len(found) > 1:
            title = f"{_escaped(summary.label)} ({rounds})"
            lines.append(rf"\multicolumn{{5}}{{l}}{{\emph{{{title}}}}} \\")
        lines += [" & ".join(cells) + r" \\" for cells in _latex_cells(summary)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex_cells(summary: PanelSummary) -> Iterator[list[str]]:
    """Yield the cells of every design; means that are printed as the best one are bold."""
    lines = _lines(summary)
    losses = [float(np.mean(each.final_loss)) for each in summary.designs]
    errors = [1 - float(np.mean(each.final_accuracy)) for each in summary.designs]
    lowest, highest = _best(losses, lines, 2), _best(errors, lines, 3)
    for label, needed, loss, accuracy, _, difference in lines:
        yield [
            _escaped(label),
            _latex(needed),
            _latex(loss, bold=_printed_mean(loss) == lowest),
            _latex(accuracy, bold=_printed_mean(accuracy) == highest),
            _latex(difference),
        ]


def _best(values: list[float], lines: list[list[str]], column: int) -> str:
    """Return the mean that is printed for the smallest value; empty if none is known."""
    known = [
        (value, line) for value, line in zip(values, lines, strict=True) if not math.isnan(value)
    ]
    return _printed_mean(min(known)[1][column]) if known else ""


def _printed_mean(cell: str) -> str:
    return cell.partition(" ")[0]


def _latex(cell: str, *, bold: bool = False) -> str:
    """Write a cell: numbers in mathematical mode, the mean bold if it is the best."""
    if cell == "-":
        return "--"
    if not cell[-1].isdigit() and not cell.endswith("%"):
        return _escaped(cell)
    mean, sign, rest = cell.partition(" ± ")
    mean, unit, _ = mean.partition(" %")
    mean = rf"\mathbf{{{mean}}}" if bold else mean
    rest = rest.replace(" %", r"\,\%") + (r"\,\%" if unit else "")
    return rf"${mean} \pm {rest}$" if sign else f"${mean}{rest}$"


def _escaped(text: str) -> str:
    return "".join(LATEX.get(each, each) for each in text)


def _seeds(seeds: list[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"


def _needed(rounds: Numbers) -> str:
    """Format the mean over the seeds that reached the level, and their number if not all did."""
    reached = rounds[~np.isnan(rounds)]
    if not len(reached):
        return "never"
    part = "" if len(reached) == len(rounds) else f" ({len(reached)}/{len(rounds)})"
    return f"{reached.mean():.0f}{part}"


def _share(share: float) -> str:
    return per_cent(share, decimals_of([100 * share], digits=2))


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
