"""The page in a real browser: it is whole, it fetches nothing, and its switches switch."""

from __future__ import annotations

from operator import mul
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")
pytest.importorskip("plotly", reason="the extra 'report' is not installed")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from chromium import CHROMIUM
from fedcohort.experiments import Results
from report.opened_page import LAYOUT, Opened

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")

ALL_PLOTS = {
    "loss",
    "accuracy",
    "distinct_classes",
    "distinct_share",
    "needed",
    "inclusion",
    "weight_variance",
    "clusters",
    "tree",
    "error",
    "seconds",
    "shares",
    "samples",
    "bytes",
    "client_seconds",
    "simulated_seconds",
    "worst_accuracy",
    "served",
}
#: Contrast of an element's text against the page, as the accessibility guidelines define it.
CONTRAST = """(selector) => {
  const channels = (colour) => colour.match(/[0-9.]+/g).slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const luminance = (colour) => {
    const [r, g, b] = channels(colour);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const element = document.querySelector(selector);
  const style = getComputedStyle(element);
  const text = luminance(element instanceof SVGElement ? style.fill : style.color);
  const page = luminance(getComputedStyle(document.body).backgroundColor);
  return (Math.max(text, page) + 0.05) / (Math.min(text, page) + 0.05);
}"""


def test_every_plot_is_drawn_and_nothing_is_fetched_or_complained_about(two: Opened) -> None:
    drawn = two.drawn()

    assert set(drawn) == ALL_PLOTS
    assert all(count > 0 for count in drawn.values()), drawn
    assert two.requests == []
    assert two.complaints == []


def test_the_policy_of_the_page_forbids_what_it_does_not_need(two: Opened) -> None:
    fetched = two.page.evaluate("fetch('https://example.org').then(() => 'sent', () => 'refused')")

    assert fetched == "refused"
    assert two.requests == []


def test_raw_and_smoothed_differ_and_switch_back(two: Opened) -> None:
    smoothed = two.traces("loss")
    two.page.check("#raw")
    raw = two.traces("loss")
    two.page.check("#smoothed")

    assert list(raw) == ["multinomial", "size", "similarity", "similarity l2"]
    assert raw["size"] != smoothed["size"]
    weights = [0.5**age for age in reversed(range(12))]
    mean = sum(map(mul, raw["size"], weights)) / sum(weights)
    assert smoothed["size"][-1] == pytest.approx(mean, rel=1e-4)
    assert two.traces("loss") == smoothed


def test_the_logarithmic_switch_changes_the_axis_of_the_loss_only(two: Opened) -> None:
    axes = [("loss", "yaxis"), ("needed", "xaxis"), ("accuracy", "yaxis")]
    before = [two.with_all_plots(LAYOUT, axis) for axis in axes]
    two.page.check("#log")

    assert before == ["linear", "linear", "linear"]
    assert [two.with_all_plots(LAYOUT, axis) for axis in axes] == ["log", "log", "linear"]


def test_a_design_that_is_unchecked_leaves_every_plot(two: Opened) -> None:
    two.page.get_by_label("similarity l2", exact=True).uncheck()

    for plot in ("loss", "inclusion", "needed", "error"):
        assert set(two.traces(plot)) == {"multinomial", "size", "similarity"}
    colours = two.page.evaluate(
        "document.querySelector('[data-plot=loss] > div').data.map((t) => t.line.color)"
    )
    assert colours[5] == "#d55e00"  # size keeps its own


def test_the_panel_switch_changes_words_and_plots(two: Opened) -> None:
    words, loss, shares = two.text("main"), two.traces("loss"), two.traces("shares")
    two.page.select_option("#panel", label="alpha = 10")

    assert two.text("main") != words
    assert two.traces("loss") != loss
    assert two.traces("shares") != shares
    assert set(two.drawn()) == ALL_PLOTS
    shown = two.page.locator("[data-block=answer]:visible")
    assert shown.count() == 1
    assert shown.get_attribute("data-panel") == "1"


def test_controls_work_from_the_keyboard(two: Opened) -> None:
    before = two.traces("loss")
    two.page.focus("#smoothed")
    two.page.keyboard.press("ArrowRight")
    labelled = two.page.evaluate(
        "[...document.querySelectorAll('select, input')].every((control) => control.labels.length)"
    )

    assert two.page.is_checked("#raw")
    assert two.traces("loss") != before
    assert labelled


@pytest.mark.slow
def test_dark_and_light_differ_in_page_and_plots_and_both_are_readable(
    browser: Any, two_file: Path
) -> None:
    looks = {}
    for scheme in ("light", "dark"):
        opened = Opened(browser, two_file, color_scheme=scheme)
        for selector in ("h1", ".answer", ".note", "td", "dt", "[data-plot=loss] .ytick text"):
            assert opened.page.evaluate(CONTRAST, selector) >= 4.5, (scheme, selector)
        looks[scheme] = (
            opened.page.evaluate("getComputedStyle(document.body).backgroundColor"),
            opened.page.evaluate(
                "document.querySelector('[data-plot=loss] > div').layout.font.color"
            ),
        )
        opened.page.click("#theme")
        looks[f"{scheme}, switched"] = (
            opened.page.evaluate("getComputedStyle(document.body).backgroundColor"),
            opened.page.evaluate(
                "document.querySelector('[data-plot=loss] > div').layout.font.color"
            ),
        )
        opened.context.close()

    assert looks["light"][0] != looks["dark"][0]
    assert looks["light"][1] != looks["dark"][1]
    assert looks["light, switched"] == looks["dark"]
    assert looks["dark, switched"] == looks["light"]


@pytest.mark.slow
def test_a_phone_scrolls_down_only(browser: Any, all_file: Path) -> None:
    phone = Opened(
        browser, all_file, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
    )
    for run in range(4):
        phone.page.select_option("#run", str(run))
        widths = phone.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        wide = phone.page.evaluate(
            "[...document.querySelectorAll('.main-svg')].filter((s) => s.getClientRects().length"
            " && s.getBoundingClientRect().right > innerWidth).length"
        )
        assert widths == [390, 390]
        assert wide == 0
    assert phone.complaints == []
    phone.context.close()


@pytest.mark.slow
def test_every_run_shows_what_it_has_and_hostile_labels_are_only_text(
    browser: Any, all_file: Path, one_seed: Results
) -> None:
    opened = Opened(browser, all_file)
    hostile = one_seed.folder.experiment.panels[0].design[0].label
    first = opened.drawn()
    answer = opened.text("main")
    legend = opened.page.locator("#boxes label").first.inner_text()
    ticks = opened.page.locator("[data-plot=inclusion] .xtick text").all_text_contents()
    bold = opened.page.locator("b").count()
    opened.page.select_option("#run", "2")
    partition = opened.drawn()
    opened.page.select_option("#run", "3")

    assert set(first) == ALL_PLOTS - {"error"}
    assert "with one seed there is no interval" in answer or "baseline itself" in answer
    assert "chosen" in answer  # from the grid
    assert legend == hostile
    assert hostile in ticks
    assert bold == 0
    assert set(partition) == {"shares", "samples"}
    assert set(opened.drawn()) == ALL_PLOTS - {"clusters", "tree", "served"}
    assert "The run is not finished (interrupted): 10 of 24 rounds" in opened.text("main")
    assert opened.complaints == []
    assert opened.requests == []
    opened.context.close()


def test_printing_is_light_and_fits_the_paper(two: Opened) -> None:
    two.page.click("#theme")
    dark = two.page.evaluate("getComputedStyle(document.body).backgroundColor")
    two.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    printed = two.page.evaluate("getComputedStyle(document.body).backgroundColor")
    widest = two.page.evaluate(
        "Math.max(...[...document.querySelectorAll('.main-svg')].map((s) => s.clientWidth))"
    )
    two.page.evaluate("dispatchEvent(new Event('afterprint'))")

    assert printed == "rgb(255, 255, 255)"
    assert printed != dark
    assert widest <= 640
    assert two.page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
