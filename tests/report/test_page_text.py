"""The page's text without a browser: escaped, complete, and within its size."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")
pytest.importorskip("plotly", reason="the extra 'report' is not installed")

from fedcohort.experiments import Results, read_results
from fedcohort.experiments.results import summarise
from fedcohort.experiments.tuning import candidate_losses
from fedcohort.experiments.units import baseline_of
from fedcohort.report.page import most_points, page_html, panel_text, setup_text
from fedcohort.report.page_data import design_labels
from fedcohort.report.page_parts import script_json
from small_runs import emptied

LABELS = ("multinomial", "size", "similarity", "similarity l2")


def cells(html: str) -> list[list[str]]:
    """Return the text of every cell, row by row, headings left out."""
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    texts = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]
    return [[re.sub(r"<[^>]*>", "", text) for text in row] for row in texts]


def test_json_in_a_script_cannot_end_it_and_reads_back_as_it_was() -> None:
    content = {"</script><!--<script>": ["&lt;", "\u2028", 1.5, None]}

    text = script_json(content)

    assert "<" not in text
    assert json.loads(text) == content


def test_hostile_titles_and_labels_are_escaped_everywhere(one_seed: Results) -> None:
    html = page_html([one_seed])

    hostile = one_seed.folder.experiment.title
    assert hostile not in html
    assert "<title>&lt;/script&gt;&lt;b&gt;x&lt;/b&gt;" in html
    without_plotly = re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)
    assert without_plotly.count("</script>") == 1  # of the data
    assert "<b>" not in without_plotly


def test_nothing_is_linked_to_but_data(two_panels: Results) -> None:
    html = page_html([two_panels])
    without_plotly = re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)

    assert re.findall(r"(?:src|href)\s*=\s*\"(.*?)\"", without_plotly) == ["data:,"]
    assert "url(" not in without_plotly
    assert "@import" not in without_plotly


def test_the_table_has_a_row_for_every_design(two_panels: Results) -> None:
    panel = two_panels.folder.experiment.panels[0]
    labels = design_labels([two_panels])

    head, *rows = cells(panel_text(two_panels, panel, dict.fromkeys(labels, "")))

    assert sorted(row[0] for row in rows) == sorted(labels)
    assert all(len(row) == len(head) == 12 for row in rows)
    assert [row[1] for row in rows] == sorted(row[1] for row in rows)  # by the final loss
    differences = {row[0]: row[8] for row in rows}
    assert differences.pop("multinomial") == "baseline"
    for text in differences.values():
        assert re.fullmatch(
            r"[+\u2212]?\d\.\d{3} \([+\u2212]\d\.\d{3} to [+\u2212]\d\.\d{3}\)", text
        )
    assert all(re.fullmatch(r"\d\.\d{3} \u00b1 \d\.\d{3}", row[1]) for row in rows)
    for column in (2, 3):
        assert all(re.fullmatch(r"\d+\.\d \u00b1 \d+\.\d %", row[column]) for row in rows)


def test_the_table_says_how_far_the_variance_is_above_the_noise_floor(two_panels: Results) -> None:
    panel = two_panels.folder.experiment.panels[0]
    text = panel_text(two_panels, panel, dict.fromkeys(LABELS, ""))

    head, *rows = cells(text)

    summary = summarise(two_panels, panel)
    assert summary is not None
    assert head[-3:] == ["V / V_MD", "noise floor", "above the floor"]
    shown = {row[0]: row[-3:] for row in rows}
    for design in summary.designs:
        floor, above = np.mean(design.floor), np.mean(design.above_floor)
        deviation = np.std(design.above_floor, ddof=1)
        assert shown[design.label][1:] == [f"{floor:.3f}", f"{above:.2f} \u00b1 {deviation:.2f}"]
        assert 0 < floor < 1
    assert shown["multinomial"][0] == "1.000"
    assert "slightly below 0 is chance" in text


def test_a_run_without_floors_shows_none(two_panels: Results, biased: Results) -> None:
    """Made with floor_clients = 0, or by an older version; without an oracle there is no V."""
    panel = two_panels.folder.experiment.panels[0]
    rounds = emptied(two_panels.tables["rounds"], "design_floor", "multinomial_floor")
    older = replace(two_panels, tables={**two_panels.tables, "rounds": rounds})

    text = panel_text(older, panel, dict.fromkeys(LABELS, ""))
    nothing = panel_text(
        biased, biased.folder.experiment.panels[0], dict.fromkeys(design_labels([biased]), "")
    )

    assert cells(text)[0][-2:] == ["difference to the baseline", "V / V_MD"]
    assert "V / V_MD: " in text
    assert "floor" not in text
    assert "V_MD" not in nothing


def test_every_design_has_its_own_line_in_the_table(two_panels: Results) -> None:
    html = page_html([two_panels])

    lines = set(re.findall(r'<line [^>]*stroke="(#\w+)"[^>]*stroke-dasharray="([\d ]*)"', html))
    assert len(lines) == 4


def test_the_answer_is_bold_and_comes_first(two_panels: Results) -> None:
    text = panel_text(two_panels, two_panels.folder.experiment.panels[0], dict.fromkeys(LABELS, ""))

    assert re.match(r'<p class="answer"><strong>After 12 rounds with 2 seeds, .* final loss', text)
    assert text.count('<p class="answer"><strong>') == 1
    assert re.search(r"accuracy of \d+\.\d \u00b1 \d+\.\d %", text)


def test_a_biased_design_is_marked_as_such(biased: Results) -> None:
    (panel,) = biased.folder.experiment.panels
    labels = ("multinomial", "size", "cohort-mean")

    _, *rows = cells(panel_text(biased, panel, dict.fromkeys(labels, "")))
    table = json.loads(re.findall(r'id="data">(.*?)</script>', page_html([biased]))[0])

    assert sorted(row[0] for row in rows) == ["cohort-mean biased", "multinomial", "size"]
    (facts,) = table["runs"][0]["panels"]
    assert facts["unbiased"] == {"multinomial": True, "size": True, "cohort-mean": False}
    assert [(row["design"], row["unbiased"]) for row in facts["table"]] == list(
        facts["unbiased"].items()
    )


def test_one_seed_has_no_spread_and_the_grid_shows_what_was_chosen(one_seed: Results) -> None:
    panel = one_seed.folder.experiment.panels[0]
    labels = design_labels([one_seed])

    rows = cells(panel_text(one_seed, panel, dict.fromkeys(labels, "")))

    losses = candidate_losses(one_seed.folder, panel, baseline_of(panel))
    best = min(losses, key=lambda point: losses[point])
    assert re.fullmatch(r"[\d.]+", rows[1][1])
    assert sorted(row[-1].partition(" ")[2] for row in rows[1:3]) == ["", "(one seed)"]
    tried = {tuple(map(float, row[1:4])): row[5] for row in rows[-2:]}
    assert tried == {point: "chosen" if point == best else "" for point in losses}


def test_the_setup_is_shown_and_a_missing_experiment_file_is_told(
    two_panels: Results, tmp_path: Path
) -> None:
    folder = shutil.copytree(two_panels.folder.path, tmp_path / "copy")
    (folder / "experiment.toml").unlink()

    shown = setup_text(two_panels)

    for text in ("fedcohort", "version of numpy", "machine: device", "partition = &quot;dirichlet"):
        assert text in shown
    assert "no readable experiment.toml" in setup_text(read_results(folder))


def test_a_run_without_a_round_yet_has_a_page_that_says_so(
    unfinished: Results, tmp_path: Path
) -> None:
    folder = shutil.copytree(unfinished.folder.path, tmp_path / "copy")
    shutil.rmtree(folder / "units")

    html = page_html([read_results(folder)])

    assert "The run is not finished (interrupted): 0 of 24 rounds" in html
    assert "No seed has a round of every design yet; 12 rounds are planned." in html


def test_a_run_stopped_before_it_measured_has_a_page_that_says_so(
    unfinished: Results, make_run: Callable[..., Path]
) -> None:
    text = (unfinished.folder.path / "experiment.toml").read_text()
    text = text.replace("[server]", "[server]\nmeasure_every = 10")

    html = page_html([read_results(make_run("early", text, stop_after=5))])

    assert "the loss was not measured in the last 1 round" in html
    assert "final loss, not measured; in brackets" in html
    assert "nan" not in re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL).lower()


def test_curves_have_fewer_points_where_there_are_more_of_them(two_panels: Results) -> None:
    assert most_points([two_panels]) == 500
    assert most_points([two_panels] * 25) == 200  # 8 curves each
    assert most_points([two_panels] * 1000) == 60
