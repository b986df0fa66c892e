"""A plain server loop keeps the contract of plug-ins; every way to break it is found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedcohort import Selector
from fedcohort.errors import ContractError
from fedcohort.testing import PlayedRound, ScriptedFederation, ScriptedRound, check_plugin


class OwnLoop:
    """A server loop of one's own, as the page on plug-ins shows it."""

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
        settings: Any = {"estimator": own.estimator, "on_failure": own.on_failure}
        return Selector(own.recipe, {}, seed=own.seed, **settings)

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


def test_a_plain_loop_keeps_the_contract(tmp_path: Path) -> None:
    check_plugin(lambda federation: OwnLoop(federation, tmp_path / str(federation)))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (AsksEveryone, "round 4: must draw .* Pass to draw exactly those that are connected"),
        (NeverRedraws, "on_failure='redraw', round 2: must send the model to .*"),
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
