"""Who is there: sizes that are asked, bounded or given, and nodes that come and go."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from hypothesis import given
from hypothesis import strategies as st

from fedcohort import SimilarityClustered, SizeClustered
from fedcohort.deployment.directory import cut_to_share
from fedcohort.errors import DesignError, FlowerError
from fedcohort.flower import CohortStrategy, Limits, Waits, register_size_query
from fedcohort.flower.directory import NodeDirectory
from flower.federation import (
    SIZES,
    client_app,
    grid_of,
    model,
    node_of,
    one_round,
    remembered,
    slow_grid,
)
from flower.in_process import Clock, InProcessGrid


def sizes_of(directory: NodeDirectory) -> list[int]:
    """Return the sizes in the order of the clients' numbers."""
    return [directory.sizes[key] for key in sorted(directory.sizes, key=int)]


def queries(grid: InProcessGrid) -> int:
    return sum(kind == "query.num_examples" for kind, _ in grid.asked)


def test_nodes_are_asked_once_for_their_sizes() -> None:
    directory, grid = NodeDirectory(), grid_of()

    changes = [directory.refresh(grid) for _ in range(3)]

    assert changes == [True, False, False]
    assert queries(grid) == len(SIZES)
    assert directory.sizes == {str(client): size for client, size in enumerate(SIZES)}


def test_sizes_that_the_server_knows_are_not_asked() -> None:
    grid = grid_of()
    directory = NodeDirectory({node: 10 + client for node, client in grid.partitions.items()})

    directory.refresh(grid)

    assert queries(grid) == 0
    assert sorted(directory.sizes.values()) == [10, 11, 12, 13, 14, 15]


def test_new_nodes_join_and_departed_ones_leave() -> None:
    directory, grid = NodeDirectory(), grid_of()
    everyone = dict(grid.partitions)
    gone = next(node for node, client in everyone.items() if client == 2)
    grid.partitions = {node: client for node, client in everyone.items() if node != gone}
    directory.refresh(grid)
    before = sorted(directory.present)

    grid.partitions = everyone
    joined = directory.refresh(grid)

    assert (before, joined) == (["0", "1", "3", "4", "5"], True)
    assert sorted(directory.present) == ["0", "1", "2", "3", "4", "5"]


def test_who_leaves_keeps_its_size() -> None:
    directory, grid = NodeDirectory(), grid_of()
    directory.refresh(grid)
    gone = directory.connection_of("2")
    grid.partitions = {node: client for node, client in grid.partitions.items() if node != gone}

    left = directory.refresh(grid)

    assert left
    assert "2" not in directory.present
    assert directory.sizes == {str(client): size for client, size in enumerate(SIZES)}


def test_a_node_that_returns_under_another_id_is_remembered() -> None:
    strategy, grid = CohortStrategy(FedAvg(), SimilarityClustered(3), seed=0), grid_of()
    for number in range(1, 9):
        one_round(strategy, grid, number)
    before = {key: update.copy() for key, update in remembered(strategy).items()}

    again = grid_of(first=5000)
    strategy.configure_train(9, model(), ConfigRecord(), again)

    after, directory = remembered(strategy), strategy.directory
    assert len(before) > 1
    assert all((after[key] == before[key]).all() for key in before)
    assert {directory.connection_of(key) for key in directory.present} == set(again.partitions)


@pytest.mark.parametrize("size", [-1, 2.5, "many", None])
def test_nonsense_is_left_out_and_logged(size: Any, caplog: pytest.LogCaptureFixture) -> None:
    app = client_app()
    grid, directory = grid_of(app=app), NodeDirectory()
    original = app.__call__

    def lying(message: Any, context: Any) -> Any:
        reply = original(message, context)
        if message.metadata.message_type.startswith("query") and context.node_config == {
            "partition-id": 0
        }:
            record = next(iter(reply.content.metric_records.values()))
            record.pop("num-examples")
            if isinstance(size, (int, float)):
                record["num-examples"] = size
        return reply

    grid.app = lying  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING, "flwr.fedcohort"):
        directory.refresh(grid)

    assert "0" not in directory.present
    assert len(directory.present) == 5
    assert "asking for sizes: 1 of 6 nodes failed" in caplog.text
    assert "its size must be a whole number from 0 to 10^12" in caplog.text


def test_a_node_without_the_query_is_left_out() -> None:
    app, grid = ClientApp(), grid_of()
    grid.app = app
    grid.fails = lambda node, kind: True

    with pytest.raises(FlowerError, match="6 nodes came and 0 told their sizes"):
        one_round(CohortStrategy(FedAvg(), SizeClustered(2), seed=0), grid)


def test_a_boast_is_bounded_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    grid = grid_of(app=client_app([50, 30, 20, 10**12, 10, 0]))
    directory = NodeDirectory(limits=Limits(max_size=1000, max_share=0.4))

    with caplog.at_level(logging.WARNING, "flwr.fedcohort"):
        directory.refresh(grid)

    sizes = sizes_of(directory)
    assert sizes[3] <= 0.4 * sum(sizes)
    assert [sizes[k] for k in (0, 1, 2, 4, 5)] == [50, 30, 20, 10, 0]
    assert "client '3' claims 1000000000000 samples; it counts as 73" in caplog.text


def test_by_default_a_boast_gets_half_where_there_are_many(
    caplog: pytest.LogCaptureFixture,
) -> None:
    honest = [50, 30, 20, 70, 10, 40, 60, 80, 90]
    grid = grid_of(10, app=client_app([*honest, 10**12]))
    directory = NodeDirectory()

    with caplog.at_level(logging.WARNING, "flwr.fedcohort"):
        directory.refresh(grid)

    assert sizes_of(directory) == [*honest, sum(honest)]
    assert "client '9' claims 1000000000000 samples; it counts as 450" in caplog.text


def test_honest_sizes_are_taken_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    """A tail as heavy as 1 / k, and two clients of which one has two thirds."""
    heavy, two = [1000 // k for k in range(1, 41)], [200, 100]
    for sizes in (heavy, two):
        directory = NodeDirectory()
        with caplog.at_level(logging.WARNING, "flwr.fedcohort"):
            directory.refresh(grid_of(len(sizes), app=client_app(sizes)))

        assert sizes_of(directory) == sizes
    assert caplog.text == ""


def test_sizes_that_the_server_knows_are_not_bounded_by_default() -> None:
    """Client 0's size is given; client 9 says of itself what it has, and gets at most half."""
    for claim, counted in [(10, 10), (10**12, 10**6 + 80)]:
        directory = NodeDirectory({"0": 10**6})

        directory.refresh(grid_of(10, app=client_app([1, *[10] * 8, claim])))

        assert sizes_of(directory) == [10**6, *[10] * 8, counted]


def test_among_few_a_boast_is_worth_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    directory = NodeDirectory()

    with caplog.at_level(logging.WARNING, "flwr.fedcohort"):
        directory.refresh(grid_of(3, app=client_app([10, 10**12, 20])))

    assert sizes_of(directory) == [10, 10**12, 20]
    assert "client '1' claims 1000000000000 of all 1000000000030 samples" in caplog.text


@given(
    st.lists(st.integers(0, 10**6), min_size=1, max_size=8).filter(any),
    st.floats(0.01, 1.0),
)
def test_no_share_is_larger_than_it_may_be(sizes: list[int], share: float) -> None:
    """The cut is the largest that fits; where none fits, all that have samples count the same."""
    found = cut_to_share(np.array(sizes, dtype=object), share)

    top, total = int(found.max()), int(found.sum())
    positive = sum(size > 0 for size in sizes)
    assert top <= max(share * total, 1)
    assert all(after == min(before, top) for before, after in zip(sizes, found, strict=True))
    larger = np.minimum(np.array(sizes, dtype=object), top + 1)
    assert top == max(sizes) or top + 1 > share * int(larger.sum())
    assert positive * share >= 1 - 1e-9 or top == 1


def test_the_plan_is_built_again_only_when_somebody_comes_or_goes() -> None:
    strategy, grid = CohortStrategy(FedAvg(), SizeClustered(3), seed=0), grid_of()
    designs = []
    for number in (1, 2, 3):
        if number == 3:
            del grid.partitions[strategy.directory.connection_of("3")]
        one_round(strategy, grid, number)
        designs.append(strategy.selector.design)

    assert designs[0] is designs[1]
    assert designs[1] is not designs[2]


def test_a_silent_node_is_not_asked_again_until_it_comes_back() -> None:
    directory, grid = NodeDirectory(), grid_of()
    silent = next(node for node, client in grid.partitions.items() if client == 2)
    grid.fails = lambda node, kind: node == silent

    directory.refresh(grid)
    directory.refresh(grid)
    asked_twice = queries(grid)
    grid.partitions.pop(silent)
    directory.refresh(grid)
    grid.partitions[silent] = 2
    grid.fails = lambda node, kind: False
    directory.refresh(grid)

    assert asked_twice == len(SIZES)
    assert sorted(directory.present) == ["0", "1", "2", "3", "4", "5"]


def test_training_waits_for_the_nodes_that_the_inner_strategy_asks_for(clock: Clock) -> None:
    grid = grid_of()
    everyone = dict(grid.partitions)
    grid.partitions = dict(list(everyone.items())[:2])
    clock.at(7.0, lambda: grid.partitions.update(everyone))
    strategy = CohortStrategy(FedAvg(min_available_nodes=6), SizeClustered(3), seed=0)

    one_round(strategy, grid)

    assert 7.0 <= clock.now <= 8.0
    assert len(strategy.directory.present) == 6


def test_a_newcomer_cannot_take_anothers_name() -> None:
    directory, grid = NodeDirectory(), grid_of()
    directory.refresh(grid)
    before = directory.connection_of("3")

    grid.partitions[9999] = 3
    grid.partitions[1] = 3
    directory.refresh(grid)

    assert directory.connection_of("3") == before
    assert sizes_of(directory) == SIZES
    assert len(directory.present) == len(SIZES)


def test_clients_can_be_known_by_their_nodes_alone() -> None:
    """Two nodes that say they are client 3 are two clients then."""
    directory, grid = NodeDirectory(names="node"), grid_of()
    grid.partitions[9999] = 3

    directory.refresh(grid)

    assert set(directory.present) == {str(node) for node in grid.partitions}
    assert list(directory.sizes.values()).count(SIZES[3]) == 2


def test_other_names_are_refused() -> None:
    with pytest.raises(DesignError, match="names must be one of client, node; got 'key'"):
        CohortStrategy(FedAvg(), SizeClustered(2), seed=0, names="key")  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["9" * 5000, "x" * 70_000, "a\0b", "a\nforged line"])
def test_a_name_that_cannot_be_used_is_left_out(key: str) -> None:
    app = ClientApp()
    register_size_query(app, lambda context: 1, key=lambda context: key)
    grid = grid_of(2)
    grid.app = app

    directory = NodeDirectory()
    directory.refresh(grid)

    assert directory.present == []


@pytest.mark.parametrize("size", [2**62, 10**12 + 1])
def test_a_size_that_fits_no_plan_is_left_out(size: int) -> None:
    grid = grid_of(app=client_app([50, 30, 20, size, 10, 0]))

    directory = NodeDirectory()
    directory.refresh(grid)

    assert sorted(directory.present) == ["0", "1", "2", "4", "5"]


def later(directory: NodeDirectory, grid: InProcessGrid, clock: Clock, seconds: int) -> None:
    """Look once a second."""
    for _ in range(seconds):
        clock.sleep(1.0)
        directory.refresh(grid)


def test_a_restarted_node_gets_its_name_in_the_first_look_after_the_old_one_has_gone(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The SuperLink lists a killed node for a minute; the new one is asked once all the same."""
    directory, grid = NodeDirectory(), grid_of()
    directory.refresh(grid)
    old = directory.connection_of("3")
    grid.partitions[9999] = 3

    later(directory, grid, clock, 500)
    waiting = directory.connection_of("3")
    del grid.partitions[old]
    has_changed = directory.refresh(grid)

    assert (waiting, has_changed, directory.connection_of("3")) == (old, True, 9999)
    assert sorted(directory.present) == ["0", "1", "2", "3", "4", "5"]
    assert grid.asked.count(("query.num_examples", 9999)) == 1
    assert caplog.text.count("node 9999 says it is '3', which is node") == 1


def test_of_several_nodes_that_wait_for_a_name_the_first_gets_it() -> None:
    directory, grid = NodeDirectory(), grid_of()
    directory.refresh(grid)
    for node in (9001, 9002):
        grid.partitions[node] = 3
        directory.refresh(grid)

    del grid.partitions[directory.connection_of("3")]
    directory.refresh(grid)
    first = directory.connection_of("3")
    del grid.partitions[9001]
    directory.refresh(grid)

    assert (first, directory.connection_of("3")) == (9001, 9002)


def test_a_node_that_comes_back_under_its_own_id_is_there_at_once() -> None:
    """Node authentication gives a restarted node the same id."""
    directory, grid = NodeDirectory(names="node"), grid_of()
    directory.refresh(grid)
    back = dict(grid.partitions)
    gone, client = grid.partitions.popitem()
    directory.refresh(grid)
    without = set(directory.present)

    grid.partitions = back
    directory.refresh(grid)

    assert set(directory.present) - without == {str(gone)}
    assert directory.sizes[str(gone)] == SIZES[client]
    assert queries(grid) == len(SIZES)


def test_a_node_is_not_asked_while_a_question_is_open(clock: Clock) -> None:
    """A question lives for 600 s; the next one follows if nothing came of it."""
    grid = slow_grid(clock, lambda client, kind: math.inf if client == 2 else 0.0)
    directory = NodeDirectory(waits=Waits(query=10.0, start=600.0))
    directory.refresh(grid)

    later(directory, grid, clock, 1300)

    assert grid.asked_at("query.num_examples", node_of(grid, 2)) == [0.0, 600.0, 1200.0]
    assert queries(grid) == len(SIZES) - 1 + 3
    assert list(directory._open.values()) == [node_of(grid, 2)]


def test_a_node_whose_answers_are_errors_is_asked_again_with_pauses_that_double(
    clock: Clock,
) -> None:
    grid = slow_grid(clock, lambda client, kind: 0.0)
    bad = node_of(grid, 2)
    grid.fails = lambda node, kind: node == bad
    directory = NodeDirectory(waits=Waits(query=10.0))
    directory.refresh(grid)

    later(directory, grid, clock, 320)

    assert grid.asked_at("query.num_examples", bad) == [0.0, 10.0, 30.0, 70.0, 150.0, 310.0]


def test_a_question_that_could_not_be_sent_is_asked_again_soon(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's grid returns None in the place of its id."""
    grid = slow_grid(clock, lambda client, kind: 0.0)
    push = grid.push_messages
    monkeypatch.setattr(grid, "push_messages", lambda messages: [None for _ in push(messages)])
    directory = NodeDirectory(waits=Waits(query=10.0))
    directory.refresh(grid)
    monkeypatch.setattr(grid, "push_messages", push)

    later(directory, grid, clock, 9)
    before = directory.present
    later(directory, grid, clock, 1)

    assert before == []
    assert len(directory.present) == len(SIZES)


def test_a_node_that_answers_nonsense_is_asked_again(clock: Clock) -> None:
    sizes = [50, 30, -1, 70, 10, 0]
    directory, grid = NodeDirectory(waits=Waits(query=10.0)), grid_of(app=client_app(sizes))
    directory.refresh(grid)
    sizes[2] = 20

    later(directory, grid, clock, 9)
    before = sorted(directory.present)
    later(directory, grid, clock, 1)

    assert before == ["0", "1", "3", "4", "5"]
    assert directory.sizes["2"] == 20


def test_a_slow_answer_counts_and_nobody_is_asked_twice_for_it(clock: Clock) -> None:
    """The node takes 95 seconds, longer than the server waits for other queries."""
    grid = slow_grid(clock, lambda client, kind: 95.0 if client == 2 else 0.0)
    directory = NodeDirectory(waits=Waits(query=10.0))
    directory.refresh(grid)

    later(directory, grid, clock, 94)
    before = "2" in directory.present
    later(directory, grid, clock, 1)

    assert not before
    assert directory.sizes["2"] == SIZES[2]
    assert grid.asked_at("query.num_examples", node_of(grid, 2)) == [0.0]
    assert not directory._open


def test_claims_of_nodes_that_left_for_good_do_not_pile_up() -> None:
    """A client restarts a thousand times under other ids: one claim of it is kept."""
    directory, grid = NodeDirectory(), grid_of()
    for node in range(9000, 10_000):
        grid.partitions = {key: k for key, k in grid.partitions.items() if k != 3} | {node: 3}
        directory.refresh(grid)

    assert directory.connection_of("3") == 9999
    assert len(directory.state()["claims"]) == len(SIZES)
    assert not directory._warned | directory._questions._waits.keys() - set(grid.partitions)


def test_a_size_that_no_node_gives_is_logged_once_with_the_nodes_that_are_meant(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The SuperLink's errors come from node 1."""
    grid = grid_of(fails=lambda node, kind: True)
    grid.answers_for_nodes = True

    NodeDirectory().refresh(grid)

    assert len(caplog.messages) == 1
    nodes = ", ".join(map(str, sorted(grid.partitions)))
    assert caplog.messages[0] == (
        f"asking for sizes: 6 of 6 nodes failed ({nodes}): error 6: node unavailable"
    )
