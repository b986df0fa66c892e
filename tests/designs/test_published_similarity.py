"""The experiments' own design: Algorithm 2 with the published code's tree."""

import warnings
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.cluster.hierarchy import ClusterWarning
from scipy.cluster.hierarchy import linkage as scipy_linkage

from fedcohort import Population
from fedcohort.designs import SimilarityClusteredDesign
from fedcohort.errors import DesignError
from fedcohort.similarity import MEASURES
from fedcohort.testing import check_design
from populations import CIFAR_SIZES, rng, same
from trees import federation_without_ties, largest_groups_open_the_rows, plain_distances

FILE = Path(__file__).parents[2] / "experiments" / "published_similarity.py"


@pytest.fixture(scope="module")
def published() -> Any:
    spec = spec_from_file_location("published_similarity", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_it_keeps_the_contract_of_all_designs(published: Any) -> None:
    check_design(published.PublishedSimilarity(3))


@pytest.mark.parametrize("linkage", ["ward", "average", "single"])
@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("seed", range(3))
def test_the_rows_of_the_matrix_are_taken_for_points(
    published: Any, measure: str, linkage: Any, seed: int
) -> None:
    """Without ties the tree is the same whatever the permutation: a plain one must agree."""
    sizes, updates = federation_without_ties(seed)
    matrix = plain_distances(updates, measure)
    with warnings.catch_warnings():
        # scipy suspects the published code's mistake.
        warnings.simplefilter("ignore", ClusterWarning)
        merges = scipy_linkage(matrix**2 if measure == "l2" else matrix, linkage)

    design = published.PublishedSimilarityDesign(
        Population(sizes), 4, updates, measure=measure, linkage=linkage, rng=rng(seed)
    )

    assert largest_groups_open_the_rows(design.plan, sizes, merges)


def test_an_unseen_client_is_at_angle_zero_to_all(published: Any) -> None:
    """Rows (0, 0, 0), (0, 0, a), (0, a, 0): the unseen client is nearer to each than they are."""
    updates = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])

    distances = published.between_rows(updates, "arccos")

    assert distances.round(9).tolist() == [1.0, 1.0, round(2**0.5, 9)]


@pytest.mark.parametrize("measure", MEASURES)
def test_clients_of_one_kind_share_a_row(published: Any, measure: str) -> None:
    """Ten kinds of ten equal clients, shuffled: the paper's ideal clusters, one kind a row."""
    kinds = rng(5).permutation(np.repeat(np.arange(10), 10))
    updates = 10 * np.eye(10)[kinds] + 0.01 * rng(6).standard_normal((100, 10))

    design = published.PublishedSimilarityDesign(
        Population([500] * 100), 10, updates, measure=measure, rng=rng()
    )

    rows = [set(kinds[np.flatnonzero(row)]) for row in design.plan.units.toarray()]
    assert sorted(rows, key=min) == [{kind} for kind in range(10)]


@pytest.mark.parametrize("scale", [1e-200, 1e-20, 1e20, 1e140])
@pytest.mark.parametrize("measure", MEASURES)
def test_the_unit_of_the_updates_does_not_matter(
    published: Any, measure: str, scale: float
) -> None:
    population, updates = Population(CIFAR_SIZES), rng(12).standard_normal((100, 6))

    plans = [
        published.PublishedSimilarityDesign(
            population, 10, unit * updates, measure=measure, rng=rng()
        ).plan
        for unit in (1.0, scale)
    ]

    assert same(*plans)


def test_its_tree_can_differ_from_that_of_the_distances(published: Any) -> None:
    population, updates = Population(CIFAR_SIZES), rng(7).standard_normal((100, 20))

    as_published = published.PublishedSimilarityDesign(population, 10, updates, rng=rng())
    by_distance = SimilarityClusteredDesign(population, 10, updates, rng=rng())

    assert not same(as_published.plan, by_distance.plan)


def test_other_trees_are_refused(published: Any) -> None:
    with pytest.raises(DesignError, match=r"tree must be exact; got 'bisecting'. Leave it out."):
        published.PublishedSimilarity(3, tree="bisecting")
