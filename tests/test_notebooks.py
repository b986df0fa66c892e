"""The notebooks run, and show what they say."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

from printed_table import read_table, words

FOLDER = Path(__file__).parents[1] / "notebooks"
SMALL = 300_000

Notebook = dict[str, Any]
Frame = dict[str, dict[str, float]]


def read(path: Path) -> Notebook:
    content: Notebook = json.loads(path.read_text())
    return content


def outputs(notebook: Notebook) -> list[list[dict[str, Any]]]:
    return [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]


def printed(notebook: Notebook) -> list[str]:
    """Return what the cells print, one text for each that prints."""
    streams = [out for cell in outputs(notebook) for out in cell if out["output_type"] == "stream"]
    assert {out["name"] for out in streams} <= {"stdout"}
    return ["".join(out["text"]) for out in streams]


def kinds(notebook: Notebook) -> list[list[tuple[str, ...]]]:
    """Return what every cell shows; print's lines come in one piece or in several."""
    shown = (
        [(out["output_type"], *out.get("data", ())) for out in cell] for cell in outputs(notebook)
    )
    return [[kind for kind, _ in groupby(cell)] for cell in shown]


def falls(values: list[float]) -> bool:
    return all(after < before for before, after in pairwise(values))


def frames(notebook: Notebook) -> list[Frame]:
    """Return the data frames that are shown: the numbers of every row, by its name and column."""
    results = [out.get("data", {}) for cell in outputs(notebook) for out in cell]
    pages = ["".join(data["text/html"]) for data in results if "text/html" in data]
    return [frame_in(page) for page in pages if 'class="dataframe"' in page]


def frame_in(page: str) -> Frame:
    """Read a frame from its HTML; the first cell of a row is its name."""
    head, _, body = page.partition("<tbody>")
    index = re.findall(r"<th>([^<]+)</th>", head)[-1]
    columns = [name for name in re.findall(r"<th>([^<]+)</th>", head) if name != index]
    rows = [re.findall(r"<t[hd]>([^<]*)</t[hd]>", row) for row in body.split("<tr")[1:]]
    return {name: dict(zip(columns, map(float, own), strict=True)) for name, *own in rows}


def sizes_hold(notebook: Notebook) -> bool:
    """What the first notebook's prose says of its numbers."""
    designs, learned = frames(notebook)
    multinomial, size = designs["multinomial"], designs["size"]
    needed = [
        list(map(int, re.findall(r"\d+", line))) for line in printed(notebook)[1].splitlines()
    ]
    return (
        designs["uniform"]["bias"] > 0.5
        and all(own["bias"] == 0 for name, own in designs.items() if name != "uniform")
        and size["weight_variance_ratio"] < 1 == multinomial["weight_variance_ratio"]
        and size["expected_distinct"] > multinomial["expected_distinct"]
        and size["smallest_inclusion"] >= multinomial["smallest_inclusion"]
        and len(needed) == 3
        and all(fewer < draws for draws, fewer in needed)
        and falls([own["aggregate_variance"] for own in learned.values()])
    )


def federation_holds(notebook: Notebook) -> bool:
    """What the second notebook's prose says of its numbers."""
    quality, why, alike = frames(notebook)
    (share,) = read_table(printed(notebook)[0])["multinomial's V, alike over one digit each:"]
    learning = ("multinomial", "similarity", "tournament")
    return (
        list(quality) == list(why) == [*learning, "multinomial, difference", "everyone"]
        and falls([-own["accuracy"] for own in quality.values()])  # accuracy rises
        and falls([own["up and down"] for own in quality.values()])
        and falls([own["V in %"] for own in why.values()])
        and falls([-why[name]["digits"] for name in learning])
        and alike["tournament"]["V in %"] <= 100
        and abs(alike["tournament"]["accuracy"] - alike["multinomial"]["accuracy"]) < 2
        and share < 50
    )


CLAIMS: dict[str, Callable[[Notebook], bool]] = {
    "what-would-it-do-for-my-clients": sizes_hold,
    "a-federation-in-ten-minutes": federation_holds,
}


def test_every_notebook_is_in_the_list_is_small_and_has_a_claim() -> None:
    notebooks = {path.stem: path for path in FOLDER.glob("*.ipynb")}

    assert set(notebooks) == set(CLAIMS)
    for name, path in notebooks.items():
        assert f"({name}.ipynb)" in (FOLDER / "README.md").read_text()
        assert path.stat().st_size < SMALL


@pytest.mark.parametrize("name", CLAIMS)
def test_what_a_notebook_shows_is_what_its_prose_says(name: str) -> None:
    assert CLAIMS[name](read(FOLDER / f"{name}.ipynb"))


@pytest.mark.slow
def test_the_notebooks_run_and_show_what_is_kept(tmp_path: Path) -> None:
    for module in ("nbclient", "ipykernel", "torch", "matplotlib", "pandas", "sklearn"):
        if find_spec(module) is None:
            pytest.skip(f"the notebooks need {module}")

    result = subprocess.run(
        [sys.executable, "-W", "error", str(FOLDER / "refresh.py"), "--out", str(tmp_path)],
        env={**os.environ, "IPYTHONDIR": str(tmp_path / "ipython"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )

    # Not an empty stderr: on a busy machine a kernel may log an error when it is shut down.
    assert result.returncode == 0, result.stderr
    for name, claim_holds in CLAIMS.items():
        kept, new = read(FOLDER / f"{name}.ipynb"), read(tmp_path / f"{name}.ipynb")
        assert kinds(kept) == kinds(new)
        assert words(" ".join(printed(kept))) == words(" ".join(printed(new)))
        assert claim_holds(new), (frames(new), printed(new))
