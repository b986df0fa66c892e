"""First responders: send the model to all clients, and average the first answers."""

from dataclasses import dataclass
from typing import ClassVar, final

from numpy.typing import ArrayLike

from fedcohort._arguments import Rng, checked_rng
from fedcohort.baselines.chosen import ChosenDesign, smallest
from fedcohort.designs.base import drawable_clients
from fedcohort.designs.recipe import Knowledge, Recipe
from fedcohort.designs.signals import SignalName, checked_signal
from fedcohort.population import Population


@final
class FirstRespondersDesign(ChosenDesign):
    """Send the model to all clients, and average the first ``cohort_size`` that answer.

    No cohort of m clients is complete sooner. Strongly biased toward fast clients: if durations
    stay the same from round to round, slow clients never count. The work of all but m clients is
    lost. Clients have equal weight, whatever their size. Production systems ask only a few more
    clients than they need, which has a smaller bias of the same kind.

    A client with the duration NaN does not answer. If fewer than m clients answer, they are the
    cohort. If none answers, the cohort is empty and the model stays as it is.

    Needs the signal ``duration`` of all clients.

    Parameters
    ----------
    population, cohort_size
        The clients that get the model, and the number of answers to wait for.
    durations
        The seconds after which each client answers, shape (n_clients,); NaN for no answer.

    Examples
    --------
    >>> population = Population([5, 3, 2])
    >>> design = FirstRespondersDesign(population, 2, durations=[9.0, 1.0, 4.0], rng=0)
    >>> design.chosen.tolist(), design.bias().tolist()
    ([1, 2], [-0.5, 0.2, 0.3])

    References
    ----------
    K. Bonawitz et al., "Towards federated learning at scale: system design", MLSys 2019 (which
    asks more devices than it needs and goes on with the first to report).
    """

    reads = "clients' durations"

    def __init__(
        self,
        population: Population,
        cohort_size: int,
        durations: ArrayLike,
        *,
        rng: Rng = None,
    ) -> None:
        super().__init__(population, cohort_size)
        rng = checked_rng(self.name, rng)
        seconds = checked_signal(self.name, "duration", durations, population.n_clients)
        self._choose(smallest(seconds, drawable_clients(self), self.cohort_size, rng))


@final
@dataclass(frozen=True, repr=False)
class FirstResponders(Recipe):
    """Recipe of :class:`FirstRespondersDesign`; asks all clients for their duration."""

    name: ClassVar[str] = "first"
    signals: ClassVar[tuple[SignalName, ...]] = ("duration",)
    overselects: ClassVar[bool] = True

    def design(self, population: Population, known: Knowledge) -> FirstRespondersDesign:
        durations = known.signal("duration")
        return FirstRespondersDesign(population, self.cohort_size, durations, rng=known.rng)
