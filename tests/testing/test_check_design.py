"""The contract sees what it says that it sees: one fault at a time, each in its own words."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedcohort import Design, Multinomial, Plan, Population, Recipe
from fedcohort.baselines.chosen import ChosenDesign
from fedcohort.cohort import Cohort
from fedcohort.designs import (
    Knowledge,
    ObservedRound,
    RowDesign,
    SimilarityClusteredDesign,
    SizeClusteredDesign,
    TargetDesign,
)
from fedcohort.designs.recipe import known_updates
from fedcohort.testing import ContractError, Law, check_design, law_of_rows


class Sound(RowDesign):
    """Every row is the whole population."""

    def __init__(self, population: Population, cohort_size: int) -> None:
        super().__init__(population, cohort_size)
        rows = csr_array(np.tile(population.sizes, (self.cohort_size, 1)))
        self.plan = Plan(rows, population)


class ClaimsTwiceTheVariance(Sound):
    def weight_variance(self) -> NDArray[np.float64]:
        return 2 * super().weight_variance()


class ForgetsThatDrawsExcludeEachOther(Sound):
    def covariance(self) -> NDArray[np.float64]:
        return np.diag(self.weight_variance())


class ClaimsThatAllAreIncluded(Sound):
    def inclusion_probability(self) -> NDArray[np.float64]:
        return np.ones(self.population.n_clients)


class ClaimsOneDrawAtMost(Sound):
    def max_count(self) -> NDArray[np.int64]:
        return np.ones(self.population.n_clients, dtype=np.int64)


class MiscountsItsDraws(Sound):
    def expected_counts(self) -> NDArray[np.float64]:
        return super().expected_counts() + 0.01


class WeighsTooMuch(Sound):
    def weight_per_draw(self) -> NDArray[np.float64]:
        return 1.05 * super().weight_per_draw()


class WeighsOtherwiseThanItSays(Sound):
    def weigh(self, clients: NDArray[np.int64], counts: NDArray[np.int64]) -> Cohort:
        return Cohort.of_weights(clients, counts, counts / (1.05 * self.cohort_size))


class HasNoSpread(Sound):
    def aggregate_spread(self, updates: NDArray[np.floating]) -> float:
        return 0.0


class DrawsFivePercentOff(Sound):
    """Takes the first client for 5 % larger than it is."""

    def sample(self, rng: np.random.Generator, rounds: int) -> NDArray[np.int64]:
        sizes = 100 * self.population.sizes
        sizes[0] += sizes[0] // 20
        units = rng.integers(sizes.sum(), size=(rounds, self.cohort_size))
        return np.searchsorted(np.cumsum(sizes), units, side="right")


class DrawsAllRoundsAtOnce(Sound):
    """Its numbers depend on how many rounds are asked for."""

    def sample(self, rng: np.random.Generator, rounds: int) -> NDArray[np.int64]:
        drawn = np.array([self.plan.draw_clients(1, rng)[0] for _ in range(rounds)])
        return drawn[::-1].reshape(rounds, self.cohort_size)


class UsesTheGlobalGenerator(Sound):
    def sample(self, rng: np.random.Generator, rounds: int) -> NDArray[np.int64]:
        random.random()
        return super().sample(rng, rounds)


class LosesDigits(Sound):
    def inclusion_probability(self) -> NDArray[np.float64]:
        return 1 - (1 - self.population.importance) ** self.cohort_size


@dataclass(frozen=True)
class Of(Recipe):
    """Builds the design that it is told to."""

    name: ClassVar[str] = "of"
    kind: Callable[[Population, int], Design] = Sound

    def design(self, population: Population, known: Knowledge) -> Design:
        return self.kind(population, self.cohort_size)


def test_a_sound_design_passes() -> None:
    check_design(Of(3))


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (ClaimsTwiceTheVariance, "weight_variance of client . must be"),
        (ForgetsThatDrawsExcludeEachOther, "row 0 of weight_covariance of client . must be -"),
        (ClaimsThatAllAreIncluded, "inclusion_probability of client"),
        (ClaimsOneDrawAtMost, r"max_count must be \["),
        (MiscountsItsDraws, r"expected_counts of client"),
        (WeighsTooMuch, r"weight_per_draw \* expected_counts of client"),
        (WeighsOtherwiseThanItSays, r"weights must be counts \* weight_per_draw"),
        (HasNoSpread, "aggregate_variance of .* must be .*; got 0"),
        (DrawsFivePercentOff, "draws must follow the law"),
        (DrawsAllRoundsAtOnce, "draw and draw_many must agree"),
        (UsesTheGlobalGenerator, "a global generator was used"),
        (LosesDigits, "inclusion_probability must keep twelve digits"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_fault_is_named(kind: type[Design], sentence: str) -> None:
    with pytest.raises(ContractError, match=sentence):
        check_design(Of(3, kind))


def test_the_population_of_a_fault_is_named() -> None:
    with pytest.raises(ContractError, match=r"^Of \(sizes \[\d.*\], \d draws\): "):
        check_design(Of(3, HasNoSpread))


def test_a_joint_design_needs_its_law() -> None:
    with pytest.raises(ContractError, match=r"MultinomialDesign: has no plan.*Pass law="):
        check_design(Multinomial(3))


def halved(design: Design) -> Law:
    return {counts: probability / 2 for counts, probability in law_of_rows(design).items()}


def shifted(design: Design) -> Law:
    """Half of what the first cohort has goes to the last one."""
    law = law_of_rows(design)
    first, *_, last = [*law, *law]
    moved = law[first] / 2
    law[first] -= moved
    law[last] += moved
    return law


def short(design: Design) -> Law:
    return {(1,): Fraction(1)}


@pytest.mark.parametrize(
    ("law", "sentence"),
    [
        (halved, "its law must be positive and sum to 1; it sums to 1/2"),
        (shifted, "Fix the formula, or the law"),
        (short, r"must have counts of \d clients; got \(1,\)"),
    ],
)
def test_a_faulty_law_is_named(law: Callable[[Design], Law], sentence: str) -> None:
    with pytest.raises(ContractError, match=sentence):
        check_design(Of(3), law=law)


class Nobody(Sound):
    """A design that draws somebody twice, and claims distinct clients."""


def test_a_claim_of_distinct_clients_is_tested() -> None:
    with pytest.raises(ContractError, match=r"at most the 3 clients of positive size.*nothing"):
        check_design(Of(3, Nobody), distinct=True)


@dataclass(frozen=True)
class Bare(Recipe):
    """Has a hyper-parameter that no experiment file could leave out."""

    name: ClassVar[str] = "bare"
    depth: int

    def design(self, population: Population, known: Knowledge) -> Design:
        return Sound(population, self.cohort_size)


@dataclass(frozen=True)
class Nameless(Of):
    name: ClassVar[str] = ""


@dataclass(frozen=True)
class Forgetful(Recipe):
    """Cannot do without a memory."""

    name: ClassVar[str] = "forgetful"
    learns: ClassVar[bool] = True

    def design(self, population: Population, known: Knowledge) -> Design:
        assert known.memory is not None
        return Sound(population, self.cohort_size)


@dataclass(frozen=True)
class Moody(Recipe):
    """Draws otherwise every time that it is built."""

    name: ClassVar[str] = "moody"
    moods: ClassVar[list[int]] = []

    def design(self, population: Population, known: Knowledge) -> Design:
        self.moods.append(0)
        if len(self.moods) % 2:
            return Sound(population, self.cohort_size)
        return DrawsAllRoundsAtOnce(population, self.cohort_size)


def test_a_recipe_needs_a_name() -> None:
    with pytest.raises(ContractError, match="Nameless: needs a name"):
        check_design(Nameless(3))


def test_a_hyper_parameter_needs_a_default() -> None:
    with pytest.raises(
        ContractError, match=r"Bare: .*hyper-parameters need defaults; depth has none"
    ):
        check_design(Bare(3, depth=2))


def test_a_recipe_is_built_before_there_is_a_memory() -> None:
    with pytest.raises(ContractError, match="Forgetful: must build before anything was sent"):
        check_design(Forgetful(3))


def test_a_recipe_that_keeps_a_state_is_seen() -> None:
    with pytest.raises(ContractError, match="Moody: two builds must draw alike"):
        check_design(Moody(3))


def test_the_contract_is_an_assertion_for_every_test_runner() -> None:
    assert issubclass(ContractError, AssertionError)


class Everyone(ChosenDesign):
    """Nothing is left to chance, and V is 0."""

    unbiased = True

    def __init__(self, population: Population, cohort_size: int) -> None:
        super().__init__(population, cohort_size)
        there = np.flatnonzero(population.sizes)
        self._choose(there, population.importance[there])


@dataclass(frozen=True)
class OfEveryone(Recipe):
    name: ClassVar[str] = "everyone"

    def design(self, population: Population, known: Knowledge) -> Design:
        return Everyone(population, self.cohort_size)


def law_of_everyone(design: Design) -> Law:
    return {tuple((design.population.sizes > 0).astype(int).tolist()): Fraction(1)}


@pytest.mark.slow
def test_a_design_that_draws_everyone_passes() -> None:
    check_design(OfEveryone(3), law=law_of_everyone, fixed_size=False)


@dataclass(frozen=True)
class LearnsInSecret(Recipe):
    """Reads updates, which it does not declare."""

    name: ClassVar[str] = "secret"

    def design(self, population: Population, known: Knowledge) -> Design:
        updates = known_updates(population, known)
        return SimilarityClusteredDesign(population, self.cohort_size, updates, rng=known.rng)


@dataclass(frozen=True)
class HearsInSecret(Of):
    """Reads a signal that it does not declare."""

    def design(self, population: Population, known: Knowledge) -> Design:
        assert known.signals is not None
        return self.kind(population, self.cohort_size + int(known.signals["loss"].sum()))


@dataclass(frozen=True)
class KeepsWhatNobodyFills(Of):
    keeps: ClassVar[tuple[str, ...]] = ("mood",)


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        (LearnsInSecret(3), "reads the memory, which it does not declare. Say learns"),
        (HearsInSecret(3), "reads the signal 'loss', which it does not declare. Add it to signals"),
        (KeepsWhatNobodyFills(3), "keeps mood, and no observe fills it"),
    ],
    ids=["learns", "hears", "signals"],
)
def test_what_a_recipe_reads_must_be_declared(recipe: Recipe, sentence: str) -> None:
    with pytest.raises(ContractError, match=sentence):
        check_design(recipe)


@dataclass(frozen=True)
class TakesTurns(Recipe):
    """Draws otherwise in odd rounds."""

    name: ClassVar[str] = "turns"

    def design(self, population: Population, known: Knowledge) -> Design:
        own = SizeClusteredDesign(population, self.cohort_size, rng=known.rng)
        return Sound(population, self.cohort_size) if known.round_ % 2 else own


@dataclass(frozen=True)
class CountsItsDraws(Of):
    """Fills an array of its own."""

    keeps: ClassVar[tuple[str, ...]] = ("times",)

    def observe(self, kept: Mapping[str, NDArray[np.float64]], observed: ObservedRound) -> None:
        clients = observed.cohort.clients
        kept["times"][clients] = np.nan_to_num(kept["times"][clients]) + 1


@pytest.mark.parametrize("recipe", [TakesTurns(3), CountsItsDraws(3)], ids=["round", "own array"])
def test_the_round_and_arrays_of_its_own_need_no_more_words(recipe: Recipe) -> None:
    check_design(recipe)


@dataclass(frozen=True)
class ByGroup(Recipe):
    """Reads the population's groups."""

    name: ClassVar[str] = "by group"
    grouped: ClassVar[bool] = True

    def design(self, population: Population, known: Knowledge) -> Design:
        assert population.groups is not None
        return TargetDesign(population, self.cohort_size, population.groups, rng=known.rng)


def test_a_recipe_that_reads_groups_passes() -> None:
    check_design(ByGroup(3))


def test_an_empty_law_is_refused() -> None:
    with pytest.raises(ContractError, match="its law must have a cohort"):
        check_design(Of(3), law=lambda design: {})
