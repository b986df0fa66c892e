"""Flower's plug-in keeps the contract of all plug-ins."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from fedcohort.flower import CohortStrategy, Limits, register_size_query
from fedcohort.testing import PlayedRound, ScriptedFederation, ScriptedRound, check_plugin
from flower.in_process import InProcessGrid


class ScriptedGrid(InProcessGrid):
    """Nodes of the clients that are connected; they follow the script."""

    def __init__(self, federation: ScriptedFederation) -> None:
        self.names = list(federation.sizes)
        self.sizes, self.now = federation.sizes, ScriptedRound(0, (), {}, {})
        self.training: list[tuple[int, str]] = []
        super().__init__(self._app(), {})

    def come(self, round_: ScriptedRound) -> None:
        self.now = round_
        self.partitions = {100 + self.names.index(each): 0 for each in round_.there}

    def name(self, node: int) -> str:
        return self.names[node - 100]

    def _answer(self, message: Message) -> list[Message]:
        name = self.name(message.metadata.dst_node_id)
        how = self.now.failing.get(name)
        if message.metadata.message_type != "train":
            return super()._answer(message)
        self.training.append((self.now.number, name))
        self.fails = lambda node, kind: how == "error"
        replies = super()._answer(message)
        self.fails = lambda node, kind: False
        return [] if how == "late" else replies

    def _app(self) -> ClientApp:
        app = ClientApp()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            name = self.name(context.node_id)
            (sent,) = message.content.array_records["arrays"].to_numpy_ndarrays()
            arrays = ArrayRecord([self._trained(name, sent)])
            metrics = MetricRecord({"num-examples": 1})
            return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

        def key(context: Context) -> str:
            return self.name(context.node_id)

        register_size_query(app, lambda context: self.sizes[key(context)], key=key)
        return app

    def _trained(self, name: str, sent: NDArray[np.float32]) -> NDArray[np.float32]:
        moved, how = sent + self.now.updates[name], self.now.failing.get(name)
        if how == "nan":
            moved[0] = np.nan
        return moved[1:] if how == "shape" else moved


class FlowerPlugin:
    """A strategy on a grid that follows the script; every play is a new server."""

    def __init__(self, federation: ScriptedFederation, folder: Path) -> None:
        self.federation, self.folder, self.played = federation, folder, 0
        self.grid = ScriptedGrid(federation)
        folder.mkdir()

    def play(self, rounds: Sequence[ScriptedRound]) -> Sequence[PlayedRound]:
        strategy = CohortStrategy(
            FedAvg(fraction_evaluate=0.0, min_available_nodes=2),
            self.federation.recipe,
            seed=self.federation.seed,
            **self.federation.settings,
            limits=Limits(give_up_after=100),
            checkpoint=self.folder / "checkpoint",
            log_file=self.folder / "log",
        )
        script, models = {each.number: each for each in rounds}, list[NDArray[np.float32]]()
        self.grid.come(rounds[0])

        def after(number: int, arrays: ArrayRecord) -> None:
            """Keep the model of the round before, and let the next begin."""
            models.extend(arrays.to_numpy_ndarrays())
            if number in script:
                self.grid.come(script[number])

        last = self.played + len(rounds)
        first = ArrayRecord([self.federation.model])
        strategy.start(self.grid, first, num_rounds=last, evaluate_fn=after, resume=True)
        lines = (self.folder / "log").read_text().splitlines()[self.played :]
        self.played = last
        return [
            self._found(json.loads(line), own) for line, own in zip(lines, models[1:], strict=True)
        ]

    def _found(self, line: dict[str, Any], model: NDArray[np.float32]) -> PlayedRound:
        asked = frozenset(name for number, name in self.grid.training if number == line["round"])
        drawn = {name: int(count) for name, count in line["drawn"].items()}
        return PlayedRound(drawn, asked, line["weights"], model)


def test_it_keeps_the_contract(tmp_path: Path) -> None:
    check_plugin(lambda federation: FlowerPlugin(federation, tmp_path / str(federation)))
