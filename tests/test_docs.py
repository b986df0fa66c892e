"""Every page of the documentation does what it says: its blocks run, and print what it shows."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from documented_blocks import NOT_RUN, TERMINAL, Block, blocks_of, run_page

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
KNOWN = ("python", "pycon", "toml", "console", *NOT_RUN, "text", "csv", "diff", "math")
#: Pages that train, or start programs: more than a few seconds each.
SLOW = {
    "how-to/add-a-design.md",
    "how-to/clusters.md",
    "how-to/devices.md",
    "how-to/experiment-files.md",
    "how-to/flower-tls.md",
    "how-to/own-dataset.md",
    "how-to/own-model.md",
    "how-to/resume.md",
    "how-to/studies.md",
    "how-to/trackers.md",
    "how-to/workers.md",
    "tutorial/first-comparison.md",
    "tutorial/first-flower-run.md",
}
#: Pages of which every command must run.
LITERAL = ("how-to/flower-tls.md", "tutorial/first-flower-run.md")
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
    if "In a clone of the repository" in page.read_text(encoding="utf-8"):
        (tmp_path / "examples").symlink_to(ROOT / "examples")

    run_page(page, tmp_path)


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_what_a_guide_does_not_run_says_why(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    assert text.startswith("# ")
    for block in blocks_of(text):
        assert block.language in KNOWN, f"line {block.line}: {block.language!r} is not known"
        assert says_why(block), f"line {block.line}: a title must say 'not run: ' and why"


def says_why(block: Block) -> bool:
    titles = ("not run: ", TERMINAL)
    return block.language not in NOT_RUN or block.title.startswith(titles)


@pytest.mark.parametrize("name", LITERAL)
def test_every_command_of_the_pages_about_deployments_is_run(name: str) -> None:
    found = blocks_of((DOCS / name).read_text(encoding="utf-8"))

    assert name in SLOW
    assert [block.title for block in found if block.language in NOT_RUN and not block.runs] == []
    assert any("flwr run" in block.text for block in found if block.language == "console")
