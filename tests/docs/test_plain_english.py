"""Pages and modules are in plain English: no stilted phrases, few long sentences."""

from pathlib import Path

import pytest

from plain_english import HABITS, PAGES, ROOT, STILTED, STILTED_NAME, files, find_hits

SOURCE = ROOT / "src" / "fedcohort"
#: Every page that people read; copies in run folders are records and stay as they are.
READ = [page for page in files([ROOT / page for page in PAGES]) if page.suffix == ".md"]
#: The modules of the package, held to the same rules.
MODULES = files(sorted(SOURCE.glob("**/*.py")))
#: Of all sentences of one page or module.
MOST_LONG, MOST_HABITS = 2, 3


def found(text: str, tmp_path: Path, name: str = "page.md") -> list[tuple[int, str]]:
    page = tmp_path / name
    page.write_text(text)
    return [(hit.line, hit.kind) for hit in find_hits(page)]


@pytest.mark.parametrize("page", READ + MODULES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_or_module_is_in_plain_english(page: Path) -> None:
    hits = find_hits(page)

    assert [hit for hit in hits if hit.kind in {*STILTED, STILTED_NAME}] == []
    assert len([hit for hit in hits if hit.kind == "long"]) <= MOST_LONG
    assert len([hit for hit in hits if hit.kind in HABITS]) <= MOST_HABITS


@pytest.mark.parametrize(
    ("sentence", "kind"),
    [
        ("If nobody answers, it waits.", "nobody"),
        ("It waits for so many seconds.", "so many"),
        ("A sketch is no anonymisation.", "is no"),
        ("Write a design of one's own.", "of one's own"),
        ("The tree is built anew.", "old word"),
        ("It sends nothing, nor is it asked.", "nor is"),
        ("The first, where there is none.", "where there is none"),
        ("It moves by H, which v then is.", "which then is"),
        ("It shows what becomes of the weight.", "what becomes of"),
        ("The page says what it is.", "what it is"),
        ("It waits in vain.", "idiom"),
        ("It logs whom a bound concerns.", "whom"),
        ("Hear how much work there is.", "hear"),
        ("Let a whole number through.", "let through"),
        ("Write the folder, then give it its name.", "give a name"),
        ("The log lies beside it.", "beside it"),
        ("A call was dropped by what calls this strategy.", "what calls"),
        ("Where clients differ, it helps.", "Where ...,"),
        ("What asking costs is written there.", "What ... is"),
        ("Not saved are the others.", "inversion"),
        ("It is refused.", "passive opening"),
        (" ".join(["word"] * 31) + ".", "long"),
    ],
)
def test_each_kind_is_found(sentence: str, kind: str, tmp_path: Path) -> None:
    text = f"# Title\n\nA plain sentence. {sentence}\n"

    assert found(text, tmp_path) == [(3, kind)]


@pytest.mark.parametrize(
    "text",
    [
        "There is no GPU. It is no longer drawn.",
        "Where does the gain come from?",
        "```python\n# nobody\n```",
        "| nobody | anew |",
        "`nobody` is a name.",
        "<!-- made: x -->\nNobody.\n<!-- end -->",
        "<!-- map: x -->\n\n* Nobody.\n\n<!-- map: end -->",
        "## Sources\n\nA. Nobody, 1999.",
        "A client " + "`is drawn`" * 31 + ".",
    ],
)
def test_code_tables_citations_and_generated_text_are_left_out(text: str, tmp_path: Path) -> None:
    assert found(text + "\n", tmp_path) == []


def test_docstrings_and_comments_of_a_module_are_read_with_their_lines(tmp_path: Path) -> None:
    text = '"""Nobody.\n\n>>> nobody\n"""\n\n# One,\n# hence two.\nnobody = 1\n'

    assert found(text, tmp_path, "module.py") == [(1, "nobody"), (6, "old word")]


def test_log_lines_and_error_messages_of_a_module_are_read(tmp_path: Path) -> None:
    text = (
        'log.warning("not drawn, for want of a size: %s", names)\n'
        'raise FlowerError(\n    f"nobody of {n} answers; got {nobody}. "\n    f"Wait."\n)\n'
        'print("nobody")\n'
    )

    assert found(text, tmp_path, "module.py") == [(1, "idiom"), (3, "nobody")]


@pytest.mark.parametrize(
    "line",
    [
        "WAIT_IN_VAIN = 60.0",
        "riding = 1",
        "self.riding = 1",
        "def _bury(): pass",
        "def ask(takers): pass",
        "class BesideIt: pass",
    ],
)
def test_names_of_a_module_are_read(line: str, tmp_path: Path) -> None:
    assert found(f"wait = 1\n{line}\n", tmp_path, "module.py") == [(2, "stilted name")]


def test_a_literal_block_of_a_docstring_is_left_out(tmp_path: Path) -> None:
    text = '"""Ask until none is left::\n\n    nobody is asked\n\nNobody.\n"""\n'

    assert found(text, tmp_path, "module.py") == [(5, "nobody")]
