"""The best of four designs: exact predictions, the smallest taken, and said which."""

import logging
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import laws
from fedcohort import Auto, Population, UpdateMemory, diagnostics
from fedcohort.designs import (
    AutoDesign,
    MultinomialDesign,
    SimilarityClusteredDesign,
    SizeClusteredDesign,
    TournamentDesign,
)
from fedcohort.errors import DesignError
from fedcohort.similarity import MergeTree
from fedcohort.similarity.trees import AUTO_EXACT
from populations import CIFAR_SIZES, cohort_sizes, populations, rng

NAMES = ["tournament", "similarity", "size", "multinomial"]
#: Fewer than a thousand roundings stand between an exact variance and its float.
ROUNDING = 1000 * 2.0**-53
#: Weights sum to 1 and small updates are no longer than 2^1.5: no aggregate is further off.
LARGEST = 32
seeds = st.integers(0, 2**32 - 1)


def small_updates(n: int, seed: int) -> np.ndarray:
    """Small integers: equal, proportional and zero updates all come up."""
    return rng(seed).integers(-2, 3, size=(n, 2))


def clusters(n: int, seed: int = 0, noise: float = 0.3) -> np.ndarray:
    """Ten directions in R^16, one for each client at random, and noise."""
    centres = rng(seed).standard_normal((10, 16))
    return centres[rng(seed + 1).integers(10, size=n)] + noise * rng(seed + 2).standard_normal(
        (n, 16)
    )


@given(population=populations(), cohort_size=cohort_sizes(), seed=seeds)
def test_the_choice_has_the_smallest_of_the_exact_variances(
    population: Population, cohort_size: int, seed: int
) -> None:
    """By enumeration: V of what is drawn from is the prediction, and the least of the four."""
    updates = small_updates(population.n_clients, seed)
    design = AutoDesign(population, cohort_size, updates, rng=rng(seed))

    exact = laws.aggregate_variance(design, updates.tolist())

    assert list(design.predicted) == NAMES
    assert design.predicted[design.choice] == min(design.predicted.values())
    assert abs(design.predicted[design.choice] - float(exact)) <= ROUNDING * LARGEST
    assert abs(design.aggregate_variance(updates) - float(exact)) <= ROUNDING * LARGEST
    assert diagnostics.aggregate_variance(design, updates) == design.aggregate_variance(updates)


@given(population=populations(), cohort_size=cohort_sizes(), seed=seeds)
def test_what_needs_no_tree_is_predicted_exactly(
    population: Population, cohort_size: int, seed: int
) -> None:
    updates = small_updates(population.n_clients, seed)
    predicted = AutoDesign(population, cohort_size, updates, rng=rng(seed)).predicted

    exact = laws.aggregate_variance(MultinomialDesign(population, cohort_size), updates.tolist())

    assert abs(predicted["multinomial"] - float(exact)) <= ROUNDING * LARGEST


KINDS = {
    "tournament": TournamentDesign,
    "similarity": SimilarityClusteredDesign,
    "size": SizeClusteredDesign,
    "multinomial": MultinomialDesign,
}


@pytest.mark.parametrize("sizes", [CIFAR_SIZES, [1] * 40, [*range(1, 30), 500, 0, 0]])
@pytest.mark.parametrize("cohort_size", [1, 7, 10])
def test_every_prediction_is_its_designs_own_exact_variance(
    sizes: list[int], cohort_size: int
) -> None:
    """All four candidates rebuilt from one tree without ties, and their V from Cov[w]."""
    population = Population(sizes)
    updates = clusters(len(sizes))
    design = AutoDesign(population, cohort_size, updates, rng=rng())
    rebuilt = {
        "tournament": TournamentDesign(population, cohort_size, updates, rng=rng()),
        "multinomial": MultinomialDesign(population, cohort_size),
    }

    for name, other in rebuilt.items():
        pairwise = np.einsum("ij,ik,jk->", other.weight_covariance(), updates, updates)
        # Sums of n^2 products of weights below 1 and updates below 10, 16 numbers each.
        bound = 2.0**-53 * 16 * len(sizes) ** 2 * 100
        assert abs(design.predicted[name] - pairwise) <= bound
    assert isinstance(design.design, KINDS[design.choice])


@given(population=populations(6), cohort_size=cohort_sizes(4), seed=seeds)
def test_it_is_never_worse_than_algorithm_2_on_what_it_knows(
    population: Population, cohort_size: int, seed: int
) -> None:
    """Algorithm 2 on the same tree, and multinomial sampling."""
    updates = small_updates(population.n_clients, seed).astype(float)
    design = AutoDesign(population, cohort_size, updates, rng=rng(seed))

    mine = design.aggregate_variance(updates)

    assert mine <= design.predicted["similarity"] + ROUNDING * LARGEST
    multinomial = MultinomialDesign(population, cohort_size).aggregate_variance(updates)
    assert mine <= multinomial + ROUNDING * LARGEST


def test_it_beats_algorithm_2_that_is_built_apart() -> None:
    """On twenty generated federations, though Algorithm 2 breaks its ties otherwise."""
    for seed in range(20):
        population = Population(rng(seed).integers(1, 50, size=30).tolist())
        updates = clusters(30, seed)
        design = AutoDesign(population, 6, updates, rng=rng(seed))
        apart = SimilarityClusteredDesign(population, 6, updates, rng=rng(seed + 1))

        assert design.aggregate_variance(updates) < apart.aggregate_variance(updates)


def test_the_tournament_is_not_always_the_choice() -> None:
    """Three of the four are; multinomial sampling has the smallest V nowhere, but may tie."""
    found = set()
    for seed in range(400):
        n = int(rng(seed).integers(2, 6))
        population = Population([*rng(seed).integers(0, 6, size=n), 1])
        updates = small_updates(n + 1, seed)
        found.add(AutoDesign(population, 2, updates, rng=rng(seed)).choice)

    assert found == {"tournament", "similarity", "size"}


def test_few_known_clients_are_enough() -> None:
    """Three of a hundred have sent something; V of what is known is still the smallest."""
    population = Population(CIFAR_SIZES)
    updates = np.zeros((100, 16))
    updates[[3, 50, 99]] = rng(0).standard_normal((3, 16))

    design = AutoDesign(population, 10, updates, rng=rng())

    assert design.predicted[design.choice] <= min(design.predicted.values())
    assert 0 < design.predicted[design.choice] < design.predicted["multinomial"]
    counts = design.draw_many(500, rng(1))
    assert (counts.sum(axis=1) == 10).all()


def test_without_any_update_all_are_equal_and_the_first_is_taken() -> None:
    design = AutoDesign(Population(CIFAR_SIZES), 10, np.zeros((100, 4)), rng=rng())

    assert design.predicted == dict.fromkeys(NAMES, 0.0)
    assert design.choice == "tournament"


@pytest.mark.parametrize(
    ("sizes", "cohort_size"), [([3] * 5, 5), ([3] * 5, 10), ([2, 1, 1, 0], 4), ([7], 3)]
)
def test_where_all_clients_are_certain_nothing_is_left_to_chance(
    sizes: list[int], cohort_size: int
) -> None:
    population, updates = Population(sizes), rng(0).standard_normal((len(sizes), 3))

    design = AutoDesign(population, cohort_size, updates, rng=rng())

    assert (design.predicted["tournament"], design.choice) == (0.0, "tournament")
    expected = [cohort_size * size // population.total for size in sizes]
    assert (design.draw_many(20, rng(1)).toarray() == expected).all()
    assert laws.law(design) == {tuple(expected): Fraction(1)}


def test_the_log_says_which_and_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="fedcohort"):
        design = AutoDesign(Population([1] * 4), 2, [[1, 0], [0, 1], [2, 0], [0, 3]], rng=rng())

    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "AutoDesign: exact tree of 4 clients",
        f"AutoDesign: draws from tournament; V predicted: {design.predicted}",
    ]


MERGES = MergeTree(np.array([[0, 2], [1, 3], [4, 5]]), np.zeros(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measure": "l3"}, "measure must be one of arccos, l2, l1; got 'l3'."),
        ({"linkage": "wards"}, "linkage must be one of .*got 'wards'. Did you mean 'ward'?"),
        ({"tree": "exakt"}, "tree must be one of auto, .*got 'exakt'. Did you mean 'exact'?"),
        ({"tree": MERGES}, "needs either updates or a tree over all clients; got both"),
        ({"tree": None}, "tree must be one of auto, exact, vector, bisecting, .*got NoneType"),
        ({"tree": "bisecting", "measure": "l1"}, "a bisecting tree needs measure arccos or l2"),
        ({"rng": 1.5}, "rng must be an integer of at least 0, .* or None; got 1.5."),
        ({"updates": np.ones((3, 2))}, r"updates must be real numbers of shape \(4, dimension\)"),
        ({"updates": np.full((4, 2), np.nan)}, "updates must be finite"),
        ({"cohort_size": 0}, "cohort_size must be a whole number of at least 1; got 0"),
    ],
)
def test_errors_name_the_design_that_was_asked_for(options: dict[str, Any], message: str) -> None:
    arguments = {"cohort_size": 2, "updates": np.eye(4), "rng": rng(), **options}

    with pytest.raises(DesignError, match=rf"^AutoDesign: {message}") as found:
        AutoDesign(Population([1] * 4), **arguments)

    assert "\n" not in str(found.value)


def test_the_recipe_hands_its_options_on() -> None:
    """And draws as the design itself does."""
    population, memory = Population([2] * 20), UpdateMemory.of(clusters(20))
    recipe = Auto(5, measure="l2", linkage="average", tree="exact")
    built = recipe.build(population, memory=memory, round_=3, rng=rng(4))
    own = AutoDesign(
        population, 5, memory.updates, measure="l2", linkage="average", tree="exact", rng=rng(4)
    )
    blind = recipe.build(population, rng=rng(4))

    assert isinstance(built, AutoDesign)
    assert isinstance(blind, AutoDesign)
    assert built.predicted == own.predicted
    assert (built.draw(rng(5)).clients == own.draw(rng(5)).clients).all()
    assert set(blind.predicted.values()) == {0.0}
    other = Auto(5).build(population, memory=memory, round_=3, rng=rng(4))
    assert isinstance(other, AutoDesign)
    assert other.predicted != built.predicted


@pytest.mark.parametrize("shift", [0.0, 1.0, 1e3, 1e7], ids="shifted by {}".format)
@pytest.mark.parametrize("scale", [1.0, 1e-150, 1e120], ids="times {}".format)
def test_predictions_keep_their_digits_whatever_the_updates_share(
    shift: float, scale: float
) -> None:
    """Of shifted updates, inner products lose digits: V is then computed from the updates."""
    population, updates = Population([*range(1, 30), 500]), scale * (clusters(30) + shift)
    design = AutoDesign(population, 7, updates, rng=0)

    multinomial = MultinomialDesign(population, 7).aggregate_variance(updates)

    assert design.predicted["multinomial"] == pytest.approx(multinomial, rel=1e-9)
    assert design.predicted[design.choice] == pytest.approx(
        design.aggregate_variance(updates), rel=1e-9
    )


def test_a_memory_of_many_clients_is_not_asked_for_all_pairs() -> None:
    def refuse() -> NDArray[np.float64]:
        raise AssertionError("all pairs were asked for")

    n = AUTO_EXACT + 1
    design = AutoDesign(
        Population([1] * n), 3, clusters(n), tree="bisecting", products=refuse, rng=0
    )

    assert set(design.predicted) == set(KINDS)
