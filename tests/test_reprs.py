"""Objects show themselves in one short line, and in notebooks as a small table."""

import inspect
import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from fedcohort import (
    MIFA,
    Cohort,
    Difference,
    FedStale,
    FedVARP,
    Multinomial,
    Plan,
    Population,
    Recipe,
    Regression,
    Selector,
    SizeClustered,
    Study,
    UpdateMemory,
    audit,
    diagnostics,
)
from fedcohort._display import html_table
from fedcohort.designs import RECIPES, Design, Knowledge, ObservedRound, OortOptions
from fedcohort.memory import CountSketch
from fedcohort.similarity import cut_tree, merge_tree

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort.experiments import Observer, Part, RunFolder, read_results
from fedcohort.simulation import (
    Coins,
    Cost,
    Cyclic,
    Devices,
    History,
    Intervals,
    LocalTraining,
    Markov,
    Options,
    Quality,
    Round,
    Run,
    Simulation,
    Yardstick,
    iid,
    load_dataset,
    mlp,
)
from populations import rng
from small_runs import small_run

PACKAGES = ["", ".designs", ".memory", ".similarity", ".diagnostics", ".simulation"]
PACKAGES += [".experiments"]
LONGEST = 105
#: Records of many numbers, which show all of them.
RECORDS = {"Cost", "Oort", "OortOptions", "Summary", "Yardstick"}
LONGEST_RECORD = 150

CLIENTS = Population(np.arange(1, 1001), groups=[k % 3 for k in range(1000)])
PLAN = SizeClustered(20).build(CLIENTS, rng=0).plan  # type: ignore[attr-defined]
MEMORY = UpdateMemory(n_clients=1000, dimension=5000)
SIGNALS = {name: np.ones(1000) for name in ("update_norm", "loss", "duration")}
SIGNALS |= {f"past_{name}": np.ones(1000) for name in ("loss", "duration", "round")}
TREE = merge_tree(np.random.default_rng(0).random(50 * 49 // 2), "ward")
DIGITS = iid(load_dataset("digits"), n_clients=200, seed=0)
TRAINING = LocalTraining(steps=1, batch_size=5, lr=0.123456789)
SIMULATION = Simulation(
    [Run(Multinomial(50), DIGITS)], lambda: mlp(64, 4), TRAINING, Options(device="cpu")
)
(HISTORY,) = SIMULATION.run(8)


def public_classes() -> dict[str, type]:
    """Return every class that can be made, of all ``__all__``s; errors have sentences instead."""
    found: dict[str, type] = {}
    for package in PACKAGES:
        module = import_module(f"fedcohort{package}")
        kinds = [getattr(module, name) for name in module.__all__]
        found |= {kind.__name__: kind for kind in kinds if isinstance(kind, type)}
    return {
        name: kind
        for name, kind in found.items()
        if not issubclass(kind, BaseException)
        and not inspect.isabstract(kind)
        and not getattr(kind, "_is_protocol", False)
    }


@pytest.mark.parametrize("kind", public_classes().values(), ids=lambda kind: kind.__name__)
def test_every_public_method_is_documented_in_its_class_or_above(kind: type) -> None:
    own = {name: found for name, found in vars(kind).items() if not name.startswith("_")}
    methods = [name for name, found in own.items() if inspect.isfunction(found)]

    assert [name for name in methods if not inspect.getdoc(getattr(kind, name))] == []


#: Base classes, which nobody makes; what is named after a user's function; and tables.
OTHERS = {
    *("Availability", "ChosenDesign", "RowDesign", "FunctionDesign", "FunctionRecipe"),
    *("CohortSizes", "Comparison"),
}


def built(recipe: Recipe) -> Design:
    """Build a recipe's design over a thousand clients."""
    memory = MEMORY if recipe.learns else None
    return recipe.build(CLIENTS, memory=memory, signals=SIGNALS, rng=0)


def examples(folder: Path) -> dict[str, Callable[[], object]]:
    """Return a way to make one object of every public class, large where it can be."""
    recipes = {kind.__name__: kind for kind in RECIPES.values()}
    design = built(Multinomial(20))
    known = Knowledge(Multinomial(2), memory=None, signals=None, round_=0, rng=rng())
    many = np.linspace(0, 1, 1000)
    cohort = Cohort.of_shares(np.arange(900), np.ones(900, dtype=int), 900)
    numbers = [1 / 3, 2 / 3, 1 / 7, 1e-7 / 3, 1e9 / 7]
    return {
        **{name: partial(kind, 20) for name, kind in recipes.items()},
        **{f"{name}Design": partial(built, kind(20)) for name, kind in recipes.items()},
        "Audit": lambda: audit([{"round": k, "client": f"site-{k}"} for k in range(300)]),
        "Intervals": lambda: Intervals.diurnal(0.9 * many, awake=0.3, day=86_400.0),
        "Coins": lambda: Coins(many, pattern="sine"),
        "Cohort": lambda: cohort,
        "Cost": lambda: Cost(10**9, 10**9, 1e5 / 3, 100, 1e5 / 7),
        "CountSketch": lambda: CountSketch(5000, 64, seed=0),
        "Cyclic": lambda: Cyclic(many),
        "Dataset": lambda: DIGITS.dataset,
        "Devices": lambda: Devices.generated(1000, seed=0),
        "Difference": lambda: Difference(keep="rank", rank=5),
        "MIFA": lambda: MIFA(keep="rank", rank=5),
        "FedVARP": lambda: FedVARP(weights="equal"),
        "FedStale": lambda: FedStale(keep="rank", rank=5),
        "Regression": lambda: Regression(features=np.eye(300), keep="rank"),
        "Estimate": lambda: diagnostics.Estimate(1 / 3, 1 / 7),
        "Estimates": lambda: diagnostics.Estimates(many, many / 10),
        "Experiment": lambda: RunFolder.open(folder).experiment,
        "FederatedData": lambda: DIGITS,
        "GroupTree": lambda: cut_tree(TREE, np.ones(50, dtype=np.int64), 7),
        "History": lambda: HISTORY,
        "Knowledge": lambda: known,
        "LocalTraining": lambda: TRAINING,
        "Markov": lambda: Markov(many),
        "MergeTree": lambda: TREE,
        "ObservedRound": lambda: ObservedRound(3, design, CLIENTS, cohort, cohort, many[:900]),
        "Observer": Observer,
        "OortOptions": OortOptions,
        "Options": lambda: Options(oracle_every=10, device="cpu"),
        "Plan": lambda: PLAN,
        "Population": lambda: CLIENTS,
        "Quality": lambda: Quality(1 / 3, 2 / 3, 1 / 7),
        "Results": lambda: read_results(folder),
        "Round": lambda: HISTORY.rounds[0],
        "Run": lambda: Run(Multinomial(50), DIGITS, estimator=Difference(keep="rank", rank=20)),
        "RunFolder": lambda: RunFolder.open(folder),
        "Selector": lambda: Selector(SizeClustered(20), CLIENTS),
        "Part": lambda: Part(3, 16),
        "Panel": lambda: RunFolder.open(folder).experiment.panels[0],
        "Simulation": lambda: SIMULATION,
        "Study": lambda: Study.open(folder),
        "Summary": lambda: diagnostics.summary(design),
        "UpdateMemory": lambda: MEMORY,
        "Yardstick": lambda: Yardstick(*numbers),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run folder with results."""
    return small_run(tmp_path_factory.mktemp("runs"))


def test_every_public_class_has_an_example(folder: Path) -> None:
    assert set(examples(folder)) == set(public_classes()) - OTHERS


@pytest.mark.parametrize("name", sorted(set(public_classes()) - OTHERS))
def test_a_repr_is_one_short_line_that_names_the_class(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    made = examples(Path(folder.name))[name]()

    assert type(made) is public_classes()[name]
    assert name in repr(made)
    assert "\n" not in repr(made)
    assert len(repr(made)) <= (LONGEST_RECORD if name in RECORDS else LONGEST), repr(made)


def test_reprs_say_what_there_is() -> None:
    memory = UpdateMemory(n_clients=100, dimension=4)
    memory.record([2, 5], np.ones((2, 4)), round_=0)
    rounds = [
        Round(0, [1], [1], [1.0], 0.0, 1, quality=Quality(0.5, 0.75, 0.0)),
        Round(1, [1], [1], [1.0], 0.0, 1),
    ]

    assert repr(memory) == "UpdateMemory(n_clients=100, dimension=4, seen=2)"
    assert repr(Plan(csr_array(np.array([[10, 0], [0, 10]])), Population([5, 5]))) == (
        "Plan(cohort_size=2, n_clients=2, total=10)"
    )
    assert repr(History(rounds)) == "History(rounds=2, loss=0.5, accuracy=0.75)"
    assert repr(rounds[1]) == "Round(round_=1, distinct_clients=1)"
    assert repr(TREE) == "MergeTree(n_leaves=50)"
    assert repr(LocalTraining(steps=3, lr=0.1)) == "LocalTraining(steps=3, lr=0.1)"
    assert repr(Run(Multinomial(5), DIGITS, estimator="difference")) == (
        "Run(Multinomial(cohort_size=5), 200 clients, seed=0, estimator=Difference())"
    )
    assert repr(Selector(Multinomial(2), [5, 3, 2], seed=7)) == (
        "Selector(Multinomial(cohort_size=2), 3 clients, seed=7, round_=0)"
    )
    assert ", 1 client, " in repr(Selector(Multinomial(2), [3], seed=7))


def test_a_cohort_shows_its_first_ids() -> None:
    selector = Selector(SizeClustered(2), {"Nice": 5, "Lyon": 5}, seed=0)
    long = Cohort.of_shares(np.arange(50), np.ones(50, dtype=int), 50)

    assert repr(selector.draw()) == ("Cohort(['Lyon', 'Nice'], n_clients=2, residual=0, round_=0)")
    assert re.fullmatch(r"Cohort\(\[0, 1, .*, \.\.\.\], n_clients=50, .*\)", repr(long))


def rows_of(shown: Any) -> list[list[str]]:
    """Read the cells of the table that a notebook shows."""
    text = shown._repr_html_()
    return [
        re.findall(r"<t[dh]>(.*?)</t[dh]>", line) for line in re.findall(r"<tr>(.*?)</tr>", text)
    ]


def test_cells_of_html_tables_are_escaped() -> None:
    table = html_table("a < b", ("<th>",), [("<script>alert(1)</script>",)])

    assert "<script>" not in table
    assert "a &lt; b" in table
    assert "<th>&lt;th&gt;</th>" in table
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in table


def test_ids_of_a_cohort_are_escaped_in_a_notebook() -> None:
    cohort = Selector(SizeClustered(1), {"<b>": 1}, seed=0).draw()

    assert rows_of(cohort) == [["id", "count", "weight"], ["&lt;b&gt;", "1", "1"]]


def test_long_tables_are_cut_and_say_so() -> None:
    cohort = Cohort.of_shares(np.arange(50), np.ones(50, dtype=int), 50)

    assert len(rows_of(cohort)) == 1 + 20
    assert "and 30 more" in cohort._repr_html_()
    assert len(rows_of(PLAN)) == 1 + 10
    assert "and 10 more" in PLAN._repr_html_()


def test_a_plan_shows_the_largest_clients_of_every_distribution() -> None:
    plan = Plan(csr_array(np.array([[10, 0, 0], [0, 6, 4]])), Population([5, 3, 2]))

    assert rows_of(plan)[1:] == [["0", "1", "0: 100.0%"], ["1", "2", "1: 60.0%, 2: 40.0%"]]


def test_a_history_shows_its_first_and_last_rounds() -> None:
    header, *rows = rows_of(HISTORY)

    assert header[:3] == ["round", "loss", "accuracy"]
    assert [row[0] for row in rows] == ["0", "1", "2", "...", "5", "6", "7"]
    assert [float(row[1]) for row in rows[-3:]] == pytest.approx(
        [each.quality.loss for each in HISTORY.rounds[-3:] if each.quality], rel=1e-3
    )


def test_a_population_shows_its_sizes() -> None:
    shown = dict(rows_of(Population([1, 2, 3, 4, 10], groups=["a", "a", "b", "b", "b"])))

    assert shown == {
        "clients": "5",
        "total": "20",
        "smallest size": "1",
        "lower quartile size": "2",
        "median size": "3",
        "upper quartile size": "4",
        "largest size": "10",
        "groups": "2",
    }


def test_a_selector_shows_where_it_is() -> None:
    selector = Selector(Multinomial(2), [5, 3, 2], seed=7, on_failure="redraw")
    before = dict(rows_of(selector))
    selector.draw()

    assert before["recipe"] == "Multinomial(cohort_size=2)"
    assert (before["clients"], before["on failure"], before["seed"]) == ("3", "redraw", "7")
    assert before["round"] == "0, not drawn yet"
    assert dict(rows_of(selector))["round"] == "0, drawn"
