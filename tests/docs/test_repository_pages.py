"""The pages of docs/ as a repository shows them: plain Markdown that says what the code says."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")
pytest.importorskip("sphinx", reason="the extra 'docs' is not installed")

from built_site import ROOT
from design_pages import pictures
from fedcohort.designs import RECIPES
from made_pages import DOCS, MARK, described_on, marked_pages, places, refreshed
from repository_links import CODE, PAGES, anchors

ALL = sorted(DOCS.rglob("*.md"))
API = "reference/api"
LINK = re.compile(r"\]\(([^)\s]+)\)")
#: Markup for Sphinx only: directives, roles, attributes of blocks, links to names.
OF_SPHINX = re.compile(r"^ *```+\{|\{[a-z:]+\}`|^\{\.|\]\(name:|:(?:class|func|meth|math):`", re.M)
#: A table row of a design: its name, the final loss, the accuracy.
ROW = re.compile(r"^\| ([\w +-]+) \| ([\d.]+) ± .*?\| ([\d.]+) % \|", re.MULTILINE)


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [str(page.relative_to(DOCS).with_suffix("")) for page in ALL])
def test_what_is_made_is_what_the_code_says(page: str) -> None:
    assert read(DOCS / f"{page}.md") == refreshed(page), "run python tools/docs/made_pages.py"


def test_there_are_made_parts() -> None:
    assert len(marked_pages()) >= 38


def test_what_is_described_has_a_page_and_an_anchor() -> None:
    found = [places()[path] for path in ("fedcohort.Selector.draw", "fedcohort.recipe")]

    page = "reference/api/fedcohort"
    assert found == [(f"{page}/Selector", "selectordraw"), (page, "recipe")]


def test_a_class_with_methods_has_a_page_and_no_page_is_of_a_class_that_is_gone() -> None:
    there = {str(file.relative_to(DOCS).with_suffix("")) for file in (DOCS / API).rglob("*.md")}

    assert there - {f"{API}/index"} == set(described_on())
    assert f"{API}/fedcohort/Selector" in there


def test_no_page_of_the_python_reference_is_very_long() -> None:
    """The page of the selector, the longest, has 500 lines; that of the package had 1,600."""
    assert max(len(read(file).splitlines()) for file in (DOCS / API).rglob("*.md")) < 520


def test_the_pictures_of_designs_are_those_of_the_code() -> None:
    made = {DOCS / name: picture for name, picture in pictures().items()}
    there = (DOCS / "reference" / "designs" / "figures").iterdir()

    assert {path: read(path) for path in there} == made, "run python tools/docs/made_pages.py"


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_is_plain_markdown(page: Path) -> None:
    text = read(page)

    assert text.count("<!-- made: ") == len(MARK.findall(text)), "a mark has no end"
    assert OF_SPHINX.findall(text) == []


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(DOCS)))
def test_no_link_of_a_page_leads_nowhere(page: Path) -> None:
    dead = []
    for link in LINK.findall(CODE.sub("", read(page))):
        parts = urlsplit(link)
        if parts.scheme:
            continue
        target = (page.parent / parts.path).resolve() if parts.path else page
        is_there = target.exists()
        if is_there and parts.fragment and target.suffix == ".md":
            is_there = parts.fragment in {anchor for *_, anchor in anchors(read(target))}
        if not is_there:
            dead.append(link)

    assert dead == []


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_page_that_stands_for_a_file_has_its_title(file: Path) -> None:
    assert read(PAGES[file]).partition("\n")[0] == read(file).partition("\n")[0]


@pytest.mark.parametrize("page", [*(DOCS / "results").glob("*.md"), DOCS / "changelog.md"])
def test_a_page_that_stands_for_a_file_tells_what_is_in_it(page: Path) -> None:
    (file,) = (file for file, place in PAGES.items() if place == page)
    sections = {anchor for _, is_title, anchor in anchors(read(file)) if not is_title}

    assert LINK.sub("]", read(file).split("\n\n")[1]) in LINK.sub("]", read(page))
    assert {urlsplit(link).fragment for link in LINK.findall(read(page))} >= sections


def test_the_numbers_of_the_first_page_are_those_of_the_results() -> None:
    measured = ROW.findall(read(ROOT / "results" / "everyone" / "README.md"))
    losses = {name: (f"{accuracy} %", loss) for name, loss, accuracy in measured}
    rows = [row.split(" | ") for row in re.findall(r"^\| (.+) \|$", read(DOCS / "index.md"), re.M)]
    shown = {who: (accuracy, loss) for who, accuracy, loss in rows[2:]}
    designs = [re.search("`(.+)`", who) for who in shown]

    assert list(shown.values()) == [
        losses[design[1] if design else "full participation"] for design in designs
    ]
    assert len(shown) == 5


def test_pages_and_pictures_stay_small() -> None:
    """What is made takes less than 27 kB a design; the report's picture less than 200 kB."""
    made = sum(len(part[0]) for page in ALL for part in MARK.finditer(read(page)))

    assert made + sum(map(len, pictures().values())) < 27_000 * len(RECIPES)
    assert (DOCS / "figures" / "report.png").stat().st_size < 200_000
