"""How long the server waits: at the start, in a round, and for whom; what its log says of it."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedcohort import FirstResponders, PowerOfChoice, SizeClustered, Uniform
from fedcohort.errors import DesignError, FlowerError
from fedcohort.flower import CohortStrategy, Limits, Waits, register_signal_queries
from flower.federation import (
    client_app,
    drawn,
    flat,
    grid_of,
    model,
    node_of,
    one_round,
    slow_grid,
)
from flower.in_process import Clock, InProcessGrid

#: The clock adds up pauses; each addition rounds by less than 1e-12 at thousands of seconds.
ROUNDING = 1e-8


def hanging(*kinds: str) -> Callable[[int, str], float]:
    """Let no client answer messages of these types, and all others at once."""
    return lambda client, kind: math.inf if kind in kinds else 0.0


def full_app() -> ClientApp:
    """Make an app that also evaluates, and answers what designs ask."""
    app = client_app()

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1, "loss": 0.5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    register_signal_queries(app, loss=lambda a, c: 1.0, duration=lambda a, c: 1.0)
    return app


def only_training() -> FedAvg:
    return FedAvg(fraction_evaluate=0.0)


def round_times(
    strategy: CohortStrategy, grid: InProcessGrid, clock: Clock, rounds: int = 3, **more: Any
) -> list[float]:
    """Train; return how long each round took. The start takes no time where sizes come at once."""
    ends: list[float] = []

    def note(number: int, arrays: ArrayRecord) -> None:
        ends.append(clock.now)

    strategy.start(grid, model(), num_rounds=rounds, evaluate_fn=note, **more)
    return np.diff(ends).tolist()


# The start


def test_all_clients_are_known_at_the_start_although_sizes_come_slowly(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Every 0.7 s one of 250 nodes answers: the last after 175 s, a look later all are known."""
    app = client_app([10] * 250)
    grid = slow_grid(
        clock, lambda k, kind: 0.7 * (k + 1) if kind.startswith("query") else 0.0, 250, app=app
    )
    strategy = CohortStrategy(only_training(), SizeClustered(5), seed=0)

    with caplog.at_level(logging.INFO, "flwr.fedcohort"):
        strategy.start(grid, model(), num_rounds=1)

    assert len(strategy.directory.present) == 250
    assert grid.asked_at("train")[0] == pytest.approx(175.5, abs=0.5)
    line = "nodes connected: 250, needed: 2; sizes known: {}, needed: 1"
    assert [line.format(k) in caplog.messages for k in (0, 1, 250)] == [True] * 3


def test_training_starts_when_sizes_come_after_a_long_silence(clock: Clock) -> None:
    grid = slow_grid(clock, lambda k, kind: 100.0 if kind.startswith("query") else 0.0)
    strategy = CohortStrategy(only_training(), SizeClustered(3), seed=0)

    result = strategy.start(grid, model(), num_rounds=2)

    assert sorted(strategy.directory.present) == ["0", "1", "2", "3", "4", "5"]
    assert grid.asked_at("train")[0] == pytest.approx(100.5, abs=0.5)
    assert (flat(result.arrays) != 1.0).any()


def test_where_nobody_says_its_size_training_ends_at_the_starts_limit(clock: Clock) -> None:
    grid = slow_grid(clock, hanging("query.num_examples"))
    strategy = CohortStrategy(only_training(), SizeClustered(3), seed=0, waits=Waits(start=77.0))

    with pytest.raises(FlowerError) as caught:
        strategy.start(grid, model(), num_rounds=2)

    assert clock.now == pytest.approx(77.0, abs=ROUNDING)
    assert str(caught.value) == (
        "CohortStrategy: needs 2 nodes, the sizes of 1, and a client with samples that can be "
        "drawn, within 77 s; 6 nodes came and 0 told their sizes. Start nodes, call "
        "register_size_query in the client app or pass sizes by node id, check which clients "
        "are eligible, or allow more time: Waits(start=...)."
    )


def test_where_too_few_nodes_come_training_ends_at_the_starts_limit(clock: Clock) -> None:
    inner = FedAvg(fraction_evaluate=0.0, min_available_nodes=7)
    strategy = CohortStrategy(inner, SizeClustered(3), seed=0)

    with pytest.raises(FlowerError, match=r"needs 7 nodes.* within 600 s; 6 nodes came and 6 told"):
        strategy.start(grid_of(), model(), num_rounds=2)
    assert clock.now == pytest.approx(600.0, abs=ROUNDING)


def test_the_start_waits_for_a_silent_node_only_while_others_answer(clock: Clock) -> None:
    """Client k answers after 20 k seconds, client 5 never; the fifth answer comes after 80 s."""
    delay = lambda k, kind: 0.0 if kind == "train" else math.inf if k == 5 else 20.0 * k  # noqa: E731
    grid = slow_grid(clock, delay)
    waits = Waits(query=30.0)
    strategy = CohortStrategy(only_training(), SizeClustered(3), seed=0, waits=waits)

    strategy.start(grid, model(), num_rounds=1)

    assert sorted(strategy.directory.present) == ["0", "1", "2", "3", "4"]
    assert grid.asked_at("train")[0] == pytest.approx(80.0 + 30.0 + 1.0, abs=1.0)


def slow_sizes(client: int, kind: str) -> float:
    """Let client k say its size after 100 k seconds, and train at once."""
    return 0.0 if kind == "train" else 100.0 * client


@pytest.mark.parametrize(("min_known", "seconds"), [(1, 60), (2, 160), (4, 360), (6, 500)], ids=str)
def test_training_starts_when_as_many_sizes_are_known_as_are_needed(
    min_known: int, seconds: float, clock: Clock
) -> None:
    """Sizes come every 100 s, and 60 s of silence end the start: it waits only for a need."""
    grid = slow_grid(clock, slow_sizes)
    strategy = CohortStrategy(only_training(), SizeClustered(3), seed=0, min_known=min_known)

    strategy.start(grid, model(), num_rounds=1)

    assert grid.asked_at("train")[0] == pytest.approx(seconds + 1.0, abs=1.0)
    assert len(strategy.directory.present) == min_known


def test_a_design_without_replacement_waits_for_as_many_clients_as_it_draws(clock: Clock) -> None:
    grid = slow_grid(clock, slow_sizes)
    strategy = CohortStrategy(only_training(), Uniform(4), seed=0)

    strategy.start(grid, model(), num_rounds=1)

    assert grid.asked_at("train")[0] == pytest.approx(361.0, abs=1.0)
    assert sorted(drawn(strategy)) == ["0", "1", "2", "3"]


def test_a_design_that_has_too_few_clients_at_the_starts_limit_ends_training(clock: Clock) -> None:
    """At 250 s three sizes are known."""
    waits = Waits(start=250.0)
    strategy = CohortStrategy(only_training(), Uniform(4), seed=0, waits=waits)

    with pytest.raises(DesignError, match="must be at most the 3 clients of positive size; got 4"):
        strategy.start(slow_grid(clock, slow_sizes), model(), num_rounds=1)
    assert clock.now == pytest.approx(250.0, abs=ROUNDING)


def test_where_too_few_sizes_are_known_training_ends_at_the_starts_limit(clock: Clock) -> None:
    """All six nodes are connected; at 250 s three sizes are known."""
    waits = Waits(start=250.0)
    strategy = CohortStrategy(only_training(), SizeClustered(3), seed=0, waits=waits, min_known=4)

    with pytest.raises(
        FlowerError, match=r"needs 2 nodes, the sizes of 4, .*250 s; 6 nodes came and 3 told"
    ):
        strategy.start(slow_grid(clock, slow_sizes), model(), num_rounds=1)
    assert clock.now == pytest.approx(250.0, abs=ROUNDING)


def test_the_start_does_not_go_on_for_ever_while_answers_arrive(clock: Clock) -> None:
    """Client k answers after 20 k seconds; at the limit of 50 s three are known."""
    grid = slow_grid(clock, lambda k, kind: 0.0 if kind == "train" else 20.0 * k)
    waits = Waits(start=50.0, query=30.0)
    strategy = CohortStrategy(only_training(), SizeClustered(3), seed=0, waits=waits)

    strategy.start(grid, model(), num_rounds=1)

    assert grid.asked_at("train")[0] == pytest.approx(50.0, abs=ROUNDING)
    assert sorted(strategy.directory.present) == ["0", "1", "2"]


def test_a_client_that_says_its_size_rounds_later_takes_part_from_then_on(clock: Clock) -> None:
    """Rounds take 10 s each, as one client hangs; client 3 answers after 35 s."""

    def delay(client: int, kind: str) -> float:
        if kind == "train":
            return math.inf if client == 0 else 0.0
        return 35.0 if client == 3 else 0.0

    strategy = CohortStrategy(
        only_training(), SizeClustered(6), seed=0, waits=Waits(round=10.0, query=1.0)
    )
    grid = slow_grid(clock, delay)

    strategy.start(grid, model(), num_rounds=8)

    asked = grid.asked_at("train", node_of(grid, 3))
    assert asked[0] == pytest.approx(41.0, abs=1.0)
    assert drawn(strategy)["3"] >= 4


def test_a_newcomer_that_never_says_its_size_delays_no_round(clock: Clock) -> None:
    grid = slow_grid(clock, lambda client, kind: math.inf if client == 5 else 0.0)
    newcomer = node_of(grid, 5)
    del grid.partitions[newcomer]
    strategy = CohortStrategy(only_training(), SizeClustered(3), seed=0)
    one_round(strategy, grid, 1)
    grid.partitions[newcomer] = 5

    for number in range(2, 6):
        assert one_round(strategy, grid, number) is not None

    assert clock.now == 0.0
    assert grid.asked_at("query.num_examples", newcomer) == [0.0]


# A round


@pytest.mark.parametrize(
    ("kinds", "more", "expected"),
    [
        (("train",), {}, 100.0),
        (("train",), {"evaluate": 3}, 50.0),  # half of the round; evaluation takes no time
        (("evaluate",), {"evaluate": 3}, 100.0),
        (("train", "evaluate"), {"evaluate": 3}, 100.0),
        (("train",), {"on_failure": "redraw", "tries": 0}, 50.0),
        (("train",), {"on_failure": "redraw", "recipe": SizeClustered(5), "tries": 3}, None),
        (("query.loss",), {"recipe": PowerOfChoice(2)}, 50.0),
        (("query.loss",), {"recipe": PowerOfChoice(2), "waits": Waits(round=100, query=7)}, 7.0),
        (("train",), {"recipe": PowerOfChoice(2), "waits": Waits(round=30, query=60)}, 30.0),
        (("train",), {"extra": 1}, 100.0),
        (("train",), {"waits": Waits(round=100, reply=7)}, 7.0),
        (("train", "evaluate"), {"evaluate": 3, "waits": Waits(round=100, reply=7)}, 14.0),
        (("train", "evaluate"), {"evaluate": 3, "waits": Waits(round=10, reply=7)}, 10.0),
    ],
    ids=str,
)
def test_a_round_in_which_all_clients_hang_ends_in_time(
    kinds: tuple[str, ...], more: dict[str, Any], expected: float | None, clock: Clock
) -> None:
    more = {"waits": Waits(round=100.0), "recipe": SizeClustered(3), **more}
    waits, recipe = more["waits"], more.pop("recipe")
    strategy = CohortStrategy(only_training(), recipe, seed=0, **more)

    times = round_times(strategy, slow_grid(clock, hanging(*kinds), app=full_app()), clock)

    assert max(times) <= waits.of_round(0) + ROUNDING
    assert expected is None or times == pytest.approx([expected] * 3, abs=ROUNDING)


def test_redraws_together_take_no_more_than_the_round(clock: Clock) -> None:
    """100 clients hang: ten redraws take half of what is left, each time."""
    grid = slow_grid(clock, hanging("train"), 100, app=client_app([1] * 100))
    strategy = CohortStrategy(
        only_training(), SizeClustered(2), seed=0, on_failure="redraw", waits=Waits(round=64.0)
    )

    times = round_times(strategy, grid, clock, rounds=1)

    asked = sorted(set(grid.asked_at("train")))
    assert asked == pytest.approx([64.0 * (1 - 0.5**k) for k in range(11)], abs=ROUNDING)
    assert times == pytest.approx([64.0 * (1 - 0.5**11)], abs=ROUNDING)


def test_nobody_is_asked_after_the_deadline(clock: Clock) -> None:
    """Training may take the whole round: nothing is left for redraws or an evaluation."""
    grid = slow_grid(clock, hanging("train"), app=full_app())
    strategy = CohortStrategy(
        only_training(),
        SizeClustered(1),
        seed=0,
        on_failure="redraw",
        evaluate=2,
        waits=Waits(round=10.0, reply=10.0),
    )

    times = round_times(strategy, grid, clock)

    assert times == pytest.approx([10.0] * 3, abs=ROUNDING)
    assert len(grid.asked_at("train")) == 3
    assert grid.asked_at("evaluate") == []


def test_signals_that_hang_leave_half_of_the_round_for_training(clock: Clock) -> None:
    """Client 0 says no duration; the others train in the time that is left.

    In the next two rounds it may still work on the question, and is not asked.
    """
    grid = slow_grid(
        clock,
        lambda k, kind: math.inf if (k, kind) == (0, "query.duration") else 4.0 * (kind == "train"),
        app=full_app(),
    )
    strategy = CohortStrategy(
        only_training(), FirstResponders(2), seed=0, waits=Waits(round=10.0, query=60.0)
    )

    times = round_times(strategy, grid, clock)

    assert times == pytest.approx([5.0 + 4.0, 4.0, 4.0], abs=0.1 + ROUNDING)
    assert sum(drawn(strategy).values()) == 6
    assert strategy.selections.failed.sum() == 0


def test_the_rounds_time_can_depend_on_the_round(clock: Clock) -> None:
    asked: list[int] = []

    def seconds(round_: int) -> float:
        asked.append(round_)
        return 10.0 * (round_ + 1)

    strategy = CohortStrategy(only_training(), SizeClustered(3), seed=0, waits=Waits(round=seconds))

    times = round_times(strategy, slow_grid(clock, hanging("train")), clock)

    assert times == pytest.approx([10.0, 20.0, 30.0], abs=ROUNDING)
    assert asked == [0, 1, 2]


def test_a_function_of_the_round_that_gives_no_time_is_refused_in_a_sentence() -> None:
    waits = Waits(round=lambda round_: math.nan)
    strategy = CohortStrategy(only_training(), SizeClustered(3), seed=0, waits=waits)

    with pytest.raises(FlowerError, match=r"Waits: round must be a number of at least 0\.001; got"):
        strategy.start(grid_of(), model(), num_rounds=1)


def test_the_timeout_of_start_bounds_the_wait_for_replies_too(clock: Clock) -> None:
    strategy = CohortStrategy(only_training(), SizeClustered(3), seed=0)

    times = round_times(strategy, slow_grid(clock, hanging("train")), clock, timeout=5.0)

    assert times == pytest.approx([5.0] * 3, abs=ROUNDING)


@pytest.mark.parametrize(
    ("waits", "train", "evaluate"),
    [(Waits(round=100.0), 50.0, 50.0), (Waits(round=100.0, reply=7.0), 7.0, 7.0)],
)
def test_messages_live_as_long_as_replies_are_waited_for(
    waits: Waits, train: float, evaluate: float, clock: Clock
) -> None:
    grid = slow_grid(clock, hanging("train"), app=full_app())
    strategy = CohortStrategy(only_training(), SizeClustered(3), seed=0, evaluate=2, waits=waits)

    strategy.start(grid, model(), num_rounds=1)

    lives = {(each.metadata.message_type, each.metadata.ttl) for each in grid.sent}
    expected = {("train", train), ("evaluate", evaluate), ("query.num_examples", waits.start)}
    assert dict(lives) == pytest.approx(dict(expected), abs=ROUNDING)
    assert len(lives) == 3


def test_redrawn_clients_and_signals_get_messages_of_their_own_wait(clock: Clock) -> None:
    grid = slow_grid(clock, hanging("train", "query.loss"), app=full_app())
    redrawing = CohortStrategy(
        only_training(),
        SizeClustered(1),
        seed=0,
        on_failure="redraw",
        tries=1,
        waits=Waits(round=100.0),
    )
    asking = CohortStrategy(
        only_training(), PowerOfChoice(2), seed=0, waits=Waits(round=100.0, query=7.0)
    )

    for strategy in (redrawing, asking):
        strategy.start(grid, model(), num_rounds=1)

    lives = [each.metadata.ttl for each in grid.sent if each.metadata.message_type == "train"]
    asked = {e.metadata.ttl for e in grid.sent if e.metadata.message_type == "query.loss"}
    assert lives == pytest.approx([50.0, 25.0], abs=ROUNDING)
    assert asked == {7.0}


def test_a_round_waits_for_clients_that_are_away_for_a_while(clock: Clock) -> None:
    """After the first round nobody is there for 20 s; the second then trains, as all later ones."""
    grid = slow_grid(clock, lambda k, kind: 0.0)
    everyone = dict(grid.partitions)
    strategy = CohortStrategy(only_training(), SizeClustered(3), seed=0)
    ends = []

    def note(number: int, arrays: ArrayRecord) -> None:
        ends.append(clock.now)
        if number == 1:
            grid.partitions.clear()
            clock.at(clock.now + 20.0, lambda: grid.partitions.update(everyone))

    strategy.start(grid, model(), num_rounds=4, evaluate_fn=note)

    times = np.diff(ends).tolist()
    assert times[1] == pytest.approx(20.5, abs=0.5)
    assert times[2:] == [0.0, 0.0]
    assert sum(drawn(strategy).values()) == 4 * 3


def test_a_round_without_clients_ends_at_its_deadline_and_the_next_goes_on(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    grid = slow_grid(clock, lambda k, kind: 0.0)
    everyone = dict(grid.partitions)
    strategy = CohortStrategy(only_training(), SizeClustered(3), seed=0, waits=Waits(round=30.0))
    ends, models = [], []

    def note(number: int, arrays: ArrayRecord) -> None:
        ends.append(clock.now)
        models.append(flat(arrays))
        grid.partitions = {} if number == 1 else dict(everyone)

    strategy.start(grid, model(), num_rounds=3, evaluate_fn=note)

    assert np.diff(ends) == pytest.approx([0.0, 30.0, 0.0], abs=ROUNDING)
    assert (models[1] == models[2]).all()
    assert (models[2] != models[3]).any()
    assert caplog.text.count("no client with samples is connected; waiting") == 1


@pytest.mark.parametrize("seed", range(12))
def test_whatever_clients_do_no_round_takes_longer_than_it_may(seed: int, clock: Clock) -> None:
    """Clients answer at once, late or never, come and go, and every kind of message is sent."""
    chance = random.Random(seed)
    recipe = chance.choice([SizeClustered(3), PowerOfChoice(2)])
    rules = ["keep", "redraw", "renormalise"] if recipe.name == "size" else ["keep", "renormalise"]
    rule: Any = chance.choice(rules)
    grid = slow_grid(
        clock, lambda k, kind: chance.choice([0.0, 1.0, 30.0, math.inf]), app=full_app()
    )
    nodes = list(grid.partitions.items())
    for moment in range(1, 400, 7):
        some = dict(chance.sample(nodes, chance.randrange(len(nodes) + 1)))
        clock.at(float(moment), lambda some=some: setattr(grid, "partitions", some))  # type: ignore[misc]
    strategy = CohortStrategy(
        only_training(),
        recipe,
        seed=seed,
        on_failure=rule,
        evaluate=2,
        waits=Waits(round=20.0, query=6.0),
        limits=Limits(give_up_after=100),
    )

    times = round_times(strategy, grid, clock, rounds=15)

    assert max(times[1:]) <= 20.0 + ROUNDING
    assert strategy.rounds_done == 15


# What the log says


def test_an_error_that_every_client_makes_is_logged_once_with_its_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = grid_of(fails=lambda node, kind: kind == "train")

    one_round(CohortStrategy(FedAvg(), SizeClustered(5), seed=0), grid)

    lines = [line for line in caplog.messages if "node unavailable" in line]
    asked = sum(kind == "train" for kind, _ in grid.asked)
    assert len(lines) == 1
    assert lines[0].startswith(f"training in round 1: {asked} of {asked} clients failed (")
    assert lines[0].endswith("): error 6: node unavailable")


def test_silence_is_logged_as_an_expired_deadline(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    grid = slow_grid(clock, lambda k, kind: math.inf if (k, kind) == (3, "train") else 0.0)
    strategy = CohortStrategy(only_training(), SizeClustered(5), seed=0)

    strategy.start(grid, model(), num_rounds=1)

    asked = len(grid.asked_at("train"))
    expected = f"training in round 1: 1 of {asked} clients failed (3): no answer: the deadline has"
    assert expected in caplog.text


@pytest.mark.parametrize("code", [3, 4])
def test_an_expired_message_is_logged_as_an_expired_deadline(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The SuperLink answers for messages whose time has passed, with a reason of its own."""
    strategy, grid = CohortStrategy(FedAvg(), SizeClustered(5), seed=0), grid_of()
    messages = list(strategy.configure_train(1, model(), ConfigRecord(), grid))
    list(grid.push_messages(messages))
    late = [Message(Error(code=code, reason="Message unavailable"), reply_to=m) for m in messages]

    assert strategy.aggregate_train(1, late)[0] is None

    assert "clients failed" in caplog.text
    assert "no answer: the deadline has passed" in caplog.text
    assert "Message unavailable" not in caplog.text


def test_a_client_that_still_works_on_a_question_is_not_asked_again(clock: Clock) -> None:
    """Client 3 needs 90 s for its loss, training 20 s. Its next pause is twice as long."""
    delay = lambda k, kind: 20.0 if kind == "train" else 90.0 * (k == 3 and "loss" in kind)  # noqa: E731
    grid = slow_grid(clock, delay, app=full_app())
    strategy = CohortStrategy(only_training(), PowerOfChoice(2), seed=0, waits=Waits(query=60.0))

    took = round_times(strategy, grid, clock, rounds=9)

    assert took == pytest.approx([80, 20, 20, 80, 20, 20, 20, 20, 20], abs=2.5)
    asked = grid.asked_at("query.loss", node_of(grid, 3))
    assert asked == pytest.approx([0, 120], abs=5)


def test_a_client_that_answers_again_is_asked_in_every_round(clock: Clock) -> None:
    grid = slow_grid(
        clock,
        lambda k, kind: 90.0 * (k == 3 and "loss" in kind and clock.now < 60),
        app=full_app(),
    )
    strategy = CohortStrategy(only_training(), PowerOfChoice(2), seed=0, waits=Waits(query=60.0))

    round_times(strategy, grid, clock, rounds=2)
    clock.now += 60.0
    round_times(strategy, grid, clock, rounds=3)

    assert len(grid.asked_at("query.loss", node_of(grid, 3))) == 1 + 3


def test_if_all_clients_let_the_question_pass_all_are_asked_again(clock: Clock) -> None:
    grid = slow_grid(clock, hanging("query.loss"), app=full_app())
    waits = Waits(query=60.0)
    strategy = CohortStrategy(only_training(), PowerOfChoice(2), seed=0, waits=waits)

    assert round_times(strategy, grid, clock) == pytest.approx([60.0] * 3, abs=ROUNDING)
