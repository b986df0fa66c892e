"""How long the server waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from fedcohort._arguments import checked_number
from fedcohort.errors import FlowerError

#: The shortest time that a wait can be given.
SHORTEST = 1e-3


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """The seconds that the server waits, at most.

    Attributes
    ----------
    start
        For ``min_available_nodes`` nodes and their sizes. Training then goes on if enough nodes
        are there, and ends otherwise.
    round
        For a whole round: queries, training, all redraws together, and evaluation. A number, or a
        function of the round, counted from 0.
    reply
        For the replies to one set of training or evaluation messages. None takes half of what is
        left of the round while redraws or an evaluation may follow, and all of it otherwise.
    query
        For the signals that a recipe asks for; at the start, for the next node to say its size.
    """

    start: float = 600.0
    round: float | Callable[[int], float] = 3600.0
    reply: float | None = None
    query: float = 60.0

    def __post_init__(self) -> None:
        _seconds("start", self.start)
        _seconds("query", self.query)
        if self.reply is not None:
            _seconds("reply", self.reply)
        if not callable(self.round):
            _seconds("round", self.round)

    def of_round(self, round_: int) -> float:
        """Return the seconds that a round may take."""
        return _seconds("round", self.round(round_) if callable(self.round) else self.round)


def _seconds(name: str, value: object) -> float:
    return checked_number("Waits", name, value, least=SHORTEST, error=FlowerError)
