"""What becomes of the weight of drawn clients that do not answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, final, get_args

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import UNIT_LIMIT, brief, checked_choice
from fedcohort.cohort import Cohort
from fedcohort.designs import Design
from fedcohort.errors import SelectorError
from fedcohort.population import Population

OnFailure = Literal["keep", "redraw", "renormalise"]
ON_FAILURE: tuple[OnFailure, ...] = get_args(OnFailure)


@final
@dataclass(frozen=True, slots=True)
class FailureRule:
    """The rule for failures.

    Attributes
    ----------
    on_failure
        ``"keep"`` leaves the lost weight on the current model, ``"redraw"`` draws other clients
        in the place of the lost ones, ``"renormalise"`` spreads the lost weight over those that
        answered (as most frameworks do; biased).
    tries
        How often ``"redraw"`` draws again.
    extra
        Over-selection: this many more draws, of which the first ``cohort_size`` that are answered
        count. That favours fast clients, so it is biased.
    max_draws
        The most often that a design may draw one client in a round; None for any number.
    """

    on_failure: OnFailure = "keep"
    tries: int = 10
    extra: int = 0
    max_draws: int | None = None

    def __post_init__(self) -> None:
        checked_choice("Selector", "on_failure", self.on_failure, ON_FAILURE)
        for name, least in (("tries", 0), ("extra", 0), ("max_draws", 1)):
            value = getattr(self, name)
            if name != "max_draws" or value is not None:
                object.__setattr__(self, name, checked_whole(name, value, least))
        if self.extra and self.on_failure == "redraw":
            raise SelectorError(
                f"Selector: extra must be 0 with on_failure='redraw', which replaces what is lost; "
                f"got {self.extra}. Choose one of the two."
            )

    @property
    def needs_equal_draws(self) -> bool:
        """Whether a draw takes another one's place."""
        return self.on_failure == "redraw" or self.extra > 0

    def check(self, design: Design) -> None:
        """Refuse a design that the rule does not go with."""
        if self.needs_equal_draws:
            check_equal_draws(design)
        if self.max_draws is None:
            return
        counts = design.max_count()
        client = int(np.argmax(counts))
        if counts[client] > self.max_draws:
            raise SelectorError(
                f"Selector: max_draws is {self.max_draws}, and {design.name} can draw client "
                f"{design.population.ids[client]!r} {counts[client]} times in a round. Use a "
                f"design that repeats less, such as size, or bound that client's size."
            )

    def settled(self, draws: Draws, answered: NDArray[np.int64], *, cohort_size: int) -> Cohort:
        """Return the cohort of those that answered, with their final weights.

        Parameters
        ----------
        draws
            Of the round, replacements included.
        answered
            Positions of those that answered, in order of arrival.
        cohort_size
            The recipe's.
        """
        drawn = draws.cohort
        if self.extra:
            return self._first(draws, answered, cohort_size)
        if draws.counts is not None:
            clients = np.sort(answered)
            clients = clients[draws.counts[clients] > 0]
            counts = draws.counts[clients]
            if counts.sum() == draws.cohort_size:
                return Cohort.of_shares(clients, counts, draws.cohort_size)
            return Cohort.of_weights(clients, counts, counts / draws.cohort_size)
        has_answered = np.isin(drawn.clients, answered)
        if has_answered.all():
            return drawn
        weights = drawn.weights[has_answered]
        kept = (drawn.clients[has_answered], drawn.counts[has_answered])
        if self.on_failure == "renormalise" and (total := float(weights.sum())):
            return Cohort(*kept, weights / total, residual=0.0)
        return Cohort.of_weights(*kept, weights)

    def _first(self, draws: Draws, answered: NDArray[np.int64], cohort_size: int) -> Cohort:
        """Take the first answers, until as many draws are answered as count."""
        drawn = draws.cohort
        counts = drawn.counts[np.searchsorted(drawn.clients, answered)]
        is_first = np.cumsum(counts) - counts < cohort_size
        order = np.argsort(answered[is_first])
        clients, counts = answered[is_first][order], counts[is_first][order]
        shares = int(counts.sum())
        if not shares:
            return Cohort.empty()
        if self.on_failure == "keep" and shares < cohort_size:
            return Cohort.of_weights(clients, counts, counts / cohort_size)
        return Cohort.of_shares(clients, counts, shares)


@final
@dataclass(slots=True, eq=False)
class Draws:
    r"""The draws of an open round, and those that took the place of lost ones.

    A lost draw is replaced by a draw from p over all clients that are there, until one answers.
    Given the set R of clients that can be reached, a replacement is client i with chance
    :math:`p_i / p(R)`, and so is a draw that was not lost: :math:`E[w_i | R] = p_i / p(R)` for
    every design with :math:`E[c_i] = m p_i`.

    Attributes
    ----------
    cohort
        As drawn.
    population
        The clients that are there.
    cohort_size
        The design's number of draws.
    rng
        Of the replacements.
    tries
        How often replacements can still be drawn.
    counts
        Draws by position, replacements included; None before any were lost.
    lost
        Draws that are to be replaced.
    asked, failed
        Who was asked so far, and who of them failed.
    """

    cohort: Cohort
    population: Population
    cohort_size: int
    rng: np.random.Generator
    tries: int
    counts: NDArray[np.int64] | None = None
    lost: int = 0
    asked: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.asked = set(self.cohort.clients.tolist())

    def replace(self, lost: Iterable[int]) -> list[int]:
        """Replace the draws of these clients; return the clients that must now be asked."""
        new_failures = set(lost) - self.failed
        if self.counts is None:
            if not new_failures:
                return []
            self.counts = np.zeros(self.population.n_clients, dtype=np.int64)
            self.counts[self.cohort.clients] = self.cohort.counts
        for client in new_failures:
            self.failed.add(client)
            self.lost += int(self.counts[client])
            self.counts[client] = 0
        ends = np.cumsum(self.population.sizes)
        new: list[int] = []
        while self.lost and self.tries and not new:
            self.tries -= 1
            units = self.rng.integers(self.population.total, size=self.lost)
            for client in np.searchsorted(ends, units, side="right").tolist():
                if client in self.failed:
                    continue
                self.counts[client] += 1
                self.lost -= 1
                if client not in self.asked:
                    self.asked.add(client)
                    new.append(client)
        return new


def check_equal_draws(design: Design) -> None:
    """Refuse designs whose draws weigh differently: there a draw cannot replace another."""
    weights = design.weight_per_draw()[design.population.sizes > 0]
    if not np.array_equal(weights, np.full(len(weights), 1 / design.cohort_size)):
        raise SelectorError(
            f"Selector: on_failure='redraw', extra and privacy wrappers need a design whose draws "
            f"weigh the same; {design.name}'s do not. Use size or multinomial."
        )


def checked_whole(name: str, value: object, least: int) -> int:
    """Validate a whole number of at least ``least``."""
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if is_whole and least <= value < UNIT_LIMIT:  # type: ignore[operator]
        return int(value)  # type: ignore[call-overload, no-any-return]
    raise SelectorError(
        f"Selector: {name} must be a whole number of at least {least}; got {brief(value)}. "
        f"Pass one below 2^63."
    )
