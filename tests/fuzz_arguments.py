"""Nonsense in every argument of every exported name: refused in a sentence, or taken.

``python tests/fuzz_arguments.py [NAME]`` makes the calls of all names, or of those that begin with
NAME, and says which ended otherwise. A new name needs arguments that are right: in ``USUAL`` by the
argument's name, or in ``OWN`` for one function.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar

import numpy as np

from fedcohort import (
    Cohort,
    Design,
    FedcohortError,
    Multinomial,
    Population,
    Recipe,
    Regression,
    Selector,
    SimilarityClustered,
    SizeClustered,
    Study,
    UpdateMemory,
    audit,
    compare,
)
from fedcohort.comparison import Comparison
from fedcohort.designs import Knowledge, SizeClusteredDesign
from fedcohort.errors import MissingExtraError
from fedcohort.similarity import l2, merge_tree
from fedcohort.streams import Stream
from fuzz import limited_memory
from fuzz_calls import NONSENSE, check_refusal, shown
from small_runs import SMALL, small_run

#: The packages whose names are called, with what they need beyond the core.
PACKAGES = {
    "fedcohort": "",
    "fedcohort.designs": "",
    "fedcohort.diagnostics": "",
    "fedcohort.memory": "",
    "fedcohort.optimizers": "",
    "fedcohort.similarity": "",
    "fedcohort.streams": "",
    "fedcohort.synthetic": "",
    "fedcohort.simulation": "torch",
    "fedcohort.experiments": "torch",
    "fedcohort.studies": "torch",
    "fedcohort.flower": "flwr",
}
#: The library makes these; users read them.
RECORDS = (
    "Audit",
    "Comparison",
    "Cost",
    "Estimate",
    "Estimates",
    "Experiment",
    "GroupTree",
    "History",
    "Knowledge",
    "MergeTree",
    "ObservedRound",
    "Observer",
    "PairedDifference",
    "Panel",
    "Quality",
    "Results",
    "Round",
    "RunFolder",
    "Study",
    "Summary",
    "Yardstick",
)
#: Bases of others, without a meaning of their own.
BASES = ("ChosenDesign", "CoinDesign", "RowDesign")
#: The library or a framework calls these methods; subclasses define them.
HOOKS = (
    "advanced",
    "amplified_event",
    "aggregate_evaluate",
    "aggregate_spread",
    "aggregate_train",
    "arguments",
    "ask",
    "began",
    "build_from",
    "check",
    "check_cohort",
    "configure_evaluate",
    "configure_train",
    "covariance",
    "design",
    "heads",
    "is_enough",
    "noticed",
    "observe",
    "sample",
    "secure_aggregation_mod",
    "should_stop",
    "start",
    "started",
    "waits",
    "weigh",
)
#: Parts of the library call these methods, with arguments that are checked already.
INNER = (
    "aggregate_securely",
    "ahead",
    "as_dict",
    "chosen",
    "known_keys",
    "local",
    "n_candidates",
    "named",
    "numbers",
    "of",
    "of_checked",
    "of_entries",
    "parts",
    "publish",
    "rearrange",
    "record_kept",
    "record_later",
    "shortened",
)
#: Arguments that are functions: what a user's function does is not ours to refuse.
FUNCTIONS = (
    "FunctionDesign.choose",
    "Simulation.model",
    "Simulation.run.progress",
    "study.model",
    "Waits.round",
    "compare.progress",
    "register_signal_queries",
    "register_size_query",
    "similarity_tree.products",
)
#: Names that messages use; the library gives them.
GIVEN = ("error", "owner")
#: Random calls with nonsense in several arguments, for every function.
MORE = 20

N = 4
SIZES = [3, 1, 4, 2]
ROWS = np.random.default_rng(0).standard_normal((N, 3))
PAST = {"past_loss": np.ones(N), "past_duration": np.ones(N), "past_round": np.zeros(N)}
POOL = ThreadPoolExecutor(1)
FRESH = count()

Arguments = dict[str, Callable[[], Any]]


def population() -> Population:
    return Population(SIZES, groups=["x", "y", "x", "y"])


def selector(estimator: Any = "plain") -> Selector:
    return Selector(SimilarityClustered(2), SIZES, seed=0, overlap=True, estimator=estimator)


def drawn() -> Selector:
    found = selector()
    found.draw()
    return found


def memory() -> UpdateMemory:
    found = UpdateMemory(N, 3)
    found.record(np.arange(N), ROWS)
    return found


@dataclass(frozen=True)
class Noted(Recipe):
    """Reads a signal and an array of its own."""

    name: ClassVar[str] = "noted"
    signals: ClassVar[tuple[str, ...]] = ("loss",)
    keeps: ClassVar[tuple[str, ...]] = ("mood",)

    def design(self, population: Population, known: Knowledge) -> Design:
        return Multinomial(self.cohort_size).build(population)


def knowledge(recipe: Recipe | None = None) -> Knowledge:
    return Knowledge(
        recipe or SimilarityClustered(2),
        memory=memory(),
        signals={"loss": np.ones(N)},
        round_=0,
        rng=np.random.default_rng(0),
        kept={"mood": np.ones(N)},
    )


def first_client(population: Population, known: Knowledge, rng: np.random.Generator) -> list[int]:
    return [0]


def fresh() -> Path:
    """Return a path at which nothing is."""
    return Path(f"new{next(FRESH)}")


def saved(name: str, save: Callable[[Path], object]) -> Path:
    """Return the path of a file that is written once."""
    if not Path(name).exists():
        save(Path(name))
    return Path(name)


@dataclass(frozen=True)
class Values:
    """Right values: by an argument's name, those of one function, and objects by their class."""

    usual: Arguments
    own: dict[str, Arguments]
    objects: Arguments

    def __or__(self, more: Values) -> Values:
        own = {
            name: self.own.get(name, {}) | more.own.get(name, {}) for name in (*self.own, *more.own)
        }
        return Values(self.usual | more.usual, own, self.objects | more.objects)


USUAL: Arguments = {
    "aggregate": lambda: np.ones(3),
    "alpha": lambda: 0.5,
    "answered": list,
    "available": lambda: N * [True],
    "capacity": lambda: 5,
    "clients": lambda: SIZES,
    "cohort": lambda: Cohort.of_shares([0, 2], [1, 1], 2),
    "cohort_size": lambda: 2,
    "comparisons": lambda: {2: compare(SIZES, 2, designs=["size"])},
    "counts": lambda: np.array([1, 1]),
    "design": lambda: Multinomial(2).build(population()),
    "delta": lambda: 1e-5,
    "dimension": lambda: 3,
    "durations": lambda: np.ones(N),
    "estimator": lambda: "plain",
    "event": lambda: Multinomial(2).build(population()).privacy_event(rounds=3),
    "features": lambda: np.eye(N),
    "executor": lambda: POOL,
    "groups": lambda: ["x", "y", "x", "y"],
    "ids": lambda: [0],
    "importance": lambda: np.full(N, 0.25),
    "keep": lambda: "float32",
    "known": knowledge,
    "linkage": lambda: "ward",
    "losses": lambda: np.ones(N),
    "failed": list,
    "masses": lambda: np.array(SIZES),
    "n_clients": lambda: N,
    "norms": lambda: np.ones(N),
    "owner": lambda: "Owner",
    "participation": lambda: [{"round": 0, "client": "a"}, {"round": 1, "client": "b"}],
    "path": fresh,
    "population": population,
    "rank": lambda: 2,
    "recipe": lambda: SizeClustered(2),
    "rng": lambda: np.random.default_rng(0),
    "round_": lambda: 0,
    "rounds": lambda: 3,
    "seed": lambda: 0,
    "selector": selector,
    "shrink": lambda: 1.0,
    "size": lambda: 2,
    "source": lambda: saved("sizes.csv", lambda path: path.write_text("id,size\na,3\nb,1\n")),
    "updates": lambda: ROWS,
    "weights": lambda: np.array([0.5, 0.5]),
    "zeros": lambda: np.zeros(3),
}
OWN: dict[str, Arguments] = {
    "HiCSDesign": {"biases": lambda: np.arange(3.0 * N).reshape(N, 3)},
    "KVibDesign": {"lengths": lambda: np.ones(N), "mix": lambda: 0.3},
    "OSMDDesign": {"chances": lambda: np.ones(N)},
    "Cohort": {"clients": lambda: np.array([0, 2]), "residual": lambda: 0.0},
    "Cohort.of_shares": {"clients": lambda: np.array([0, 2])},
    "Cohort.of_weights": {"clients": lambda: np.array([0, 2])},
    "FunctionDesign": {"name": lambda: "f", "choose": lambda: lambda rng: [0, 1]},
    "Knowledge.kept": {"name": lambda: "mood"},
    "Knowledge.signal": {"name": lambda: "loss"},
    "OortDesign": {"signals": lambda: PAST},
    "Plan": {"units": lambda: SizeClusteredDesign(population(), 2).plan.units},
    "Population": {"sizes": lambda: SIZES},
    "Selector.aggregate": {"updates": dict},
    "Selector.for_average": {"updates": dict},
    "Selector.load": {"path": lambda: saved("selector", selector().save)},
    "Selector.of_state": {"state": lambda: selector().state()},
    "Selector.receive": {"updates": dict},
    "Selector.remember": {"updates": dict},
    "Selector.step": {"updates": dict},
    "SimilarityClusteredDesign": {"updates": lambda: ROWS},
    "TournamentDesign": {"updates": lambda: ROWS},
    "UpdateMemory.load": {"path": lambda: saved("memory", memory().save)},
    "UpdateMemory.of_state": {"state": lambda: memory().state()},
    "Memory.record": {"clients": lambda: np.arange(N)},
    "ClientRows.aggregate": {"clients": lambda: np.arange(2), "updates": lambda: ROWS[:2]},
    "Estimator.aggregate": {"clients": lambda: np.arange(2), "updates": lambda: ROWS[:2]},
    "aggregate": {"model": lambda: np.zeros(3), "updates": lambda: ROWS[:2]},
    "bisected": {"points": lambda: ROWS.astype(np.float32)},
    "count_matrix": {"clients": lambda: np.array([[0, 1]])},
    "cut_tree": {"tree": lambda: merge_tree(l2(ROWS), "ward")},
    "draw_subsets": {"n": lambda: 4, "times": lambda: 2},
    "make_recipe": {"name": lambda: "size", "options": dict},
    "merge_tree": {"distances": lambda: l2(ROWS)},
    "recipe": {"function": lambda: first_client},
    "recipe_of": {"kind": lambda: SizeClustered, "options": dict},
    "stream": {"use": lambda: Stream.COHORT},
}


@cache
def nonsense() -> list[Any]:
    """Return values that hardly any argument can have."""
    found = [*NONSENSE, Path("none"), object(), {"a": [1, [2]]}, {"rounds": "a", "u": None}]
    if find_spec("torch"):
        import torch

        found += [torch.tensor(3), torch.tensor([0.5, float("nan")]), torch.zeros(0)]
        found.append(torch.ones(2, requires_grad=True))
    return found


@cache
def compared() -> Comparison:
    return compare(SIZES, 2, designs=["size"])


OBJECTS: Arguments = {
    "Audit": lambda: audit([{"round": 0, "client": "a"}, {"round": 1, "client": "b"}]),
    "Comparison": compared,
    "Knowledge": lambda: knowledge(Noted(2)),
    "Plan": lambda: SizeClusteredDesign(population(), 2).plan,
    "Selector": drawn,
    "UpdateMemory": memory,
}
CORE = Values(USUAL, OWN, OBJECTS)


def of_simulator() -> Values:
    """Return the right values of the simulator and of experiments; write what they read."""
    from torch import nn

    from fedcohort.experiments import RunFolder, read_experiment, read_results
    from fedcohort.simulation import Dataset, LocalTraining, Options, Run, Simulation, iid

    x, y = np.arange(60.0).reshape(20, 3) / 60, np.arange(20) % 2
    dataset = Dataset(x, y, x[:10], y[:10], n_classes=2)
    data = iid(dataset, 5, seed=0)
    training = LocalTraining(steps=1, lr=0.1)
    run = Run(Multinomial(2), data)

    def simulation() -> Simulation:
        return Simulation([run], lambda: nn.Linear(3, 2), training, Options(device="cpu"))

    Path("small.toml").write_text(SMALL, encoding="utf-8")
    experiment = read_experiment("small.toml")
    runs = []
    for name, text in (("one", SMALL), ("two", SMALL.replace("[0, 1]", "[2, 3]"))):
        Path(name).mkdir()
        runs.append(small_run(Path(name), text))
    folder, results = RunFolder.open(runs[0]), read_results(runs[0])
    lines = [f"{client},1,1,1\n" for client in range(N)]
    Path("devices.csv").write_text("client,speed,down,up\n" + "".join(lines), encoding="utf-8")
    simulation().save("checkpoint")
    (history,) = simulation().run(1)
    columns = {"who": ["a", "b"], "x": [1.0, 2.0], "y": [0, 1]}

    def leaf(path: Path) -> None:
        users = {"user_data": {"a": {"x": [[1.0]], "y": [0]}}}
        (path / "train").mkdir(parents=True)
        (path / "train" / "all.json").write_text(json.dumps(users), encoding="utf-8")

    usual: Arguments = {
        "data": lambda: data,
        "dataset": lambda: dataset,
        "device": lambda: "cpu",
        "folder": lambda: folder,
        "label": lambda: "multinomial",
        "model": lambda: lambda: nn.Linear(3, 2),
        "now": lambda: 0.0,
        "runs": lambda: [run],
        "training": lambda: training,
        "unit": lambda: folder.units[0],
    }
    objects: Arguments = {
        "Experiment": lambda: experiment,
        "History": lambda: history,
        "Panel": lambda: experiment.panels[0],
        "Results": lambda: results,
        "RunFolder": lambda: folder,
        "Simulation": simulation,
        "Study": lambda: Study.open(runs[0]),
    }
    own: dict[str, Arguments] = {
        "Intervals": {
            "client": lambda: np.array([0, 1]),
            "start": lambda: np.zeros(2),
            "end": lambda: np.ones(2),
        },
        "Intervals.diurnal": {
            "phase": lambda: np.zeros(N),
            "awake": lambda: 0.5,
            "day": lambda: 100.0,
        },
        **{
            f"{kind}.seconds_until_any": {"clients": lambda: np.ones(N, dtype=bool)}
            for kind in ("Coins", "Cyclic", "Intervals", "Markov")
        },
        **{kind: {"chance": lambda: np.full(N, 0.5)} for kind in ("Coins", "Cyclic", "Markov")},
        "Dataset": {
            "x": lambda: x,
            "y": lambda: y,
            "test_x": lambda: x,
            "test_y": lambda: y,
            "n_classes": lambda: 2,
        },
        "Devices": dict.fromkeys(("speed", "down", "up"), lambda: np.ones(N)),
        "dirichlet_parts": {"alphas": lambda: [1.0], "clients_per_part": lambda: 2},
        "Experiment.panel": {"label": lambda: "small"},
        "FederatedData": {"train": lambda: ([0, 1], [2]), "test": lambda: ([0], [])},
        "FederatedData.load": {"path": lambda: saved("some.data", data.save)},
        "FederatedData.from_hugging_face": {
            "data": lambda: import_module("datasets").Dataset.from_dict(columns),
            "client": lambda: "who",
            "x": lambda: "x",
            "y": lambda: "y",
        },
        "FederatedData.from_leaf": {"folder": lambda: saved("leaf", leaf)},
        "FederatedData.from_table": {
            "source": lambda: import_module("pyarrow").table(columns),
            "client": lambda: "who",
            "y": lambda: "y",
        },
        "FederatedData.from_arrays": {
            "x": lambda: x,
            "y": lambda: y,
            "clients": lambda: np.arange(20) % 3,
            "test": lambda: 0.2,
        },
        "History.of_dicts": {"rows": lambda: history.as_dicts()},
        "LocalTraining": {"steps": lambda: 1},
        "LocalTraining.samples_processed": {"sizes": lambda: np.array(SIZES)},
        "lora": {"model": lambda: nn.Linear(3, 2)},
        "Part": {"number": lambda: 1, "of": lambda: 2},
        "Part.read": {"text": lambda: "1/2"},
        "Panel.candidates": {"design": lambda: "multinomial"},
        "Panel.step": {"design": lambda: "multinomial"},
        "Results.class_counts": {"panel": lambda: "small"},
        "Results.column": {
            "name": lambda: "rounds",
            "run": lambda: results.runs[0],
            "column": lambda: "round",
        },
        "RunFolder.create": {
            "experiment": lambda: experiment,
            "source": lambda: Path("small.toml"),
            "command": lambda: ["fedcohort"],
        },
        "RunFolder.has_table": {"name": lambda: "rounds"},
        "RunFolder.open": {"path": lambda: runs[0]},
        "RunFolder.table": {"name": lambda: "rounds"},
        "Simulation": {"options": lambda: Options(device="cpu")},
        "Simulation.resume": {"checkpoint": lambda: Path("checkpoint")},
        "Simulation.save": {"checkpoint": fresh},
        "Study.compare": {"first": lambda: "multinomial", "second": lambda: "similarity"},
        "Study.open": {"folder": lambda: runs[0]},
        "Study.save": {"folder": fresh},
        "study": {
            "designs": lambda: [Multinomial(2)],
            "rounds": lambda: 1,
            "seeds": lambda: 1,
            "training": lambda: training,
            "device": lambda: "cpu",
        },
        "decode_text": {"numbers": lambda: [1, 2]},
        "encode_text": {"text": lambda: "a"},
        "dirichlet_unbalanced": {"sizes": lambda: ((2, 3),)},
        "load_dataset": {"name": lambda: "digits"},
        "merge_runs": {"paths": lambda: runs, "out": fresh},
        "natural": {
            "clients": lambda: np.arange(20) % 3,
            "test_clients": lambda: np.arange(10) % 3,
        },
        "one_class_shards": {
            "clients_per_class": lambda: 2,
            "train_size": lambda: 2,
            "test_size": lambda: 1,
        },
        "read_devices": {"path": lambda: Path("devices.csv")},
        "read_experiment": {"path": lambda: Path("small.toml")},
        "read_results": {"path": lambda: runs[0]},
    }
    return CORE | Values(usual, own, objects)


def of_flower() -> Values:
    """Return the right values of the plug-in for Flower."""
    from flwr.app import ArrayRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import FedAvg

    from fedcohort.flower import CohortStrategy

    arrays = ArrayRecord([np.zeros(3)])

    def save(path: Path) -> None:
        CohortStrategy(FedAvg(), SizeClustered(2), seed=0).save(path, arrays)

    own: dict[str, Arguments] = {
        "CohortStrategy": {"strategy": FedAvg, "seed": lambda: 0},
        "CohortStrategy.load": {"path": lambda: saved("strategy", save)},
        "CohortStrategy.save": {"arrays": lambda: arrays},
        "record": {"strategy": FedAvg, "path": fresh},
        "register_size_query": {"size": lambda: lambda context: 3},
    }
    return CORE | Values({"app": ClientApp}, own, {})


def values_of(package: str) -> Values:
    if PACKAGES[package] == "torch":
        return of_simulator()
    return of_flower() if PACKAGES[package] == "flwr" else CORE


#: The state that a method of an object takes.
STATES: dict[str, Callable[[Any], Any]] = {
    "restore": lambda one: one.state(),
    "restoring": lambda one: one.state(),
    "step": lambda one: None if isinstance(one, Selector) else one.step(np.ones(3))[1],
}
#: What a selector does between rounds.
BETWEEN = ("draw", "forget", "next_design", "restore", "restoring", "save", "set_features")


@dataclass(frozen=True)
class Door:
    """A public function, or a constructor or method of a public class."""

    values: Values
    name: str
    function: Callable[..., Any]
    kind: type | None = None

    @cached_property
    def parameters(self) -> list[inspect.Parameter]:
        """The arguments that a call gives, without the object itself."""
        found = inspect.signature(self.function).parameters.values()
        several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        return [each for each in found if each.name != "self" and each.kind not in several]

    def arguments(self) -> dict[str, Any]:
        """Return right arguments: those of this function, and all others that it needs."""
        own = self._own()
        needed = [p.name for p in self.parameters if p.default is p.empty and p.name not in own]
        right = {name: self.values.usual[name] for name in needed} | own
        return {name: make() for name, make in right.items()}

    def _own(self) -> Arguments:
        """Return the right values of this function, or of the method that it replaces."""
        method, kinds = self.name.partition(".")[2], () if self.kind is None else self.kind.__mro__
        names = [*(f"{kind.__name__}.{method}" for kind in reversed(kinds)), self.name]
        found: Arguments = {}
        for name in names:
            found |= self.values.own.get(name, {})
        if method in STATES:
            found["state"] = lambda: STATES[method](self.made())
        known = {each.name for each in self.parameters}
        return {name: make for name, make in found.items() if name in known}

    def made(self) -> Any:
        """Make an object to call the method of."""
        assert self.kind is not None
        if self.name == "Selector.privacy_event":
            return Selector(SizeClustered(2), SIZES, seed=0)
        if self.kind is Selector and self.name.partition(".")[2] in BETWEEN:
            takes_features = self.name == "Selector.set_features"
            return selector(Regression("given") if takes_features else "plain")
        if make := self.values.objects.get(self.kind.__name__):
            return make()
        return self.kind(**Door(self.values, self.kind.__name__, self.kind).arguments())

    def call(self, arguments: Mapping[str, Any]) -> None:
        """Call it, a method on a new object."""
        first = [] if self.kind is None else [self.made()]
        only = [each.name for each in self.parameters if each.kind is each.POSITIONAL_ONLY]
        first += [arguments[name] for name in only if name in arguments]
        named = {name: value for name, value in arguments.items() if name not in only}
        try:
            result = self.function(*first, **named)
            if inspect.isgenerator(result):
                list(result)
        finally:
            if pyplot := sys.modules.get("matplotlib.pyplot"):
                pyplot.close("all")


def doors(package: str) -> Iterator[Door]:
    """Yield what a package exports."""
    module, values = import_module(package), values_of(package)
    names = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if getattr(value, "__module__", "") == package
    ]
    for name in sorted(names):
        value = getattr(module, name)
        if getattr(value, "__module__", "") == "fedcohort.studies" != package:
            continue  # it needs torch: its module is a package here
        if isinstance(value, FunctionType) and not name.startswith("_") and name not in HOOKS:
            yield Door(values, name, value)
        if isinstance(value, type) and not issubclass(value, (BaseException, Enum)):
            yield from _doors_of(value, values)


def _doors_of(kind: type, values: Values) -> Iterator[Door]:
    """Yield the constructor of a class and its public methods."""
    if inspect.isabstract(kind) or kind.__name__ in BASES:
        return
    if kind.__name__ not in RECORDS:
        yield Door(values, kind.__name__, kind)
    for name in dir(kind):
        found = inspect.getattr_static(kind, name)
        if name.startswith("_") or name in HOOKS or name in INNER:
            continue
        if name == "privacy_event" and vars(kind).get("reads"):
            continue  # it has none, whatever the arguments
        if isinstance(found, (classmethod, staticmethod)):
            yield Door(values, f"{kind.__name__}.{name}", getattr(kind, name))
        elif isinstance(found, FunctionType):
            yield Door(values, f"{kind.__name__}.{name}", found, kind)


@dataclass
class Outcome:
    """What became of the calls."""

    calls: int = 0
    refused: int = 0
    failures: list[str] = field(default_factory=list)


def wrong(door: Door, name: str, right: Any) -> list[Any]:
    """Return nonsense for an argument; of a mapping, also the right one with a wrong entry."""
    found = [*nonsense(), iter([1, 2])]
    if f"{door.name}.{name}".startswith(FUNCTIONS):
        found = [value for value in found if not callable(value)]
    if isinstance(right, Mapping):
        found += [{**right, key: value} for key in right for value in nonsense()]
        found += [{k: v for k, v in right.items() if k != key} for key in right]
    return found


def attempt(door: Door, arguments: Mapping[str, Any], outcome: Outcome) -> None:
    """Make a call: it must succeed, or be refused in a sentence."""
    outcome.calls += 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                door.call(arguments)
            except FedcohortError as error:
                check_refusal(error)
                outcome.refused += 1
    except Exception as error:
        given = ", ".join(f"{name}={shown(value)[:80]}" for name, value in arguments.items())
        place = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{shown(error)[:200]}, {place.filename}:{place.lineno}"
        outcome.failures.append(f"{door.name}({given})\n    {why}")


def fuzz_arguments(package: str, begins: str = "") -> Outcome:
    """Call everything that a package exports, with right arguments and with nonsense."""
    outcome, rng, seen = Outcome(), np.random.default_rng(0), set()
    for door in doors(package):
        if not door.name.startswith(begins) or door.function in seen:
            continue
        seen.add(door.function)  # a method that several classes inherit
        try:
            door.call(door.arguments())
        except MissingExtraError:  # figures
            continue
        names = [each.name for each in door.parameters if each.name not in GIVEN]
        for name in names:
            for value in wrong(door, name, door.arguments().get(name)):
                attempt(door, {**door.arguments(), name: value}, outcome)
        for _ in range(MORE if len(names) > 1 else 0):
            chosen = [name for name in names if rng.random() < 0.5]
            values = {name: wrong(door, name, None) for name in chosen}
            several = {name: each[rng.integers(len(each))] for name, each in values.items()}
            attempt(door, {**door.arguments(), **several}, outcome)
    return outcome


def fuzz_in_folder(package: str, begins: str = "") -> Outcome:
    """Call everything in an empty folder, without log lines and figures."""
    os.environ["MPLBACKEND"] = "Agg"
    logging.disable(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory() as folder, chdir(folder), limited_memory():
            return fuzz_arguments(package, begins)
    finally:
        logging.disable(logging.NOTSET)


def command_line() -> int:
    failed = 0
    for package in (name for name, needed in PACKAGES.items() if not needed or find_spec(needed)):
        start = time.monotonic()
        outcome = fuzz_in_folder(package, *sys.argv[1:2])
        said = f"{outcome.calls} calls, {outcome.refused} refused, {len(outcome.failures)} failed"
        told = f"{package}: {said}, {time.monotonic() - start:.0f} s\n"
        sys.stdout.write("\n".join([*outcome.failures, told]))
        failed += len(outcome.failures)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(command_line())
