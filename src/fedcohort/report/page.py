"""Write the page of a run: text, tables and interactive plots in one HTML file."""

from __future__ import annotations

import json
import math
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from fedcohort._display import NOTHING, decimals_of, fixed, per_cent
from fedcohort._lazy import import_extra
from fedcohort._whole_file import write_whole
from fedcohort.colours import DASHES, class_colours, design_colours, design_dashes
from fedcohort.experiments.results import (
    DesignSummary,
    Interval,
    PanelSummary,
    Results,
    interval,
    summarise,
)
from fedcohort.experiments.settings import Panel
from fedcohort.experiments.tuning import tuning_table, worded_choice
from fedcohort.report.answer import (
    PLUS_MINUS,
    loss_decimals,
    panel_sentences,
    spread,
    spread_per_cent,
    state_sentence,
    unbiased_designs,
)
from fedcohort.report.page_data import client_data, design_labels, panel_data
from fedcohort.report.page_parts import (
    Cell,
    details,
    own_file,
    script_json,
    table_html,
    watch_script,
)

#: Of the legend, if they were measured.
VARIANCE = (
    " V / V_MD: variance of the aggregate, over that of multinomial sampling with plain "
    "aggregation, in the second half of the rounds."
)
FLOOR = (
    " Noise floor: the part of it that comes from random batches, which no estimator can remove "
    "with this design. Above the floor: (V - floor) / (V_MD - its floor), what is left of the "
    "rest; slightly below 0 is chance, missing if there is no rest."
)


def panel_text(results: Results, panel: Panel, swatches: dict[str, str]) -> str:
    """Return a panel's answer, table of designs and tuning grid. ``swatches`` are HTML."""
    headline, *sentences = panel_sentences(results, panel)
    parts = [f'<p class="answer"><strong>{escape(headline)}</strong></p>']
    more = (state_sentence(results), *sentences)
    parts += [f'<p class="answer">{escape(each)}</p>' for each in more if each]
    summary = summarise(results, panel)
    if summary is not None:
        unbiased = unbiased_designs(results, panel)
        parts.append(_designs_table(summary, panel, unbiased, swatches))
        parts.append(f'<p class="note">{escape(_legend(summary))}</p>')
    return "\n".join([*parts, _grid_table(results, panel)])


def swatch(colour: str, dash: str) -> str:
    """Return a short piece of a design's line, as HTML."""
    lengths = " ".join(str(3 * each) for each in DASHES[dash])
    return (
        f'<svg class="swatch" viewBox="0 0 26 10" aria-hidden="true"><line x1="1" y1="5" x2="25" '
        f'y2="5" stroke="{colour}" stroke-width="3" stroke-dasharray="{lengths}"/></svg>'
    )


def setup_text(results: Results) -> str:
    """Return the setup of a run: command, machine, versions and configuration."""
    head = results.folder.head
    facts = {
        "folder": results.folder.path.resolve().name,
        "command": head.get("command", ""),
        "created": head.get("created", ""),
        **{f"source {k}": text for k, text in enumerate(results.folder.worded_sources())},
        **{f"machine: {key}": value for key, value in head.get("machine", {}).items()},
        **{f"version of {key}": value for key, value in head.get("versions", {}).items()},
    }
    rows = [f"<dt>{escape(key)}</dt><dd>{escape(str(value))}</dd>" for key, value in facts.items()]
    return f"<dl>{''.join(rows)}</dl>\n{_experiment_file(results)}\n{_configuration(results)}"


def _designs_table(
    summary: PanelSummary,
    panel: Panel,
    unbiased: dict[str, bool | None],
    swatches: dict[str, str],
) -> str:
    losses = loss_decimals(summary)
    jumps = decimals_of((float(np.mean(each.jump)) for each in summary.designs), digits=2)
    rows: list[dict[str, Cell]] = []
    for each in sorted(summary.designs, key=_by_loss):
        rows.append(
            {
                "design": _name(each, unbiased[each.label], swatches[each.label]),
                "final loss": _valued(each.final_loss, spread(each.final_loss, losses)),
                "accuracy": _valued(each.final_accuracy, spread_per_cent(each.final_accuracy)),
                "worst tenth": _valued(each.worst_accuracy, spread_per_cent(each.worst_accuracy)),
                "rounds to level": (
                    Cell(NOTHING, "") if math.isnan(summary.level) else _needed(each)
                ),
                "distinct classes": _mean(each.classes, 2),
                "distinct clients": _valued(each.share, per_cent(float(np.mean(each.share)))),
                "jump": _mean(each.jump, jumps),
                "difference to the baseline": _difference(each, losses),
                "V / V_MD": _mean(each.variance, 3),
                "noise floor": _mean(each.floor, 3),
                "above the floor": _valued(each.above_floor, spread(each.above_floor, 2)),
            }
        )
    # A column without any number is left out; the legend says why.
    kept = [name for name in rows[0] if any(row[name].html != NOTHING for row in rows)]
    cells = [[row[name] for name in kept] for row in rows]
    return table_html(kept, cells, name="Designs of this panel", kind="designs sortable")


def _by_loss(design: DesignSummary) -> tuple[bool, bool, float]:
    loss = float(np.mean(design.final_loss))
    return bool(design.divergence), math.isnan(loss), loss


def _name(design: DesignSummary, unbiased: bool | None, swatch: str) -> Cell:
    marks = [design.divergence, "biased" if unbiased is False else ""]
    marked = "".join(f' <em class="mark">{escape(each)}</em>' for each in marks if each)
    label = escape(design.label)
    return Cell(f'<span class="design">{swatch}<span>{label}{marked}</span></span>', design.label)


def _valued(values: np.ndarray, text: str) -> Cell:
    mean = float(np.mean(values))
    return Cell(text, "" if math.isnan(mean) else mean)


def _mean(values: np.ndarray, decimals: int) -> Cell:
    return _valued(values, fixed(float(np.mean(values)), decimals))


def _needed(design: DesignSummary) -> Cell:
    """Return the mean rounds of the seeds that reached the level; fewer seeds sort behind more."""
    reached = design.rounds_needed[~np.isnan(design.rounds_needed)]
    n_seeds = len(design.rounds_needed)
    if not len(reached):
        return Cell("never", "")
    part = "" if len(reached) == n_seeds else f" <small>({len(reached)} of {n_seeds})</small>"
    missing = 1e9 * (n_seeds - len(reached))
    return Cell(f"{np.mean(reached):.0f}{part}", missing + float(np.mean(reached)))


def _legend(summary: PanelSummary) -> str:
    last = "last round" if summary.window == 1 else f"last {summary.window} rounds"
    has_spread = len(summary.seeds) > 1
    deviation = f"; {PLUS_MINUS} standard deviation over seeds" if has_spread else ""
    is_known = not math.isnan(summary.level)
    has_diverged = any(
        each.divergence for each in summary.designs if each.label == summary.baseline
    )
    missing = "unknown since it diverged" if has_diverged else "not measured"
    level = fixed(summary.level, loss_decimals(summary)) if is_known else missing
    has_worst = not all(np.isnan(each.worst_accuracy).all() for each in summary.designs)
    worst = " Worst tenth: accuracy of the tenth of clients with the lowest." if has_worst else ""
    baseline = f"{summary.baseline}'s final loss, {level}"
    has_variance = not all(np.isnan(each.variance).all() for each in summary.designs)
    has_floor = not all(np.isnan(each.floor).all() for each in summary.designs)
    return (
        f"Means over the {last}{deviation}.{worst} Level: {baseline}; in brackets how many seeds "
        f"reached it, if not all. Distinct clients: their share of the draws that were answered. "
        f"Jump: mean absolute change of the loss between measurements. Difference: of the final "
        f"loss, with the 95 % interval over seeds; bold if it excludes 0."
        f"{VARIANCE if has_variance else ''}{FLOOR if has_floor else ''}"
    )


def _difference(design: DesignSummary, decimals: int) -> Cell:
    difference = design.difference
    if difference is None:
        return Cell("baseline", 0.0)
    if math.isnan(difference.mean):
        return Cell(NOTHING, "")
    text = _with_ends(difference, decimals, sign=True)
    text = f"<strong>{text}</strong>" if difference.excludes_zero else text
    return Cell(text, difference.mean)


def _with_ends(found: Interval, decimals: int, *, sign: bool = False) -> str:
    """Format a mean with its interval: ``0.31 (0.28 to 0.34)``."""
    mean, low, high = (
        fixed(each, decimals, sign=sign) for each in (found.mean, found.low, found.high)
    )
    return f"{mean} (one seed)" if math.isinf(found.low) else f"{mean} ({low} to {high})"


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
            "diverged" if each["final_loss"] is None else f"{each['final_loss']:.4g}",
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
    return details("Resolved configuration", text, is_open=False)


def _experiment_file(results: Results) -> str:
    try:
        text = (results.folder.path / "experiment.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return '<p class="note">The folder has no readable experiment.toml.</p>'
    return details("experiment.toml", text, is_open=True)


#: The numbers of a design that the downloaded table has with their deviation over seeds.
SPREADS = (
    *("final_loss", "final_accuracy", "worst_accuracy", "classes", "clients", "share", "jump"),
    *("variance", "floor"),
)
#: Points of a curve. With many designs a curve has fewer, to limit the page to some megabytes.
MOST_POINTS, FEWEST_POINTS = 500, 60
POINTS_OF_A_PAGE = 40_000
#: Rows of the tables of clients: one per client, design and seed. A row takes about 30 bytes.
ROWS_OF_A_PAGE = 200_000


def write_page(results: list[Results], path: Path) -> None:
    """Write the report of one or more runs. A failed write leaves no partial file."""
    write_whole(path, page_html(results).encode())


def page_html(results: list[Results], *, watched: str | None = None) -> str:
    """Return the page as HTML. With its version ``watched``, it asks a server for a newer one."""
    plotly = import_extra("plotly.offline", extra="report", owner="report")
    labels = design_labels(results)
    colours, dashes = design_colours(labels), design_dashes(labels)
    swatches = {label: swatch(colours[label], dashes[label]) for label in labels}
    title = results[0].folder.experiment.heading if len(results) == 1 else f"{len(results)} runs"
    return Template(own_file("page.html")).substitute(
        title=escape(title),
        css=own_file("page.css"),
        texts="\n".join(
            _block("answer", run, place, panel_text(each, panel, swatches))
            for run, each in enumerate(results)
            for place, panel in enumerate(each.folder.experiment.panels)
        ),
        setups="\n".join(
            _block("setup", run, 0, setup_text(each)) for run, each in enumerate(results)
        ),
        data=script_json(_data(results, labels)),
        plotly=plotly.get_plotlyjs(),
        plots=own_file("plots.js"),
        tables=own_file("tables.js"),
        script=own_file("page.js"),
        connect="" if watched is None else "connect-src 'self';",
        watch="" if watched is None else watch_script(watched),
    )


def most_points(results: list[Results]) -> int:
    """Return the most points of a curve that keep the page within its total."""
    panels = [panel for each in results for panel in each.folder.experiment.panels]
    n_designs = sum(len(panel.design) for panel in panels)
    return max(FEWEST_POINTS, min(MOST_POINTS, POINTS_OF_A_PAGE // max(n_designs, 1)))


def _data(results: list[Results], labels: list[str]) -> dict[str, Any]:
    most = most_points(results)
    most_rows = ROWS_OF_A_PAGE // sum(len(each.folder.experiment.panels) for each in results)
    runs = []
    n_classes = 0
    for each in results:
        experiment = each.folder.experiment
        panels = [
            {
                **panel_data(each, panel, most_points=most),
                **client_data(each, panel, most_rows=most_rows),
                **_design_facts(each, panel),
            }
            for panel in experiment.panels
        ]
        name = f"{experiment.heading} ({each.folder.path.resolve().name})"
        runs.append({"name": name, "panels": panels})
        n_classes = max(n_classes, int(each.federations["class"].to_numpy().max(initial=-1)) + 1)
    return {
        "runs": runs,
        "colours": design_colours(labels),
        "dashes": design_dashes(labels),
        "dashLengths": DASHES,
        "classColours": class_colours(n_classes),
    }


def _design_facts(results: Results, panel: Panel) -> dict[str, Any]:
    """Return which designs are unbiased, and the table of designs with all digits, for CSV."""
    summary = summarise(results, panel)
    if summary is None:
        return {"unbiased": {}, "table": []}
    unbiased = unbiased_designs(results, panel)
    return {
        "unbiased": unbiased,
        "table": [_csv_row(each, panel, unbiased[each.label]) for each in summary.designs],
    }


def _csv_row(design: DesignSummary, panel: Panel, unbiased: bool | None) -> dict[str, Any]:
    """Return a row of the downloaded table; None for a missing number."""
    row: dict[str, Any] = {
        "panel": panel.label,
        "design": design.label,
        "unbiased": unbiased,
        "draws": panel.entry(design.label).draws(panel),
        "seeds": len(design.final_loss),
        "seeds_at_level": int((~np.isnan(design.rounds_needed)).sum()),
    }
    for name in SPREADS:
        values = getattr(design, name)
        row |= {name: np.mean(values), f"{name}_deviation": _deviation(values)}
    reached = design.rounds_needed[~np.isnan(design.rounds_needed)]
    row["rounds_to_level"] = np.mean(reached) if len(reached) else math.nan
    ends = {
        "difference": design.difference or Interval(math.nan, math.nan, math.nan),
        "above_floor": interval(design.above_floor),
    }
    for name, found in ends.items():
        row |= {name: found.mean, f"{name}_low": found.low, f"{name}_high": found.high}
    return {key: _finite(value) for key, value in row.items()}


def _deviation(values: np.ndarray) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _block(kind: str, run: int, panel: int, content: str) -> str:
    """Return a block of a run and panel. At first, only run 0 with panel 0 is visible."""
    hidden = "" if run == panel == 0 else " hidden"
    return f'<div data-block="{kind}" data-run="{run}" data-panel="{panel}"{hidden}>{content}</div>'
