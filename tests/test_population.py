"""The clients and their sizes, checked at the door."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedcohort import Population
from fedcohort.errors import PopulationError
from fedcohort.population import IMPORTANCE_UNITS
from populations import populations, rng


@pytest.mark.parametrize(
    "sizes",
    [
        [5, 3, 2],
        (5, 3, 2),
        [5.0, 3.0, 2.0],
        np.array([5, 3, 2], dtype=np.uint8),
        np.array([5, 3, 2], dtype=object),
    ],
)
def test_whole_numbers_of_any_type_are_sizes(sizes: object) -> None:
    population = Population(sizes)  # type: ignore[arg-type]

    assert population.sizes.tolist() == [5, 3, 2]
    assert population.sizes.dtype == np.int64
    assert (population.total, population.n_clients) == (10, 3)
    assert population.importance.tolist() == [0.5, 0.3, 0.2]
    assert list(population.ids) == [0, 1, 2]


def test_large_sizes_stay_exact() -> None:
    assert Population([2**62, 2**61 + 1, 0]).total == 2**62 + 2**61 + 1


def test_sizes_are_copied_and_cannot_be_changed() -> None:
    sizes = np.array([5, 3])
    population = Population(sizes)
    sizes[0] = 7

    assert population.sizes.tolist() == [5, 3]
    with pytest.raises(ValueError, match="read-only"):
        population.sizes[0] = 7


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([5, -1], r"sizes must not be negative; client 1 has -1\. Drop the client or give 0\."),
        ([np.nan, 1, np.nan], r"sizes must be finite; client 0 has nan \(and 1 more\)\."),
        ([1, np.inf], r"sizes must be finite; client 1 has inf"),
        ([2.0, 1.5], r"sizes must be whole numbers; client 1 has 1\.5\. Round it\."),
        ([], r"flat list of whole numbers, one per client; got nothing"),
        ([0, 0], r"sizes must not all be 0"),
        ([[1, 2]], r"got int64 of shape \(1, 2\)"),
        (3, r"got int64 of shape \(\)"),
        (["a", "b"], r"must be a flat list of whole numbers"),
        ([True, False], r"must be a flat list of whole numbers"),
        ([1, None], r"sizes must be whole numbers; client 1 has None"),
        ([1, [2]], r"must be a flat list of whole numbers"),
        ([2**62, 2**62], r"must sum to less than 2\^63; got 9223372036854775808"),
        ([2**70], r"must sum to less than 2\^63"),
        ([-(2**70)], r"must not be negative"),
        ([1e300], r"must sum to less than 2\^63"),
        ([10**400], r"must sum to less than 2\^63; got 1000"),
        ([10**9000], r"must sum to less than 2\^63; got a number of thousands of digits"),
        ([True, 2], r"sizes must be whole numbers; client 0 has True"),
    ],
)
def test_what_is_no_list_of_sizes_is_refused(sizes: object, message: str) -> None:
    with pytest.raises(PopulationError, match=message):
        Population(sizes)  # type: ignore[arg-type]


def test_masked_sizes_are_refused_and_name_the_client() -> None:
    with pytest.raises(PopulationError, match=r"must not be masked; client 1 has None \(and 1"):
        Population(np.ma.masked_array([5, 3, 2, 4], mask=[False, True, True, False]))


def test_masked_importances_are_refused_and_name_the_client() -> None:
    with pytest.raises(PopulationError, match=r"must not be masked; client 2 has None\."):
        Population(importance=np.ma.masked_array([0.5, 0.5, 0.0], mask=[False, False, True]))


def test_an_array_that_masks_nobody_is_taken() -> None:
    assert Population(np.ma.masked_array([5, 3])).sizes.tolist() == [5, 3]
    assert Population(np.ma.masked_invalid([5.0, 3.0])).sizes.tolist() == [5, 3]


def test_either_sizes_or_importance() -> None:
    with pytest.raises(PopulationError, match="either sizes or importance; got neither"):
        Population()
    with pytest.raises(PopulationError, match="either sizes or importance; got both"):
        Population([1], importance=[1.0])


@given(st.lists(st.floats(1e-9, 1), min_size=1, max_size=50))
def test_importances_become_units_by_largest_remainder(raw: list[float]) -> None:
    importance = np.array(raw) / np.sum(raw)

    population = Population(importance=importance)

    exact = [Fraction(p) for p in importance]
    quotas = [p / sum(exact) * IMPORTANCE_UNITS for p in exact]
    assert population.total == IMPORTANCE_UNITS
    assert (population.sizes > 0).all()
    assert all(abs(u - q) < 1 for u, q in zip(population.sizes.tolist(), quotas, strict=True))


def test_the_largest_remainders_get_the_missing_units() -> None:
    """Sums that are off by up to 1e-9 are divided out first."""
    for seed in range(50):
        importance = rng(seed).dirichlet(np.ones(30)) * (1 + 9e-10 * (seed % 3 - 1))

        units = Population(importance=importance).sizes

        exact = [Fraction(p) for p in importance]
        quotas = [p / sum(exact) * IMPORTANCE_UNITS for p in exact]
        remainders = [q - math.floor(q) for q in quotas]
        raised = [u > math.floor(q) for u, q in zip(units.tolist(), quotas, strict=True)]
        given_ = [r for r, up in zip(remainders, raised, strict=True) if up]
        kept = [r for r, up in zip(remainders, raised, strict=True) if not up]
        # Quotas are computed in floats of 40 + 12 bits.
        assert min(given_, default=1) >= max(kept, default=0) - Fraction(1, 2**10)


def test_large_integers_beside_floats_stay_exact() -> None:
    assert Population([2**60 + 1, 2.0]).sizes.tolist() == [2**60 + 1, 2]
    assert Population(np.array([2**60 + 1, 3], dtype=object)).sizes.tolist() == [2**60 + 1, 3]


def test_equal_remainders_go_to_the_first_clients() -> None:
    units = Population(importance=[1 / 3, 1 / 3, 1 / 3]).sizes

    assert (units - units.min()).tolist() == [1, 0, 0]


def test_an_importance_of_zero_stays_zero() -> None:
    population = Population(importance=[0.1, 0.0, 0.9])

    assert population.sizes[1] == 0
    assert population.importance.sum() == pytest.approx(1, abs=1e-15)


def test_a_million_importances_sum_exactly() -> None:
    importance = rng().dirichlet(np.ones(10**6))
    importance[importance < 1e-11] = 0

    population = Population(importance=importance / importance.sum())

    assert population.total == IMPORTANCE_UNITS
    assert ((population.sizes == 0) == (importance == 0)).all()


@pytest.mark.parametrize(
    ("importance", "message"),
    [
        ([0.5, 0.4], r"importance must sum to 1 within 1e-09; got 0\.9"),
        ([0.5, 0.5 + 2e-9], r"must sum to 1"),
        ([1.5, -0.5], r"importance must not be negative; client 1 has -0\.5"),
        ([np.nan, 1.0], r"importance must be finite; client 0 has nan"),
        ([1.0, 1e-13], r"a positive importance must reach one of 1099511627776 units; client 1"),
        ([], r"flat list of numbers"),
        ([1e308, 1e308], r"importance must not exceed 1; client 0 has 1e\+308"),
        ([10**400, 0], r"importance must not exceed 1; client 0 has 1000"),
    ],
)
def test_what_is_no_importance_is_refused(importance: list[float], message: str) -> None:
    with pytest.raises(PopulationError, match=message):
        Population(importance=importance)


def test_ids_name_the_clients() -> None:
    assert list(Population([1, 2], ids=["a", 7]).ids) == ["a", 7]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a"], r"ids must be one per client, 2; got 1"),
        (["a", "a"], r"ids must be distinct; 'a' appears more than once"),
        ([["a"], ["b"]], r"ids must be a list of names or numbers; got \[\['a'\], \['b'\]\]"),
        (5, r"ids must be a list of names or numbers; got 5"),
    ],
)
def test_ids_that_do_not_tell_clients_apart_are_refused(ids: object, message: str) -> None:
    with pytest.raises(PopulationError, match=message):
        Population([1, 2], ids=ids)  # type: ignore[arg-type]


@given(populations(max_clients=6), st.lists(st.booleans(), min_size=6, max_size=6))
def test_a_restricted_population_has_the_importance_of_the_available_exactly(
    population: Population, flags: list[bool]
) -> None:
    """p_i / p(A) in fractions; positions and ids stay."""
    available = np.array(flags[: population.n_clients])
    sizes = population.sizes.tolist()
    there = sum(size for size, here in zip(sizes, flags, strict=False) if here)
    assume(there > 0)

    now = population.restricted(available)

    for client, size in enumerate(sizes):
        share = Fraction(size, there) if flags[client] else Fraction(0)
        assert Fraction(int(now.sizes[client]), now.total) == share
    assert list(now.ids) == list(population.ids)


@pytest.mark.parametrize(
    ("available", "message"),
    [
        ([True], r"available must be one boolean per client, shape \(3,\); got bool of shape"),
        ([1, 0, 1], r"available must be one boolean per client, shape \(3,\); got int64"),
        ([False, False, False], r"at least one client with samples must be available; got 0"),
        ([False, True, False], r"got 1 available, none of them with samples. Wait for one"),
    ],
)
def test_who_is_available_must_be_clear_and_somebody(available: list[bool], message: str) -> None:
    with pytest.raises(PopulationError, match=message):
        Population([5, 0, 2]).restricted(available)


def test_groups_label_the_clients() -> None:
    population = Population([1, 2, 3], groups=["a", 7, np.int64(7)])  # type: ignore[list-item]

    assert population.groups == ("a", 7, 7)
    assert Population([1, 2, 3]).groups is None


def test_clients_without_a_label_are_unlabelled() -> None:
    assert Population([1, 2], groups=["a", None]).groups == ("a", "unlabelled")


def test_labels_may_be_an_array() -> None:
    assert Population([1, 2], groups=np.array(["a", "b"])).groups == ("a", "b")  # type: ignore[arg-type]


def test_clients_that_are_away_keep_their_labels() -> None:
    population = Population([1, 2], groups=["a", "b"])

    assert population.restricted([True, False]).groups == ("a", "b")


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (["a"], r"groups must be one label per client, 2; got 1\. Label every client"),
        (5, r"groups must be one label per client, 2; got 0"),
        (["a", 1.5], r"groups must be strings or integers; got 1\.5\. Write the label as"),
        (["a", True], r"groups must be strings or integers; got True"),
        (["a", ("b",)], r"groups must be strings or integers; got \('b',\)"),
    ],
)
def test_labels_that_do_not_fit_are_refused(groups: object, message: str) -> None:
    with pytest.raises(PopulationError, match=f"^Population: {message}"):
        Population([1, 2], groups=groups)  # type: ignore[arg-type]


def test_the_index_of_a_series_names_the_clients() -> None:
    pandas = pytest.importorskip("pandas", reason="the extra 'report' is not installed")
    sizes = pandas.Series([5, 3, 2], index=["Nice", "Lyon", "Brest"])

    assert Population(sizes).ids == ("Nice", "Lyon", "Brest")
    assert Population(sizes).sizes.tolist() == [5, 3, 2]
    assert Population(importance=sizes / 10).ids == ("Nice", "Lyon", "Brest")
    assert Population(sizes, ids=["a", "b", "c"]).ids == ("a", "b", "c")
    assert Population(sizes.reset_index(drop=True)).ids == range(3)
    for wrong in ({"sizes": {"Nice": 5}}, {"importance": {"Nice": 1.0}}):
        with pytest.raises(PopulationError, match="must be a flat list"):
            Population(**wrong)
