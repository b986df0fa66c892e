"""Attendance: who came, who was asked and failed; who may be drawn, and what a rare one weighs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np
from numpy.typing import NDArray

from fedcohort._updates import reordered
from fedcohort.selector.settings import SelectorSettings

#: The round of a client that was never asked, or never failed.
NEVER = -1
#: The numbers that are kept of each client, and those of a new one: the rounds since the end of
#: its last interval, how many intervals there were and their rounds together; the rounds in which
#: it was asked, the last of these, and the last one in which it failed.
FIRST = {
    "gap": 0,
    "intervals": 0,
    "length": 0,
    "participations": 0,
    "last_asked": NEVER,
    "last_failed": NEVER,
}


@final
class Attendance:
    """What the server knows of who comes, in integers; only what the settings need.

    An interval is the number of rounds from one presence of a client to the next. The mean of its
    intervals so far estimates 1 / q, one over its chance to be there (S. Wang and M. Ji, "A
    lightweight method for tackling unknown participation statistics in federated averaging", ICLR
    2024).
    """

    def __init__(self, settings: SelectorSettings) -> None:
        self._settings, names = settings, list[str]()
        if settings.presence == "estimated":
            names += ["gap", "intervals", "length"]
        if settings.max_participations is not None:
            names.append("participations")
        if settings.min_separation > 1:
            names.append("last_asked")
        if settings.rest:
            names.append("last_failed")
        #: Numbers by name, shape (n_clients,) each.
        self._arrays = {name: np.zeros(0, dtype=np.int64) for name in names}

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        return sum(each.nbytes for each in self._arrays.values())

    def allowed(self, members: NDArray[np.bool_], round_: int) -> NDArray[np.bool_]:
        """Return which members the rules let take part in a round, shape (n_clients,)."""
        own, known, allowed = self._settings, self._arrays, members
        if own.max_participations is not None:
            allowed = allowed & (known["participations"] < own.max_participations)
        if "last_asked" in known:
            last = known["last_asked"]
            allowed = allowed & ((last == NEVER) | (round_ - last >= own.min_separation))
        if "last_failed" in known:
            last = known["last_failed"]
            allowed = allowed & ((last == NEVER) | (round_ - last > own.rest))
        return allowed

    def boosts(
        self, clients: NDArray[np.int64], chances: NDArray[np.float64] | None
    ) -> NDArray[np.float64]:
        """Return 1 / q of these clients, known or estimated, within the bound."""
        if chances is not None:
            boosts = 1 / chances[clients]
        else:
            intervals, length = (self._arrays[name][clients] for name in ("intervals", "length"))
            boosts = np.where(intervals > 0, length / np.maximum(intervals, 1), 1.0)
        most = self._settings.max_boost
        return boosts if most is None else np.minimum(boosts, most)

    def record(
        self,
        round_: int,
        *,
        members: NDArray[np.bool_],
        present: NDArray[np.bool_],
        asked: NDArray[np.int64],
        failed: NDArray[np.int64],
    ) -> None:
        """Note who was there in a round that ends, who was asked, and who failed."""
        known = self._arrays = {name: own.copy() for name, own in self._arrays.items()}
        if "gap" in known:
            known["gap"] += members
            cutoff = self._settings.interval_cutoff
            ends = present if cutoff is None else present | (known["gap"] >= cutoff)
            known["length"] += np.where(ends, known["gap"], 0)
            known["intervals"] += ends
            known["gap"][ends] = 0
        if "participations" in known:
            known["participations"][asked] += 1
        for name, clients in (("last_asked", asked), ("last_failed", failed)):
            if name in known:
                known[name][clients] = round_

    def rearrange(self, order: NDArray[np.int64]) -> None:
        """Move to other positions: ``order`` gives each client's old one, -1 for a new client."""
        self._arrays = {
            name: reordered(own, order, fill=FIRST[name]) for name, own in self._arrays.items()
        }

    def state(self) -> dict[str, NDArray[np.int64]]:
        """Return everything that is saved, as arrays."""
        return dict(self._arrays)

    def restore(self, state: Mapping[str, NDArray[np.generic]], n_clients: int) -> None:
        """Take over what :meth:`state` gave; raise a ``ValueError`` if it does not match."""
        restored = {name: state[name].astype(np.int64) for name in self._arrays}
        for name, own in restored.items():
            if own.shape != (n_clients,) or state[name].dtype.kind not in "iu":
                raise ValueError(f"{name} must be whole numbers of its {n_clients} clients")
            if own.min(initial=0) < FIRST[name]:
                raise ValueError(f"{name} must be at least {FIRST[name]}")
        if "length" in restored and (restored["length"] < restored["intervals"]).any():
            raise ValueError("an interval must be at least one round")
        self._arrays = restored
