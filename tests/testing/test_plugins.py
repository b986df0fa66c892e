"""A plain server loop keeps the contract of plug-ins; every way to break it is found."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from documented_blocks import blocks_of
from fedcohort import Selector
from fedcohort.deployment import Limits
from fedcohort.errors import ContractError
from fedcohort.testing import PlayedRound, ScriptedFederation, ScriptedRound, check_plugin

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-plugin.md"


class OwnLoop:
    """A server loop of one's own."""

    def __init__(self, federation: ScriptedFederation, path: Path) -> None:
        self.federation, self.path, self.model = federation, path, federation.model

    def play(self, rounds: Sequence[ScriptedRound]) -> Sequence[PlayedRound]:
        selector = self.started()
        played = []
        for now in rounds:
            played.append(self.round(selector, now))
            selector.save(self.path)
        return played

    def started(self) -> Selector:
        if self.path.exists():
            return Selector.load(self.path)
        own = self.federation
        return Selector(own.recipe, {}, seed=own.seed, **own.settings)

    def round(self, selector: Selector, now: ScriptedRound) -> PlayedRound:
        sizes: dict[Any, int] = dict(selector.clients)
        sizes |= {each: self.federation.sizes[each] for each in now.there}
        if selector.clients != sizes:
            selector.clients = sizes
        cohort = selector.draw(self.available(now))
        asked, lost, updates = [], list(cohort.ids), dict[str, NDArray[np.float32]]()
        while lost:
            asked += lost
            updates |= self.answers(now, lost)
            failed = [each for each in asked if each not in updates]
            lost = self.redrawn(selector, failed)
        weights = selector.settle(updates)
        self.model = self.moved(selector, updates)
        return PlayedRound(
            dict(zip(cohort.ids, cohort.counts.tolist(), strict=True)),
            frozenset(asked),
            dict(zip(weights.ids, weights.weights.tolist(), strict=True)),
            self.model,
        )

    def available(self, now: ScriptedRound) -> list[str] | None:
        return list(now.there)

    def answers(self, now: ScriptedRound, asked: list[Any]) -> dict[str, NDArray[np.float32]]:
        return {each: now.updates[each] for each in asked if each not in now.failing}

    def redrawn(self, selector: Selector, failed: list[Any]) -> list[Any]:
        return selector.redraw(failed)

    def moved(self, selector: Selector, updates: dict[str, Any]) -> Any:
        return self.model + np.asarray(selector.aggregate(updates))


class AsksEveryone(OwnLoop):
    """Draws among all members, connected or not."""

    def available(self, now: ScriptedRound) -> None:
        return None


class NeverRedraws(OwnLoop):
    """Leaves lost clients' weight where it is."""

    def redrawn(self, selector: Selector, failed: list[Any]) -> list[Any]:
        return []


class Believes(OwnLoop):
    """Takes a model of zeros for one that is not finite."""

    def answers(self, now: ScriptedRound, asked: list[Any]) -> dict[str, NDArray[np.float32]]:
        zeros = {each: 0 * now.updates[each] for each, how in now.failing.items() if how == "nan"}
        usable = {each: zeros[each] for each in asked if each in zeros}
        return {**super().answers(now, asked), **usable}


class AveragesEqually(OwnLoop):
    """Ignores the weights."""

    def moved(self, selector: Selector, updates: dict[str, Any]) -> Any:
        selector.remember(updates)
        return self.model + sum(updates.values()) / len(updates) if updates else self.model


class Forgets(OwnLoop):
    """Starts anew after a restart."""

    def started(self) -> Selector:
        self.path.unlink(missing_ok=True)
        return super().started()


class SkipsEmptyRounds(OwnLoop):
    """Does not count a round in which nobody is there."""

    def play(self, rounds: Sequence[ScriptedRound]) -> Sequence[PlayedRound]:
        return super().play([each for each in rounds if each.there])


class ScriptedNetwork:
    """What the plug-in of the page asks: a network whose clients follow the script."""

    def __init__(self, federation: ScriptedFederation) -> None:
        self.federation, self.now = federation, ScriptedRound(0, (), {}, {})
        self.asked: list[Any] = []

    def who(self) -> list[str]:
        return list(self.now.there)

    def sizes(self, names: list[str]) -> dict[str, int]:
        return {each: self.federation.sizes[each] for each in names}

    def train(self, model: Any, names: list[str]) -> Iterator[tuple[str, Any]]:
        self.asked += names
        for each in names:
            moved, how = model["w"] + self.now.updates[each], self.now.failing.get(each)
            if how in (None, "nan", "shape"):
                vector = moved[1:] if how == "shape" else moved * np.float32(np.nan if how else 1)
                yield each, {"w": vector}


class PagePlugin:
    """The plug-in that the page shows."""

    def __init__(self, federation: ScriptedFederation, folder: Path, server: Any) -> None:
        self.federation, self.folder, self.server = federation, folder, server
        self.model: Any = {"w": federation.model}
        folder.mkdir()

    def play(self, rounds: Sequence[ScriptedRound]) -> Sequence[PlayedRound]:
        own, network, found = self.federation, ScriptedNetwork(self.federation), []
        log = self.folder / "log"
        server = self.server(
            own.recipe,
            network,
            seed=own.seed,
            path=self.folder / "state",
            log_file=log,
            limits=Limits(give_up_after=100),
            **own.settings,
        )
        for network.now in rounds:
            network.asked = []
            self.model = server.round(self.model)
            line = json.loads(log.read_text().splitlines()[-1])
            asked = frozenset(network.asked)
            found.append(PlayedRound(line["drawn"], asked, line["weights"], self.model["w"]))
        return found


@pytest.mark.skipif(not PAGE.exists(), reason="there is no documentation here")
def test_the_plugin_of_the_page_keeps_the_contract(tmp_path: Path) -> None:
    blocks = blocks_of(PAGE.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    exec(next(block.text for block in blocks if block.title == "plugin.py"), names)

    check_plugin(lambda own: PagePlugin(own, tmp_path / str(own), names["CohortServer"]))


def test_a_plain_loop_keeps_the_contract(tmp_path: Path) -> None:
    check_plugin(lambda federation: OwnLoop(federation, tmp_path / str(federation)))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (AsksEveryone, "round 4: must draw .* Pass to draw exactly those that are connected"),
        (NeverRedraws, "on_failure='redraw', round 2: must weigh .* Pass to settle"),
        (Believes, "round 3: must weigh .* Pass to settle, or to aggregate, those whose answer"),
        (AveragesEqually, "must move the model by .* use for_average"),
        (Forgets, "round 7: must draw .* save the selector with the model"),
        (SkipsEmptyRounds, "must play 5 rounds from round 7 on; it played 4"),
    ],
)
def test_a_broken_plugin_is_told_what_is_wrong(
    broken: type[OwnLoop], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ContractError, match=message):
        check_plugin(lambda federation: broken(federation, tmp_path / str(federation)))


@pytest.mark.parametrize(
    "make_plugin", [None, 3, OwnLoop.__new__(OwnLoop), lambda federation: None]
)
def test_what_makes_no_plugin_is_refused(make_plugin: Any) -> None:
    with pytest.raises(
        ContractError, match="make_plugin must be a function that returns a plug-in"
    ):
        check_plugin(make_plugin)
