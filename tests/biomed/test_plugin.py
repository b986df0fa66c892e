"""Fed-BioMed's plug-in keeps the contract of all plug-ins, but for redraws, which it refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedbiomed.common.exceptions import FedbiomedStrategyError
from fedbiomed.researcher.federated_workflows import Experiment
from numpy.typing import NDArray

from biomed.in_process import InProcessNodes, experiment_with, model_of, moved, tables
from fedcohort.fedbiomed import CohortStrategy, Limits
from fedcohort.testing import (
    PlayedRound,
    ScriptedFederation,
    ScriptedRound,
    check_plugin,
    plugins,
)


class BioMedPlugin:
    """An experiment whose nodes follow the script; every play loads the last breakpoint."""

    def __init__(self, federation: ScriptedFederation, nodes: InProcessNodes, log: Path) -> None:
        self.federation, self.nodes, self.log = federation, nodes, log
        self.experiment: Any = None
        self.script: dict[int, ScriptedRound] = {}
        self.members: dict[str, int] = {}
        self.models: dict[int, NDArray[np.float64]] = {}
        self.played = 0

    def play(self, rounds: Sequence[ScriptedRound]) -> Sequence[PlayedRound]:
        self.script = {each.number: each for each in rounds}
        self.nodes.online = self._ping  # type: ignore[method-assign]
        self.nodes.node = self._train
        self.nodes.asked.clear()
        self._start(rounds[0])
        self.models.clear()
        asked = dict.fromkeys(self.script, frozenset[str]())
        while self.strategy.selector.round_ <= rounds[-1].number:
            before = len(self.nodes.asked)
            self._ping()  # Fed-BioMed draws from the nodes whose metadata it has
            with suppress(FedbiomedStrategyError):  # nobody was there
                self.experiment.run_once(increase=True)
            last = self.strategy.selector.round_ - 1
            self.models[last] = model_of(self.experiment)
            if len(self.nodes.asked) > before:
                asked[last] = frozenset(self.nodes.asked[-1])
        lines = [json.loads(line) for line in self.log.read_text().splitlines()[self.played :]]
        self.played += len(lines)
        return [
            PlayedRound(line["drawn"], asked[n], line["weights"], self.models[n])
            for line in lines
            for n in [line["round"]]
        ]

    @property
    def strategy(self) -> CohortStrategy:
        strategy = self.experiment.strategy()
        assert isinstance(strategy, CohortStrategy)
        return strategy

    def _start(self, first: ScriptedRound) -> None:
        if self.experiment is not None:
            self.experiment.breakpoint()
            folder = Path(self.experiment.experimentation_path())
            number = self.experiment.round_current() - 1
            self.experiment = Experiment.load_breakpoint(str(folder / f"breakpoint_{number:04d}"))
            self.strategy.attach(self.experiment)
            return
        strategy = CohortStrategy(
            self.federation.recipe,
            seed=self.federation.seed,
            **self.federation.settings,
            limits=Limits(give_up_after=100),
            log_file=self.log,
        )
        self.nodes.sizes = {each: self.federation.sizes[each] for each in first.there}
        self.experiment = experiment_with(strategy, self.nodes)
        self.nodes.sizes = dict(self.federation.sizes)

    def _ping(self) -> list[str]:
        number = self.strategy.selector.round_
        there = self.script[number].there
        self.models.setdefault(number - 1, model_of(self.experiment))  # nobody was drawn
        self.members |= {each: self.federation.sizes[each] for each in there}
        self.experiment.set_training_data(tables(self.members))
        self.nodes.connected = list(there)
        return list(there)

    def _train(self, name: str, params: Mapping[str, Any]) -> dict[str, Any] | str | None:
        now = self.script[self.strategy.selector.round_]
        how, trained = now.failing.get(name), moved(params, now.updates[name])
        if how == "nan":
            trained["intercept_"] = np.array([np.nan])
        if how == "shape":
            trained["coef_"] = trained["coef_"][:, 1:]
        return {"error": "it broke", "late": None}.get(str(how), trained)


def test_it_keeps_the_contract(
    nodes: InProcessNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    possible = tuple(
        each for each in plugins.FEDERATIONS if each.settings.get("on_failure") != "redraw"
    )
    monkeypatch.setattr(plugins, "FEDERATIONS", possible)

    check_plugin(
        lambda federation: BioMedPlugin(federation, nodes, tmp_path / f"{federation}.jsonl")
    )
