"""Data sets of a user's own, named by import path."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from command_line import refused, run
from fedcohort.errors import ExperimentError
from fedcohort.experiments import RunFolder, read_results
from fedcohort.experiments.settings import Natural
from fedcohort.experiments.units import PlannedRun
from fedcohort.simulation import load_dataset
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


def test_shakespeare_says_which_role_holds_what() -> None:
    table = Natural(partition="natural", dataset="shakespeare")

    data = table.federation(load_dataset("shakespeare"), seed=0)

    assert data.n_clients == 1060
    assert data.population.sizes.max() == 641


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


#: A data file, what it imports at its top and when it is called, and what these import.
BESIDE = {
    "mine.py": """
from fedcohort.simulation import FederatedData
from ward_sizes import sizes

def wards(folder):
    import ward_values.inputs as values
    x = values.inputs(sum(sizes))
    return FederatedData.from_arrays(x, (x[:, 0] > 0.5).astype(int), clients())

def clients():
    return [f"ward {k}" for k, size in enumerate(sizes) for _ in range(size)]
""",
    "ward_sizes.py": "from ward_numbers import FIRST\nsizes = [FIRST, FIRST + 1]\n",
    "ward_numbers.py": "FIRST = 10\n",
    "ward_values/__init__.py": "",
    "ward_values/inputs.py": """
import numpy as np

def inputs(n):
    return np.arange(n, dtype=float)[:, None] / n
""",
    "unused.py": "raise RuntimeError\n",
}


def beside(folder: Path, first: int = 10, below: str = "") -> Path:
    """Write the data file and its neighbours."""
    for name, text in BESIDE.items():
        path = folder / below / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("FIRST = 10", f"FIRST = {first}"))
    return folder


def sizes_of(path: Path) -> list[int]:
    """Return the samples of every client in a run."""
    counts = read_results(path).class_counts("small", 0)
    return [int(size) for size in counts.sum(axis=1)]


@pytest.mark.parametrize("below", ["", "below"])
def test_a_data_file_may_import_modules_that_lie_beside_it(below: str, tmp_path: Path) -> None:
    home = beside(tmp_path / "home", below=below)
    text = NATURAL.replace("mine.py", str(Path(below) / "mine.py"))

    path = make_folder(home, text)
    for name in BESIDE:
        (home / below / name).unlink()
    go_on(path)

    kept = {str(file.relative_to(path / "code")) for file in (path / "code").rglob("*.py")}
    assert kept == {str(Path(below) / name) for name in BESIDE if name != "unused.py"}
    assert sizes_of(path) == [10, 11]


def test_modules_of_one_name_beside_two_data_files_stay_two(tmp_path: Path) -> None:
    runs = [small_run(beside(tmp_path / str(k), first=k), NATURAL) for k in (20, 30)]

    assert [sizes_of(path) for path in runs] == [[20, 21], [30, 31]]


def test_what_a_data_file_imports_is_not_there_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module of the same name that the user's program has imported stays."""
    own = ModuleType("ward_sizes")
    monkeypatch.setitem(sys.modules, "ward_sizes", own)
    before = list(sys.path)

    small_run(beside(tmp_path), NATURAL)

    assert sys.path == before
    assert sys.modules["ward_sizes"] is own
    assert not [name for name in sys.modules if name.startswith(("ward_n", "ward_v"))]


def test_an_error_beside_a_data_file_gets_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = beside(tmp_path)
    (home / "ward_numbers.py").write_text("FIRST = 1 / 0")

    result = run(capsys, "run", write(home, NATURAL), "--out", home / "run")

    assert refused(result, "mine.py: cannot be imported (ZeroDivisionError: division by zero)")
