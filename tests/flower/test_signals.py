"""What designs ask of clients before the draw, in a federation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedcohort import (
    FirstResponders,
    NormOptimal,
    Oort,
    Population,
    PowerOfChoice,
    RoundRobin,
    Selector,
)
from fedcohort.flower import CohortStrategy, register_signal_queries
from fedcohort.streams import Stream, stream
from flower.federation import SIZES, client_app, drawn, flat, grid_of, model, one_round
from flower.in_process import InProcessGrid

#: Client 5 has no samples, and is never asked.
LOSSES = [0.5, 3.0, 2.0, 0.1, 2.5, 9.0]
SECONDS = [4.0, 1.0, 9.0, 2.0, 8.0, 0.0]
NORMS = [1.0, 2.0, 0.5, 1.0, 4.0, 0.0]


def client_of(context: Context) -> int:
    return int(context.node_config["partition-id"])


def asking_grid(seen: list[tuple[str, int, float]] | None = None, **more: Any) -> InProcessGrid:
    """Make a grid whose clients answer; ``seen`` gets (signal, client, sum of the model)."""
    noted = [] if seen is None else seen

    def answer(name: str, values: list[float]) -> Any:
        def own(arrays: ArrayRecord, context: Context) -> float:
            total = sum(float(array.sum()) for array in arrays.to_numpy_ndarrays())
            noted.append((name, client_of(context), total))
            return values[client_of(context)]

        return own

    app: ClientApp = more.pop("app", None) or client_app()
    register_signal_queries(
        app,
        loss=answer("loss", more.pop("losses", LOSSES)),
        update_norm=answer("update_norm", NORMS),
        duration=answer("duration", more.pop("seconds", SECONDS)),
    )
    return grid_of(app=app, **more)


def drawn_in(strategy: CohortStrategy, grid: InProcessGrid, number: int = 1) -> set[int]:
    """Play a round; return who trained."""
    grid.asked.clear()
    assert one_round(strategy, grid, number) is not None
    return {grid.partitions[node] for kind, node in grid.asked if kind == "train"}


def test_candidates_see_the_model_and_the_largest_losses_train() -> None:
    seen: list[tuple[str, int, float]] = []
    grid = asking_grid(seen)

    trained = drawn_in(CohortStrategy(FedAvg(), PowerOfChoice(2), seed=0), grid)

    assert trained == {1, 4}
    total = flat(model()).sum()
    assert sorted(seen) == [("loss", client, total) for client in range(5)]


def test_only_candidates_are_asked() -> None:
    seen: list[tuple[str, int, float]] = []
    recipe = PowerOfChoice(1, candidates=2)
    population = Population(SIZES)

    trained = drawn_in(CohortStrategy(FedAvg(), recipe, seed=3), asking_grid(seen))

    rng = stream(3, round_=0, use=Stream.CANDIDATES)
    expected = recipe.ask(population, 0, rng).clients.tolist()
    assert sorted(client for _, client, _ in seen) == expected
    assert trained == {max(expected, key=LOSSES.__getitem__)}


def test_a_duration_is_asked_for_without_the_model() -> None:
    seen: list[tuple[str, int, float]] = []

    trained = drawn_in(CohortStrategy(FedAvg(), FirstResponders(2), seed=0), asking_grid(seen))

    assert trained == {1, 3}
    assert sorted(seen) == [("duration", client, 0.0) for client in range(5)]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_an_answer_that_is_no_number_counts_as_none(
    bad: float, caplog: pytest.LogCaptureFixture
) -> None:
    seconds = [4.0, bad, 9.0, 2.0, 8.0, 0.0]

    trained = drawn_in(
        CohortStrategy(FedAvg(), FirstResponders(2), seed=0), asking_grid(seconds=seconds)
    )

    assert trained == {0, 3}
    assert "1 of 5 clients gave no duration: ['1']" in caplog.text


def test_a_client_that_does_not_answer_is_not_waited_for() -> None:
    grid = asking_grid(fails=lambda node, kind: kind == "query.duration" and node % 2 == 0)
    answering = [c for node, c in grid.partitions.items() if node % 2 and c < 5]

    trained = drawn_in(CohortStrategy(FedAvg(), FirstResponders(1), seed=0), grid)

    assert trained == {min(answering, key=SECONDS.__getitem__)}


def test_norms_give_the_coins_of_the_library() -> None:
    grid, recipe = asking_grid(), NormOptimal(3)
    strategy = CohortStrategy(FedAvg(), recipe, seed=1)
    norms = np.array([*NORMS[:5], math.nan])

    one_round(strategy, grid)

    ties = stream(1, round_=0, use=Stream.TIES)
    design = recipe.build(Population(SIZES), signals={"update_norm": norms}, rng=ties)
    cohort = design.draw(stream(1, round_=0, use=Stream.COHORT))
    assert drawn(strategy) == {
        str(client): int(count) for client, count in zip(cohort.clients, cohort.counts, strict=True)
    }


def test_designs_that_take_turns_start_with_the_first() -> None:
    """Rounds count from 0, as everywhere in the library; client 5 has no samples."""
    strategy, grid = CohortStrategy(FedAvg(), RoundRobin(2), seed=0), asking_grid()
    twin = Selector(RoundRobin(2), SIZES, seed=0)
    expected = []
    for _ in range(5):
        expected.append(set(twin.draw().ids))
        twin.skip()

    cohorts = [drawn_in(strategy, grid, number) for number in range(1, 6)]

    assert cohorts == expected
    assert set.union(*cohorts[:3]) == {0, 1, 2, 3, 4}


def reporting(client: int, content: RecordDict) -> RecordDict:
    next(iter(content.metric_records.values()))["rms_loss"] = LOSSES[client]
    return content


def test_what_replies_report_is_known_afterwards_and_survives_a_restart(tmp_path: Path) -> None:
    grid = asking_grid(app=client_app(change=reporting))
    strategy = CohortStrategy(FedAvg(), Oort(2), seed=0)
    for number in range(1, 4):
        one_round(strategy, grid, number)
    strategy.save(tmp_path / "state", model())

    again = CohortStrategy(FedAvg(), Oort(2), seed=0)
    again.load(tmp_path / "state")

    state, known = again.selector.state(), strategy.selector.state()
    past = {str(name): known[f"records.signal.{name}"] for name in Oort.signals}
    assert all(np.array_equal(state[f"records.signal.{n}"], past[n], True) for n in past)
    for client in range(len(SIZES)):
        loss, seconds, last = (
            past[f"past_{name}"][client] for name in ("loss", "duration", "round")
        )
        if str(client) in drawn(strategy):
            assert loss == LOSSES[client]
            assert seconds >= 0
            assert last in (0, 1, 2)
        else:
            assert np.isnan([loss, seconds, last]).all()


def test_where_nobody_answers_nobody_trains_and_the_model_stays() -> None:
    grid = asking_grid(fails=lambda node, kind: kind == "query.loss")

    assert one_round(CohortStrategy(FedAvg(), PowerOfChoice(2), seed=0), grid) is None
    assert not [node for kind, node in grid.asked if kind == "train"]


def test_registering_nothing_answers_nothing() -> None:
    app = client_app()
    register_signal_queries(app)
    grid = grid_of(app=app)
    message = Message(RecordDict(), next(iter(grid.partitions)), "query.loss")

    with pytest.raises(ValueError, match="query"):
        list(grid.send_and_receive([message]))
