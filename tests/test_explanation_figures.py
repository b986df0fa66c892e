"""The figures of the explanation pages are drawn, each is shown, and none is missing."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("pyarrow")

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted((DOCS / "explanation").glob("*.md"))
IMAGE = re.compile(r"!\[([^\]]*)\]\(figures/([^)]+)\)")
#: In points. At 360 pixels a figure of 5.2 inches is shown at 0.72 of its size.
WIDEST = 5.2 * 72
#: ``tests/test_architecture.py`` has the tests of this one, which needs no matplotlib.
MAP = "rooms.svg"


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("figures", DOCS / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def drawn(figures: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """All figures, by the names of their files."""
    folder = tmp_path_factory.mktemp("docs") / "a" / "new" / "folder"
    return {path.name: path.read_text(encoding="utf-8") for path in figures.draw_all(folder)}


def shown() -> list[tuple[str, str]]:
    """Return what is said of every figure to those who do not see it, and its file."""
    return [found for page in PAGES for found in IMAGE.findall(page.read_text(encoding="utf-8"))]


def test_every_figure_is_shown_once_and_every_shown_figure_is_drawn(drawn: dict[str, str]) -> None:
    kept = [path.name for path in (DOCS / "explanation" / "figures").iterdir()]

    assert sorted(name for _, name in shown()) == sorted([*drawn, MAP]) == sorted(kept)


def test_every_figure_says_in_words_what_it_shows() -> None:
    assert [name for words, name in shown() if len(words) < 30] == []


def test_figures_are_legible_on_a_phone(drawn: dict[str, str]) -> None:
    widths = {name: re.findall(r'width="([\d.]+)pt"', text)[0] for name, text in drawn.items()}

    assert {name: width for name, width in widths.items() if float(width) > WIDEST} == {}


def test_the_same_figure_is_the_same_file(
    figures: ModuleType, drawn: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "names", lambda: ["accident", "stationary", "weights"])

    again = {path.name: path.read_text(encoding="utf-8") for path in figures.draw_all(tmp_path)}

    assert len(again) == 3
    assert {name: drawn[name] for name in again} == again


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_links_within_the_explanation_lead_to_a_page_and_its_heading(page: Path) -> None:
    links = re.findall(r"\]\(([\w-]+\.md)(?:#([\w-]+))?\)", page.read_text(encoding="utf-8"))
    headings = {each.name: _anchors(each) for each in PAGES}

    lost = [
        (name, anchor)
        for name, anchor in links
        if name not in headings or (anchor and anchor not in headings[name])
    ]
    assert lost == []


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
