"""A plan that exists is unbiased."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from fedcohort import Plan, Population
from fedcohort.designs import SizeClusteredDesign
from fedcohort.errors import InputError, PlanError
from populations import CIFAR_SIZES, rng

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POPULATION = Population([5, 3, 2])
ROWS = [[10, 0, 0], [0, 6, 4]]


def test_probabilities_are_units_over_total() -> None:
    plan = Plan(csr_array(np.array(ROWS)), POPULATION)

    assert plan.probabilities.toarray().tolist() == [[1.0, 0.0, 0.0], [0.0, 0.6, 0.4]]
    assert (plan.cohort_size, plan.total) == (2, 10)


def test_a_row_draws_only_its_own_clients() -> None:
    clients = Plan(csr_array(np.array(ROWS)), POPULATION).draw_clients(1000, rng())

    assert set(clients[:, 0]) == {0}
    assert set(clients[:, 1]) == {1, 2}


def test_the_main_row_of_a_client_holds_most_of_it_and_is_the_first_of_equals() -> None:
    population = Population([3, 4, 0, 3])
    plan = Plan(csr_array(np.array([[4, 4, 0, 2], [2, 4, 0, 4]])), population)

    dense = plan.units.toarray()
    assert plan.main_rows().tolist() == [0, 0, -1, 1]
    assert dense.argmax(axis=0)[dense.sum(axis=0) > 0].tolist() == [0, 0, 1]


def test_units_are_copied_and_cannot_be_changed() -> None:
    units = csr_array(np.array(ROWS))
    plan = Plan(units, POPULATION)
    units.data[:] = 0

    assert plan.units.sum() == 20
    for array in (plan.units.data, plan.units.indices, plan.units.indptr):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 3


def test_stored_zeros_and_split_entries_are_put_in_order() -> None:
    data, columns, starts = [4, 6, 0, 0, 6, 4], [0, 0, 1, 0, 1, 2], [0, 3, 6]
    units = csr_array((np.array(data), np.array(columns), np.array(starts)), shape=(2, 3))

    plan = Plan(units, POPULATION)

    assert plan.units.nnz == 3
    assert plan.units.toarray().tolist() == ROWS


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[10, 0, 0], [0, 6, 3]], r"every row must sum to 10; row 1 sums to 9"),
        ([[0, 10, 0], [0, 6, 4]], r"column 0 must sum to 2 \* 5; got 0"),
        ([[10, 0], [0, 10]], r"needs a column for each of 3 clients; got 2"),
        ([[12, 0, -2], [-2, 6, 6]], r"units must not be negative; got -2"),
        (np.zeros((0, 3), dtype=int), r"every row must sum to 10; there is no row"),
        ([[1.0, 0.0, 0.0], [0.0, 0.6, 0.4]], r"units must be a matrix of integers; got float64"),
    ],
)
def test_rows_and_columns_that_do_not_add_up_are_refused(rows: object, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Plan(csr_array(np.array(rows)), POPULATION)


def size_plan(sizes: list[int], m: int, ids: list[str] | None = None) -> Plan:
    return SizeClusteredDesign(Population(sizes, ids=ids), m, rng=rng()).plan


class TestPlot:
    """Plan.plot: a bar for every distribution, cut into its clients' pieces."""

    @pytest.fixture(autouse=True)
    def _needs_matplotlib(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")
        monkeypatch.setenv("MPLBACKEND", "agg")

    def test_every_distribution_is_a_full_bar_of_its_clients_pieces(self) -> None:
        plan = size_plan(CIFAR_SIZES, 12)

        bars = pieces(drawn(plan))

        assert len(bars) == 12
        assert sum(map(len, bars)) == plan.units.nnz
        for row, bar in enumerate(bars):
            widths = sorted(width for _, width in bar)
            assert widths == pytest.approx(sorted(plan.units[[row]].data / plan.total), abs=1e-12)
            assert bar[-1][0] + bar[-1][1] == pytest.approx(1)

    def test_the_pieces_of_a_split_client_are_last_and_first(self) -> None:
        """[5, 4, 1], m = 3: the line is 10 | 5, 5 | 7, 3."""
        axes = drawn(size_plan([5, 4, 1], 3, ids=["a", "b", "c"]))

        rounded = [[(round(x, 9), round(width, 9)) for x, width in bar] for bar in pieces(axes)]
        assert rounded == [[(0, 1)], [(0, 0.5), (0.5, 0.5)], [(0, 0.7), (0.7, 0.3)]]
        assert [text.get_text() for text in axes.texts] == ["a", "a", "b", "b", "c"]
        colours = [patch.get_facecolor() for patch in axes.patches]
        assert colours[0] == colours[1] != colours[2] == colours[3] != colours[4]

    def test_small_clients_of_a_large_distribution_share_a_grey_piece(self) -> None:
        """100 samples of one client, and 100 clients of one: half and 100 times half a percent."""
        axes = drawn(size_plan([100] + [1] * 100, 1))

        assert [[round(width, 9) for _, width in bar] for bar in pieces(axes)] == [[0.5, 0.5]]
        texts = [text.get_text() for text in axes.texts]
        assert texts == ["0", "100 clients, at most 0.5 % each"]
        assert "grey: many clients" in axes.get_xlabel()

    def test_what_all_names_begin_with_is_said_once_and_names_that_do_not_fit_are_left_out(
        self,
    ) -> None:
        ids = [f"hospital-{k:02d}" for k in range(1, 13)]

        axes = drawn(size_plan([100] * 11 + [1], 1, ids=ids))

        assert {text.get_text() for text in axes.texts} == {f"{k:02d}" for k in range(1, 12)}
        assert axes.get_xlabel().endswith("; names without 'hospital-'")

    def test_of_many_distributions_both_ends_are_drawn(self) -> None:
        axes = drawn(size_plan([1] * 400, 200))

        assert len(pieces(axes)) == 60
        assert "..." in [label.get_text() for label in axes.get_yticklabels()]
        assert axes.get_yticklabels()[-1].get_text() in ("199", "200")

    @pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
    def test_it_is_written_with_a_title(self, suffix: str, tmp_path: Path) -> None:
        path = tmp_path / f"plan{suffix}"

        axes = size_plan([5, 4, 1, 0], 3).plot(path)

        assert path.stat().st_size > 1000
        title = axes.figure.figure.get_suptitle()
        assert title == "3 distributions of 3 clients: one is drawn from each"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"ax": 3}, "Plan.plot: ax must be axes of matplotlib; got 3"),
            ({"path": 3}, "Plan.plot: path must be a file name that ends in .png"),
            ({"path": "x.gif"}, "Plan.plot: path must end in .png, .svg, .pdf; got 'x.gif'"),
        ],
    )
    def test_nonsense_is_refused_in_one_sentence(
        self, arguments: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(InputError, match=message):
            size_plan([5, 4, 1], 3).plot(**arguments)


def drawn(plan: Plan) -> "Axes":
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    assert plan.plot(ax=axes) is axes
    return axes


def pieces(axes: "Axes") -> list[list[tuple[float, float]]]:
    """Return left end and width of every piece, by bar."""
    return [[(patch.get_x(), patch.get_width()) for patch in bar] for bar in axes.containers]
