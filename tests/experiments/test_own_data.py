"""Data sets of a user's own, named by import path."""

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from command_line import refused, run
from fedcohort.errors import ExperimentError
from fedcohort.experiments import RunFolder, read_results
from fedcohort.experiments.units import PlannedRun
from small_runs import SMALL, go_on, make_folder, small_run, tables, write

#: The digits' own arrays, and seven clients whose sizes are 10, 11, ... 16.
OWN = """
import numpy as np
from fedcohort.simulation import Dataset, FederatedData, load_dataset

def digits(folder):
    found = load_dataset("digits")
    return Dataset(
        found.x, found.y.astype(np.int32), found.test_x, found.test_y, n_classes=10, scale=1 / 16
    )

def wards(folder):
    x = np.arange(91, dtype=float)[:, None] / 91
    clients = np.repeat([f"ward {k}" for k in range(7)], range(10, 17))
    return FederatedData.from_arrays(x, (x[:, 0] > 0.5).astype(int), clients)

def of_folder(folder):
    return np.load(folder / "none.npy")

def nothing(folder):
    return None

def halves(folder):
    found = load_dataset("digits")
    return Dataset(found.x, found.y / 2, found.test_x, found.test_y, n_classes=10)

def gaps(folder):
    found = load_dataset("digits")
    x = found.x.astype(float)
    x[5, 0, 0, 0] = np.nan
    return Dataset(x, found.y, found.test_x, found.test_y, n_classes=10)

def short_tests(folder):
    found = load_dataset("digits")
    return Dataset(found.x, found.y, found.test_x[:, :, :4], found.test_y, n_classes=10)

def many_classes(folder):
    found = load_dataset("digits")
    return Dataset(found.x, found.y, found.test_x, found.test_y, n_classes="10")

def no_scale(folder):
    found = load_dataset("digits")
    return Dataset(found.x, found.y, found.test_x, found.test_y, n_classes=10, scale=np.nan)

def nobody_holds(folder):
    return FederatedData(load_dataset("digits"), (), ())

def strays(folder):
    found = load_dataset("digits")
    clients = np.arange(len(found.y)) % 3 * 1.0
    clients[:2] = np.nan
    return FederatedData.from_arrays(found.x, found.y, clients)

number = 7
"""
NATURAL = """
rounds = 4
cohort_size = 2
checkpoint_every = 2

[data]
dataset = "mine.py:wards"
partition = "natural"

[training]
steps = 2

[[design]]
recipe = "size"
"""


def using(dataset: str) -> str:
    return SMALL.replace('dataset = "digits"', f'dataset = "{dataset}"')


def test_a_function_of_a_file_gives_the_data_set(
    own: Path, ran: Callable[..., Path], tmp_path: Path
) -> None:
    """The same arrays under another name: the same run."""
    plain = tables(ran(home=tmp_path / "plain"))

    assert tables(small_run(own, using("mine.py:digits"))) == plain


def test_the_run_keeps_the_file_and_goes_on_without_the_original(
    goes_on_without: Callable[[str], Path],
) -> None:
    path = goes_on_without(using("mine.py:digits"))

    assert (path / "code" / "mine.py").read_text() == OWN
    assert RunFolder.open(path).progress().state == "complete"


def test_data_that_says_who_holds_what_is_taken_as_it_is(own: Path) -> None:
    results = read_results(small_run(own, NATURAL))

    lines = results.federations.to_pylist()
    sizes = [0] * 7
    for line in lines:
        sizes[line["client"]] += line["samples"]
    assert sizes == [10, 11, 12, 13, 14, 15, 16]
    assert len(results.column("rounds", PlannedRun("small", "size", 0), "round")) == 4


def test_data_that_says_who_holds_what_can_be_divided_anew(own: Path) -> None:
    text = NATURAL.replace('"natural"', '"iid"\nn_clients = 13')

    lines = read_results(small_run(own, text)).federations.to_pylist()

    assert {line["client"] for line in lines} == set(range(13))
    assert sum(line["samples"] for line in lines) == 91


def test_natural_needs_data_that_says_who_holds_what(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(own, NATURAL.replace("mine.py:wards", "digits"))

    result = run(capsys, "run", file, "--out", own / "run")

    assert refused(result, "'natural' needs a data set that says who holds what; 'digits' does")
    assert not (own / "run").exists()


def test_data_that_changed_is_refused_when_a_run_goes_on(own: Path) -> None:
    """The run keeps the code; the files that the code reads are the user's."""
    (own / "mine.py").write_text(OWN.replace("x = np.arange(91", f"x = np.load('{own}/x.npy')#"))
    write_array(own / "x.npy", 0.0)
    path = make_folder(own, NATURAL)
    go_on(path, rounds=3)

    write_array(own / "x.npy", 0.5)

    with pytest.raises(ExperimentError, match="checkpoint"):
        go_on(path)


def write_array(path: Path, shift: float) -> None:
    import numpy as np

    np.save(path, np.arange(91)[:, None] / 91 + shift)


@pytest.mark.parametrize(
    ("dataset", "part"),
    [
        (
            "mine.py:nobody",
            "data set 'mine.py:nobody': nobody must be a function; mine.py has none",
        ),
        ("mine.py:number", "number must be a function; mine.py has 7."),
        ("none.py:digits", "none.py: is not in "),
        ("../mine.py:digits", "data set file ../mine.py: must lie beside or below"),
        ("no_such_module_anywhere:digits", "cannot be imported (ModuleNotFoundError: No module"),
        ("mine.py:of_folder", "cannot be loaded (FileNotFoundError: "),
        ("mine.py:nothing", "or FederatedData; the function returned NoneType. Return"),
        ("mine.py:gaps", "data: inputs must be finite in float32; 1 of 92288 numbers are not."),
        ("mine.py:short_tests", "data: test inputs must be shaped as training inputs, (1, 8, 8)"),
        ("mine.py:many_classes", "data: n_classes must be a whole number of at least 0; got '10'."),
        ("mine.py:no_scale", "data: scale must be a finite number; got nan."),
        ("mine.py:nobody_holds", "FederatedData: needs at least one client; got none. Add one."),
        ("mine.py:strays", "every sample needs a client; 2 of 1442 have NaN."),
        ("mine.py:halves", "'mine.py:halves': data: needs one whole-number label per sample; got"),
    ],
)
def test_what_is_no_data_set_gets_one_sentence(
    dataset: str, part: str, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(capsys, "run", write(own, using(dataset)), "--out", own / "run")

    assert refused(result, part), result.err
    assert not (own / "run").exists()


def test_the_function_gets_the_data_folder(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDCOHORT_DATA", str(own / "elsewhere"))

    result = run(capsys, "run", write(own, using("mine.py:of_folder")), "--out", own / "run")

    assert refused(result, f"{own / 'elsewhere' / 'none.npy'}")
