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


def paper_holds(shown: Table) -> bool:
    """Less loss and more accuracy than both, and about the accuracy of the oracle."""
    (md, first, second, target) = (
        shown[name] for name in ("MD", "by size", "by similarity", "target")
    )
    best = second[0] < min(md[0], first[0]) and second[1] > max(md[1], first[1])
    return best and abs(second[1] - target[1]) < 5


def million_holds(shown: Table) -> bool:
    """The tournament has less error, and the regression estimator still less."""
    multinomial, tournament, regression = (
        shown[name][0] for name in ("multinomial", "tournament", "multinomial, regression")
    )
    return 2 * regression < 1.5 * tournament < multinomial


def partitions_hold(shown: Table) -> bool:
    """Less variance; multinomial sampling's is its own."""
    (weights,) = shown["variance of the weights, size over multinomial:"]
    variance = {name: shown[name][0] for name in ("multinomial", "size", "similarity")}
    return weights < 1 and variance["similarity"] < variance["size"] < variance["multinomial"] == 1


def tabular_loop_holds(shown: Table) -> bool:
    """The biased way is the worst on average, and the worst rounds are those of unlucky draws."""
    names = ("cohort-mean", "multinomial", "stratified", "difference")
    means, worst = zip(*(shown[name] for name in names), strict=True)
    return bool(means[0] > 1.5 * max(means[1:]) and min(worst[:2]) > 3 * max(worst[2:]))


def tabular_pytorch_holds(shown: Table) -> bool:
    """Accuracies are alike; variances are not."""
    rows = [shown[name] for name in ("multinomial", "size", "similarity", "difference")]
    accuracies, _, variances = zip(*rows, strict=True)
    falling = sorted(variances, reverse=True) == list(variances)
    return max(accuracies) - min(accuracies) < 2 and falling and variances[3] < 0.25


def shakespeare_holds(shown: Table) -> bool:
    """Less loss, more accuracy, and more words of the plays."""
    before, after = shown["after 1 round"], shown["after all"]
    return after[0] < before[0] - 0.5 and after[1] > 25 > before[1] and after[2] > 1.5 * before[2]


def adapters_hold(shown: Table) -> bool:
    """At least nine tenths of the loss that can be saved, for a tenth of the numbers at most."""
    base, adapters, everything = (shown[name] for name in ("base", "adapters", "everything"))
    saved = (base[0] - adapters[0]) / (base[0] - everything[0])
    return saved > 0.9 and adapters[1] > base[1] + 20 and 10 * adapters[2] < everything[2]


CLAIMS: dict[str, Callable[[Table], bool]] = {
    "own_loop.py": own_loop_holds,
    "paper_figure.py": paper_holds,
    "pytorch_loop.py": pytorch_loop_holds,
    "million_clients.py": million_holds,
    "tabular_loop.py": tabular_loop_holds,
    "tabular_pytorch.py": tabular_pytorch_holds,
    "shakespeare.py": shakespeare_holds,
    "lora_text.py": adapters_hold,
    "flwr_datasets_partitions.py": partitions_hold,
}
#: Options that make an example small.
OPTIONS = {"million_clients.py": "--clients 5000 --draws 50 --rounds 60"}
#: What each example imports that may be missing.
NEEDS = {
    "own_loop.py": [],
    "paper_figure.py": ["torch", "sklearn", "matplotlib", "pyarrow"],
    "pytorch_loop.py": ["torch", "sklearn"],
    "million_clients.py": [],
    "tabular_loop.py": [],
    "tabular_pytorch.py": ["torch", "sklearn"],
    "shakespeare.py": ["torch"],
    "lora_text.py": ["torch"],
    "flwr_datasets_partitions.py": ["torch", "flwr_datasets"],
}


def unwritten(text: str) -> str:
    """Leave out what a model wrote: rounding makes it write otherwise on another machine."""
    return re.sub(r"^\|.*\n", "", text, flags=re.M)


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
def test_an_example_prints_what_the_page_shows_and_its_claim_holds(
    name: str, tmp_path: Path
) -> None:
    skip_without(*NEEDS[name])
    file, options = f"examples/{name}", OPTIONS.get(name, "").split()
    command = " ".join([file, *options])
    shown = re.search(rf"^\$ python {command}\n(.*?)^```", README, flags=re.M | re.S)
    assert shown is not None

    result = subprocess.run(
        [sys.executable, ROOT / file, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert words(unwritten(result.stdout)) == words(unwritten(shown[1]))
    assert CLAIMS[name](read_table(result.stdout)), result.stdout
    assert CLAIMS[name](read_table(shown[1]))


@pytest.mark.slow
def test_the_errors_of_a_million_clients_are_plotted(tmp_path: Path) -> None:
    skip_without("matplotlib")
    file, options = "examples/million_clients.py", ["--clients", "100", "--draws", "5"]

    result = subprocess.run(
        [sys.executable, file, *options, "--rounds", "2", "--plot", str(tmp_path / "errors.svg")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert "multinomial, regression" in (tmp_path / "errors.svg").read_text()


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
