"""The examples run as a user would run them, and show what they say."""

import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from printed_table import Table, read_table, words

ROOT = Path(__file__).parents[1]
README = (ROOT / "examples" / "README.md").read_text()


def own_loop_holds(shown: Table) -> bool:
    """Less than half the error, and nobody is better than everyone."""
    (multinomial,), (similarity,), (everyone,) = (
        shown[name] for name in ("multinomial", "similarity", "everyone")
    )
    return everyone < similarity < multinomial / 2


def pytorch_loop_holds(shown: Table) -> bool:
    """Less loss and more accuracy."""
    loss, accuracy = shown["multinomial"]
    others = [shown["similarity"], shown["multinomial, difference"]]
    return all(own[0] < loss and own[1] > accuracy for own in others)


def partitions_hold(shown: Table) -> bool:
    """Less variance; multinomial sampling's is its own."""
    (weights,) = shown["variance of the weights, size over multinomial:"]
    variance = {name: shown[name][0] for name in ("multinomial", "size", "similarity")}
    return weights < 1 and variance["similarity"] < variance["size"] < variance["multinomial"] == 1


CLAIMS: dict[str, Callable[[Table], bool]] = {
    "own_loop.py": own_loop_holds,
    "pytorch_loop.py": pytorch_loop_holds,
    "flwr_datasets_partitions.py": partitions_hold,
}
#: What each example imports that may be missing.
NEEDS = {
    "own_loop.py": [],
    "pytorch_loop.py": ["torch", "sklearn"],
    "flwr_datasets_partitions.py": ["torch", "flwr_datasets"],
}


def skip_without(*modules: str) -> None:
    """Skip where a module is missing; importing it here would take as long as the example."""
    for module in modules:
        if find_spec(module) is None:
            pytest.skip(f"the example needs {module}")


def test_every_example_is_in_the_table_and_has_a_claim() -> None:
    files = {path.name for path in (ROOT / "examples").glob("*.py")}

    assert files == set(CLAIMS)
    assert all(f"]({name}) |" in README for name in files)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if NEEDS[name] else ()) for name in CLAIMS],
)
def test_an_example_prints_what_the_page_shows_and_its_claim_holds(name: str) -> None:
    skip_without(*NEEDS[name])
    shown = re.search(rf"^\$ python examples/{name}\n(.*?)^```", README, flags=re.M | re.S)
    assert shown is not None

    result = subprocess.run(
        [sys.executable, f"examples/{name}"], cwd=ROOT, capture_output=True, text=True
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert words(result.stdout) == words(shown[1])
    assert CLAIMS[name](read_table(result.stdout)), result.stdout
    assert CLAIMS[name](read_table(shown[1]))


@pytest.mark.slow
def test_another_partitioner_can_be_chosen() -> None:
    skip_without(*NEEDS["flwr_datasets_partitions.py"])
    file = "examples/flwr_datasets_partitions.py"

    result = subprocess.run(
        [sys.executable, file, "--partitioner", "pathological"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert partitions_hold(read_table(result.stdout)), result.stdout
