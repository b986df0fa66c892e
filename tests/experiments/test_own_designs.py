"""Designs of a user's own, named by import path."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from command_line import refused, run
from fedcohort import SizeClustered
from fedcohort.errors import FedcohortError
from fedcohort.experiments import RunFolder, read_experiment, read_results
from fedcohort.experiments.own_code import check_parts, recipe_kind
from fedcohort.experiments.settings import DesignEntry
from fedcohort.experiments.units import PlannedRun
from small_runs import SMALL, go_on, make_folder, small_run, tables, write

PRESETS = Path(__file__).parents[2] / "experiments"
OWN = """
from dataclasses import dataclass
from typing import ClassVar
from fedcohort import Multinomial, Population, Recipe
from fedcohort.designs import MultinomialDesign

@dataclass(frozen=True)
class Mine(Recipe):
    name: ClassVar[str] = "mine"
    depth: int = 1

    def design(self, population, known):
        return MultinomialDesign(population, self.cohort_size)

class Plain:
    pass

@dataclass(frozen=True)
class Abstract(Recipe):
    name: ClassVar[str] = "abstract"

function = print
"""


def using(recipe: str, more: str = "") -> str:
    return SMALL.replace('recipe = "similarity"', f"recipe = '{recipe}'\n{more}")


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the name of a module that can be imported."""
    (tmp_path / "designs_for_this_test.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "designs_for_this_test"
    sys.modules.pop("designs_for_this_test", None)


def test_a_file_beside_the_experiment_is_copied_into_the_run(own: Path) -> None:
    path = make_folder(own, using("mine.py:Mine", "depth = 4"))

    assert (path / "code" / "mine.py").read_text() == OWN


def test_a_run_with_an_own_design_goes_on_when_the_original_is_gone(
    goes_on_without: Callable[[str], Path],
) -> None:
    path = goes_on_without(using("mine.py:Mine"))

    results = read_results(path)
    assert results.column("rounds", PlannedRun("small", "Mine", 1), "round").tolist() == [*range(6)]
    assert RunFolder.open(path).progress().state == "complete"


def test_a_change_of_the_original_does_not_reach_the_run(own: Path) -> None:
    whole = tables(small_run(own, using("mine.py:Mine")))
    shutil.rmtree(own / "run")
    path = make_folder(own, using("mine.py:Mine"))
    go_on(path, rounds=3)

    (own / "mine.py").write_text("raise ValueError")
    go_on(path)

    assert tables(path) == whole


@pytest.mark.parametrize("place", ["below/mine.py", "below/deep/mine.py"])
def test_a_file_in_a_folder_below_works_too(place: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    file = home / place
    file.parent.mkdir(parents=True)
    file.write_text(OWN)

    path = make_folder(home, using(f"{place}:Mine"))
    shutil.rmtree(file.parent)
    go_on(path)

    assert RunFolder.open(path).progress().state == "complete"


@pytest.mark.parametrize("absolute", [True, False])
def test_a_file_elsewhere_is_refused_before_anything_is_made(
    absolute: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run folder could not keep it under the name that the experiment gives."""
    home, file = tmp_path / "home", tmp_path / "elsewhere" / "mine.py"
    home.mkdir()
    file.parent.mkdir()
    file.write_text(OWN)
    named = file if absolute else "../elsewhere/mine.py"

    result = run(capsys, "run", write(home, using(f"{named}:Mine")), "--out", home / "run")

    assert refused(result, f"design file {named}: must lie beside or below the experiment", "Copy")
    assert not (home / "run").exists()


def test_two_files_of_one_name_stay_two(tmp_path: Path) -> None:
    for name, depth in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(OWN.replace("depth: int = 1", f"d: int = {depth}"))
    text = using("a/mine.py:Mine", "label = 'a'") + "[[design]]\nrecipe = 'b/mine.py:Mine'\n"

    path = make_folder(tmp_path, text)

    kept = sorted(file.read_text() for file in (path / "code").rglob("*.py"))
    assert kept == [OWN.replace("depth: int = 1", f"d: int = {depth}") for depth in (1, 2)]


def test_a_module_is_imported(importable: str, tmp_path: Path) -> None:
    path = small_run(tmp_path, using(f"{importable}:Mine", "depth = 2"))

    assert PlannedRun("small", "Mine depth=2", 0) in read_results(path).runs
    assert not (path / "code").exists()


def test_a_class_of_the_library_has_an_import_path_too() -> None:
    entry = DesignEntry(recipe="fedcohort:SizeClustered")

    assert recipe_kind(entry, Path()) is SizeClustered


@pytest.mark.parametrize(
    ("recipe", "part"),
    [
        ("mine.py:Nobody", "Nobody must be a frozen dataclass derived from fedcohort.Recipe"),
        ("mine.py:Plain", "Plain must be a frozen dataclass"),
        ("mine.py:Abstract", "Abstract must be a frozen dataclass"),
        ("mine.py:function", "function must be a frozen dataclass"),
        ("none.py:Mine", "none.py: is not in "),
        ("raising.py:Mine", "cannot be imported (RuntimeError: no luck). Fix it."),
        ("leaving.py:Mine", "cannot be imported (SystemExit: 3). Fix it."),
        ("broken.py:Mine", "cannot be imported (SyntaxError: "),
        ("no_such_module_anywhere:Mine", "cannot be imported (ModuleNotFoundError: No module"),
        (":Mine", "cannot be imported"),
        ("similarty", "unknown design 'similarty'; known are uniform, cohort-mean"),
    ],
)
def test_what_is_no_design_gets_one_sentence(recipe: str, part: str, own: Path) -> None:
    (own / "raising.py").write_text("raise RuntimeError('no luck')")
    (own / "leaving.py").write_text("raise SystemExit(3)")
    (own / "broken.py").write_text("def broken(:\n    pass\n")
    file = write(own, using(recipe))

    with pytest.raises(FedcohortError) as found:
        check_parts(read_experiment(file), file.parent)

    assert part in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("recipe", "more", "part"),
    [
        ("mine.py:Mine", "dept = 3", "unknown key 'dept'; known are depth. Did you mean 'depth'?"),
        ("mine.py:Mine", "depth = 'x'", "depth must be a whole number; got 'x'."),
        ("similarity", "mesure = 'l2'", "unknown key 'mesure'"),
        ("similarity", "measure = 'l3'", "measure must be one of"),
        ("multinomial", "label = 'x'\nm = 3", "unknown key 'm'; it has none"),
        ("size", "whole_rows_first = 1", "whole_rows_first must be True or False; got 1."),
        ("similarty", "", "unknown design 'similarty'"),
    ],
)
def test_a_bad_hyperparameter_is_refused_in_the_files_name(
    recipe: str, more: str, part: str, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(own, using(recipe, more))

    result = run(capsys, "run", file, "--out", own / "run")

    assert refused(result, str(file), part)
    assert not (own / "run").exists()


def test_a_recipe_with_groups_is_told_the_clients_classes(tmp_path: Path) -> None:
    text = using("target").replace("cohort_size = 3", "cohort_size = 10")
    text = text.replace("clients_per_class = 1", "clients_per_class = 2")

    results = read_results(small_run(tmp_path, text))

    classes = results.column("rounds", PlannedRun("small", "target", 0), "distinct_classes")
    assert classes.tolist() == [10.0] * 6


def test_the_example_of_an_own_design_keeps_equals_in_the_order_of_their_numbers(
    tmp_path: Path,
) -> None:
    """Ten equal clients in five rows: row k has clients 2k and 2k + 1."""
    shutil.copy(PRESETS / "numbered_size.py", tmp_path)
    text = using("numbered_size.py:NumberedSize", "label = 'numbered'")
    text = text.replace("cohort_size = 3", "cohort_size = 5")
    results = read_results(small_run(tmp_path, text))
    planned = PlannedRun("small", "numbered", 0)

    rows = results.of("rows", planned).to_pylist()
    drawn = results.of("cohorts", planned).to_pylist()

    assert {(line["client"], line["row"]) for line in rows} == {(i, i // 2) for i in range(10)}
    for round_ in range(6):
        clients = [line["client"] for line in drawn if line["round"] == round_]
        assert [client // 2 for client in clients] == [0, 1, 2, 3, 4]
    laws = results.column("laws", planned, "inclusion")
    assert np.allclose(laws, 0.5, rtol=0, atol=1e-12)


BROKEN = """
from dataclasses import dataclass
from typing import ClassVar
from fedcohort import Population, Recipe
from fedcohort.designs import MultinomialDesign

@dataclass(frozen=True)
class Raising(Recipe):
    name: ClassVar[str] = "raising"
    def design(self, population, known):
        raise RuntimeError("no luck")

@dataclass(frozen=True)
class Nothing(Raising):
    def design(self, population, known):
        return None

@dataclass(frozen=True)
class Elsewhere(Raising):
    def design(self, population, known):
        return MultinomialDesign(Population([1, 2]), self.cohort_size)

@dataclass(frozen=True)
class Asking(Raising):
    signals: ClassVar = ("loss",)
    def ask(self, population, round_, rng):
        return 7

@dataclass(frozen=True)
class Bare(Raising):
    depth: int

@dataclass(frozen=True)
class Unmakeable(Raising):
    def __post_init__(self):
        raise KeyError("depth")

@dataclass(frozen=True)
class Nameless(Recipe):
    def design(self, population, known):
        return MultinomialDesign(population, self.cohort_size)

@dataclass(frozen=True)
class Later(Raising):
    def design(self, population, known):
        if known.round_ == 3:
            raise ZeroDivisionError("too late")
        return MultinomialDesign(population, self.cohort_size)
"""


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("Raising", "with nothing to keep: broken.py, line 11 raises RuntimeError: no luck. Fix"),
        (
            "Nothing",
            "Nothing: design must return a Design over the 10 clients of its population; got",
        ),
        ("Elsewhere", "of its population; got MultinomialDesign over 2 clients."),
        ("Asking", "raising: ask must return a Request or None; got int."),
        ("Bare", "hyper-parameters need defaults; depth has none."),
        ("Unmakeable", "'broken.py:Unmakeable': cannot be made (KeyError: 'depth'). Fix it."),
        ("Nameless", "Nameless needs a name: ClassVar[str]; got none."),
    ],
)
def test_a_design_that_fails_gets_one_sentence(
    name: str, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    file = write(tmp_path, using(f"broken.py:{name}"))

    result = run(capsys, "run", file, "--out", tmp_path / "run")

    assert refused(result, part), result.err
    assert not (tmp_path / "run").exists()


def test_a_design_that_fails_later_can_be_mended_and_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    path = tmp_path / "run"

    result = run(capsys, "run", write(tmp_path, using("broken.py:Later")), "--out", path)

    assert result.code == 2
    last = result.err.splitlines()[-1]
    assert "code/broken.py, line 47 raises ZeroDivisionError: too late. Fix it. Then:" in last
    assert last.endswith(f"fedcohort resume {path}")
    (path / "code" / "broken.py").write_text(BROKEN.replace("round_ == 3", "round_ == 99"))
    for name in [name for name in sys.modules if name.startswith("fedcohort_own_broken")]:
        del sys.modules[name]  # as in a process of its own
    go_on(path)
    assert RunFolder.open(path).progress().state == "complete"
