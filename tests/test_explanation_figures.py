"""The figures of the explanation pages are drawn, each is shown, and none is missing."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("pydantic")
pytest.importorskip("pyarrow")

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted((DOCS / "explanation").glob("*.md"))
IMAGE = re.compile(r"!\[([^\]]*)\]\(figures/([^)]+)\)")


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("figures", DOCS / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shown() -> list[tuple[str, str]]:
    """Return what is said of every figure to those who do not see it, and its file."""
    return [found for page in PAGES for found in IMAGE.findall(page.read_text())]


def test_every_figure_is_shown_once_and_every_shown_figure_is_drawn(
    figures: ModuleType, tmp_path: Path
) -> None:
    files = figures.draw_all(tmp_path / "new" / "folder")

    assert sorted(name for _, name in shown()) == sorted(path.name for path in files)
    assert all(path.read_text().startswith("<?xml") for path in files)


def test_the_same_figure_is_the_same_file(
    figures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "names", lambda: ["accident", "weights"])
    first, second = (
        [path.read_bytes() for path in figures.draw_all(tmp_path / name)] for name in "ab"
    )

    assert first == second


def test_every_figure_says_in_words_what_it_shows() -> None:
    assert [name for words, name in shown() if len(words) < 30] == []


def test_figures_are_legible_on_a_phone(figures: ModuleType, tmp_path: Path) -> None:
    # At 360 pixels a figure of 5.2 inches (374.4 points) is drawn at 0.72 of its size.
    figures.draw_all(tmp_path)
    widths = {
        path.name: float(re.findall(r'width="([\d.]+)pt"', path.read_text())[0])
        for path in tmp_path.glob("*.svg")
    }

    assert max(widths.values()) <= 374.4


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_the_links_between_pages_of_the_folder_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([\w-]+\.md)(?:#[\w-]*)?\)", page.read_text())

    assert [link for link in links if not (page.parent / link).is_file()] == []
