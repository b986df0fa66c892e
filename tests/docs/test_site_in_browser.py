"""The site in a real browser: pages fit a phone, draw their formulas and fetch nothing."""

from collections.abc import Iterator
from typing import Any

import pytest

from built_site import Site
from chromium import CHROMIUM, started_browser

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = [
    pytest.mark.slow,  # the site takes half a minute to build
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]

#: The width of a phone's window.
PHONE = 390
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"

#: The first words of blocks that are too wide, unless they hold output and can be scrolled.
CLIPPED = """() => [...document.querySelectorAll("pre")].filter((block) => {
  const isOutput = block.closest(".highlight-console, .highlight-text, .highlight-csv");
  const canScroll = getComputedStyle(block).overflowX === "auto";
  return block.scrollWidth > block.clientWidth && !(isOutput && canScroll);
}).map((block) => block.textContent.slice(0, 60))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as browser:
        yield browser


@pytest.mark.parametrize("width", [1280, PHONE])
def test_every_page_fits_and_fetches_nothing(site: Site, browser: Any, width: int) -> None:
    """On a phone code fits too; what a program printed can be scrolled where it does not."""
    tab = browser.new_context(viewport={"width": width, "height": 800}).new_page()
    complaints: list[str] = []
    requests: list[str] = []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    wide, clipped = [], []
    for path in site.pages:
        tab.goto(path.as_uri())
        if tab.evaluate(TOO_WIDE) > 0:
            wide.append(path.name)
        clipped += [f"{path.name}: {text}" for text in tab.evaluate(CLIPPED) if width == PHONE]

    assert len(requests) > len(site.pages)
    assert wide == []
    assert clipped == []
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


def test_formulas_are_drawn_in_their_own_font(site: Site, browser: Any) -> None:
    tab = browser.new_page()
    tab.goto((site.folder / "explanation" / "tournament.html").as_uri())
    tab.evaluate("document.fonts.ready.then(() => 0)")
    heights = tab.eval_on_selector_all(
        ".formula math", "all => all.map((math) => math.getBoundingClientRect().height)"
    )

    assert tab.evaluate("[...document.fonts].map((font) => font.status)") == ["loaded"]
    assert len(heights) > 5
    assert min(heights) > 10


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("tournament", "designs/tournament.html"),
        ("dropout", "how-to/flower-failures.html"),
        ("dropout", "glossary.html"),
        ("stragglers", "how-to/devices.html"),
        ("stragglers", "glossary.html"),
        ("availability", "explanation/availability.html"),
        ("Selector.draw", "api/fedcohort.html"),
    ],
)
def test_the_search_finds_pages_without_a_server(
    site: Site, browser: Any, word: str, page: str
) -> None:
    tab = browser.new_page()
    tab.goto((site.folder / "search.html").as_uri() + f"?q={word}")
    tab.wait_for_selector("#search-results li")
    tab.wait_for_selector("text=/Search finished/")
    found = tab.eval_on_selector_all("#search-results li a", "all => all.map((a) => a.href)")

    assert any(link.split("#")[0].endswith(page) for link in found)
