"""The rule for failures, and the weights that it leaves to those that answered."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import final

from fedcohort.arguments import checked_choice
from fedcohort.designs import Design
from fedcohort.errors import FlowerError
from fedcohort.flower.failures import ON_FAILURE, OnFailure, redrawn, renormalised
from fedcohort.flower.training_round import TrainingRound
from fedcohort.streams import Stream, stream


@final
@dataclass(frozen=True, slots=True)
class FailureRule:
    """What becomes of lost weight; the arguments are those of :class:`CohortStrategy`."""

    on_failure: OnFailure
    tries: int
    extra: int
    cohort_size: int
    seed: int

    def __post_init__(self) -> None:
        checked_choice("CohortStrategy", "on_failure", self.on_failure, ON_FAILURE)
        if self.extra < 0 or (self.extra and self.on_failure == "redraw"):
            raise FlowerError(
                f"CohortStrategy: extra must be 0 or more, and 0 with on_failure='redraw', which "
                f"replaces what is lost; got {self.extra}. Choose one of the two."
            )

    @property
    def needs_own_loop(self) -> bool:
        """Whether clients are asked while replies are aggregated, or replies not waited for."""
        return self.on_failure == "redraw" or self.extra > 0

    def settled(
        self, now: TrainingRound, design: Design, ask: Callable[[list[str]], Collection[str]]
    ) -> dict[str, float]:
        """Return the weights of those that answered; ``ask`` is that of :func:`redrawn`."""
        weights = {key: w for key, w in now.weights.items() if key in now.answered}
        if self.extra:
            counts = {key: now.counts[key] for key in now.answered}
            shares = sum(counts.values())
            if self.on_failure == "keep":
                shares = max(self.cohort_size, shares)
            return {key: count / shares for key, count in counts.items()}
        if self.on_failure == "renormalise":
            return renormalised(weights)
        if self.on_failure == "keep" or len(weights) == len(now.weights):
            return weights
        counts = redrawn(
            now.counts,
            design.population,
            ask,
            tries=self.tries,
            rng=stream(self.seed, round_=now.number, use=Stream.REDRAW),
        )
        return {key: count / design.cohort_size for key, count in counts.items()}
