"""Algorithm 2, with the slips of its printed form put right."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import linkage as scipy_linkage

from fedcohort import Population, SimilarityClustered, UpdateMemory, diagnostics
from fedcohort.designs import SimilarityClusteredDesign
from fedcohort.errors import DesignError
from fedcohort.similarity.measures import MEASURES, MeasureName
from fedcohort.similarity.trees import LINKAGES, Linkage
from populations import CIFAR_SIZES, cohort_sizes, larger_populations, rng, same
from trees import federation_without_ties, largest_groups_open_the_rows, plain_distances


def test_a_client_with_more_than_a_row_gets_whole_rows_first() -> None:
    """[5, 3, 2], m = 3: {1: 10}, then units (5, 9, 6) give {2: 9, 1: 1} and {3: 6, 1: 4}."""
    updates = np.eye(3)

    plan = SimilarityClusteredDesign(Population([5, 3, 2]), 3, updates, rng=rng()).plan

    assert plan.units.toarray().tolist() == [[10, 0, 0], [1, 9, 0], [4, 0, 6]]


def test_a_client_may_lie_in_as_many_rows_as_it_needs() -> None:
    """[3, 3, 3, 1], m = 3: each row has one unit of room."""
    updates = np.eye(4)

    plan = SimilarityClusteredDesign(Population([3, 3, 3, 1]), 3, updates, rng=rng()).plan

    rows = plan.units.toarray()
    assert rows[:, 3].tolist() == [1, 1, 1]
    assert sorted(rows[:, :3].tolist()) == [[0, 0, 9], [0, 9, 0], [9, 0, 0]]


@given(
    larger_populations(),
    cohort_sizes(12),
    st.sampled_from(LINKAGES),
    st.sampled_from(get_args(MeasureName)),
    st.integers(0, 3),
)
def test_every_row_and_column_is_exact_for_every_measure_and_linkage(
    population: Population, m: int, linkage: Linkage, measure: MeasureName, dimension: int
) -> None:
    """Dimension 0 stands for updates that are all zero."""
    n = population.n_clients
    updates = rng(4).integers(-2, 3, size=(n, dimension)) if dimension else np.zeros((n, 1))

    plan = SimilarityClusteredDesign(
        population, m, updates, measure=measure, linkage=linkage, rng=rng()
    ).plan

    assert (plan.units.sum(axis=1) == population.total).all()
    assert (plan.units.sum(axis=0) == m * population.sizes).all()


@pytest.mark.parametrize("linkage", ["ward", "average", "single"])
@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("seed", range(3))
def test_the_largest_groups_of_the_tree_open_the_rows(
    measure: MeasureName, linkage: Linkage, seed: int
) -> None:
    """Without ties the tree is the same whatever the permutation: a plain one must agree."""
    sizes, updates = federation_without_ties(seed)
    matrix = plain_distances(updates, measure)
    merges = scipy_linkage(matrix[np.triu_indices(len(matrix), 1)], linkage)

    design = SimilarityClustered(4, measure=measure, linkage=linkage).build(
        Population(sizes), memory=UpdateMemory.of(updates), rng=seed
    )

    assert isinstance(design, SimilarityClusteredDesign)
    assert largest_groups_open_the_rows(design.plan, sizes, merges)


@pytest.mark.parametrize("measure", MEASURES)
def test_clients_of_one_kind_share_a_row(measure: MeasureName) -> None:
    """Ten kinds of ten equal clients, shuffled: the paper's ideal clusters, one kind a row."""
    kinds = rng(5).permutation(np.repeat(np.arange(10), 10))
    centres = 10 * np.eye(10)
    updates = (centres[kinds] + 0.01 * rng(6).standard_normal((100, 10))).astype(np.float32)

    design = SimilarityClusteredDesign(
        Population([500] * 100), 10, updates, measure=measure, rng=rng()
    )

    rows = [set(kinds[np.flatnonzero(row)]) for row in design.plan.units.toarray()]
    assert sorted(rows, key=min) == [{kind} for kind in range(10)]
    assert diagnostics.aggregate_variance(design, centres[kinds]) < 1e-12


def test_clients_that_were_never_seen_form_a_group_of_their_own() -> None:
    updates = np.zeros((8, 3))
    updates[:4] = np.array([[1, 0, 0], [1, 0.1, 0], [1, 0, 0.1], [1, 0.1, 0.1]])

    plan = SimilarityClusteredDesign(Population([1] * 8), 2, updates, rng=rng()).plan

    rows = [np.flatnonzero(row).tolist() for row in plan.units.toarray()]
    assert sorted(rows) == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(
    "updates",
    [
        np.outer(np.arange(1, 31), rng(8).standard_normal(500)).astype(np.float32),
        np.tile(rng(9).standard_normal(7), (30, 1)),
        np.zeros((30, 4), dtype=np.float32),
        1e-20 * rng(10).standard_normal((30, 4)).astype(np.float32),
        1e-200 * rng(10).standard_normal((30, 4)),
        1e149 * rng(10).standard_normal((30, 4)).clip(-5, 5),
    ],
    ids=["proportional", "identical", "zero", "1e-20", "1e-200", "1e149"],
)
def test_degenerate_updates_work(measure: MeasureName, updates: np.ndarray) -> None:
    population = Population(rng(11).integers(1, 50, size=30))

    design = SimilarityClusteredDesign(population, 6, updates, measure=measure, rng=rng())

    assert np.isfinite(design.plan.probabilities.data).all()
    assert design.draw(rng()).counts.sum() == 6


@pytest.mark.parametrize("scale", [1e-200, 1e-20, 1e20, 1e140])
@pytest.mark.parametrize("measure", MEASURES)
def test_the_unit_of_the_updates_does_not_matter(measure: MeasureName, scale: float) -> None:
    population, updates = Population(CIFAR_SIZES), rng(12).standard_normal((100, 6))

    plans = [
        SimilarityClusteredDesign(population, 10, unit * updates, measure=measure, rng=rng()).plan
        for unit in (1.0, scale)
    ]

    assert same(*plans)


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        (np.zeros((2, 3)), r"shape \(3, dimension\), one row per client; got float64 of shape \(2"),
        ([[1, 2], [3], [4, 5]], r"got object of shape \(0, 0\)"),
        (np.zeros(3), r"got float64 of shape \(3,\)"),
        (np.zeros((3, 0)), r"got float64 of shape \(3, 0\)"),
        (np.array([["a"], ["b"], ["c"]]), r"must be real numbers"),
        (np.zeros((3, 2), dtype=complex), r"must be real numbers"),
        (None, r"needs either updates or a tree over all clients; got neither"),
        ([[0, 1], [np.inf, np.nan], [0, 0]], r"finite and below 1e\+150; client 1 sent 2 other"),
        (np.array([[0], [0], [-np.inf]], dtype=np.float32), r"client 2 sent 1 other values"),
        ([[1e151], [0.0], [0.0]], r"client 0 sent 1 other values"),
    ],
)
def test_updates_that_cannot_be_used_are_refused(updates: object, message: str) -> None:
    with pytest.raises(DesignError, match=message):
        SimilarityClusteredDesign(Population([1, 2, 3]), 2, updates, rng=rng())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"measure": "cosine"}, r"measure must be one of arccos, l2, l1; got 'cosine'\."),
        ({"linkage": "wards"}, r"linkage must be one of ward, .*Did you mean 'ward'\?"),
        ({"tree": "exakt"}, r"tree must be one of auto, exact, .*Did you mean 'exact'\?"),
    ],
)
def test_unknown_options_are_refused(option: dict[str, str], message: str) -> None:
    with pytest.raises(DesignError, match=message):
        SimilarityClusteredDesign(Population([1, 2]), 1, np.eye(2), rng=rng(), **option)  # type: ignore[arg-type]


def test_it_needs_a_generator_or_a_seed_for_ties() -> None:
    with pytest.raises(
        DesignError, match=r"SimilarityClusteredDesign: rng must be an integer .* got 1.5"
    ):
        SimilarityClusteredDesign(Population([1, 2]), 1, np.eye(2), rng=1.5)  # type: ignore[arg-type]


def test_too_many_pairs_are_refused_before_memory_is_taken() -> None:
    with pytest.raises(DesignError, match=r"at most 20000 clients; got 200000, and 160 GB"):
        SimilarityClustered(10, tree="exact").build(
            Population(np.ones(200_000, dtype=int)), rng=rng()
        )


def test_a_recipe_without_memory_takes_every_update_as_zero() -> None:
    population = Population(CIFAR_SIZES)

    recipe = SimilarityClustered(10).build(population, rng=rng(13))
    design = SimilarityClusteredDesign(population, 10, np.zeros((100, 1)), rng=rng(13))

    assert isinstance(recipe, SimilarityClusteredDesign)
    assert same(recipe.plan, design.plan)
