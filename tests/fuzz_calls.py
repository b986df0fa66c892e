"""What :mod:`fuzz` calls at random, and what must then be true."""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from inspect import isabstract, signature
from pathlib import Path
from typing import Any, get_args

import numpy as np

from fedcohort import (
    Cohort,
    Difference,
    FedcohortError,
    Population,
    Recipe,
    Selector,
    UpdateMemory,
    aggregate,
    compare,
    diagnostics,
)
from fedcohort import designs as laws
from fedcohort.cli.app import main
from fedcohort.designs import RECIPES, Design, RowDesign
from fedcohort.memory import Keep
from small_runs import SMALL

EPS = float(np.finfo(float).eps)
#: A message: one line that begins with its owner and ends as a sentence does, or with a command.
SENTENCE = re.compile(r"(unknown [a-z ]+ '|[^\n:]{1,300}: )[^\n]{5,1500}([.?]|: fedcohort [^\n]+)")
#: The laws that can be made.
LAWS = [
    kind
    for kind in (getattr(laws, name) for name in laws.__all__ if name.endswith("Design"))
    if "population" in list(signature(kind).parameters)[:1] and not isabstract(kind)
    if kind not in (laws.ChosenDesign, RowDesign)  # bases of others
]
#: Values that hardly any argument can have.
NONSENSE: list[Any] = [None, True, np.True_, -1, 0, 1.5, 2**63, 2**64, -(2**63), 10**30, 10**5000]
NONSENSE += [1e308, 0.1, math.nan, math.inf, -math.inf, "", "a", "x" * 5000, "a\nb", b"a", 1j]
NONSENSE += [[], {}, (), set(), [[]], [None], ["a"], [1, [2]], {"a": 1}, {1: "a"}, range(3)]
NONSENSE += [np.array([1.0, np.nan]), np.array(3), np.zeros((2, 2)), np.zeros((0, 3))]
NONSENSE += [np.array(["a"]), np.array([None]), np.array([1 + 1j]), object, Cohort, print]
NONSENSE += [np.ma.masked_array([1, 2], mask=[False, True])]
#: Values of an experiment file, as they are written there.
WRITTEN = ["0", "-1", "1", "2.5", "1e308", "nan", "inf", "9223372036854775808", "true", "[]", "{}"]
WRITTEN += ["x", "[[1]]", "[1,2]", "1979-05-27"]
WRITTEN += ['"x"', '"digits"', '"iid"', '"0-3"', f'"{"x" * 999}"']
#: What command lines are made of.
WORDS = ["-m", "2", "--design", "size", "--designs", "size,uniform", "--seed", "0", "--json"]
WORDS += ["--out", "-1", "nan", "--csv", "runs"]
WORDS += ["9223372036854775808", "x" * 300, "similarity:measure=l2", "size:x=1"]
COMMANDS = ("plan", "compare", "plan", "compare", "run", "report", "export", "runs", "resume")
SIZES = ["[5, 3, 2, 8, 1]", '{"a": 5, "b": 2}', "[]", "[1, -1]", "[nan]", "5\n3\n", "\x00", ""]


#: Of a state: what can be computed again.
CACHED = ("records.memory.products", "records.memory.changed")


class BrokenPromiseError(AssertionError):
    """A result that breaks an invariant, or a refusal that is no sentence."""


def hold(claim: object, what: str) -> None:
    """Complain unless the claim is true."""
    if not claim:
        raise BrokenPromiseError(what)


def check_refusal(error: FedcohortError) -> None:
    hold(SENTENCE.fullmatch(str(error)), f"a refusal is a sentence with its owner: {error}")


def shown(value: object) -> str:
    """Write an argument in one line; Python refuses to write integers of thousands of digits."""
    try:
        text = repr(value)
    except ValueError:
        text = f"<{type(value).__name__} with a number of thousands of digits>"
    return " ".join(text.split())[:200]


@dataclass
class Trial:
    """One random call, or a few of one object: its randomness, and what it did so far."""

    rng: np.random.Generator
    folder: Path
    steps: list[str] = field(default_factory=list)

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def one_of(self, *values: Any) -> Any:
        return values[self.rng.integers(len(values))]

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call, and note it."""
        given = [shown(each) for each in args] + [f"{k}={shown(v)}" for k, v in options.items()]
        name = getattr(function, "__qualname__", type(function).__name__)
        self.steps.append(f"{name}({', '.join(given)})"[:1000])
        return function(*args, **options)

    def nonsense(self) -> Any:
        """Return something that hardly any argument can be."""
        return self.one_of(*NONSENSE, iter([1, 2]))

    def maybe(self, value: Any, odds: float = 0.12) -> Any:
        """Return the value, or now and then nonsense in its place."""
        return self.nonsense() if self.chance(odds) else value

    def some(self, options: dict[str, Any], odds: float = 0.3) -> dict[str, Any]:
        """Keep some of the options."""
        return {name: value for name, value in options.items() if self.chance(odds)}

    def number(self) -> Any:
        return self.maybe(self.one_of(0.0, 0.5, 1.0, 2, 3.7, 1e-300, 1e30, np.float32(0.25)))

    def whole(self) -> Any:
        return self.maybe(self.one_of(0, 1, 2, 3, 5, 8, 50, np.int64(2), np.int32(1)))

    def cohort_size(self) -> Any:
        return self.maybe(int(self.rng.integers(1, 7)), 0.06)

    def n_clients(self) -> int:
        return int(self.rng.integers(1, 13))

    def sizes(self, n: int) -> Any:
        sizes = self.rng.integers(0, self.one_of(2, 10, 1000, 2**40), size=n)
        forms = (sizes, sizes.astype(float), sizes.tolist(), tuple(sizes.tolist()))
        return self.one_of(*forms, (sizes % 256).astype(np.uint8))

    def population(self, n: int) -> Population:
        return Population(self.rng.integers(0, 9, size=n) + (self.rng.integers(n) == np.arange(n)))

    def updates(self, n: int, width: int = 3) -> Any:
        rows = self.rng.standard_normal((n, width)) * self.one_of(0.0, 1.0, 1e-30, 1e30)
        bad = self.rng.random(rows.shape) < self.one_of(0.0, 0.0, 0.0, 0.05)
        rows[bad] = self.one_of(math.nan, math.inf, 1e308)
        with np.errstate(over="ignore"):
            short = rows.astype(np.float32)
        return self.maybe(self.one_of(rows, short, rows.tolist()), 0.06)


# What a result must keep


def check_cohort(cohort: Cohort, population: Population) -> None:
    clients, counts, weights = cohort.clients, cohort.counts, cohort.weights
    hold((np.diff(clients) > 0).all(), "clients are sorted and distinct")
    hold((population.sizes[clients] > 0).all(), "only clients with samples are drawn")
    hold((counts >= 1).all(), "who is drawn is drawn at least once")
    hold(np.isfinite(weights).all() and (weights >= 0).all(), "weights are finite, at least 0")
    left = 1 - math.fsum(weights)
    hold(abs(cohort.residual - left) <= 8 * EPS * max(1, weights.sum()), "residual = 1 - sum w")


def check_law(trial: Trial, design: Design) -> None:
    """Hold a design to what every law promises."""
    population, p = design.population, design.population.importance
    seed = int(trial.rng.integers(1000))
    cohort, again = trial.call(design.draw, seed), design.draw(seed)
    check_cohort(cohort, population)
    hold(np.array_equal(cohort.weights, again.weights), "one seed gives one cohort")
    hold((cohort.counts <= design.max_count()[cohort.clients]).all(), "counts reach max_count")
    inclusion, counts = design.inclusion_probability(), design.expected_counts()
    hold(((inclusion >= 0) & (inclusion <= 1 + 4 * EPS)).all(), "inclusion is a chance")
    hold(np.isfinite(counts).all() and (counts >= 0).all(), "expected counts are finite")
    if design.unbiased and design.exact_weights:
        expected = design.weight_per_draw() * counts
        hold(np.allclose(expected, p, rtol=16 * EPS, atol=0), "E[w] = p")
        hold(not design.bias().any(), "no bias")
    if isinstance(design, RowDesign):
        units = design.plan.units
        hold((units.sum(axis=1) == population.total).all(), "rows sum to M")
        hold((units.sum(axis=0) == design.cohort_size * population.sizes).all(), "columns to m n")
    for moment in trial.one_of((), ("weight_variance",), ("summary", "expected_distinct")):
        found = trial.call(getattr(diagnostics, moment), design)
        if moment != "summary":
            hold((np.asarray(found) >= 0).all(), f"{moment} is at least 0")


# What is called


def fuzz_population(trial: Trial) -> None:
    n = trial.n_clients()
    options = trial.some(
        {
            "ids": trial.maybe([f"c{k}" for k in range(n)]),
            "groups": trial.maybe([trial.one_of("x", "y", 3, None) for _ in range(n)]),
        }
    )
    if trial.chance(0.3):
        shares = trial.rng.dirichlet(np.ones(n))
        made = trial.call(Population, importance=trial.maybe(shares, 0.3), **options)
    else:
        made = trial.call(Population, trial.maybe(trial.sizes(n), 0.3), **options)
    hold(made.total == sum(made.sizes.tolist()) > 0, "total is the sum of the sizes")
    hold(abs(math.fsum(made.importance) - 1) <= EPS * len(made.sizes), "importance sums to 1")
    if trial.chance(0.5):
        mask = trial.maybe(trial.rng.random(len(made.sizes)) < 0.5)
        tonight = trial.call(made.restricted, mask)
        hold((tonight.sizes[~np.asarray(mask)] == 0).all(), "who is away has size 0")


def fuzz_law(trial: Trial) -> None:
    """Make a law with arguments of the right and of the wrong kind."""
    kind = trial.one_of(*LAWS)
    n = trial.n_clients()
    signal = trial.rng.random(n) * 5
    given = {
        "updates": trial.updates(n),
        "groups": trial.maybe(trial.rng.integers(0, 3, size=n).tolist()),
        "norms": trial.maybe(signal),
        "losses": trial.maybe(signal),
        "chances": trial.maybe(signal + 0.1),
        "lengths": trial.maybe(signal),
        "mix": trial.maybe(0.3),
        "biases": trial.maybe(trial.rng.standard_normal((n, 3))),
        "durations": trial.maybe(signal),
        "signals": {"past_loss": signal, "past_duration": signal, "past_round": np.zeros(n)},
        "round_": trial.whole(),
        "rng": trial.maybe(trial.one_of(0, 7, np.random.default_rng(1))),
        "products": trial.one_of(None, 3, np.zeros((2, 2))),
    }
    parameters = [
        each for each in signature(kind).parameters.values() if each.kind is not each.VAR_KEYWORD
    ][2:]
    needed = {each.name: given[each.name] for each in parameters if each.default is each.empty}
    more = {each.name: each.default for each in parameters if each.default is not each.empty}
    if len(parameters) + 2 < len(signature(kind).parameters):  # the options of a tree of clients
        more |= {"tree": "auto", "measure": "arccos", "linkage": "ward", "products": None}
    usual = {name: given.get(name, trial.maybe(default, 0.3)) for name, default in more.items()}
    options = trial.some(usual, 0.4)
    population = trial.maybe(trial.population(n), 0.04)
    design = trial.call(kind, population, trial.cohort_size(), **needed, **options)
    check_law(trial, design)
    if trial.chance(0.3):
        spread = trial.call(diagnostics.aggregate_variance, design, trial.updates(n))
        hold(spread >= 0, "V is at least 0")
    if trial.chance(0.3):
        drawn = trial.call(design.draw_many, trial.whole(), trial.maybe(3))
        hold(drawn.shape[1] == n, "a column for each client")


def any_recipe(trial: Trial) -> Recipe:
    kind = RECIPES[trial.one_of(*RECIPES)]
    own = [each for each in fields(kind) if each.name != "cohort_size"]
    options = {each.name: trial.maybe(each.default, 0.3) for each in own}
    return trial.call(kind, trial.cohort_size(), **trial.some(options))  # type: ignore[no-any-return]


def fuzz_recipe(trial: Trial) -> None:
    recipe, n = any_recipe(trial), trial.n_clients()
    signals = {name: trial.rng.random(n) for name in recipe.signals}
    memory = UpdateMemory(n, 3)
    if trial.chance(0.7):
        memory.record(np.arange(n), trial.rng.standard_normal((n, 3)), round_=0)
    groups = [trial.one_of("x", "y") for _ in range(n)] if trial.chance(0.7) else None
    population = Population(trial.population(n).sizes, groups=groups)
    design = trial.call(
        recipe.build,
        trial.maybe(population, 0.04),
        memory=trial.maybe(memory, 0.06),
        signals=trial.maybe(signals, 0.06),
        round_=trial.whole(),
        rng=trial.maybe(3, 0.06),
    )
    check_law(trial, design)


def frozen(selector: Selector) -> dict[str, bytes]:
    """Return the selector's state; inner products are computed when a design first asks."""
    found = selector.state().items()
    return {name: each.tobytes() for name, each in found if not name.startswith(CACHED)}


def any_selector(trial: Trial) -> Selector:
    recipe, n = any_recipe(trial), trial.n_clients()
    sizes = trial.population(n).sizes.tolist()
    names = [f"c{k}" for k in range(n)]
    clients = trial.one_of(sizes, dict(zip(names, sizes, strict=True)), Population(sizes))
    labels = [trial.one_of("x", "y", None) for _ in range(n)]
    options = {
        "groups": trial.maybe(labels),
        "importance": trial.maybe(trial.rng.dirichlet(np.ones(n))),
        "estimator": trial.maybe(trial.one_of("plain", "difference", Difference(0.5, "int8"))),
        "sketch": trial.maybe(2),
        "on_failure": trial.maybe(trial.one_of("keep", "redraw", "renormalise")),
        "tries": trial.whole(),
        "extra": trial.whole(),
        "max_draws": trial.maybe(3),
        "overlap": trial.maybe(True),
        "presence": trial.one_of("ignore", "estimated", "known"),
        "chances": trial.maybe(dict.fromkeys(names, 0.5)),
        "max_boost": trial.maybe(4.0),
        "interval_cutoff": trial.maybe(3),
        "max_participations": trial.maybe(3),
        "min_separation": trial.maybe(2),
        "rest": trial.whole(),
        "log": trial.one_of(True, None, str(trial.folder / "log.jsonl")),
    }
    chosen = trial.some(options, 0.15)
    seed = trial.maybe(int(trial.rng.integers(100)), 0.03)
    return trial.call(Selector, recipe, trial.maybe(clients, 0.05), seed=seed, **chosen)  # type: ignore[no-any-return]


def steps_of(
    trial: Trial, selector: Selector
) -> Iterator[tuple[Callable[..., Any], list[Any], dict[str, Any]]]:
    """Yield every call that a selector takes, with random arguments."""
    cohort, ids = selector.cohort, list(selector.population.ids)
    some = [each for each in ids if trial.chance(0.7)]
    asked = list(selector.asked) if cohort is not None else []
    request = selector.ask() if cohort is None and trial.chance(0.8) else None
    signals = None if request is None else {request.signal: dict.fromkeys(request.ids, 1.5)}
    answered = [each for each in asked if trial.chance(0.9)]
    rows = trial.updates(len(answered))
    fits = isinstance(rows, np.ndarray) and rows.shape == (len(answered), 3)
    by_id = dict(zip(answered, rows, strict=True)) if fits else rows
    numbers = trial.some({"losses": trial.maybe(dict.fromkeys(answered, 0.5))}, 0.5)
    model = {} if trial.chance(0.7) else {"model": trial.maybe(np.zeros(3))}
    yield selector.ask, [trial.maybe(some)], {}
    for _ in range(4):
        heard = {"signals": trial.maybe(signals, 0.05), "eligible": trial.maybe(some)}
        yield selector.draw, trial.one_of([], [trial.maybe(some)]), heard
        yield selector.aggregate, [trial.maybe(by_id)], {**numbers, **model}
    yield selector.aggregate, [rows, trial.maybe(answered)], {**numbers, **model}
    yield selector.remember, [trial.maybe(by_id)], numbers
    yield selector.step, [trial.maybe(by_id)], {}
    yield selector.skip, trial.one_of([], [trial.nonsense()]), {}
    yield selector.redraw, [trial.maybe(asked[:1])], {}
    yield selector.settle, [trial.maybe(answered)], {}
    yield selector.recall, [trial.maybe(some)], {}
    yield (lambda updates: list(selector.for_average(updates))), [trial.maybe(by_id)], {}
    yield selector.forget, [trial.maybe(some[:1])], {}
    yield selector.next_design, [trial.maybe(signals)], {}
    yield selector.restore, [trial.maybe(selector.state(), 0.5)], {}
    yield selector.save, [trial.folder / "selector"], {}
    memory = UpdateMemory(max(1, len(ids)), 3)
    yield setattr, [selector, "clients", trial.maybe(dict.fromkeys(ids[::-1], 3))], {}
    yield setattr, [selector, "memory", trial.maybe(memory)], {}


def fuzz_selector(trial: Trial) -> None:
    """Call a selector in random order; a refused call changes nothing."""
    selector = any_selector(trial)
    for _ in range(int(trial.rng.integers(2, 9))):
        calls = list(steps_of(trial, selector))
        function, args, options = calls[trial.rng.integers(len(calls))]
        before, cohort = frozen(selector), selector.cohort
        try:
            result = trial.call(function, *args, **options)
        except FedcohortError as error:
            check_refusal(error)
            hold(frozen(selector) == before, "a refused call changes nothing")
            hold(selector.cohort is cohort, "a refused call leaves the round as it is")
            continue
        if isinstance(result, Cohort):
            check_cohort(result, selector.population)
        if isinstance(result, np.ndarray) and function.__name__ in ("aggregate", "step"):
            hold(np.isfinite(result).all(), "the step is finite")
    if selector.cohort is None and trial.chance(0.5):
        path = trial.folder / "selector"
        selector.save(path)
        loaded = Selector.load(path, log=None if selector.selections is None else True)
        hold(frozen(loaded) == frozen(selector), "a loaded selector is the saved one")


def fuzz_aggregate(trial: Trial) -> None:
    n, width = int(trial.rng.integers(0, 5)), int(trial.rng.integers(1, 4))
    counts = trial.rng.integers(1, 4, size=n)
    cohort = Cohort.of_shares(np.arange(n), counts, max(1, int(counts.sum())))
    rows = trial.rng.standard_normal((n, width))
    updates = trial.one_of(
        rows, rows.tolist(), [{"a": row} for row in rows], [[row, row] for row in rows]
    )
    model = trial.one_of(
        None, np.zeros(width), {"a": np.zeros(width)}, [np.zeros(width), np.zeros(width)]
    )
    options = trial.some({"server_lr": trial.number()})
    moved = trial.call(
        aggregate, trial.maybe(model), trial.maybe(updates), trial.maybe(cohort, 0.03), **options
    )
    hold(moved is not None, "something comes back")


def fuzz_memory(trial: Trial) -> None:
    n, width = trial.n_clients(), 3
    options = trial.some({"sketch": trial.maybe(2), "seed": trial.whole()})
    memory = trial.call(UpdateMemory, trial.maybe(n, 0.05), trial.maybe(width, 0.05), **options)
    for _ in range(3):
        who = trial.maybe(trial.rng.permutation(n)[: trial.rng.integers(1, n + 1)])
        rows = trial.updates(len(who) if isinstance(who, np.ndarray) and who.ndim else 2)
        trial.call(memory.record, who, rows, round_=trial.whole())
        hold(np.isfinite(memory.updates).all(), "what is remembered is finite")
    memory.products()
    state = memory.state()
    name = trial.one_of(*state)
    again = trial.call(UpdateMemory.of_state, {**state, name: trial.maybe(state[name], 0.5)})
    hold(np.isfinite(again.updates).all(), "what is restored is finite")


def fuzz_difference(trial: Trial) -> None:
    options = {"shrink": trial.number(), "keep": trial.one_of(*get_args(Keep))}
    options |= {"rank": trial.whole(), "max_remembered": trial.whole()}
    settings = trial.call(Difference, **trial.some(options, 0.4))
    n = trial.n_clients()
    shares = trial.maybe(trial.rng.dirichlet(np.ones(n)))
    memory = trial.call(settings.memory, shares, trial.maybe(np.zeros(3), 0.06))
    rows = trial.maybe(trial.rng.standard_normal((n, 3)) * trial.one_of(1, 1e30, 1e300), 0.05)
    trial.call(memory.record, trial.maybe(np.arange(n), 0.05), rows)
    state = memory.state()
    name = trial.one_of(*state)
    trial.call(memory.restore, {**state, name: trial.maybe(state[name], 0.5)})
    hold(np.isfinite(memory.expected()).all(), "H is finite")


def fuzz_compare(trial: Trial) -> None:
    n = trial.n_clients()
    options = {
        "designs": trial.maybe([trial.maybe(trial.one_of(*RECIPES), 0.2) for _ in range(2)], 0.2),
        "updates": trial.updates(n),
        "groups": trial.maybe([trial.one_of("x", "y") for _ in range(n)]),
        "seed": trial.whole(),
    }
    sizes = trial.population(n).sizes
    found = trial.call(compare, trial.maybe(sizes), trial.cohort_size(), **trial.some(options))
    hold(len(repr(found)) > 0, "a comparison has a table")


def fuzz_command(trial: Trial) -> None:
    """Call the command line: exit code 0, or 2 with one line."""
    file = trial.folder / "sizes.json"
    file.write_text(trial.one_of(*SIZES[:2], *SIZES), encoding="utf-8")
    command = trial.one_of(*COMMANDS)
    more = [trial.one_of(*WORDS) for _ in range(trial.rng.integers(0, 4))]
    usual = ["-m", "2"] if command in ("plan", "compare") and trial.chance(0.8) else []
    place = trial.one_of(str(file), str(trial.folder), str(trial.folder / "none"), "x\ny")
    # A terminal has an encoding.
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    outputs = (contextlib.redirect_stdout(out), contextlib.redirect_stderr(err))
    with contextlib.chdir(trial.folder), outputs[0], outputs[1]:
        code = trial.call(main, [command, place, *usual, *more])
    hold(code in (0, 2), f"exit code {code}")
    if code == 2:
        said = err.getvalue()
        hold(said.startswith("fedcohort: ") and said.count("\n") == 1, f"one line, not {said!r}")


def fuzz_experiment_file(trial: Trial) -> None:
    """Read an experiment file in which some values are others."""
    from fedcohort.experiments import Panel, read_experiment

    tables = {k: getattr(Panel, k, None) for k in Panel.known_keys()}
    keys = [*Panel.known_keys(), "checkpoint_every", "title", "nonsense", "panel"]
    keys += [f"{k}.{key}" for k, each in tables.items() for key in getattr(each, "__dict__", ())]
    keys += [f"data.{key}" for key in ("train_size", "test_size", "clients_per_class", "seed")]
    changes = [f"{trial.one_of(*keys)}={trial.one_of(*WRITTEN)}" for _ in range(trial.one_of(1, 2))]
    file = trial.folder / "small.toml"
    file.write_text(SMALL, encoding="utf-8")
    seeds = trial.some({"seeds": trial.one_of("0-2", "x", "3-1", "")}, 0.1)
    found = trial.call(read_experiment, file, changes=changes, **seeds)
    hold(found.panels, "an experiment has panels")


SCENARIOS: dict[Callable[[Trial], None], int] = {
    fuzz_population: 4,
    fuzz_law: 8,
    fuzz_recipe: 4,
    fuzz_selector: 8,
    fuzz_aggregate: 3,
    fuzz_memory: 2,
    fuzz_difference: 2,
    fuzz_compare: 1,
    fuzz_command: 1,
    fuzz_experiment_file: 2,
}
