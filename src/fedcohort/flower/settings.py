"""The plug-in's name, and how long the server waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from logging import getLogger
from typing import final

from fedcohort._arguments import checked_number
from fedcohort._fields import Record, number
from fedcohort.deployment.plugin import Plugin
from fedcohort.errors import FlowerError

FLOWER = Plugin(
    framework="flower",
    owner="CohortStrategy",
    error=FlowerError,
    logger=getLogger("flwr.fedcohort"),
)
#: The shortest time that a wait can be given.
SHORTEST = 1e-3


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Waits(Record):
    """The seconds that the server waits, at most.

    Attributes
    ----------
    start
        For ``min_available_nodes`` nodes and their sizes. Training then starts if enough nodes
        are there, and ends otherwise.
    round
        For a whole round: queries, training, all redraws together, and evaluation. A number, or a
        function of the round, counted from 0.
    reply
        For the replies to one set of training or evaluation messages. None takes half of what is
        left of the round while redraws, an evaluation or a secure sum may follow, and all of it
        otherwise.
    query
        For the signals that a recipe asks for, up to half of what is left of the round; at the
        start, for the next node to say its size.
    """

    _error = FlowerError

    start: float = number(600.0, least=SHORTEST)
    round: float | Callable[[int], float] = 3600.0
    reply: float | None = number(None, least=SHORTEST)
    query: float = number(60.0, least=SHORTEST)

    def _check(self) -> None:
        if not callable(self.round):
            self.of_round(0)

    def of_round(self, round_: int) -> float:
        """Return the seconds that a round may take."""
        seconds = self.round(round_) if callable(self.round) else self.round
        return checked_number("Waits", "round", seconds, least=SHORTEST, error=FlowerError)
