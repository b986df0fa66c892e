"""A plan that exists is unbiased."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from fedcohort import Plan, Population
from fedcohort.errors import PlanError
from populations import rng

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
