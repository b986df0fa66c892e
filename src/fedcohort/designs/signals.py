"""Signals: numbers about the clients, such as losses and durations, that designs can use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import as_array
from fedcohort.errors import DesignError

#: Signals that the server asks for before the draw, by a :class:`Request`. They are the norm of
#: the client's update (it must train first), the mean loss of the current model on its samples,
#: and the seconds that it will take.
AskedSignal = Literal["update_norm", "loss", "duration"]
#: Signals from the round in which a client was last drawn: the root mean square of its samples'
#: losses, the seconds that it took, and the number of that round. Clients are not asked.
PastSignal = Literal["past_loss", "past_duration", "past_round"]
SignalName = AskedSignal | PastSignal
ASKED: tuple[AskedSignal, ...] = get_args(AskedSignal)
PAST: tuple[PastSignal, ...] = get_args(PastSignal)

#: One number per client; NaN if it was not asked, did not answer, or was never drawn.
Signals = Mapping[str, NDArray[np.floating]]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """The clients to ask for a signal before the draw.

    Attributes
    ----------
    signal
        The signal's name.
    clients
        Their positions in the population, sorted and distinct.
    ids
        Their ids in the same order; equal to the positions unless a selector made the request.
    """

    signal: AskedSignal
    clients: NDArray[np.int64]
    ids: Sequence[Any] = ()

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.clients):
            object.__setattr__(self, "ids", np.asarray(self.clients).tolist())


def collected(owner: str, signals: Signals | None, name: SignalName) -> NDArray[np.floating]:
    """Return a signal; raise if it was not collected."""
    if not isinstance(signals, Mapping) or name not in signals:
        raise DesignError(
            f"{owner}: needs the signal {name!r}, but it was not collected. Pass "
            f"signals={{{name!r}: ...}} to draw, with a number from each client that was asked."
        )
    return signals[name]


def checked_signal(
    owner: str, name: SignalName, given: ArrayLike, n_clients: int
) -> NDArray[np.float64]:
    """Validate a signal: one number per client, each NaN or finite and at least 0."""
    values = as_array(given)
    if values.dtype.kind not in "iuf" or values.shape != (n_clients,):
        raise DesignError(
            f"{owner}: the signal {name!r} must be one number per client, shape ({n_clients},); "
            f"got {values.dtype} of shape {values.shape}. Use NaN for clients that were not asked."
        )
    values = values.astype(np.float64)
    bad = (values < 0) | np.isinf(values)
    if bad.any():
        client = int(np.argmax(bad))
        raise DesignError(
            f"{owner}: the signal {name!r} must be finite and at least 0; client {client} has "
            f"{values[client]}. Use NaN for a client without one."
        )
    return values
