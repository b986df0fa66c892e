"""What is known of clients beyond their updates, by name: asked for now, or reported before."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import final

import numpy as np
from numpy.typing import NDArray

from fedcohort.designs import Recipe
from fedcohort.designs.signals import PAST, Request, Signals
from fedcohort.flower.training_round import TrainingRound
from fedcohort.population import Population
from fedcohort.streams import Stream, stream

#: The metric of a train reply that is remembered as ``past_loss``.
LOSS_METRIC = "rms_loss"


@final
class SignalBook:
    """Collects the signals that a recipe declares.

    A train reply's metric ``rms_loss`` is remembered as ``past_loss``; the time between message
    and reply, by the clocks of server and client, as ``past_duration``.
    """

    def __init__(self, recipe: Recipe, *, seed: int) -> None:
        self._recipe, self._seed = recipe, seed
        self._past: dict[str, dict[str, float]] = {}

    def collect(
        self,
        population: Population,
        number: int,
        ask: Callable[[Request], Mapping[str, float]],
    ) -> Signals | None:
        """Ask whom the recipe wants to ask, and add what was reported before."""
        if not self._recipe.signals:
            return None
        keys = [str(key) for key in population.ids]
        signals: dict[str, NDArray[np.float64]] = {
            name: np.array([self._past.get(key, {}).get(name, math.nan) for key in keys])
            for name in PAST
            if name in self._recipe.signals
        }
        rng = stream(self._seed, round_=number, use=Stream.CANDIDATES)
        request = self._recipe.ask(population, number, rng)
        if request is not None:
            answers = ask(request)
            signals[request.signal] = np.array([answers.get(key, math.nan) for key in keys])
        return signals

    def report(self, now: TrainingRound) -> None:
        """Remember what the round's usable replies say beside their updates."""
        if not self._recipe.signals:
            return
        sent_at = {each.dst_node_id: each.created_at for each in now.asked}
        for key, reply in now.answered.items():
            known = self._past.setdefault(key, {})
            known["past_round"] = float(now.number)
            metrics = next(iter(reply.message.content.metric_records.values()))
            loss = metrics.get(LOSS_METRIC)
            if isinstance(loss, (int, float)) and math.isfinite(loss) and loss >= 0:
                known["past_loss"] = float(loss)
            start = sent_at.get(reply.message.metadata.src_node_id)
            if start is not None:
                known["past_duration"] = max(0.0, reply.message.metadata.created_at - start)

    def state(self) -> dict[str, dict[str, float]]:
        """Return what was reported, by client."""
        return {key: dict(known) for key, known in self._past.items()}

    def restore(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Know again what :meth:`state` gave."""
        self._past = {key: dict(known) for key, known in state.items()}
