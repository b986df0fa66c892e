"""The page on the package's architecture shows the rooms and the walks that there are."""

from importlib.util import find_spec

import pytest

from architecture import PAGE, PICTURE, SOURCE, WALKS, entered, picture, section, shown

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="there is no documentation here")

#: Say this where something differs.
AGAIN = "Run: python tools/docs/architecture.py"


def lines_of(section: str) -> set[str]:
    """Return the lines of a list without their numbers."""
    return {line.partition(" ")[2] for line in section.splitlines()}


def test_the_page_lists_the_rooms_and_every_walk() -> None:
    assert set(shown()) == {"rooms", *WALKS}
    assert shown()["rooms"] == section("rooms"), AGAIN


def test_the_picture_has_the_layers_that_imports_follow() -> None:
    assert PICTURE.read_text(encoding="utf-8") == picture(), AGAIN


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_enters_the_files_that_the_page_lists(walk: str) -> None:
    if walk != "compare" and not (find_spec("torch") and find_spec("sklearn")):
        pytest.skip("the simulator needs the extra 'sim'")
    if walk == "run-report" and not (find_spec("matplotlib") and find_spec("plotly")):
        pytest.skip("the report needs the extra 'report'")

    now, page = lines_of(section(walk)), lines_of(shown()[walk])

    differing = [f"+ {line}" for line in now - page] + [f"- {line}" for line in page - now]
    assert differing == [], "\n".join([AGAIN, *differing])


@pytest.mark.parametrize(("last", "files"), [("", []), ("call()", ["made_up.py"])])
def test_a_walk_counts_calls_and_not_imports(last: str, files: list[str]) -> None:
    text = f"class Imported:\n    pass\ndef call():\n    pass\n{last}"

    found = entered(lambda: exec(compile(text, SOURCE / "made_up.py", "exec"), {}))

    assert found == files
