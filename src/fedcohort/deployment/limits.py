"""Limits: what the server accepts from clients, and when it gives up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sized
from dataclasses import dataclass
from typing import final

from fedcohort._display import counted, times
from fedcohort._fields import Record, number, whole
from fedcohort.deployment.plugin import Plugin
from fedcohort.errors import DeploymentError

#: The largest size: a million such clients and a thousand draws still fit 63 bits.
LARGEST_SIZE = 10**12
#: The most characters of a cause that an error shows.
LONGEST_CAUSE = 150
NO_LIMIT = "Use None for no limit."


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(Record):
    """Bounds on what the server accepts from clients, and on rounds that fail.

    Attributes
    ----------
    max_size, max_share
        Bounds on the samples that a client can claim, and on its share of all samples. Without
        ``max_share``, the size that a client reports itself counts up to half of all samples if
        ten clients or more have samples.
    max_count
        The largest change of an entry of an integer array beside floating-point ones; an update
        beyond it is rejected.
    min_replies
        With fewer usable replies a round is void: the model stays.
    give_up_after
        End training after this many rounds in a row without a usable reply.
    """

    _error = DeploymentError

    max_size: int | None = whole(None, least=1)
    max_share: float | None = number(None, above=0, most=1, way_out=NO_LIMIT)
    max_count: int = whole(LARGEST_SIZE, least=1)
    min_replies: int = whole(1, least=1)
    give_up_after: int = whole(10, least=1)

    def check_cohort(self, plugin: Plugin, draws: int) -> None:
        """Refuse ``min_replies`` that no cohort of this many draws can reach."""
        if self.min_replies > draws:
            raise plugin.refusal(
                f"min_replies must be at most the {draws} draws of a round; got "
                f"{self.min_replies}. Lower it, or draw more clients."
            )


@final
class Patience:
    """Decides which rounds are void, and when to give up.

    Training ends after ``limits.give_up_after`` rounds in a row without a usable reply.
    """

    def __init__(self, plugin: Plugin, limits: Limits) -> None:
        self._plugin, self._limits = plugin, limits
        self._failed_rounds, self._kinds, self._example = 0, Counter[str](), dict[str, str]()

    def is_void(self, round_: int, n_answered: int) -> bool:
        """Return whether a round has too few usable replies, and log it."""
        needed = self._limits.min_replies
        if n_answered < needed:
            self._plugin.logger.warning(
                "round %d is void, the model stays; usable replies: %d, needed: %d",
                *(round_, n_answered, needed),
            )
        return n_answered < needed

    def end_round(self, answered: Sized, reasons: Iterable[str]) -> None:
        """Count a round that ended without a usable reply for these reasons; raise after too many.

        A round with usable replies starts the count again. A round without reasons does not
        count: a design may draw an empty cohort.
        """
        kinds = Counter[str]()
        for reason in () if answered else reasons:
            kind = reason.partition(":")[0]
            kinds[kind] += 1
            self._example.setdefault(kind, reason)
        if answered:
            self._failed_rounds, self._kinds, self._example = 0, kinds, {}
        self._failed_rounds, self._kinds = self._failed_rounds + bool(kinds), self._kinds + kinds
        if self._failed_rounds >= self._limits.give_up_after:
            causes = [
                f"{times(n)} {_cut(repr(self._example[kind]))}"
                for kind, n in self._kinds.most_common()
            ]
            raise self._plugin.refusal(
                f"{counted(self._failed_rounds, 'round')} in a row had no usable reply: "
                f"{', '.join(causes)}. Fix the clients, or raise Limits(give_up_after=...)."
            )


def _cut(cause: str) -> str:
    """Return the beginning and the end of a long cause."""
    if len(cause) <= LONGEST_CAUSE:
        return cause
    return f"{cause[: LONGEST_CAUSE // 3]} ... {cause[-(LONGEST_CAUSE - LONGEST_CAUSE // 3) :]}"
