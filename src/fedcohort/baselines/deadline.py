"""Deadline: ask candidates how long they would take, and choose those that meet the deadline."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike

from fedcohort._arguments import NumberNeed, Rng, checked_rng
from fedcohort._fields import declared
from fedcohort.baselines.chosen import CandidatesRecipe, ChosenDesign, smallest
from fedcohort.designs.base import drawable_clients
from fedcohort.designs.recipe import Knowledge
from fedcohort.designs.signals import Request, SignalName, checked_signal
from fedcohort.population import Population
from fedcohort.streams import draw_subsets

#: In seconds; infinity means none.
DEADLINE = NumberNeed(above=0, finite=False, way_out="Raise it, or leave it out for none.")


@final
class DeadlineDesign(ChosenDesign):
    """Average the fastest ``cohort_size`` candidates that finish within ``deadline`` seconds.

    FedCS asks random candidates for their resources. One by one it adds the client that delays the
    round least, while the round stays within the deadline. Here a client's duration does not
    depend on the other clients, so the greedy choice is the fastest first. FedCS also schedules
    one shared radio channel, where a client trains while others upload; this design does not.
    FedCS takes every client that fits; here m is the maximum. Without a deadline the m fastest
    candidates are taken.

    Biased toward fast clients, but only candidates compete: a slow client is drawn when the other
    candidates are slower. Clients are averaged with equal weight. If fewer than m are in time,
    they are the cohort. If none is, the cohort is empty and the model stays as it is.

    Needs the signal ``duration`` of the candidates.

    Parameters
    ----------
    population, cohort_size
        The clients to choose from, and the most to choose.
    durations
        The seconds that each candidate takes, shape (n_clients,); NaN for all others.
    deadline
        In seconds, positive.

    Examples
    --------
    >>> population = Population([5, 3, 2, 2])
    >>> durations = [9.0, 1.0, 4.0, np.nan]
    >>> DeadlineDesign(population, 3, durations, deadline=5.0, rng=0).chosen.tolist()
    [1, 2]

    References
    ----------
    T. Nishio, R. Yonetani, "Client selection for federated learning with heterogeneous resources
    in mobile edge", ICC 2019.
    """

    reads = "clients' durations"

    def __init__(
        self,
        population: Population,
        cohort_size: int,
        durations: ArrayLike,
        *,
        deadline: float = math.inf,
        rng: Rng = None,
    ) -> None:
        super().__init__(population, cohort_size)
        rng = checked_rng(self.name, rng)
        deadline = DEADLINE.checked(self.name, "deadline", deadline)
        seconds = checked_signal(self.name, "duration", durations, population.n_clients)
        in_time = np.where(seconds <= deadline, seconds, np.nan)
        self._choose(smallest(in_time, drawable_clients(self), self.cohort_size, rng))


@final
@dataclass(frozen=True, repr=False)
class Deadline(CandidatesRecipe):
    """Recipe of :class:`DeadlineDesign`; asks candidates, all equally likely, for their duration.

    ``candidates`` is their number; 0 for three times the cohort's size.
    """

    name: ClassVar[str] = "deadline"
    signals: ClassVar[tuple[SignalName, ...]] = ("duration",)

    deadline: float = declared(DEADLINE, math.inf)

    def ask(self, population: Population, round_: int, rng: np.random.Generator) -> Request:
        """Ask candidates for their duration."""
        drawable, number = np.flatnonzero(population.sizes), self.n_candidates(population)
        places = draw_subsets(rng, len(drawable), number, 1)[0]
        return Request("duration", np.sort(drawable[places]))

    def design(self, population: Population, known: Knowledge) -> DeadlineDesign:
        durations, deadline = known.signal("duration"), self.deadline
        return DeadlineDesign(
            population, self.cohort_size, durations, deadline=deadline, rng=known.rng
        )
