"""What happened in a run, round by round."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from fedcohort.simulation.cost import Cost
from fedcohort.simulation.evaluation import Quality
from fedcohort.simulation.oracle import Yardstick


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one run.

    Attributes
    ----------
    round_
        From 0.
    clients, counts, weights, residual
        The cohort.
    distinct_classes
        Classes that the cohort's clients have samples of.
    draw_seconds, train_seconds, measure_seconds
        Building the design, or waiting for it, and drawing; local training and aggregation (of
        all runs that train together); measuring, the yardstick included.
    quality
        Of the model after the round, where it was measured.
    yardstick
        Against full participation, where it was asked for.
    rows
        For every client the distribution that holds most of it (-1: none), where it was asked for
        and the design has distributions.
    cost
        Bytes, client work and simulated time; None in rounds that an older version recorded.
    failed
        Clients that were asked and whose update is missing: they failed, or their training is
        not finite.
    diverged
        Whether something was not finite in this round or before.
    """

    round_: int
    clients: list[int]
    counts: list[int]
    weights: list[float]
    residual: float
    distinct_classes: int
    draw_seconds: float = 0.0
    train_seconds: float = 0.0
    measure_seconds: float = 0.0
    quality: Quality | None = None
    yardstick: Yardstick | None = None
    rows: list[int] | None = None
    cost: Cost | None = None
    failed: list[int] = field(default_factory=list)
    diverged: bool = False

    @property
    def distinct_clients(self) -> int:
        """How many clients trained."""
        return len(self.clients)

    @property
    def failed_clients(self) -> int:
        """How many updates are missing."""
        return len(self.failed)


#: What depends on the machine, not on the seed.
TIMES = ("draw_seconds", "train_seconds", "measure_seconds")


@dataclass(slots=True)
class History:
    """All rounds of a run."""

    rounds: list[Round] = field(default_factory=list)

    @property
    def measured(self) -> list[Round]:
        """The rounds whose model was measured."""
        return [each for each in self.rounds if each.quality is not None]

    @property
    def diverged_at(self) -> int | None:
        """The first round in which something was not finite; None: everything always was."""
        return next((each.round_ for each in self.rounds if each.diverged), None)

    def as_dicts(self, *, times: bool = True) -> list[dict[str, Any]]:
        """Return every round as plain numbers; without ``times``, what a seed determines."""
        rows = [asdict(each) for each in self.rounds]
        return [
            {key: value for key, value in row.items() if times or key not in TIMES} for row in rows
        ]

    @classmethod
    def of_dicts(cls, rows: list[dict[str, Any]]) -> History:
        """Read back what :meth:`as_dicts` gave."""
        return cls([_round(row) for row in rows])


def _round(row: dict[str, Any]) -> Round:
    quality, yardstick, cost = row.pop("quality"), row.pop("yardstick"), row.pop("cost", None)
    return Round(
        **row,
        quality=None if quality is None else Quality(**quality),
        yardstick=None if yardstick is None else Yardstick(**yardstick),
        cost=None if cost is None else Cost(**cost),
    )
