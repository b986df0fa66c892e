"""The largest norm of an update, and the past norms that ``"auto"`` follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

#: ``"auto"`` is this many times the median norm of the updates of the last ``WINDOW`` rounds.
MULTIPLE = 10.0
WINDOW = 20


def factors_of(norms: NDArray[np.float64], max_norm: float) -> NDArray[np.float64]:
    """Return what to multiply updates of these norms by: 1 up to ``max_norm``.

    >>> factors_of(np.array([2.0, 8.0, np.nan]), 4.0).tolist()
    [1.0, 0.5, 1.0]
    """
    found = np.ones(len(norms))
    return np.divide(max_norm, norms, out=found, where=norms > max_norm)


@final
class NormBound:
    """The largest norm of updates, round by round.

    Parameters
    ----------
    max_norm
        A number, ``"auto"``, or None for no bound.
    """

    def __init__(self, max_norm: float | Literal["auto"] | None) -> None:
        self._setting = max_norm
        #: The norms of each of the last rounds with answers, after scaling; only for ``"auto"``.
        self._rounds: tuple[NDArray[np.float64], ...] = ()

    @property
    def now(self) -> float | None:
        """The largest norm in the next round; None for no bound."""
        if self._setting != "auto":
            return self._setting
        median = float(np.median(np.concatenate(self._rounds))) if self._rounds else 0.0
        return MULTIPLE * median or None  # updates of zeros say nothing about later ones

    def learn(self, norms: NDArray[np.float64] | None) -> None:
        """Note the norms of a round's updates, at its end."""
        if self._setting == "auto" and norms is not None and len(norms):
            self._rounds = (*self._rounds, norms)[-WINDOW:]

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything that is saved; nothing if no norms are known."""
        if not self._rounds:
            return {}
        lengths = np.array([len(norms) for norms in self._rounds])
        return {"norms": np.concatenate(self._rounds), "lengths": lengths}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a :meth:`state`; raise a ``ValueError`` if it does not match."""
        self._rounds = ()
        if not state:
            return
        norms, lengths = state["norms"].astype(np.float64), state["lengths"].astype(np.int64)
        is_valid = np.isfinite(norms).all() and (norms >= 0).all() and (lengths > 0).all()
        if not is_valid or norms.shape != (lengths.sum(),) or not 0 < len(lengths) <= WINDOW:
            raise ValueError("its norms of past updates do not match")
        self._rounds = tuple(np.split(norms, np.cumsum(lengths)[:-1]))
