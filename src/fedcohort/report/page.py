"""Write the page of a run: text, tables and interactive plots in one HTML file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from fedcohort._lazy import import_extra
from fedcohort._whole_file import write_whole
from fedcohort.colours import class_colours, design_colours, design_dashes
from fedcohort.experiments.merge import worded_sources
from fedcohort.experiments.results import (
    DesignSummary,
    Interval,
    PanelSummary,
    Results,
    summarise,
)
from fedcohort.experiments.settings import Panel
from fedcohort.experiments.tuning import tuning_table, worded_choice
from fedcohort.report.panel_data import design_labels, panel_data


def state_sentence(results: Results) -> str:
    """Describe the progress of a run. Return an empty string if it is complete."""
    progress = results.folder.progress()
    if progress.state == "complete":
        return ""
    return (
        f"The run is not finished ({progress.state}): {progress.done} of {progress.total} rounds, "
        f"counted over all its designs and seeds, are done."
    )


def panel_sentences(results: Results, panel: Panel) -> list[str]:
    """Describe the result of a panel."""
    if not panel.design:
        return ["No training was asked for: the data are divided among the clients, no more."]
    summary = summarise(results, panel)
    if summary is None:
        return [f"No seed has a round of every design yet; {panel.rounds} rounds are planned."]
    return summary_sentences(summary, panel)


def summary_sentences(summary: PanelSummary, panel: Panel) -> list[str]:
    """Name the best design, compare it with the baseline, and state each design's speed."""
    measured = [each for each in summary.designs if not _is_unknown(each)]
    if not measured:
        return [
            f"{_extent(summary, panel)}, but the loss was not measured in the last "
            f"{_rounds(summary.window)}, so there is no final loss to compare."
        ]
    working = [each for each in measured if not each.divergence] or measured
    best = min(working, key=lambda each: float(np.mean(each.final_loss)))
    sentences = [_best_sentence(summary, panel, best), _against_baseline(summary, best)]
    sentences.append(_speed_sentence(summary))
    sentences += [
        f"{each.label} {each.divergence}: updates that are not finite count as lost. Lower lr or "
        f"server_lr."
        for each in summary.designs
        if each.divergence
    ]
    return [each for each in sentences if each]


def number(value: float) -> str:
    """Format a number with four significant digits."""
    return f"{value:.4g}"


def rounds_needed(design: DesignSummary) -> str:
    """Format the rounds that a design needed to reach the level: ``93 rounds`` or ``never``."""
    reached = design.rounds_needed[~np.isnan(design.rounds_needed)]
    n_seeds = len(design.rounds_needed)
    if not len(reached):
        return "never"
    text = _rounds(round(float(np.mean(reached))))
    return text if len(reached) == n_seeds else f"{text} (in {len(reached)} of {n_seeds} seeds)"


def _is_unknown(design: DesignSummary) -> bool:
    return bool(np.isnan(np.mean(design.final_loss)))


def _extent(summary: PanelSummary, panel: Panel) -> str:
    """Return the start of a sentence: how many rounds and seeds the result is based on."""
    planned, done = len(panel.seeds), len(summary.seeds)
    part = f" of {panel.rounds}" if summary.rounds < panel.rounds else ""
    rounds = f"{summary.rounds}{part} round{'s' if panel.rounds != 1 else ''}"
    if planned == 1:
        return f"After {rounds} with one seed"
    some = f"{done} of {planned} seeds" if done < planned else f"{done} seeds"
    return f"After {rounds} with {some}"


def _best_sentence(summary: PanelSummary, panel: Panel, best: DesignSummary) -> str:
    loss = number(float(np.mean(best.final_loss)))
    spread = ""
    if len(summary.seeds) > 1:
        spread = f"; standard deviation over seeds {number(float(np.std(best.final_loss, ddof=1)))}"
    if len(summary.designs) == 1:
        what = f"{best.label}, the only design, has a final loss of {loss}"
    else:
        what = f"{best.label} has the lowest final loss of {len(summary.designs)} designs: {loss}"
    return f"{_extent(summary, panel)}, {what} (mean over the {_last(summary)}{spread})."


def _against_baseline(summary: PanelSummary, best: DesignSummary) -> str:
    """Compare the best design with the baseline. If that is the best, compare it with the next."""
    known = [each for each in summary.designs if not _is_unknown(each)]
    others = [(each.label, each.difference) for each in known if each.difference is not None]
    if not others:
        return ""
    if best.difference is not None:
        return _judgement("That is", best.difference, f" than {summary.baseline}, the baseline")
    label, difference = min(others, key=lambda other: other[1].mean)
    return _judgement(f"It is the baseline itself; the next, {label}, is", difference)


def _judgement(before: str, difference: Interval, after: str = "") -> str:
    """State a difference, and whether it is larger than the spread over seeds."""
    is_lower = difference.mean < 0
    direction = "lower" if is_lower else "higher"
    said = f"{before} {number(abs(difference.mean))} {direction}{after}"
    if math.isinf(difference.low):
        return f"{said}; with one seed there is no interval, so this may be chance."
    # The sentence gives a positive amount, so flip the interval if the difference is negative.
    low, high = difference.low, difference.high
    ends = (-high, -low) if is_lower else (low, high)
    chance = "no more than the spread over seeds, so it may be chance"
    verdict = "more than the spread over seeds" if difference.excludes_zero else chance
    interval = f"95 % interval {number(ends[0])} to {number(ends[1])}"
    return f"{said} (paired by seed, {interval}): {verdict}."


def _speed_sentence(summary: PanelSummary) -> str:
    """List the rounds each design needed. Sort by seeds that reached the level, then by speed."""
    if math.isnan(summary.level):
        return ""
    reached = [each for each in summary.designs if not np.isnan(each.rounds_needed).all()]
    never = [each.label for each in summary.designs if np.isnan(each.rounds_needed).all()]
    reached.sort(key=lambda e: (np.isnan(e.rounds_needed).sum(), np.nanmean(e.rounds_needed)))
    goal = f"the loss of {number(summary.level)}, where {summary.baseline} ends"
    parts = [f"{each.label} after {rounds_needed(each)}" for each in reached]
    if not parts:
        return f"No design's rolling mean reached {goal}."
    rest = f"; {_listed(never)} never did" if never else ""
    return f"The rolling mean reached {goal}: {_listed(parts)}{rest}."


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _last(summary: PanelSummary) -> str:
    return "last round" if summary.window == 1 else f"last {summary.window} rounds"


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


HEADINGS = (
    "design",
    "final loss",
    "accuracy",
    "rounds to the level",
    "distinct classes",
    "distinct clients",
    "jump",
    "difference to the baseline (95 % interval)",
)
MINUS = "\N{MINUS SIGN}"


def panel_text(results: Results, panel: Panel, colours: dict[str, str]) -> str:
    """Return a panel's answer, table of designs and tuning grid."""
    sentences = (state_sentence(results), *panel_sentences(results, panel))
    parts = [f'<p class="answer">{escape(each)}</p>' for each in sentences if each]
    summary = summarise(results, panel)
    if summary is not None:
        parts.append(_designs_table(summary, colours))
        parts.append(f'<p class="note">{escape(_legend(summary))}</p>')
    return "\n".join([*parts, _grid_table(results, panel)])


def setup_text(results: Results) -> str:
    """Return the setup of a run: command, machine, versions and configuration."""
    head = results.folder.head
    facts = {
        "folder": results.folder.path.resolve().name,
        "command": head.get("command", ""),
        "created": head.get("created", ""),
        **{f"source {k}": text for k, text in enumerate(worded_sources(results.folder))},
        **{f"machine: {key}": value for key, value in head.get("machine", {}).items()},
        **{f"version of {key}": value for key, value in head.get("versions", {}).items()},
    }
    rows = [f"<dt>{escape(key)}</dt><dd>{escape(str(value))}</dd>" for key, value in facts.items()]
    return f"<dl>{''.join(rows)}</dl>\n{_experiment_file(results)}\n{_configuration(results)}"


def table_html(headings: Sequence[str], rows: Iterable[Sequence[str]], *, name: str) -> str:
    """Return a table in a scrollable box. Cells must be HTML already."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return (
        f'<div class="scroll" role="region" aria-label="{escape(name)}" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _designs_table(summary: PanelSummary, colours: dict[str, str]) -> str:
    rows = [
        (
            f'<span class="design"><span class="swatch" style="background:{colours[each.label]}">'
            f"</span>{escape(each.label)}</span>"
            + (f" <em>{escape(each.divergence)}</em>" if each.divergence else ""),
            _spread(each.final_loss),
            _spread(each.final_accuracy),
            escape(rounds_needed(each)),
            _mean(each.classes),
            _mean(each.clients),
            _mean(each.jump),
            _difference(each),
        )
        for each in summary.designs
    ]
    return table_html(HEADINGS, rows, name="Designs of this panel")


def _legend(summary: PanelSummary) -> str:
    spread = "" if len(summary.seeds) < 2 else "; \N{PLUS-MINUS SIGN} standard deviation over seeds"
    level = "not measured" if math.isnan(summary.level) else number(summary.level)
    return (
        f"Means over the {_last(summary)}{spread}. Level: {summary.baseline}'s final loss, "
        f"{level}. Jump: mean absolute change of the loss between measurements."
    )


def _mean(values: np.ndarray) -> str:
    mean = float(np.mean(values))
    return "\N{EN DASH}" if math.isnan(mean) else number(mean)


def _spread(values: np.ndarray) -> str:
    if len(values) < 2 or np.isnan(values).any():
        return _mean(values)
    return f"{_mean(values)} \N{PLUS-MINUS SIGN} {float(np.std(values, ddof=1)):.2g}"


def _difference(design: DesignSummary) -> str:
    difference = design.difference
    if difference is None:
        return "baseline"
    if math.isnan(difference.mean):
        return "\N{EN DASH}"
    mean = _signed(difference.mean)
    if math.isinf(difference.low):
        return f"{mean} (one seed)"
    text = f"{mean} ({_signed(difference.low)} to {_signed(difference.high)})"
    return f"<strong>{text}</strong>" if difference.excludes_zero else text


def _signed(value: float) -> str:
    return f"{value:+.3g}".replace("-", MINUS)


def _grid_table(results: Results, panel: Panel) -> str:
    """Return the grid that was tried for the panel, with each design's choice marked."""
    lines = [
        each for each in tuning_table(results.folder).to_pylist() if each["panel"] == panel.label
    ]
    if not lines:
        return ""
    rows = [
        (
            escape(each["design"]),
            *(f"{each[name]:g}" for name in ("lr", "mu", "server_lr")),
            "diverged" if each["final_loss"] is None else number(each["final_loss"]),
            "chosen" if each["chosen"] else "",
        )
        for each in lines
    ]
    headings = ("design", "learning rate", "mu", "server's learning rate", "final loss", "")
    choice = worded_choice(results.folder, panel)
    note = f'<p class="note">{escape(choice)}.</p>\n' if choice else ""
    return f"<h3>Grid that was tried</h3>\n{note}{table_html(headings, rows, name='Grid')}"


def _configuration(results: Results) -> str:
    """Return the resolved configuration: the file with its command-line changes and defaults."""
    text = json.dumps(results.folder.head["experiment"], indent=2, ensure_ascii=False)
    return _details("Resolved configuration", text, is_open=False)


def _details(title: str, text: str, *, is_open: bool) -> str:
    return (
        f"<details{' open' if is_open else ''}><summary>{title}</summary>"
        f'<pre tabindex="0">{escape(text)}</pre></details>'
    )


def _experiment_file(results: Results) -> str:
    try:
        text = (results.folder.path / "experiment.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return '<p class="note">The folder has no readable experiment.toml.</p>'
    return _details("experiment.toml", text, is_open=True)


#: Points of a curve. With many designs a curve has fewer, to limit the page to some megabytes.
MOST_POINTS, FEWEST_POINTS = 500, 60
POINTS_OF_A_PAGE = 40_000


def write_page(results: list[Results], path: Path) -> None:
    """Write the report of one or more runs. A failed write leaves no partial file."""
    write_whole(path, page_html(results).encode())


def page_html(results: list[Results]) -> str:
    """Return the page as HTML."""
    plotly = import_extra("plotly.offline", extra="report", owner="report")
    labels = design_labels(results)
    title = results[0].folder.experiment.heading if len(results) == 1 else f"{len(results)} runs"
    return Template(_own_file("page.html")).substitute(
        title=escape(title),
        css=_own_file("page.css"),
        texts="\n".join(
            _block("answer", run, place, panel_text(each, panel, design_colours(labels)))
            for run, each in enumerate(results)
            for place, panel in enumerate(each.folder.experiment.panels)
        ),
        setups="\n".join(
            _block("setup", run, 0, setup_text(each)) for run, each in enumerate(results)
        ),
        data=script_json(_data(results, labels)),
        plotly=plotly.get_plotlyjs(),
        plots=_own_file("plots.js"),
        script=_own_file("page.js"),
    )


def script_json(content: object) -> str:
    """Return JSON for a script tag. Escape ``<`` so that data cannot close the tag."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def most_points(results: list[Results]) -> int:
    """Return the most points of a curve that keep the page within its total."""
    panels = [panel for each in results for panel in each.folder.experiment.panels]
    n_designs = sum(len(panel.design) for panel in panels)
    return max(FEWEST_POINTS, min(MOST_POINTS, POINTS_OF_A_PAGE // max(n_designs, 1)))


def _data(results: list[Results], labels: list[str]) -> dict[str, Any]:
    most = most_points(results)
    runs = []
    n_classes = 0
    for each in results:
        experiment = each.folder.experiment
        panels = [panel_data(each, panel, most_points=most) for panel in experiment.panels]
        name = f"{experiment.heading} ({each.folder.path.resolve().name})"
        runs.append({"name": name, "panels": panels})
        n_classes = max(n_classes, int(each.federations["class"].to_numpy().max(initial=-1)) + 1)
    return {
        "runs": runs,
        "colours": design_colours(labels),
        "dashes": design_dashes(labels),
        "classColours": class_colours(n_classes),
    }


def _block(kind: str, run: int, panel: int, content: str) -> str:
    """Return a block of a run and panel. At first, only run 0 with panel 0 is visible."""
    hidden = "" if run == panel == 0 else " hidden"
    return f'<div data-block="{kind}" data-run="{run}" data-panel="{panel}"{hidden}>{content}</div>'


def _own_file(name: str) -> str:
    return (files("fedcohort.report") / name).read_text(encoding="utf-8")
