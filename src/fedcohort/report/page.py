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

from fedcohort._extras import import_extra
from fedcohort._whole_file import write_whole
from fedcohort.errors import ExperimentError
from fedcohort.experiments.results import (
    DesignSummary,
    PanelSummary,
    Results,
    candidate_losses,
    chosen_training,
    summarise,
)
from fedcohort.experiments.settings import Panel
from fedcohort.report.answers import number, panel_sentences, rounds_needed, state_sentence
from fedcohort.report.colours import class_colours, design_colours, design_dashes, design_labels
from fedcohort.report.panel_data import panel_data

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
    sentences = [
        each for each in (state_sentence(results), *panel_sentences(results, panel)) if each
    ]
    parts = [f'<p class="answer">{escape(each)}</p>' for each in sentences]
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
    window = "last round" if summary.window == 1 else f"last {summary.window} rounds"
    spread = "" if len(summary.seeds) < 2 else "; \N{PLUS-MINUS SIGN} standard deviation over seeds"
    level = "not measured" if math.isnan(summary.level) else number(summary.level)
    return (
        f"Means over the {window}{spread}. Level: {summary.baseline}'s final loss, {level}. "
        f"Jump: mean absolute change of the loss between measurements."
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
    """Return the grid that was tried for the panel, with the lowest final loss marked."""
    losses = candidate_losses(results.folder, panel.label)
    if not losses:
        return ""
    best = min(losses.values())
    rows = [
        (
            f"{lr:g}",
            f"{mu:g}",
            "diverged" if math.isinf(loss) else number(loss),
            "chosen" if loss == best and math.isfinite(loss) else "",
        )
        for (lr, mu), loss in losses.items()
    ]
    table = table_html(("learning rate", "mu", "final loss", ""), rows, name="Grid")
    return f"<h3>Grid that was tried</h3>\n{table}"


def _configuration(results: Results) -> str:
    """Return the resolved configuration: file, command-line changes and grid choices."""
    resolved = dict(results.folder.head["experiment"])
    resolved["panels"] = [
        {**panel, "training": _trained(results, panel["label"])} for panel in resolved["panels"]
    ]
    text = json.dumps(resolved, indent=2, ensure_ascii=False)
    return _details("Resolved configuration", text, is_open=False)


def _trained(results: Results, panel: str) -> dict[str, Any]:
    try:
        return chosen_training(results.folder, panel).as_dict()
    except ExperimentError:  # the grid is still being tried
        return results.folder.experiment.panel(panel).training.as_dict()


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
    return Template(_own_file("page.html")).substitute(
        title=escape(_title(results)),
        css=_own_file("page.css"),
        texts=_texts(results, design_colours(labels)),
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
    n_designs = sum(
        len(panel.design) for each in results for panel in each.folder.experiment.panels
    )
    return max(FEWEST_POINTS, min(MOST_POINTS, POINTS_OF_A_PAGE // max(n_designs, 1)))


def _data(results: list[Results], labels: list[str]) -> dict[str, Any]:
    most = most_points(results)
    runs = []
    n_classes = 0
    for each in results:
        experiment = each.folder.experiment
        panels = [panel_data(each, panel, most_points=most) for panel in experiment.panels]
        runs.append({"name": _run_name(each), "panels": panels})
        n_classes = max(n_classes, int(each.federations["class"].to_numpy().max(initial=-1)) + 1)
    return {
        "runs": runs,
        "colours": design_colours(labels),
        "dashes": design_dashes(labels),
        "classColours": class_colours(n_classes),
    }


def _texts(results: list[Results], colours: dict[str, str]) -> str:
    return "\n".join(
        _block("answer", run, number, panel_text(each, panel, colours))
        for run, each in enumerate(results)
        for number, panel in enumerate(each.folder.experiment.panels)
    )


def _block(kind: str, run: int, panel: int, content: str) -> str:
    """Return a block of a run and panel. At first, only run 0 with panel 0 is visible."""
    hidden = "" if run == panel == 0 else " hidden"
    return f'<div data-block="{kind}" data-run="{run}" data-panel="{panel}"{hidden}>{content}</div>'


def _title(results: list[Results]) -> str:
    if len(results) == 1:
        experiment = results[0].folder.experiment
        return experiment.title or experiment.name
    return f"{len(results)} runs"


def _run_name(results: Results) -> str:
    experiment = results.folder.experiment
    return f"{experiment.title or experiment.name} ({results.folder.path.resolve().name})"


def _own_file(name: str) -> str:
    return (files("fedcohort.report") / name).read_text(encoding="utf-8")
