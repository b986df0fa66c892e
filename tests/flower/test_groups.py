"""Labels of clients in a federation: they follow their clients, whoever leaves or joins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.serverapp.strategy import FedAvg

from fedcohort import Design, Multinomial, Population, Recipe, Stratified, Target
from fedcohort.designs import RowDesign
from fedcohort.designs.recipe import Knowledge
from fedcohort.errors import FedcohortError, PopulationError
from fedcohort.flower import CohortStrategy
from flower.federation import client_app, drawn, grid_of, model, one_round
from flower.in_process import InProcessGrid

#: Six equal clients in two groups.
GROUPS = {str(client): label for client, label in enumerate("aabbab")}


def equal_grid() -> InProcessGrid:
    """Make a grid of six clients of one size; a seventh may come."""
    return grid_of(app=client_app([1] * 7))


def without(grid: InProcessGrid, *clients: int) -> dict[int, int]:
    return {node: client for node, client in grid.partitions.items() if client not in clients}


def rows_of(strategy: CohortStrategy) -> list[list[str]]:
    """Return the clients of every distribution, sorted."""
    design = strategy.selector.design
    assert isinstance(design, RowDesign)
    ids, units = strategy.selector.population.ids, design.plan.units.toarray()
    return sorted(sorted(str(ids[k]) for k in row.nonzero()[0].tolist()) for row in units)


def test_groups_follow_their_clients() -> None:
    """Two leave, then one that has no label comes."""
    grid = equal_grid()
    strategy = CohortStrategy(FedAvg(), Target(2), seed=0, groups=GROUPS)
    one_round(strategy, grid, 1)
    first = rows_of(strategy)
    grid.partitions = without(grid, 0, 2)
    one_round(strategy, grid, 2)
    second = rows_of(strategy)
    grid.partitions |= {7777: 6}

    one_round(strategy, grid, 3)

    assert first == [["0", "1", "4"], ["2", "3", "5"]]
    assert second == [["1", "4"], ["3", "5"]]
    assert any({"1", "4"} <= set(row) for row in rows_of(strategy))
    assert strategy.selector.population.groups == (*"aabbab", "unlabelled")


def test_a_label_may_be_given_before_its_client_comes() -> None:
    grid = equal_grid()
    grid.partitions = without(grid, 5)
    strategy = CohortStrategy(FedAvg(), Target(2), seed=0, groups=GROUPS)
    one_round(strategy, grid, 1)
    grid.partitions |= {7777: 5}

    one_round(strategy, grid, 2)

    assert rows_of(strategy) == [["0", "1", "4"], ["2", "3", "5"]]


def test_strata_follow_their_clients_too() -> None:
    """Client 0 of stratum x leaves: the strata of the others stay; one draw in each remains."""
    grid = grid_of(app=client_app([1] * 6))
    labels = dict(enumerate("xxyyzz"))
    strategy = CohortStrategy(FedAvg(), Stratified(3), seed=0, groups=labels)
    one_round(strategy, grid, 1)
    grid.partitions = without(grid, 0)

    for number in range(2, 12):
        before = drawn(strategy)
        one_round(strategy, grid, number)
        new = {int(k) for k, n in drawn(strategy).items() if n > before.get(k, 0)}
        assert len(new & {1}) == len(new & {2, 3}) == len(new & {4, 5}) == 1


@pytest.mark.parametrize("is_given_again", [True, False])
def test_labels_survive_a_restart_with_one_client_fewer(
    is_given_again: bool, tmp_path: Path
) -> None:
    first = CohortStrategy(FedAvg(), Target(2), seed=0, groups=GROUPS)
    one_round(first, equal_grid(), 1)
    first.save(tmp_path / "state", model())
    groups = GROUPS if is_given_again else None
    second = CohortStrategy(FedAvg(), Target(2), seed=0, groups=groups)
    second.load(tmp_path / "state")
    grid = equal_grid()
    grid.partitions = without(grid, 3)

    for number in (1, 2, 3):
        one_round(second, grid, number)
    second.save(tmp_path / "again", model())
    third = CohortStrategy(FedAvg(), Target(2), seed=0, groups=groups)
    third.load(tmp_path / "again")
    one_round(third, equal_grid(), 1)

    assert second.selector.population.groups == tuple("aabbab")
    assert rows_of(third) == [["0", "1", "4"], ["2", "3", "5"]]


def test_labels_that_were_saved_before_anybody_came_are_not_lost(tmp_path: Path) -> None:
    CohortStrategy(FedAvg(), Target(2), seed=0, groups=GROUPS).save(tmp_path / "state", model())
    strategy = CohortStrategy(FedAvg(), Target(2), seed=0, groups=GROUPS)
    strategy.load(tmp_path / "state")

    one_round(strategy, equal_grid())

    assert rows_of(strategy) == [["0", "1", "4"], ["2", "3", "5"]]


@final
@dataclass(frozen=True)
class Largest(Recipe):
    """Draw from the clients of the group with the most samples: a user's own recipe."""

    name: ClassVar[str] = "largest-group"

    def design(self, population: Population, known: Knowledge) -> Design:
        assert population.groups is not None
        samples = dict.fromkeys(population.groups, 0)
        for label, size in zip(population.groups, population.sizes.tolist(), strict=True):
            samples[label] += size
        most = max(samples, key=samples.__getitem__)
        chosen = [
            size if label == most else 0
            for label, size in zip(population.groups, population.sizes.tolist(), strict=True)
        ]
        return Multinomial(self.cohort_size).build(Population(chosen), rng=known.rng)


def test_a_users_own_recipe_reads_the_groups_while_nodes_leave_and_join(tmp_path: Path) -> None:
    """Group a has three clients until two of them leave, then b; with the seventh a has more."""
    grid, recipe = equal_grid(), Largest(3)
    groups = GROUPS | {"6": "a"}
    strategy = CohortStrategy(FedAvg(), recipe, seed=0, groups=groups)
    drawn_from = []
    for number, leave, join in [(1, (5,), {}), (2, (0, 1), {}), (3, (), {8: 0, 9: 6})]:
        grid.partitions = without(grid, *leave) | join
        if number == 3:
            strategy.save(tmp_path / "state", model())
            strategy = CohortStrategy(FedAvg(), recipe, seed=0, groups=groups)
            strategy.load(tmp_path / "state")
        before = drawn(strategy)
        one_round(strategy, grid, number)
        drawn_from.append({k for k, n in drawn(strategy).items() if n > before.get(k, 0)})

    assert drawn_from[0] <= {"0", "1", "4"}
    assert drawn_from[1] <= {"2", "3"}
    assert drawn_from[2] <= {"0", "4", "6"}


def test_a_recipe_by_group_without_labels_is_refused_before_anybody_trains() -> None:
    grid = equal_grid()

    with pytest.raises(FedcohortError, match="groups"):
        one_round(CohortStrategy(FedAvg(), Target(2), seed=0), grid)
    assert not [node for kind, node in grid.asked if kind == "train"]


def test_labels_must_be_text_or_integers() -> None:
    with pytest.raises(PopulationError, match="groups must be strings or integers"):
        CohortStrategy(FedAvg(), Target(2), seed=0, groups={"0": 1.5})  # type: ignore[dict-item]
