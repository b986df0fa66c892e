"""One page that holds a report: all data, styles and scripts inside, nothing to fetch."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from fedcohort._extras import import_extra
from fedcohort._whole_file import write_whole
from fedcohort.experiments.results import Results
from fedcohort.report.colours import class_colours, design_colours, design_dashes, design_labels
from fedcohort.report.page_text import panel_text, setup_text
from fedcohort.report.panel_data import panel_data

#: Of a curve; many designs and panels share fewer, to keep the page's data within some megabytes.
MOST_POINTS, FEWEST_POINTS = 500, 60
POINTS_OF_A_PAGE = 40_000


def write_page(results: list[Results], path: Path) -> None:
    """Write the report of one or more runs; the file is whole or not there."""
    write_whole(path, page_html(results).encode())


def page_html(results: list[Results]) -> str:
    """Return the page's text."""
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
    """Return JSON that no text in it can break out of: a tag needs the letter it does not have."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def most_points(results: list[Results]) -> int:
    """Return how many points a curve may have, so that all together stay within the page's."""
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
    """Return a part of the page that shows with its run and panel; the first ones to begin with."""
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
