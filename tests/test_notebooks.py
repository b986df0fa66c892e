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


def sizes_hold(texts: list[str]) -> bool:
    """What the first notebook's prose says of its numbers."""
    designs, counted = read_table(texts[1]), texts[1].splitlines()[-1]
    needed = [list(map(int, re.findall(r"\d+", line))) for line in texts[2].splitlines()]
    variances = [float(share) for share in re.findall(r"(\d+)%", texts[3])]
    return (
        designs["uniform"][0] > 0.5
        and all(own[0] == 0 for name, own in designs.items() if name != "uniform")
        and designs["size"][1] < 1 == designs["multinomial"][1]
        and designs["size"][2] > designs["multinomial"][2]
        and designs["size"][3] >= designs["multinomial"][3]
        and counted == "size varies less than multinomial for 100 of 100 clients"
        and all(size < multinomial for multinomial, size in needed)
        and falls(variances)
    )


def federation_holds(texts: list[str]) -> bool:
    """What the second notebook's prose says of its numbers."""
    quality, ratios, digits, alike = (read_table(text) for text in texts)
    order = ["multinomial", "similarity", "tournament", "multinomial, difference", "everyone"]
    (share,) = alike["multinomial's V, alike over one digit each:"]
    kinds = [float(number) for number in re.findall(r"([\d.]+) digits", texts[2])]
    return (
        not digits
        and falls([-quality[name][0] for name in order])  # accuracy rises
        and falls([quality[name][1] for name in order])
        and falls([ratios[name][0] for name in order])
        and falls([-kind for kind in kinds])
        and alike["alike, tournament"][1] <= 100
        and abs(alike["alike, tournament"][0] - alike["alike, multinomial"][0]) < 2
        and share < 50
    )


CLAIMS: dict[str, Callable[[list[str]], bool]] = {
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
    assert CLAIMS[name](printed(read(FOLDER / f"{name}.ipynb")))


@pytest.mark.slow
def test_the_notebooks_run_and_show_what_is_kept(tmp_path: Path) -> None:
    for module in ("nbclient", "ipykernel", "torch", "matplotlib", "sklearn"):
        if find_spec(module) is None:
            pytest.skip(f"the notebooks need {module}")

    result = subprocess.run(
        [sys.executable, "-W", "error", str(FOLDER / "refresh.py"), "--out", str(tmp_path)],
        env={**os.environ, "IPYTHONDIR": str(tmp_path / "ipython"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )

    assert (result.returncode, result.stderr) == (0, "")
    for name, claim_holds in CLAIMS.items():
        kept, new = read(FOLDER / f"{name}.ipynb"), read(tmp_path / f"{name}.ipynb")
        assert kinds(kept) == kinds(new)
        assert words(" ".join(printed(kept))) == words(" ".join(printed(new)))
        assert claim_holds(printed(new)), printed(new)
