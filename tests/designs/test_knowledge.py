"""What recipes read: only what they declare, and the round makes a design the round's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from fedcohort import Design, Population, Recipe, Selector
from fedcohort.designs import Knowledge, MultinomialDesign, ObservedRound
from fedcohort.errors import DesignError, SelectorError
from fedcohort.memory import UpdateMemory
from fedcohort.selector.answers import Answers
from populations import rng

POPULATION = Population([3, 2, 1])


@dataclass(frozen=True)
class Reading(Recipe):
    """Reads what it is told to, and notes what it found."""

    name: ClassVar[str] = "reading"

    read: Callable[[Knowledge], Any] = lambda known: None
    found: list[Any] = field(default_factory=list, compare=False, repr=False)

    def design(self, population: Population, known: Knowledge) -> Design:
        self.found.append(self.read(known))
        return MultinomialDesign(population, self.cohort_size)


@dataclass(frozen=True)
class Learning(Reading):
    learns: ClassVar[bool] = True


@dataclass(frozen=True)
class Hearing(Reading):
    signals: ClassVar[tuple[str, ...]] = ("past_loss",)


def test_an_undeclared_memory_is_refused() -> None:
    recipe = Reading(2, lambda known: known.memory)

    with pytest.raises(DesignError, match=r"^Reading: reads the memory, which .*Say learns:"):
        recipe.build(POPULATION, memory=UpdateMemory(3, 2), rng=rng())


def test_a_declared_memory_is_read() -> None:
    recipe, memory = Learning(2, lambda known: known.memory), UpdateMemory(3, 2)

    recipe.build(POPULATION, memory=memory, rng=rng())

    assert recipe.found == [memory]


@pytest.mark.parametrize(
    "read",
    [
        lambda known: known.signals["loss"],
        lambda known: known.signals.get("loss"),
        lambda known: "loss" in known.signals,
    ],
    ids=["item", "get", "in"],
)
def test_an_undeclared_signal_is_refused(read: Callable[[Knowledge], Any]) -> None:
    signals = {"loss": np.ones(3), "past_loss": np.ones(3)}

    with pytest.raises(DesignError, match=r"^Hearing: reads the signal 'loss', which .*Add it to"):
        Hearing(2, read).build(POPULATION, signals=signals, rng=rng())


def test_declared_signals_are_read_and_others_are_not_listed() -> None:
    recipe = Hearing(2, lambda known: known.signals and {**known.signals})

    recipe.build(POPULATION, signals={"loss": np.ones(3), "past_loss": np.arange(3.0)}, rng=rng())

    assert list(recipe.found[0]) == ["past_loss"]
    assert recipe.found[0]["past_loss"].tolist() == [0.0, 1.0, 2.0]


def test_a_selector_refuses_what_is_undeclared_when_it_is_made() -> None:
    with pytest.raises(DesignError, match="reads the memory, which it does not declare"):
        Selector(Reading(2, lambda known: known.memory), POPULATION, seed=0)


def rounds_built(recipe: Reading) -> list[Any]:
    """Let a selector draw three rounds; return what the recipe read at each build."""
    selector = Selector(recipe, POPULATION, seed=0)
    for _ in range(3):
        selector.draw()
        selector.skip()
    return recipe.found


def test_a_recipe_that_reads_the_round_is_built_in_every_round() -> None:
    assert rounds_built(Reading(2, lambda known: known.round_)) == [0, 1, 2]


def test_a_recipe_that_reads_nothing_is_built_once() -> None:
    assert rounds_built(Reading(2, lambda known: "built")) == ["built"]


def test_the_round_is_known_to_have_been_read() -> None:
    known = Knowledge(Reading(2), memory=None, signals=None, kept={}, round_=7, rng=rng())

    before = known.round_was_read

    assert (before, known.round_, known.round_was_read) == (False, 7, True)


@dataclass(frozen=True)
class Noting(Recipe):
    """Remembers the norm of each client's last update."""

    name: ClassVar[str] = "noting"
    keeps: ClassVar[tuple[str, ...]] = ("last_norm",)

    def design(self, population: Population, known: Knowledge) -> Design:
        return MultinomialDesign(population, self.cohort_size)

    def observe(self, kept: dict[str, NDArray[np.float64]], observed: ObservedRound) -> None:
        kept["last_norm"][observed.cohort.clients] = observed.norms


def test_a_recipe_keeps_arrays_of_its_own() -> None:
    heard: list[Any] = []

    @dataclass(frozen=True)
    class Told(Noting):
        def design(self, population: Population, known: Knowledge) -> Design:
            heard.append(known.kept("last_norm").tolist())
            return super().design(population, known)

    selector = Selector(Told(1), [1], seed=0)
    for length in (5.0, 6.0):
        selector.draw()
        selector.aggregate({0: np.array([length, 0.0])})
    selector.draw()

    assert np.isnan(heard[0]).all()
    assert heard[-2:] == [[5.0], [6.0]]


def test_a_typo_in_an_own_array_is_an_error_not_nan() -> None:
    @dataclass(frozen=True)
    class Mistaken(Noting):
        def design(self, population: Population, known: Knowledge) -> Design:
            known.kept("last_nrom")
            return super().design(population, known)

    with pytest.raises(DesignError, match=r"reads its own array 'last_nrom'.* Did you mean 'last"):
        Selector(Mistaken(1), [1], seed=0)


def test_a_typo_in_a_signal_is_an_error_when_the_recipe_is_made() -> None:
    @dataclass(frozen=True)
    class Mistaken(Noting):
        signals: ClassVar[tuple[str, ...]] = ("past_los",)

    with pytest.raises(DesignError, match=r"got 'past_los'\. .* Did you mean 'past_loss'"):
        Mistaken(1)


def test_a_recipe_observes_the_whole_round() -> None:
    """Its law and clients, the cohort as drawn, and who answered with what weight and norm."""
    seen: list[ObservedRound] = []

    @dataclass(frozen=True)
    class Watching(Noting):
        def observe(self, kept: dict[str, NDArray[np.float64]], observed: ObservedRound) -> None:
            seen.append(observed)

    selector = Selector(Watching(3), {"a": 4, "b": 2, "c": 2, "d": 1}, seed=1)
    cohort = selector.draw(available=["a", "b", "c"])
    lost, *others = cohort.ids
    settled = selector.settle(others)
    selector.remember({each: np.array([3.0, 4.0]) for each in others})

    (observed,) = seen
    assert (observed.round_, observed.design) == (0, selector.design)
    assert observed.population.sizes.tolist() == [4, 2, 2, 0]
    assert observed.drawn.ids == cohort.ids
    assert observed.cohort.ids == [each for each in cohort.ids if each != lost]
    assert observed.cohort.weights.tolist() == settled.weights.tolist()
    assert observed.norms.tolist() == [5.0] * len(others)


def test_norms_are_taken_one_update_at_a_time() -> None:
    """All updates together may not fit into memory."""
    alive: set[int] = set()

    class Large:
        def __init__(self, client: int) -> None:
            alive.add(client)
            self.client = client

        def __del__(self) -> None:
            alive.discard(self.client)

    most = 0

    class Lazy(Mapping[Any, Any]):
        def __getitem__(self, client: Any) -> Any:
            nonlocal most
            own = Large(client)
            most = max(most, len(alive))
            values = np.ones(2).view(Tracked)
            values.own = own
            return values

        def __iter__(self) -> Iterator[Any]:
            return iter(range(4))

        def __len__(self) -> int:
            return 4

    selector = Selector(Noting(40), [1, 1, 1, 1], seed=0)
    assert len(selector.draw()) == 4
    selector.remember(Lazy())

    assert most <= 2


class Tracked(np.ndarray):
    """An array that owns something."""

    own: Any = None


def test_a_generator_may_be_a_seed() -> None:
    recipe = Reading(2, lambda known: known.rng.integers(2**62))

    for given in (3, np.random.default_rng(3)):
        recipe.build(POPULATION, rng=given)

    assert recipe.found[0] == recipe.found[1]


@dataclass(frozen=True)
class Widening(Noting):
    """Keeps the output layer's part of each client's last update, a row per client."""

    learns_output: ClassVar[bool] = True

    def observe(self, kept: dict[str, NDArray[np.float64]], observed: ObservedRound) -> None:
        assert observed.outputs is not None
        rows = kept["last_norm"]
        if rows.ndim == 1:
            rows = kept["last_norm"] = np.full((len(rows), observed.outputs.shape[1]), np.nan)
        rows[observed.cohort.clients] = observed.outputs


def sent(value: float) -> list[np.ndarray]:
    return [np.ones((2, 3)), np.array([value, -value])]


def test_an_own_array_may_have_columns_and_moves_with_its_clients(tmp_path: Path) -> None:
    selector = Selector(Widening(2), {"b": 1, "c": 1}, seed=1)
    while len(selector.draw()) < 2:
        selector.skip()
    selector.aggregate({"b": sent(2.0), "c": sent(3.0)})
    selector.clients = {"a": 1, "b": 1, "c": 1}

    kept = selector.state()["records.own.last_norm"]
    assert np.isnan(kept[0]).all()
    assert kept[1:].tolist() == [[2.0, -2.0], [3.0, -3.0]]
    selector.save(tmp_path / "state")
    loaded = Selector.load(tmp_path / "state", recipe=Widening(2))
    assert np.array_equal(loaded.state()["records.own.last_norm"], kept, equal_nan=True)


def test_answers_that_came_one_by_one_have_their_outputs() -> None:
    selector = Selector(Widening(3), [1, 1], seed=0)
    while len(selector.draw()) < 2:
        selector.skip()
    parts = [selector.receive({i: sent(i + 1.0)}, whole=False) for i in (1, 0)]
    selector.remember(Answers.joined(parts))

    kept = selector.state()["records.own.last_norm"]
    assert kept.tolist() == [[1.0, -1.0], [2.0, -2.0]]


@pytest.mark.parametrize("name", ["last_norm", "other"])
def test_own_arrays_without_a_row_per_client_are_refused(name: str) -> None:
    @dataclass(frozen=True)
    class Mistaken(Noting):
        def observe(self, kept: dict[str, NDArray[np.float64]], observed: ObservedRound) -> None:
            kept[name] = np.zeros(7)

    selector = Selector(Mistaken(1), [1], seed=0)
    selector.draw()

    message = rf"observe of noting must leave its arrays last_norm with a row .*'{name}' is array"
    with pytest.raises(SelectorError, match=message):
        selector.aggregate({0: np.ones(2)})
    assert selector.round_ == 0


def test_with_an_estimator_a_recipe_observes_what_is_left() -> None:
    """The second update is twice the first: half of it is left."""
    heard: list[float] = []

    @dataclass(frozen=True)
    class Watching(Noting):
        def observe(self, kept: dict[str, NDArray[np.float64]], observed: ObservedRound) -> None:
            heard.extend(observed.norms.tolist())

    selector = Selector(Watching(1), [1], seed=0, estimator="difference")
    for length in (5.0, 10.0):
        selector.draw()
        selector.aggregate({0: np.array([length, 0.0])})

    assert heard == [5.0, 5.0]


def test_a_round_without_answers_is_not_observed_in_any_form() -> None:
    """Whether nobody was there or nobody answered, by id or as no rows."""
    heard: list[int] = []

    @dataclass(frozen=True)
    class Watching(Noting):
        def observe(self, kept: dict[str, NDArray[np.float64]], observed: ObservedRound) -> None:
            heard.append(observed.round_)

    selector = Selector(Watching(1), [1], seed=0)
    for available in ([], [0]):
        selector.draw(available=available)
        selector.remember({})
        selector.draw(available=available)
        selector.remember(np.zeros((0, 2)), [])
    selector.draw()
    selector.remember({0: np.ones(2)})

    assert heard == [4]
