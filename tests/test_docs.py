"""Every page of the documentation does what it says: its blocks run, and print what it shows."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from documented_blocks import NOT_RUN, Block, blocks_of, run_page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    page
    for page in sorted(DOCS.rglob("*.md"))
    if any(block.runs for block in blocks_of(page.read_text(encoding="utf-8")))
]
#: Pages that a reader follows: everything that looks like code there is run, or says why not.
GUIDES = [page for page in sorted(DOCS.rglob("*.md")) if page.parent.name in ("tutorial", "how-to")]
#: Languages that may stand in a guide: run, not run, and only shown.
KNOWN = ("python", "pycon", "toml", "console", *NOT_RUN, "text", "csv")
#: Pages that train, or start programs: more than a few seconds each.
SLOW = {
    "how-to/add-a-design.md",
    "how-to/devices.md",
    "how-to/experiment-files.md",
    "how-to/own-dataset.md",
    "how-to/own-model.md",
    "how-to/resume.md",
    "how-to/trackers.md",
    "tutorial/first-comparison.md",
    "tutorial/first-flower-run.md",
}
#: What the guides together install.
EXTRAS = ("torch", "plotly", "flwr", "ray", "tensorboard", "mlflow")

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="there is no documentation here")


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS))


def test_there_are_guides_that_run() -> None:
    named = {name_of(page) for page in PAGES}

    assert named >= SLOW


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if name_of(page) in SLOW else ()) for page in PAGES],
    ids=name_of,
)
def test_the_blocks_of_a_page_run_and_print_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page in GUIDES and not all(map(find_spec, EXTRAS)):
        pytest.skip(f"the guides need {', '.join(EXTRAS)}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDCOHORT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    run_page(page, tmp_path)


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_what_a_guide_does_not_run_says_why(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    assert text.startswith("# ")
    for block in blocks_of(text):
        assert block.language in KNOWN, f"line {block.line}: {block.language!r} is not known"
        assert says_why(block), f"line {block.line}: a title must say 'not run: ' and why"


def says_why(block: Block) -> bool:
    return block.language not in NOT_RUN or block.title.startswith("not run: ")
