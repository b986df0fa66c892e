"""Asking clients before the draw, and using again what they trained for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcohort.errors import SimulationError
from fedcohort.simulation.evaluation import Evaluator
from fedcohort.simulation.server import Opening

#: Trains clients of some runs, each from its run's model: (run, client) pairs in, one update each.
Train = Callable[[list[tuple[int, int]]], Tensor]

NOBODY = np.empty(0, dtype=np.int64)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """What the asked clients of a run answered.

    Attributes
    ----------
    signals
        The signal that was asked for, one number per client, NaN for those who were not asked.
    trained, updates
        The clients that had to train for it, sorted, and their updates, one row each.
    diverged
        Whether an answer was not finite; it then counts as none.
    """

    signals: dict[str, NDArray[np.float64]]
    trained: NDArray[np.int64]
    updates: Tensor | None = None
    diverged: bool = False

    def untrained(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of the clients that have not trained yet, in their order."""
        return clients[~np.isin(clients, self.trained)]

    def with_updates_of(self, clients: NDArray[np.int64], fresh: Tensor) -> Tensor:
        """Return all these clients' updates; ``fresh`` are those of the untrained ones."""
        if self.updates is None:
            return fresh
        before = np.isin(clients, self.trained)
        rows = fresh.new_empty((len(clients), fresh.shape[1]))
        own = np.searchsorted(self.trained, clients[before])
        known = torch.from_numpy(before).to(rows.device)
        rows[known] = self.updates[torch.from_numpy(own).to(rows.device)]
        rows[~known] = fresh
        return rows


def ask_all(
    openings: Sequence[Opening], evaluators: Sequence[Evaluator], models: Tensor, train: Train
) -> list[Answers]:
    """Let the asked clients of all runs answer; those that must train do so at once."""
    who = [
        (k, int(client))
        for k, opening in enumerate(openings)
        if opening.request is not None and opening.request.signal == "update_norm"
        for client in opening.request.clients
    ]
    # All of them are kept until the round is over: n_clients x size numbers, as a yardstick needs.
    updates = train(who) if who else None
    found, start = [], 0
    for opening, evaluator, model in zip(openings, evaluators, models, strict=True):
        if opening.request is None:
            found.append(Answers({}, NOBODY))
            continue
        signal, clients = opening.request.signal, opening.request.clients
        own = None
        if signal == "update_norm" and updates is not None:
            own, start = updates[start : start + len(clients)], start + len(clients)
            values = own.double().norm(dim=1).cpu().numpy()
        elif signal == "loss":
            values, _ = evaluator.losses_of(model, clients)
        else:
            values = opening.times.duration[clients]
        finite = np.isfinite(values)
        if signal == "duration" and not finite.all():
            raise SimulationError(
                "Simulation: asked for duration, a client's is not finite; its device is too slow. "
                "Raise its speed and bandwidths, or leave the client out."
            )
        everyone = np.full(len(opening.times.duration), np.nan)
        everyone[clients] = np.where(finite, values, np.nan)
        trained = NOBODY if own is None else clients
        found.append(Answers({signal: everyone}, trained, own, not finite.all()))
    return found
