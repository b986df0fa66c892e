"""The examples of the documentation give what they say."""

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if ">>> " in page.read_text()]


def test_there_are_examples() -> None:
    assert ROOT / "docs" / "how-to" / "large-populations.md" in PAGES


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_the_examples_of_a_page_give_what_it_says(page: Path) -> None:
    result = doctest.testfile(str(page), module_relative=False, encoding="utf-8")

    assert (result.failed, result.attempted > 0) == (0, True)
