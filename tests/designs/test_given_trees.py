"""Trees that are built and trees that are given; what is no tree is refused in one sentence."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import laws
from fedcohort import Population
from fedcohort.designs import SimilarityClusteredDesign, TournamentDesign
from fedcohort.errors import DesignError
from fedcohort.similarity import GroupTree, MergeTree
from populations import random_merges, rng

FOUR = Population([1, 1, 1, 1])
UPDATES = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [0.0, 3.0]])
PAIRS = np.array([[0, 2], [1, 3], [4, 5]])


def merged(merges: Any) -> MergeTree:
    return MergeTree(merges, np.zeros(len(merges)))


def grouped(groups: Any, merges: Any) -> GroupTree:
    return GroupTree(groups, merges)


def tournament(**arguments: Any) -> TournamentDesign:
    return TournamentDesign(FOUR, 2, **arguments, rng=rng())


BOTH_DESIGNS = pytest.mark.parametrize("design", [TournamentDesign, SimilarityClusteredDesign])


@BOTH_DESIGNS
@pytest.mark.parametrize(
    "tree",
    [
        merged(PAIRS),
        merged(PAIRS.tolist()),
        merged(PAIRS.astype(np.uint8)),
        grouped(np.array([0, 1, 0, 1]), np.array([[0, 1]])),
        grouped([1, 0, 1, 0], [[1, 0]]),
    ],
)
def test_a_given_tree_is_used(design: Any, tree: Any) -> None:
    """Clients 0 and 2 share a draw, and so do 1 and 3."""
    counts = design(FOUR, 2, tree=tree, rng=rng()).draw_many(100, rng()).toarray()

    assert (counts[:, [0, 2]].sum(axis=1) == 1).all()
    assert (counts[:, [1, 3]].sum(axis=1) == 1).all()
    assert counts.max(axis=0).tolist() == [1, 1, 1, 1]


@BOTH_DESIGNS
def test_a_given_tree_has_a_leaf_for_clients_of_size_zero_too(design: Any) -> None:
    """Seven clients, three of them empty, on forty trees: unbiased, and nobody empty comes."""
    population = Population([3, 0, 2, 0, 1, 4, 0])
    for seed in range(40):
        tree = merged(random_merges(7, rng(seed)))

        built = design(population, 3, tree=tree, rng=rng())

        assert built.leaves.tolist() == [0, 2, 4, 5]
        assert laws.moments(built).mean_weights == laws.importance(population)
        assert built.draw_many(20, rng()).toarray()[:, [1, 3, 6]].sum() == 0


@BOTH_DESIGNS
@pytest.mark.parametrize(
    "tree",
    [
        grouped(np.array([0, 0, 3, 3]), np.array([[0, 1], [2, 3], [4, 5]])),
        grouped(np.array([0, 0, 1, 1]), np.array([[0, 3], [2, 1], [4, 5]])),
        grouped(np.array([2, 2, 1, 1]), np.array([[0, 3], [4, 1], [5, 2]])),
    ],
)
def test_groups_may_be_empty_first_in_between_and_last(design: Any, tree: GroupTree) -> None:
    built = design(FOUR, 2, tree=tree, rng=rng())

    expected = {
        counts: Fraction(1, 4)
        for counts in [(1, 0, 1, 0), (1, 0, 0, 1), (0, 1, 1, 0), (0, 1, 0, 1)]
    }
    assert laws.law(built) == expected
    assert set(map(tuple, built.draw_many(200, rng()).toarray().tolist())) == set(expected)
    assert built.aggregate_variance([[0.0], [0.0], [1.0], [1.0]]) == 0.0


def test_a_tree_over_clients_that_are_all_certain_has_no_duels() -> None:
    for tree in (merged(PAIRS), grouped([0, 1, 0, 1], [[0, 1]])):
        design = TournamentDesign(FOUR, 4, tree=tree, rng=rng())

        assert (design.draw_many(3, rng()).toarray() == 1).all()
        assert (design.weight_covariance() == 0).all()
        assert design.aggregate_variance(UPDATES) == 0.0


def test_one_client_needs_no_merges() -> None:
    for tree in (merged(np.empty((0, 2))), grouped([0], np.empty((0, 2)))):
        design = TournamentDesign(Population([3]), 2, tree=tree, rng=rng())

        assert design.draw(rng()).counts.tolist() == [2]


@pytest.mark.parametrize(
    "arguments",
    [
        {"updates": UPDATES, "groups": "abab"},
        {"tree": merged(PAIRS), "groups": "abab"},
    ],
)
def test_groups_come_without_updates_and_without_a_tree(arguments: dict[str, Any]) -> None:
    with pytest.raises(DesignError, match="needs one of updates, tree and groups; got groups and"):
        tournament(**arguments)


@BOTH_DESIGNS
def test_either_updates_or_a_tree_is_needed(design: Any) -> None:
    with pytest.raises(DesignError, match=r"needs either updates or a tree .* got neither"):
        design(FOUR, 2, rng=rng())
    with pytest.raises(DesignError, match=r"needs either updates or a tree .* got both"):
        design(FOUR, 2, UPDATES, tree=merged(PAIRS), rng=rng())


@BOTH_DESIGNS
@pytest.mark.parametrize(
    ("merges", "shape"),
    [
        ([[4, 2], [0, 1], [5, 3]], r"\(3, 2\)"),  # not children first
        ([[0, 4], [1, 2], [5, 3]], r"\(3, 2\)"),  # its own child
        ([[0, 1], [0, 2], [4, 5]], r"\(3, 2\)"),  # 0 is joined twice, 3 never
        ([[0, 1], [2, 3], [4, 6]], r"\(3, 2\)"),  # the root below itself
        ([[0, 1], [2, 3], [4, -1]], r"\(3, 2\)"),
        ([[0, 1], [2, 3]], r"\(2, 2\)"),
        ([[0, 1, 2], [3, 4, 5]], r"\(2, 3\)"),
        ([0, 1, 2, 3, 4, 5], r"\(6,\)"),
        ([[0, 1], [2]], r"\(0, 0\)"),
        ([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], r"\(3, 2\)"),
    ],
)
def test_merges_that_make_no_tree_are_refused(design: Any, merges: Any, shape: str) -> None:
    sentence = (
        rf"a tree of 4 leaves needs integer merges of shape \(3, 2\), children first, each node "
        rf"joined once; got other ones, \w+ of shape {shape}. Use merge_tree."
    )

    with pytest.raises(DesignError, match=sentence):
        design(FOUR, 2, tree=merged(merges), rng=rng())


def test_merges_of_groups_are_held_to_the_same() -> None:
    with pytest.raises(DesignError, match="a tree of 2 leaves needs integer merges of shape"):
        tournament(tree=grouped([0, 1, 0, 1], [[0, 0]]))


@BOTH_DESIGNS
@pytest.mark.parametrize(
    "groups",
    [[0, 1, 0], [0, 1, 0, 2], [0, 1, 0, -1], [0.0, 1.0, 0.0, 1.0], [[0, 1], [0, 1]], "abab"],
)
def test_numbers_of_groups_that_do_not_fit_are_refused(design: Any, groups: Any) -> None:
    with pytest.raises(
        DesignError, match="a tree of 2 groups needs a number from 0 to 1 for each of 4 clients; "
    ):
        design(FOUR, 2, tree=grouped(groups, [[0, 1]]), rng=rng())


@BOTH_DESIGNS
def test_a_group_above_the_capacity_is_refused(design: Any) -> None:
    """M = 4; three clients of two units each make six."""
    with pytest.raises(DesignError, match=r"more than 4 units; group 1 has 6. Split it."):
        design(FOUR, 2, tree=grouped([0, 1, 1, 1], [[0, 1]]), rng=rng())


@pytest.mark.parametrize("groups", [["a", "b"], "abcde", [["a"]] * 4, 3])
def test_labels_that_do_not_fit_the_clients_are_refused(groups: Any) -> None:
    with pytest.raises(DesignError, match="groups must be one label per client, 4; got"):
        tournament(groups=groups)


@BOTH_DESIGNS
@pytest.mark.parametrize("tree", [None, 3, PAIRS, PAIRS.tolist()])
def test_what_is_no_tree_is_refused(design: Any, tree: Any) -> None:
    with pytest.raises(DesignError, match=r"tree must be one of auto, .* or a MergeTree or Group"):
        design(FOUR, 2, UPDATES, tree=tree, rng=rng())


@pytest.mark.parametrize("arguments", [{"updates": UPDATES}, {"groups": "abab"}])
def test_a_misspelt_tree_gets_a_suggestion(arguments: dict[str, Any]) -> None:
    with pytest.raises(DesignError, match=r"got 'bisectin'. Did you mean 'bisecting'"):
        tournament(tree="bisectin", **arguments)


@BOTH_DESIGNS
@pytest.mark.parametrize("tree", ["vector", "bisecting"])
@pytest.mark.parametrize("other", [{"measure": "l1"}, {"linkage": "average"}])
def test_trees_of_points_need_a_measure_and_a_linkage_that_they_know(
    design: Any, tree: str, other: dict[str, str]
) -> None:
    with pytest.raises(
        DesignError, match=f"a {tree} tree needs measure arccos or l2 and linkage ward; got .*exact"
    ):
        design(FOUR, 2, UPDATES, tree=tree, **other, rng=rng())


@pytest.mark.parametrize(
    ("options", "way_out"),
    [
        ({"tree": "exact"}, r"tree='bisecting'\.$"),
        ({"measure": "l1"}, r"tree='bisecting', measure arccos or l2, linkage ward\.$"),
    ],
)
def test_an_exact_tree_of_too_many_clients_is_refused(
    options: dict[str, Any], way_out: str
) -> None:
    population = Population(np.ones(20_001, dtype=int))

    with pytest.raises(
        DesignError,
        match=rf"at most 20000 clients; got 20001, and 2 GB of distances. Use {way_out}",
    ):
        TournamentDesign(population, 10, np.ones((20_001, 1)), **options, rng=rng())
