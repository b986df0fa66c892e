"""Which tree is built, and what it is built from."""

import logging
import sys
from typing import Any

import numpy as np
import pytest
from scipy.cluster.hierarchy import linkage as scipy_linkage

from fedcohort.errors import MissingExtraError
from fedcohort.similarity import MergeTree, arccos, cut_tree, measures, similarity_tree, trees
from fedcohort.similarity.measures import centred_points, unit_vectors
from populations import rng
from trees import is_tree, partition


def tree_of(n: int, **options: Any) -> Any:
    updates = rng(1).normal(size=(n, 3))
    return similarity_tree("Somebody", updates, np.ones(n, dtype=int), 3, **options, rng=rng())


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "AUTO_EXACT", 10)
    monkeypatch.setattr(trees, "AUTO_VECTOR", 20)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize(
    ("n", "options", "picked"),
    [
        (10, {}, "exact"),
        (11, {}, "vector"),
        (20, {"measure": "l2"}, "vector"),
        (21, {}, "bisecting"),
        (21, {"measure": "l1"}, "exact"),
        (21, {"linkage": "average"}, "exact"),
        (21, {"kind": "exact"}, "exact"),
        (5, {"kind": "bisecting"}, "bisecting"),
        (5, {"kind": "vector"}, "vector"),
    ],
)
def test_it_picks_by_the_number_of_clients_and_says_what(
    n: int, options: dict[str, Any], picked: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="fedcohort"):
        tree = tree_of(n, **options)

    assert caplog.record_tuples == [
        ("fedcohort", logging.INFO, f"Somebody: {picked} tree of {n} clients")
    ]
    assert is_tree(tree)
    assert (tree.whole is None) == (picked == "bisecting")


@pytest.mark.usefixtures("small_limits")
def test_without_fastcluster_it_picks_the_bisecting_tree(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "fastcluster", None)

    with caplog.at_level(logging.INFO, logger="fedcohort"):
        tree_of(15)

    assert caplog.messages == ["Somebody: bisecting tree of 15 clients"]


def test_without_fastcluster_a_vector_tree_names_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "fastcluster", None)

    with pytest.raises(
        MissingExtraError,
        match=r"^Somebody: needs fastcluster, which is not installed. "
        r"Run: pip install 'fedcohort\[scale\]'$",
    ):
        tree_of(5, kind="vector")


@pytest.mark.parametrize("measure", ["arccos", "l2"])
@pytest.mark.parametrize("n", [2, 3, 50, 300])
def test_a_vector_tree_is_wards_tree_of_the_same_points(n: int, measure: Any) -> None:
    """Random points: no ties. Heights agree to float64's roundings of a few hundred merges."""
    updates, masses = rng(2).normal(size=(n, 5)), rng(3).integers(1, 4, size=n)
    points = unit_vectors(updates) if measure == "arccos" else centred_points(updates)
    ward = scipy_linkage(points.astype(np.float64), "ward")

    tree = similarity_tree(
        "Somebody", updates, masses, 9, kind="vector", measure=measure, rng=rng()
    )

    assert tree.whole is not None
    merges = ward[:, :2].astype(int)
    assert np.sort(tree.whole.merges, axis=1).tolist() == np.sort(merges, axis=1).tolist()
    np.testing.assert_allclose(tree.whole.heights, ward[:, 2], rtol=1e-10)
    cut = cut_tree(MergeTree(merges, ward[:, 2]), masses, 9)
    assert partition(tree.groups) == partition(cut.groups)


@pytest.mark.parametrize("kind", ["exact", "vector", "bisecting"])
@pytest.mark.parametrize("measure", ["arccos", "l2"])
@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_few_and_equal_clients_have_a_tree(kind: Any, measure: Any, n: int) -> None:
    """None at all where every client is certain."""
    for updates in (np.zeros((n, 2)), np.ones((n, 2)), 1e-200 * rng().normal(size=(n, 2))):
        tree = similarity_tree(
            "Somebody", updates, np.ones(n, dtype=int), 2, kind=kind, measure=measure, rng=rng()
        )

        assert tree.groups.shape == (n,)
        assert is_tree(tree) or n == 0
        assert np.bincount(tree.groups, minlength=1).max() <= 2


# Points


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_directions_have_length_one_and_the_distances_of_their_angles(dtype: Any) -> None:
    """|u - v| = 2 sin(angle / 2), up to float32's roundings of five entries."""
    updates = rng(4).normal(size=(20, 5)).astype(dtype)

    units = unit_vectors(updates)

    assert units.dtype == np.float32
    assert units.shape == (20, 5)
    wide = units.astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(wide, axis=1), 1.0, atol=5 * 2.0**-24)
    upper = np.triu_indices(20, 1)
    apart = np.linalg.norm(wide[upper[0]] - wide[upper[1]], axis=1)
    np.testing.assert_allclose(apart, 2 * np.sin(arccos(updates) / 2), atol=20 * 2.0**-24)


def test_zero_updates_stand_at_a_right_angle_to_all_others() -> None:
    units = unit_vectors(np.array([[3.0, 4.0], [0.0, 0.0], [-1.0, 0.0], [0.0, -0.0]]))

    assert units.shape == (4, 3)
    products = units @ units.T
    assert products[1].tolist() == products[3].tolist() == [0.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize("scale", [1e-200, 1e-300, 5e-324, 1e149])
def test_directions_do_not_depend_on_the_length(scale: float) -> None:
    """Both ends of what updates may be; whole multiples of the smallest float keep their ratio."""
    whole = np.array([[3.0, -4.0], [1.0, 0.0], [8.0, 6.0]])

    units = unit_vectors(np.concatenate([whole * scale, whole]))

    assert units[:3].tolist() == units[3:].tolist()
    assert units[1].tolist() == [1.0, 0.0]


def test_a_direction_keeps_the_entries_that_it_has_besides_the_largest() -> None:
    """Clients of very different lengths side by side, in one array."""
    units = unit_vectors(np.array([[1e150, 1e150], [1e-200, 1e-200]]))

    np.testing.assert_allclose(units, np.sqrt(0.5), atol=4 * 2.0**-24)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_centred_points_have_the_distances_of_the_updates_in_one_unit(dtype: Any) -> None:
    updates = rng(5).normal(size=(40, 3)).astype(dtype)

    points = centred_points(updates)

    assert points.dtype == np.float32
    assert 1 - 2.0**-23 <= np.abs(points).max() <= 1 + 2.0**-23
    unit = np.abs(updates - updates.mean(axis=0)).max()
    apart = updates[:1] - updates
    np.testing.assert_allclose((points[:1] - points) * unit, apart, atol=8 * unit * 2.0**-24)


def test_centred_points_are_taken_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = rng(5).normal(size=(40, 3))
    whole = centred_points(updates)

    monkeypatch.setattr(measures, "BLOCK_ROWS", 7)

    assert (centred_points(updates) == whole).all()


def test_a_common_shift_does_not_hide_the_points() -> None:
    """In float32, 1e9 + 1 is 1e9. The mean, 3, is exact with and without the shift."""
    updates = np.array([[1.0], [2.0], [4.0], [5.0]])

    assert centred_points(updates + 1e9).tolist() == centred_points(updates).tolist()


def test_equal_updates_are_points_at_zero() -> None:
    assert (centred_points(np.full((4, 2), 3.0)) == 0).all()
    assert centred_points(np.empty((0, 2))).shape == (0, 2)
