"""The controls of the page in a real browser: designs, contents, tables, values, phones."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")
pytest.importorskip("plotly", reason="the extra 'report' is not installed")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from chromium import CHROMIUM
from fedcohort.experiments import Results, read_results
from fedcohort.experiments.results import summarise
from fedcohort.experiments.units import PlannedRun
from fedcohort.report.page import write_page
from report.opened_page import Opened

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")

#: The ends of every plot's axes, in pixels of the axis that it was drawn with.
RANGES = """() => Object.fromEntries(FIGURES.filter((figure) => !figure.hidden).map((figure) => {
  const full = figure.querySelector("div")._fullLayout;
  return [figure.dataset.plot, ["xaxis", "yaxis"].flatMap((name) => {
    const [low, high] = full[name].range.map(Number);
    const pixel = Math.abs(high - low) / full[name]._length;
    return [low / pixel, high / pixel];
  })];
}))"""
#: How far text reaches beyond the window, or beyond the box in which it would have to be scrolled.
CUT_OFF = """() => [...document.querySelectorAll("main th, main td, .scroll")]
  .filter((each) => each.getClientRects().length)
  .filter((each) => each.getBoundingClientRect().right > innerWidth + 0.5
    || (each.className === "scroll" && each.scrollWidth > each.clientWidth)).length"""

SHARE_AXIS = (
    "document.querySelector('[data-plot=distinct_share] > div')._fullLayout.yaxis.range.map(Number)"
)
RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def biased_file(biased: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "biased.html"
    write_page([biased], path)
    return path


@pytest.fixture
def many(browser: Any, biased_file: Path) -> Iterator[Opened]:
    opened = Opened(browser, biased_file, viewport={"width": 1280, "height": 900})
    yield opened
    assert opened.complaints == []
    opened.context.close()


def column(opened: Opened, table: str, at: int) -> list[str]:
    """Return the texts of a column."""
    cells = opened.page.locator(f"{table} tbody tr > :nth-child({at + 1}):visible")
    return [str(text) for text in cells.all_inner_texts()]


def downloaded(opened: Opened, button: str) -> list[dict[str, str]]:
    with opened.page.expect_download() as found:
        opened.page.click(button)
    with Path(found.value.path()).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_switch_that_does_not_concern_a_plot_leaves_its_ranges(two: Opened) -> None:
    before = two.with_all_plots(RANGES)
    two.page.check("#log")
    two.with_all_plots("0")
    two.page.uncheck("#log")

    after = two.with_all_plots(RANGES)
    assert {"inclusion", "weight_variance", "error"} < set(before)
    assert set(after) == set(before)
    for plot, ends in before.items():
        assert after[plot] == pytest.approx(ends, abs=1, rel=0), plot  # a pixel


def test_all_none_and_only_unbiased(many: Opened) -> None:
    shown = []
    for choice in ("none", "unbiased", "all"):
        many.page.click(f"[data-choose={choice}]")
        boxes = many.page.locator("#boxes label")
        checked = [box.inner_text() for box in boxes.all() if box.locator("input").is_checked()]
        assert checked == list(many.traces("loss"))
        shown.append(checked)

    assert shown == [[], ["multinomial", "size"], ["multinomial", "size", "cohort-mean"]]


@pytest.mark.slow
def test_of_many_designs_the_eight_best_are_shown_first_and_no_share_is_above_all(
    browser: Any, tmp_path: Path
) -> None:
    """The real run of 21 designs, one of which draws 10 clients only on average."""
    results = read_results(RESULTS / "everyone")
    path = tmp_path / "everyone.html"
    write_page([results], path)
    opened = Opened(browser, path, viewport={"width": 1280, "height": 900})
    summary = summarise(results, results.folder.experiment.panels[0])
    assert summary is not None
    by_loss = [
        each.label for each in sorted(summary.designs, key=lambda each: each.final_loss.mean())
    ]

    assert [
        name.split("\n")[0].removesuffix(" biased") for name in column(opened, ".designs", 0)
    ] == by_loss[:8]
    assert set(opened.traces("loss")) == set(by_loss[:8])
    assert opened.text("#shown") == "8 of 21 designs shown"
    opened.page.click("[data-choose=all]")
    shares = opened.traces("distinct_share")
    assert len(shares) == len(column(opened, ".designs", 0)) == 21
    assert max(map(max, shares.values())) <= 1
    assert max(opened.with_all_plots(SHARE_AXIS)) < 1.02
    opened.page.click("[data-choose=best]")
    assert len(column(opened, ".designs", 0)) == 8
    opened.context.close()


def test_check_boxes_filter_the_table(two: Opened) -> None:
    two.page.get_by_label("similarity", exact=True).uncheck()

    assert sorted(column(two, ".designs", 0)) == ["multinomial", "similarity l2", "size"]
    assert two.text("#shown") == "3 of 4 designs shown"


def test_only_unbiased_is_offered_only_where_it_differs_from_all(two: Opened) -> None:
    assert two.page.locator("[data-choose=all]").is_visible()
    assert not two.page.locator("[data-choose=unbiased]").is_visible()


def test_check_boxes_and_table_show_the_lines_of_the_plots(two: Opened) -> None:
    line = (
        "(each) => { const l = each.querySelector('line'); return [l.getAttribute('stroke'), "
        "l.getAttribute('stroke-dasharray')]; }"
    )
    boxes = {b.inner_text(): b.evaluate(line) for b in two.page.locator("#boxes label").all()}
    rows = two.page.locator(".designs tbody th:visible").all()
    table = {row.inner_text(): row.evaluate(line) for row in rows}
    drawn = two.with_all_plots(
        "Object.fromEntries(FIGURES[0].querySelector('div').data.filter((t) => t.name)"
        ".map((t) => [t.name, t.line.color]))"
    )

    assert boxes == table
    assert {label: colour for label, (colour, _) in boxes.items()} == drawn


def test_the_table_is_sorted_by_mouse_and_keyboard(two: Opened) -> None:
    heading = two.page.locator(".designs:visible thead th").nth(2)
    losses = column(two, ".designs", 1)
    heading.locator("button").click()
    rising, state = column(two, ".designs", 2), heading.get_attribute("aria-sort")
    two.page.keyboard.press("Enter")  # the button has the focus
    falling, turned = column(two, ".designs", 2), heading.get_attribute("aria-sort")
    two.page.locator(".designs:visible thead th").nth(1).locator("button").click()

    assert losses == sorted(losses)
    percentages = [float(text.split()[0]) for text in rising]
    assert percentages == sorted(percentages)
    assert (state, turned) == ("ascending", "descending")
    assert sorted(falling) == sorted(rising)
    assert float(falling[0].split()[0]) == max(percentages)
    assert column(two, ".designs", 1) == losses


def test_the_contents_link_to_every_section_below_the_bar(two: Opened) -> None:
    links = two.page.locator("#contents a")
    titles = two.page.locator("main > section:visible > h2").all_inner_texts()
    links.nth(5).click()
    two.page.wait_for_timeout(100)
    title = two.page.locator("main > section:visible > h2").nth(5).bounding_box()
    bar = two.page.locator("#bar").bounding_box()

    assert links.all_inner_texts() == titles
    assert bar["y"] == 0
    assert bar["height"] <= title["y"] <= bar["height"] + 60


def test_a_value_is_shown_above_the_plot_and_covers_nothing(two: Opened) -> None:
    two.page.click("[data-choose=none]")
    two.page.get_by_label("size", exact=True).check()
    two.page.get_by_label("similarity", exact=True).check()
    two.page.locator("[data-plot=loss]").scroll_into_view_if_needed()
    two.page.evaluate("document.getElementById('training-title').scrollIntoView()")
    two.with_all_plots("0")
    place = two.page.locator("[data-plot=loss] .nsewdrag").bounding_box()
    start = two.page.evaluate(
        "() => { const { xaxis: x, yaxis: y } = FIGURES[0].querySelector('div')._fullLayout;"
        " const t = FIGURES[0].querySelector('div').data.find((each) => each.name === 'size');"
        " return [x.l2p(t.x[6]), y.l2p(t.y[6]), t.y[6]]; }"
    )
    for step in (3, 0):
        two.page.mouse.move(place["x"] + start[0] + step, place["y"] + start[1])
    two.page.wait_for_timeout(200)

    readout = two.text("[data-plot=loss] .readout")
    assert readout.startswith(f"size, round 7: {float(f'{start[2]:.4g}'):g} (")
    assert two.page.locator(".hovertext").count() == 0
    faded = two.page.evaluate(
        "[...document.querySelectorAll('[data-plot=loss] .scatterlayer .trace')]"
        ".map((each) => getComputedStyle(each).opacity)"
    )
    assert sorted(set(faded)) == ["0.12", "1"]


@pytest.mark.parametrize("width", [1280, 390])
def test_no_column_is_cut_off(browser: Any, two_file: Path, width: int) -> None:
    opened = Opened(browser, two_file, viewport={"width": width, "height": 844})

    assert opened.with_all_plots(CUT_OFF) == 0
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    opened.context.close()


def test_the_legend_stays_in_sight_on_a_phone(browser: Any, two_file: Path) -> None:
    size = {"width": 390, "height": 844}
    opened = Opened(browser, two_file, viewport=size, has_touch=True, is_mobile=True)
    opened.page.evaluate("document.getElementById('time-title').scrollIntoView()")
    opened.page.wait_for_timeout(100)
    box = opened.page.locator("#boxes label").first.bounding_box()
    bar = opened.page.locator("#bar").bounding_box()

    assert 0 <= box["y"] < bar["height"] < 844 / 4
    opened.context.close()


def test_the_downloaded_table_has_the_numbers_of_the_run(two: Opened, two_panels: Results) -> None:
    rows = downloaded(two, "#table-csv")

    summary = summarise(two_panels, two_panels.folder.experiment.panels[0])
    assert summary is not None
    assert [row["design"] for row in rows] == [each.label for each in summary.designs]
    for row, each in zip(rows, summary.designs, strict=True):
        assert row["panel"] == "alpha = 0.01"
        assert float(row["final_loss"]) == np.mean(each.final_loss)
        assert float(row["final_accuracy_deviation"]) == np.std(each.final_accuracy, ddof=1)
        assert (row["difference"] == "") == (each.difference is None)


def test_the_worst_served_clients_come_first_and_any_can_be_found(
    many: Opened, biased: Results
) -> None:
    many.page.select_option("#client-design", label="size")
    first, accuracy = column(many, "#client-table", 0), column(many, "#client-table", 7)
    many.page.click("#clients-next")
    second = column(many, "#client-table", 0)
    shown = many.text("#clients-shown")
    many.page.fill("#client-search", "17")
    found = many.page.locator("#client-table tbody tr").all_inner_texts()
    many.page.fill("#client-search", "99")
    nobody = many.text("#clients-shown")

    run = PlannedRun("biased", "size", 0)
    known = biased.column("laws", run, "accuracy")
    assert [float(text.split()[0]) for text in accuracy] == sorted(
        float(f"{100 * value:.1f}") for value in known
    )[:20]
    assert sorted(int(client) for client in first + second) == list(range(30))
    assert shown == "21 to 30 of 30 clients"
    drawn = biased.column("cohorts", run, "client").tolist().count(17)
    assert len(found) == 1
    cells = found[0].split("\t")
    assert (cells[0], cells[1], cells[3]) == ("17", "20", str(drawn))
    assert cells[7] == f"{100 * known[17]:.1f} %"
    assert nobody == "No client fits."


def test_clients_are_sorted_by_a_click_and_all_are_downloaded(
    many: Opened, biased: Results
) -> None:
    many.page.locator("#client-table thead button").nth(3).click()
    many.page.locator("#client-table thead button").nth(3).click()
    drawn = [int(text) for text in column(many, "#client-table", 3)]
    rows = downloaded(many, "#clients-csv")

    assert drawn == sorted(drawn, reverse=True)
    assert drawn[0] > 0
    assert len(rows) == 3 * 30
    for row in rows:
        run = PlannedRun("biased", row["design"], int(row["seed"]))
        loss = biased.column("laws", run, "loss")[int(row["client"])]
        assert float(row["loss"]) == pytest.approx(loss, rel=1e-4)


@pytest.mark.slow
def test_an_unfinished_run_says_why_losses_of_clients_are_missing(
    browser: Any, unfinished: Results, tmp_path: Path
) -> None:
    write_page([unfinished], tmp_path / "page.html")

    opened = Opened(browser, tmp_path / "page.html")

    assert "are measured when its run ends" in opened.text("#clients-missing")
    headings = opened.page.locator("#client-table thead th").all_inner_texts()
    assert "rounds drawn" in headings
    assert "loss" not in headings
    opened.context.close()
