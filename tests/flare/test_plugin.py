"""FLARE's plug-in keeps the contract of all plug-ins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="the extra 'nvflare' is not installed")

from nvflare.app_common.abstract.fl_model import FLModel

from fedcohort.nvflare import CohortController
from fedcohort.testing import PlayedRound, ScriptedFederation, ScriptedRound, check_plugin
from flare.in_process import Federation, lines


class FlarePlugin:
    """A controller whose clients follow the script."""

    def __init__(self, federation: ScriptedFederation, folder: Path) -> None:
        self.federation, self.folder, self.played = federation, folder, 0
        self.model = federation.model
        folder.mkdir()

    def play(self, rounds: Sequence[ScriptedRound]) -> Sequence[PlayedRound]:
        server = Server(self.federation, rounds, self.folder)
        made = CohortController(
            recipe=self.federation.recipe,
            seed=self.federation.seed,
            **self.federation.settings,
            num_rounds=self.played + len(rounds),
            log_file="log",
            checkpoint="checkpoint",
            resume=True,
            query_timeout=1,
            limits={"give_up_after": 100},
        )
        server.rounds_done = lambda: made.selector.round_
        saved = server.run(made, {"w": self.federation.model}).saved
        log = lines(self.folder / "log")[self.played :]
        found = [
            PlayedRound(line["drawn"], server.trained(line["round"]), line["weights"], own["w"])
            for line, own in zip(log, saved, strict=True)
        ]
        self.played += len(rounds)
        return found


class Server(Federation):
    """A federation in which those are connected who the script says."""

    def __init__(
        self, federation: ScriptedFederation, rounds: Sequence[ScriptedRound], folder: Path
    ) -> None:
        super().__init__({}, folder)
        self.sizes = federation.sizes
        self.script = {round_.number: round_ for round_ in rounds}
        self.rounds_done: Callable[[], int] = lambda: 0
        self.training: list[tuple[int, str]] = []

    @property
    def now(self) -> ScriptedRound:
        return self.script.get(self.rounds_done(), next(iter(self.script.values())))

    def get_clients(self):  # type: ignore[no-untyped-def]
        self.clients = {name: self.client(name) for name in self.now.there}
        return super().get_clients()

    def trained(self, number: int) -> frozenset[str]:
        return frozenset(name for round_, name in self.training if round_ == number)

    def client(self, name: str):  # type: ignore[no-untyped-def]
        def answer(task: str, model: FLModel) -> FLModel | None:
            if task == "num_examples":
                return FLModel(metrics={task: self.sizes[name]})
            self.training.append((self.now.number, name))
            moved, how = model.params["w"] + self.now.updates[name], self.now.failing.get(name)
            if how == "error":
                raise RuntimeError("out of memory")
            if how == "nan":
                moved[0] = np.nan
            return None if how == "late" else FLModel(params={"w": moved[how == "shape" :]})

        return answer


def test_it_keeps_the_contract(tmp_path: Path) -> None:
    check_plugin(lambda federation: FlarePlugin(federation, tmp_path / str(federation)))
