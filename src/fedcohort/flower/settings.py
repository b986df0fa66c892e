"""How long the server waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, final

from fedcohort._arguments import brief, checked_number
from fedcohort._deployment import Limits
from fedcohort.errors import FlowerError

#: The shortest time that a wait can be given.
SHORTEST = 1e-3
_Function = TypeVar("_Function", bound=Callable[..., object])


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
        For the signals that a recipe asks for, up to half of what is left of the round; at the
        start, for the next node to say its size.
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


def checked_path(name: str, value: object) -> Path | None:
    """Validate a path, or None."""
    if value is not None and not isinstance(value, (str, Path)):
        raise FlowerError(
            f"CohortStrategy: {name} must be a path; got {brief(value)}. Pass text, a Path or None."
        )
    return None if value is None else Path(value)


def checked_groups(groups: object) -> dict[str, Any] | None:
    """Validate labels by client name or node id, or None."""
    if groups is not None and not isinstance(groups, Mapping):
        raise FlowerError(
            f"CohortStrategy: groups must map client names or node ids to labels; got "
            f"{brief(groups)}. Pass a dictionary, or None."
        )
    return None if groups is None else {str(key): label for key, label in groups.items()}


def checked_function(name: str, value: _Function | None) -> _Function | None:
    """Validate a function, or None."""
    if value is not None and not callable(value):
        raise FlowerError(
            f"CohortStrategy: {name} must be a function; got {brief(value)}. Pass one, or None."
        )
    return value


_Settings = TypeVar("_Settings", Waits, Limits)


def _seconds(name: str, value: object) -> float:
    return checked_number("Waits", name, value, least=SHORTEST, error=FlowerError)


def of_type(kind: type[_Settings], value: _Settings | None) -> _Settings:
    """Return the settings, or the default ones for None."""
    if value is not None and not isinstance(value, kind):
        name = kind.__name__
        raise FlowerError(
            f"CohortStrategy: {name.lower()} must be {name}(...); got {brief(value)}. Import it "
            f"from fedcohort.flower."
        )
    return kind() if value is None else value
