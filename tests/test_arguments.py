"""Unknown names of arguments get a suggestion, and paths may be texts."""

import inspect
import pickle
import pydoc
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest

from fedcohort import (
    Cohort,
    Difference,
    Plan,
    Population,
    Recipe,
    Selector,
    SizeClustered,
    Tournament,
    UpdateMemory,
    aggregate,
    compare,
    diagnostics,
)
from fedcohort._arguments import OTHER_NAMES, checked_path, suggesting_names
from fedcohort.deployment import Limits
from fedcohort.designs import RECIPES, AutoDesign
from fedcohort.errors import ArgumentError, FedcohortError, SelectorError
from fedcohort.optimizers import SGD, Adam
from fedcohort.streams import stream
from fuzz_arguments import PACKAGES

POPULATION = Population([3, 1, 2])
SELECTOR = Selector(SizeClustered(2), [3, 1, 2], seed=0)


@pytest.mark.parametrize(
    ("function", "arguments", "name", "sentence"),
    [
        (
            SizeClustered,
            [],
            "m",
            "SizeClustered: unknown argument 'm'; known are cohort_size, whole_rows_first. Did you "
            "mean 'cohort_size'?",
        ),
        (
            Adam,
            [],
            "learning_rate",
            "Adam: unknown argument 'learning_rate'; known are lr, tau, convention, beta1, beta2. "
            "Did you mean 'lr'?",
        ),
        (
            SELECTOR.draw,
            [],
            "availible",
            "Selector.draw: unknown argument 'availible'; known are available, signals, eligible. "
            "Did you mean 'available'?",
        ),
        (
            Cohort.of_shares,
            [[0], [1]],
            "m",
            "Cohort.of_shares: unknown argument 'm'; known are clients, counts, cohort_size. Did "
            "you mean 'cohort_size'?",
        ),
        (
            Limits,
            [],
            "max_norm",
            "Limits: unknown argument 'max_norm'; known are max_size, max_share, max_count, "
            "min_replies, give_up_after. Selectors, runs and plug-ins have it: pass max_norm= to "
            "these.",
        ),
        (
            Selector,
            ["size", [3, 1, 2]],
            "cohort_size",
            "Selector: unknown argument 'cohort_size'; known are recipe, clients, seed, "
            "importance, groups, chances, log, estimator, sketch, on_failure, tries, extra, "
            "max_draws, max_norm, overlap, rebuild_every, presence, max_boost, interval_cutoff, "
            "max_participations, min_separation, rest. The recipe has it: pass for example "
            "SizeClustered(2).",
        ),
        (diagnostics.bias, [], "law", "bias: unknown argument 'law'; known are design."),
        (SELECTOR.state, [], "path", "Selector.state: unknown argument 'path'; it has none."),
        (
            AutoDesign,
            [POPULATION, 2, np.eye(3)],
            "link",
            "AutoDesign: unknown argument 'link'; known are population, cohort_size, updates, rng, "
            "tree, measure, linkage, products. Did you mean 'linkage'?",
        ),
        (
            Tournament(2).build,
            [POPULATION],
            "seed",
            "Tournament.build: unknown argument 'seed'; known are population, memory, signals, "
            "kept, round_, rng. Did you mean 'rng'?",
        ),
    ],
)
def test_an_unknown_argument_gets_a_sentence(
    function: Callable[..., object], arguments: list[Any], name: str, sentence: str
) -> None:
    with pytest.raises(ArgumentError) as raised:
        function(*arguments, **{name: 1})

    assert str(raised.value) == sentence
    assert isinstance(raised.value, TypeError)


@pytest.mark.parametrize(
    ("function", "name", "ours"),
    [
        (Selector, "random_state", "seed"),
        (Selector, "weights", "importance"),
        (compare, "k", "cohort_size"),
        (SGD, "beta", "momentum"),
        (aggregate, "server_learning_rate", "server_lr"),
        (stream, "rounds", "round_"),
        (Difference, "beta", "shrink"),
        (UpdateMemory, "num_clients", "n_clients"),
        (Selector, "sizes", "clients"),
        (Selector, "n_samples", "clients"),
        (Selector, "design", "recipe"),
        (Population, "n_samples", "sizes"),
        (Adam, "eps", "tau"),
        (compare, "design", "designs"),
    ],
)
def test_names_that_are_usual_elsewhere_lead_to_ours(
    function: Callable[..., object], name: str, ours: str
) -> None:
    with pytest.raises(ArgumentError, match=rf"Did you mean '{ours}'\?$"):
        function(**{name: 1})


@pytest.mark.parametrize("name", ["cohort_size", "m", "k", "K", "clients_per_round", "n"])
@pytest.mark.parametrize("function", [Selector, Population])
def test_the_size_of_a_cohort_leads_to_the_recipe(
    function: Callable[..., object], name: str
) -> None:
    """A name that is usual elsewhere never leads to one that only looks similar."""
    with pytest.raises(ArgumentError, match=r"\. The recipe has it: pass for example Size.*\.$"):
        function([3, 1, 2], **{name: 2})


def test_runs_and_simulations_say_who_takes_a_usual_argument() -> None:
    pytest.importorskip("torch", reason="the extra 'sim' is not installed")
    from fedcohort.simulation import Run, Simulation

    with pytest.raises(ArgumentError, match=r"\. The recipe has it: pass for example Size.*\.$"):
        Run(SizeClustered(2), m=2)  # type: ignore[call-arg]
    for name in ("rounds", "n_rounds", "max_rounds"):
        with pytest.raises(ArgumentError, match=r"\. The run of a simulation has it: .*run\(3\)"):
            Simulation(**{name: 3})  # type: ignore[arg-type]


def public_calls() -> list[tuple[str, Any]]:
    """Return every public function, class, and method of a public class."""
    found = {}
    for package, needed in PACKAGES.items():
        if needed:
            continue
        module = import_module(package)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if isinstance(value, FunctionType):
                found[name] = value
            if isinstance(value, type) and not issubclass(value, FedcohortError):
                methods = {f"{name}.{k}": v for k, v in vars(value).items() if k[0] != "_"}
                found |= {k: v for k, v in methods.items() if isinstance(v, FunctionType)}
                found |= {} if inspect.isabstract(value) else {name: value}
    return sorted(found.items())


def test_every_public_function_class_and_method_refuses_an_unknown_argument() -> None:
    calls = public_calls()

    for name, value in calls:
        first = [object()] if "." in name else []
        with pytest.raises(ArgumentError, match=r": unknown argument 'what_is_this'; "):
            value(*first, what_is_this=1)
    assert len(calls) > 150


def test_an_error_inside_a_function_stays_as_it_is() -> None:
    def broken(known: int) -> int:
        return known + "a"  # type: ignore[operator]

    broken.__module__ = __name__
    with pytest.raises(TypeError, match="unsupported operand") as raised:
        suggesting_names(broken)(known=1)

    assert not isinstance(raised.value, FedcohortError)


def test_a_missing_argument_is_named_by_python() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'clients'"):
        Selector(SizeClustered(2))  # type: ignore[call-arg]


def test_signatures_help_and_pickles_are_kept() -> None:
    parameters = list(inspect.signature(Selector).parameters)

    assert parameters[:3] == ["recipe", "clients", "seed"]
    assert list(inspect.signature(compare).parameters)[:2] == ["clients", "cohort_size"]
    assert "available" in inspect.signature(Selector.draw).parameters
    assert "Open a round and draw its cohort" in pydoc.plain(pydoc.render_doc(Selector))
    assert compare.__doc__ is not None
    for value in (aggregate, compare, Plan, SizeClustered(3), diagnostics.bias, RECIPES["size"]):
        again = pickle.loads(pickle.dumps(value))
        assert again is value or again == value


def test_a_recipe_of_a_user_is_as_before() -> None:
    """Wrapping the public base changes neither what it is nor what its heirs replace."""

    class Mine(Recipe):
        name = "mine"

        def design(self, population: Population, known: Any) -> Any:
            return SizeClustered(self.cohort_size).build(population)

    assert issubclass(Mine, Recipe)
    assert Mine.ask is Recipe.ask
    assert Mine(2).build(POPULATION, rng=0).cohort_size == 2


def test_every_other_name_leads_to_an_argument_that_there_is() -> None:
    known = set()
    for package in PACKAGES:
        if not PACKAGES[package] or package == "fedcohort.simulation":
            pytest.importorskip(PACKAGES[package] or "numpy")
            module = import_module(package)
            values = [getattr(module, name) for name in getattr(module, "__all__", ())]
            for value in values:
                if isinstance(value, FunctionType) or inspect.isclass(value):
                    own = [value, *vars(value).values()] if inspect.isclass(value) else [value]
                    for each in own:
                        function = getattr(each, "__func__", each)
                        if isinstance(function, (FunctionType, type)):
                            known |= parameters_of(function)

    ours = {name for names in OTHER_NAMES.values() for name in names.split()}
    assert ours - known == set()


def parameters_of(function: Any) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


@pytest.mark.parametrize("path", ["a.bin", Path("a.bin")])
def test_a_path_is_a_text_or_a_path(path: str | Path) -> None:
    assert checked_path("Owner", "path", path) == Path("a.bin")


@pytest.mark.parametrize("path", [None, "", 3, b"a", ["a"], "a\nb", "a\0b", "\ud800", 5000 * "x"])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(SelectorError, match=r"^Owner: path must be a path; got .*\. Pass text or"):
        checked_path("Owner", "path", path)


def test_a_selector_and_a_memory_are_saved_to_a_text_and_refuse_what_is_no_path(
    tmp_path: Path,
) -> None:
    memory = UpdateMemory(2, 3)
    for each in (SELECTOR, memory):
        each.save(str(tmp_path / "file"))
        assert type(each).load(str(tmp_path / "file")).state().keys() == each.state().keys()
        for call in (each.save, type(each).load):
            with pytest.raises(FedcohortError, match="path must be a path; got 3"):
                call(3)  # type: ignore[arg-type]


def test_a_tensor_of_one_number_is_no_list() -> None:
    torch = pytest.importorskip("torch", reason="the extra 'sim' is not installed")
    one = torch.tensor(1)

    with pytest.raises(FedcohortError, match="groups must be one label per client, 2; got 0"):
        Population([1, 2], groups=one)
    for call in (SELECTOR.forget, SELECTOR.ask, SELECTOR.draw):
        with pytest.raises(SelectorError, match=r"Selector: .* ids.*; got tensor\(1\)"):
            call(one)
