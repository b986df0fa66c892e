"""Recipes made from a function: what they return is checked, their moments are estimated."""

import pickle
from typing import Any

import numpy as np
import pytest

from fedcohort import Population, Selector, recipe
from fedcohort.designs import FunctionDesign, Knowledge, MultinomialDesign, make_recipe, recipe_of
from fedcohort.diagnostics import estimated_aggregate_variance, estimated_bias
from fedcohort.errors import ContractError, DesignError
from fedcohort.testing import FALSE_ALARM, check_design

Rng = np.random.Generator
#: Normal deviations of a two-sided test with this false-alarm rate over 3 clients: 5.1.
BOUND = 5.1


@recipe(unbiased=True)
def by_size(population: Population, known: Knowledge, rng: Rng) -> Any:
    """Draw by importance, with replacement."""
    return rng.choice(population.n_clients, known.cohort_size, p=population.importance)


@recipe(unbiased=True)
def half_coins(population: Population, known: Knowledge, rng: Rng, *, chance: float = 0.5) -> Any:
    """Toss a coin for each client."""
    clients = np.flatnonzero((rng.random(population.n_clients) < chance) & (population.sizes > 0))
    return clients, population.importance[clients] / chance


@recipe
def largest(population: Population, known: Knowledge, rng: Rng) -> Any:
    return np.argsort(population.sizes)[-known.cohort_size :]


def made(result: object) -> FunctionDesign:
    """Return a design over three clients, the last of which is empty, that returns this."""

    @recipe
    def own(population: Population, known: Knowledge, rng: Rng) -> object:
        return result

    design = own(2).build(Population([5, 3, 0]))
    assert isinstance(design, FunctionDesign)
    return design


def test_clients_are_averaged_and_one_that_comes_twice_weighs_twice() -> None:
    cohort = made([1, 0, 1]).draw()

    assert cohort.clients.tolist() == [0, 1]
    assert cohort.counts.tolist() == [1, 2]
    assert cohort.weights.tolist() == [1 / 3, 2 / 3]
    assert cohort.residual == 0


def test_weights_are_taken_as_they_are() -> None:
    cohort = made(([1, 0], [0.25, 0.5])).draw()

    assert cohort.clients.tolist() == [0, 1]
    assert cohort.weights.tolist() == [0.5, 0.25]
    assert cohort.residual == 0.25


def test_nobody_may_be_chosen() -> None:
    assert len(made([]).draw()) == 0


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "own: must return positions of clients, from 0 to 2; got None"),
        ([0, 3], "own: must return positions .* got .0, 3."),
        ([0.5], "own: must return positions of clients"),
        ([[0], [1, 2]], "own: must return positions of clients"),
        ([0, 2], "own: must return clients with samples; client 2 has none, or is away"),
        (([0, 0], [0.5, 0.5]), "own: must return a finite weight .* each client once"),
        (([0, 1], [0.5]), "own: must return a finite weight"),
        (([0, 1], [0.5, np.nan]), "own: must return a finite weight"),
        (([0, 1], ["a", "b"]), "own: must return a finite weight"),
    ],
)
def test_what_is_no_cohort_is_refused(result: object, message: str) -> None:
    with pytest.raises(DesignError, match=message):
        made(result).draw()


def test_moments_are_those_of_the_law_up_to_their_error() -> None:
    """False-alarm rate below 1e-6: normal bounds over three clients."""
    population = Population([5, 3, 2])
    estimated = by_size(2).build(population)
    exact = MultinomialDesign(population, 2)

    error = np.sqrt(4 * exact.weight_variance() / 1000)

    assert FALSE_ALARM == 1e-6
    assert (abs(estimated.expected_counts() - exact.expected_counts()) < BOUND * error).all()
    assert estimated.weight_variance() == pytest.approx(exact.weight_variance(), rel=0.25)
    assert estimated.inclusion_probability() == pytest.approx(
        exact.inclusion_probability(), abs=BOUND * 0.5 / np.sqrt(1000)
    )
    assert estimated.max_count().tolist() == [2, 2, 2]
    assert not estimated.exact_weights
    assert not estimated.exact_moments


def test_v_is_measured_with_the_functions_own_weights() -> None:
    """For independent coins V = sum of p^2 u^2 (1 / q - 1); false alarms below 1e-6."""
    population, updates = Population([5, 3, 2]), np.array([[1.0], [2.0], [-4.0]])
    design = half_coins(3).build(population)

    found = estimated_aggregate_variance(design, updates, rng=0, rounds=20_000)

    exact = float((population.importance**2 * updates[:, 0] ** 2).sum())
    assert abs(found.value - exact) < 4.9 * found.standard_error
    assert found.standard_error < 0.05 * exact


def test_there_is_no_formula() -> None:
    design = by_size(2).build(Population([5, 3, 2]))

    with pytest.raises(DesignError, match="by_size: has no formula for weight_covariance"):
        design.weight_covariance()
    with pytest.raises(DesignError, match="by_size: has no formula for aggregate_variance"):
        design.aggregate_variance([[1.0]] * 3)


def test_parameters_with_defaults_become_settings() -> None:
    own = half_coins(3, chance=1.0)

    assert repr(own) == "half_coins(cohort_size=3, chance=1.0)"
    assert own.build(Population([5, 3])).draw().clients.tolist() == [0, 1]
    assert recipe_of(half_coins, 3, {"chance": 0.25}) == half_coins(3, chance=0.25)
    with pytest.raises(DesignError, match="half_coins: chance must be a number"):
        half_coins(3, chance="x")


def test_its_name_and_help_are_the_functions() -> None:
    assert by_size.name == "by-size"
    assert by_size.__doc__ == "Draw by importance, with replacement."
    assert recipe(name="other")(lambda_free).name == "other"
    assert pickle.loads(pickle.dumps(by_size(2))) == by_size(2)


def lambda_free(population: Population, known: Knowledge, rng: Rng) -> list[int]:
    return [0]


@pytest.mark.parametrize(
    "function",
    [
        3,
        lambda population, known, rng: [0],
        pytest.param(dict, id="a class"),
    ],
    ids=["a number", "a lambda", None],
)
def test_what_is_no_function_of_that_form_is_refused(function: Any) -> None:
    with pytest.raises(DesignError, match=r"recipe: needs a function .population, known, rng"):
        recipe(function)


def test_parameters_without_a_default_are_refused() -> None:
    def needy(population: Population, known: Knowledge, rng: Rng, share: float) -> list[int]:
        return [0]

    with pytest.raises(DesignError, match="whose further parameters have defaults"):
        recipe(needy)


def test_it_runs_in_a_selector_where_clients_come_and_go() -> None:
    selector = Selector(largest(2), {"a": 5, "b": 3, "c": 9}, seed=0)

    first = selector.draw()
    selector.aggregate({id_: np.ones(2) for id_ in first.ids})
    second = selector.draw(available=["a", "b"])

    assert first.ids == ["a", "c"]
    assert second.ids == ["a", "b"]


def test_it_reads_what_it_declares_and_nothing_else() -> None:
    @recipe(learns=True, signals=("loss",))
    def reader(population: Population, known: Knowledge, rng: Rng) -> Any:
        assert known.memory is None
        assert known.signals is not None
        return np.argsort(known.signals["loss"])[-known.cohort_size :]

    @recipe
    def silent(population: Population, known: Knowledge, rng: Rng) -> Any:
        return [0] if known.memory is None else [1]

    drawn = reader(1).build(Population([1, 1]), signals={"loss": np.array([1.0, 2.0])}).draw()

    assert drawn.clients.tolist() == [1]
    with pytest.raises(DesignError, match="silent: reads the memory, which it does not declare"):
        silent(1).build(Population([1, 1])).draw()


@pytest.mark.parametrize(
    ("signals", "way_out"),
    [(("loss", "duration"), "duration"), (("loss", "update_norm", "past_loss"), "loss")],
)
def test_it_may_ask_for_one_signal(signals: tuple[str, ...], way_out: str) -> None:
    def both(population: Population, known: Knowledge, rng: Rng) -> Any:
        return [0]

    needed = "both: a recipe may ask clients for one signal; got "
    with pytest.raises(DesignError, match=rf"{needed}.* Declare one, or use past_{way_out}\."):
        recipe(signals=signals)(both)


def test_its_bias_can_be_measured() -> None:
    found = estimated_bias(largest(1), Population([3, 1]), rng=0, rounds=10)

    assert found.values.tolist() == [0.25, -0.25]


@pytest.mark.slow
def test_the_contract_holds_it_to_its_claim() -> None:
    check_design(by_size(3))
    check_design(half_coins(3))
    check_design(largest(3))

    @recipe(unbiased=True)
    def equal(population: Population, known: Knowledge, rng: Rng) -> Any:
        there = np.flatnonzero(population.sizes)
        return rng.choice(there, known.cohort_size)

    with pytest.raises(ContractError, match=r"unbiased is True, so client .* mean weight must be"):
        check_design(equal(3))


def test_names_of_the_catalogue_stay_the_librarys() -> None:
    with pytest.raises(DesignError, match="unknown design 'by-size'"):
        make_recipe("by-size", 2, {})


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"signals": "loss"}, r"signals must be a tuple of names; got 'loss'"),
        ({"signals": ("loss", 3)}, r"signals must be a tuple of names"),
        ({"signals": 3}, r"signals must be a tuple of names; got 3"),
        ({"unbiased": "False"}, r"unbiased must be True or False; got 'False'"),
        ({"learns": 1}, r"learns must be True or False; got 1"),
        ({"grouped": None}, r"grouped must be True or False; got None"),
        ({"name": 3}, r"name must be a text of 1 to 500 characters; got 3"),
        ({"name": " "}, r"name must be a text of 1 to 500 characters; got ' '"),
    ],
)
def test_what_cannot_be_declared_is_refused(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(DesignError, match=f"^recipe: {message}"):
        recipe(**declared)


@pytest.mark.parametrize("setting", ["cohort_size", "name", "design", "learns"])
def test_settings_may_not_take_a_name_that_every_recipe_has(setting: str) -> None:
    made: dict[str, Any] = {}
    exec(f"def own(population, known, rng, {setting}=3): return [0]", made)

    with pytest.raises(DesignError, match=f"own must not call a setting '{setting}'"):
        recipe(made["own"])


def test_a_default_that_can_change_is_refused() -> None:
    def own(population: Population, known: Any, rng: Any, *, a: Any = [1]) -> Any:  # noqa: B006
        return a

    with pytest.raises(DesignError, match=r"own's setting 'a' must have a default that cannot"):
        recipe(own)
