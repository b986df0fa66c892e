"""One seed, one sequence of cohorts: simulator, Flower and a hand-written loop draw alike.

The simulator plays first, with clients that come, go and fail; what happened to it (who was there,
what clients answered, who failed) is played again in Flower and by hand. Updates, losses and
durations are dyadic, so that every sum of them is exact and equality means equality.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")
pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from fedcohort import Cohort, Difference, Recipe, Selector
from fedcohort.designs import RECIPES
from fedcohort.flower import CohortStrategy, register_signal_queries, register_size_query
from fedcohort.simulation import (
    Devices,
    FederatedData,
    Intervals,
    LocalTraining,
    Options,
    Run,
    Simulation,
    load_dataset,
    mlp,
)
from fedcohort.simulation.engine.evaluation import Evaluator
from fedcohort.simulation.engine.local_training import LocalTrainer
from fedcohort.simulation.live_run import LiveRun
from flower.in_process import Clock, InProcessGrid, play_the_server

N, SEED, ROUNDS, HALF = 12, 5, 20, 10
SIZES = (5, 9, 2, 14, 1, 7, 3, 8, 0, 6, 4, 5)
EDGES = np.cumsum([0, *SIZES])
#: A model of 85 numbers.
SIZE = 64 + 1 + 10 + 10
DATA = FederatedData(
    load_dataset("digits"),
    tuple(np.arange(a, b) for a, b in pairwise(EDGES)),
    (np.empty(0, dtype=int),) * N,
)
GROUPS = DATA.population.groups
assert GROUPS is not None
#: Powers of two: durations are dyadic. Everyone is there at first, then all but the first four
#: only in some hours, and all are away in between.
HOURS = [
    *((client, 0.0, 1.0) for client in range(N)),
    *((client, 40.0, 900.0) for client in range(4)),
    *((client, 70.0 + 9 * client, 200.0 + 40 * client) for client in range(4, N)),
    *((client, 300.0, 1e9) for client in range(2, N, 2)),
]
CLIENT, START, END = (np.array(column) for column in zip(*HOURS, strict=True))
DEVICES = Devices(
    speed=np.exp2(np.arange(N) % 4 + 3),
    down=np.exp2(np.arange(N) % 3 + 6),
    up=np.exp2(np.arange(N) % 5 + 5),
    availability=Intervals(CLIENT, START, END),
)
TRAINING = LocalTraining(steps=2, batch_size=4, lr=0.1)


def update_of(client: int, round_: int) -> NDArray[np.float32]:
    """Multiples of 1/4, alike for clients of one remainder by 3, other in every round."""
    line = np.arange(SIZE) * (client % 3 + 1) + client + 5 * round_
    return ((line % 17 - 8) / 4).astype(np.float32)


def arrays_of(flat: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """Two arrays: the last is the output layer's bias, as in the simulator's model."""
    return [flat[:-10], flat[-10:]]


def norm_of(client: int, round_: int) -> float:
    return float(np.linalg.norm(update_of(client, round_).astype(np.float64)))


def loss_of(client: int) -> float:
    return (client * 5 % 8 + 1) / 4


@dataclass
class Played:
    """What happened in a round of the simulator."""

    available: list[int] | None
    failed: list[int]
    durations: NDArray[np.float64]
    drawn: Cohort
    settled: Cohort


def answer_of(client: int, signal: str, played: Played) -> float:
    """Answer what a client is asked before the draw."""
    if signal == "update_norm":
        return norm_of(client, played.drawn.round_)
    return loss_of(client) if signal == "loss" else float(played.durations[client])


@dataclass
class Script:
    """Settings of the three loops, and the simulator's rounds."""

    recipe: Recipe
    estimator: Any = "plain"
    on_failure: Any = "keep"
    rounds: list[Played] = field(default_factory=list)

    def failing(self, round_: int) -> set[int]:
        return set(self.rounds[round_].failed)


def fresh_simulation(script: Script) -> Simulation:
    run = Run(
        script.recipe,
        DATA,
        SEED,
        DEVICES,
        estimator=script.estimator,
        failures=0.25,
        on_failure=script.on_failure,
    )
    return Simulation([run], lambda: mlp(64, 1), TRAINING, Options(device="cpu"))


@pytest.fixture
def _scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients train, evaluate and answer by the script."""

    def updates(trainer: Any, models: torch.Tensor, lanes: Any, round_: int) -> torch.Tensor:
        found = [torch.from_numpy(update_of(lane.client, round_)) for lane in lanes]
        return torch.stack(found) if found else models.new_empty((0, models.shape[1]))

    def losses(evaluator: Any, flat: Any, clients: NDArray[np.int64]) -> Any:
        values = np.array([loss_of(client) for client in clients.tolist()])
        return values, values

    monkeypatch.setattr(LocalTrainer, "updates", updates)
    monkeypatch.setattr(Evaluator, "losses_of", losses)
    play_the_server()
    Clock.installed(monkeypatch)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Played]:
    """Note what the simulator does in every round."""
    rounds: list[Played] = []
    original = LiveRun.commit

    def commit(run: LiveRun) -> None:
        now, cohort = run.current, run.selector.cohort
        assert cohort is not None
        rounds.append(
            Played(
                None if now.available is None else np.flatnonzero(now.available).tolist(),
                now.failed.tolist(),
                now.times.duration.copy(),
                cohort,
                run.selector.settle(now.clients),
            )
        )
        original(run)

    monkeypatch.setattr(LiveRun, "commit", commit)
    return rounds


def play_simulator(script: Script, rounds: list[Played], path: Path) -> None:
    first = fresh_simulation(script)
    first.run(HALF, checkpoint=path)
    second = fresh_simulation(script)
    second.resume(path)
    second.run(ROUNDS - HALF)
    script.rounds = rounds


def by_hand(script: Script, path: Path) -> list[tuple[Cohort, Cohort]]:
    """Play a server loop of one's own; clients are called "0" ... "11"."""
    selector = Selector(
        script.recipe,
        {str(k): SIZES[k] for k in reversed(range(N))},
        seed=SEED,
        groups={str(k): label for k, label in enumerate(GROUPS or ())},
        estimator=script.estimator,
        on_failure=script.on_failure,
    )
    found = []
    for round_, played in enumerate(script.rounds):
        if round_ == HALF:
            selector.save(path)
            selector = Selector.load(path)
        available = None if played.available is None else [str(k) for k in played.available]
        signals: dict[str, Any] = {}
        if (request := selector.ask(available)) is not None:
            answers = {each: answer_of(int(each), request.signal, played) for each in request.ids}
            signals = {request.signal: answers}
        drawn, fails = selector.draw(available, signals), script.failing(round_)
        while selector.redraw([each for each in selector.asked if int(each) in fails]):
            pass
        ids = [each for each in selector.asked if int(each) not in fails]
        updates = {each: arrays_of(update_of(int(each), round_)) for each in ids}
        found.append((drawn, selector.settle(ids)))
        selector.aggregate(
            updates,
            losses={each: loss_of(int(each)) for each in ids},
            durations={each: played.durations[int(each)] for each in ids},
        )
    return found


class ScriptedGrid(InProcessGrid):
    """A grid of the script's clients, whose replies take as long as the script says."""

    def __init__(self, script: Script) -> None:
        self.script, self.round_ = script, 0
        super().__init__(self._app(), {}, lambda node, kind: self._fails(node, kind))

    def _fails(self, node: int, kind: str) -> bool:
        return kind.startswith("train") and self.partitions[node] in self.script.failing(
            self.round_
        )

    def come(self, round_: int) -> None:
        """Let those be there who were there in the simulator."""
        available = self.script.rounds[round_].available
        self.round_ = round_
        clients = range(N) if available is None else available
        self.partitions = {900 - 7 * client: client for client in clients}

    def _answer(self, message: Message) -> list[Message]:
        replies = super()._answer(message)
        for reply in replies:
            client = self.partitions[message.metadata.dst_node_id]
            took = float(self.script.rounds[self.round_].durations[client])
            reply.metadata.created_at = message.metadata.created_at + took
        return replies

    def _app(self) -> ClientApp:
        app = ClientApp()

        def me(context: Context) -> int:
            return int(context.node_config["partition-id"])

        @app.train()
        def train(message: Message, context: Context) -> Message:
            client = me(context)
            sent = message.content.array_records["arrays"].to_numpy_ndarrays()
            moved = arrays_of(np.concatenate(sent) + update_of(client, self.round_))
            metrics = MetricRecord({"num-examples": 1, "rms_loss": loss_of(client)})
            content = RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics})
            return Message(content, reply_to=message)

        register_size_query(app, lambda context: SIZES[me(context)])

        def answer(signal: str) -> Any:
            return lambda model, context: answer_of(
                me(context), signal, self.script.rounds[self.round_]
            )

        signals = ("loss", "update_norm", "duration")
        register_signal_queries(app, **{signal: answer(signal) for signal in signals})
        return app


def in_flower(script: Script, path: Path) -> list[tuple[Cohort, Cohort]]:
    """Play the rounds of a Flower server, always from a model of zeros."""

    def fresh() -> CohortStrategy:
        strategy = CohortStrategy(
            FedAvg(min_available_nodes=2),
            script.recipe,
            seed=SEED,
            groups={str(k): label for k, label in enumerate(GROUPS or ())},
            estimator=script.estimator,
            on_failure=script.on_failure,
        )
        strategy._is_started = True  # as its own start does
        return strategy

    grid, strategy, found = ScriptedGrid(script), fresh(), []
    original = Selector.remember

    def remember(selector: Selector, updates: Any, *args: Any, **more: Any) -> None:
        settled.append(selector.settle(updates))
        original(selector, updates, *args, **more)

    for round_ in range(ROUNDS):
        if round_ == HALF:
            strategy.save(path, ArrayRecord())
            strategy = fresh()
            strategy.load(path)
        grid.come(round_)
        settled: list[Cohort] = []
        sent = ArrayRecord(arrays_of(np.zeros(SIZE, dtype=np.float32)))
        number = round_ % HALF + 1
        messages = list(strategy.configure_train(number, sent, ConfigRecord(), grid))
        drawn = strategy.selector.cohort
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Selector, "remember", remember)
            strategy.aggregate_train(number, grid.send_and_receive(messages))
        found.append((drawn or Cohort.empty(), settled[0] if settled else Cohort.empty()))
    return found


def shown(cohort: Cohort) -> tuple[list[str], list[int], list[float], float]:
    ids = [str(each) for each in cohort.ids]
    return ids, cohort.counts.tolist(), cohort.weights.tolist(), cohort.residual


SCRIPTS = [
    *(Script(kind(4)) for kind in RECIPES.values()),
    Script(RECIPES["size"](4), on_failure="redraw"),
    Script(RECIPES["similarity"](4), on_failure="redraw"),
    Script(RECIPES["tournament"](4), on_failure="renormalise"),
    Script(RECIPES["multinomial"](4), estimator="difference"),
    Script(RECIPES["poisson"](4), estimator=Difference(keep="rank", rank=3)),
]


@pytest.mark.usefixtures("_scripted")
@pytest.mark.parametrize(
    "script", SCRIPTS, ids=lambda s: f"{s.recipe.name}, {s.on_failure}, {s.estimator}"
)
def test_three_loops_draw_the_same_cohorts_with_the_same_weights(
    script: Script, watched: list[Played], tmp_path: Path
) -> None:
    play_simulator(script, watched, tmp_path / "simulator")

    hand = by_hand(script, tmp_path / "hand")
    flower = in_flower(script, tmp_path / "flower")

    for played, (drawn, settled), (sent, averaged) in zip(script.rounds, hand, flower, strict=True):
        assert shown(drawn) == shown(sent) == shown(played.drawn)
        assert shown(settled) == shown(averaged) == shown(played.settled)
    # Somebody failed, somebody was away, everybody was away, somebody came back.
    there = [set(range(N) if p.available is None else p.available) for p in script.rounds]
    assert len(script.rounds) == ROUNDS
    assert any(played.failed for played in script.rounds)
    assert set() in there
    assert any(before - after for before, after in pairwise(there))
    assert any(after - before for before, after in pairwise(there))
