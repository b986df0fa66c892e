"""Power of choice: the candidates with the largest loss of the current model."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike

from fedcohort._arguments import Rng, checked_rng
from fedcohort.baselines.chosen import CandidatesRecipe, ChosenDesign, smallest
from fedcohort.designs.base import drawable_clients
from fedcohort.designs.recipe import Knowledge
from fedcohort.designs.signals import Request, SignalName, checked_signal
from fedcohort.population import Population


@final
class PowerOfChoiceDesign(ChosenDesign):
    """Average the ``cohort_size`` candidates with the largest loss of the current model.

    Candidates are drawn by importance without replacement. They evaluate the model on their own
    samples. Biased toward clients with large losses; more candidates increase the bias. Even with
    m candidates, where all are chosen, drawing without replacement and equal weights cause a bias.
    The published variants estimate the loss from a batch or remember it: pass such losses instead.

    If fewer than m candidates answer, they are the cohort. If none answers, the cohort is empty
    and the model stays as it is.

    Needs the signal ``loss`` of the candidates: they receive the model and evaluate it.

    Parameters
    ----------
    losses
        The mean loss of every candidate, shape (n_clients,); NaN for all others.

    Examples
    --------
    >>> population = Population([5, 3, 2, 2])
    >>> losses = [0.1, np.nan, 0.7, 0.4]
    >>> PowerOfChoiceDesign(population, 2, losses, rng=0).chosen.tolist()
    [2, 3]

    References
    ----------
    Y. J. Cho, J. Wang, G. Joshi, "Towards understanding biased client selection in federated
    learning", AISTATS 2022 (the strategy that they call pow-d).
    """

    reads = "clients' losses"

    def __init__(
        self,
        population: Population,
        cohort_size: int,
        losses: ArrayLike,
        *,
        rng: Rng = None,
    ) -> None:
        super().__init__(population, cohort_size)
        rng = checked_rng(self.name, rng)
        known = checked_signal(self.name, "loss", losses, population.n_clients)
        self._choose(smallest(-known, drawable_clients(self), self.cohort_size, rng))


@final
@dataclass(frozen=True, repr=False)
class PowerOfChoice(CandidatesRecipe):
    """Recipe of :class:`PowerOfChoiceDesign`; asks candidates, drawn by importance, for their loss.

    ``candidates`` is their number; 0 for three times the cohort's size.
    """

    name: ClassVar[str] = "power-of-choice"
    signals: ClassVar[tuple[SignalName, ...]] = ("loss",)

    def ask(self, population: Population, round_: int, rng: np.random.Generator) -> Request:
        """Ask candidates, each drawn by importance among those left, for their loss."""
        # The first of independent exponential clocks with rates p is a draw by p. The next one is
        # a draw by p among the others.
        drawable = np.flatnonzero(population.sizes)
        rings = rng.exponential(size=len(drawable)) / population.importance[drawable]
        first = np.argsort(rings)[: self.n_candidates(population)]
        return Request("loss", np.sort(drawable[first]))

    def design(self, population: Population, known: Knowledge) -> PowerOfChoiceDesign:
        return PowerOfChoiceDesign(
            population, self.cohort_size, known.signal("loss"), rng=known.rng
        )
