"""Power of choice: the candidates with the largest loss of the current model."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike

from fedcohort._arguments import Rng, checked_rng
from fedcohort.baselines.chosen import (
    ChosenDesign,
    candidates_by_importance,
    check_candidates,
    n_candidates,
    smallest,
)
from fedcohort.designs.base import drawable_clients
from fedcohort.designs.recipe import Knowledge, Recipe
from fedcohort.designs.signals import Request, SignalName, checked_signal
from fedcohort.population import Population


@final
class PowerOfChoiceDesign(ChosenDesign):
    """Average the ``cohort_size`` candidates with the largest loss of the current model.

    Candidates are drawn by importance without replacement. They evaluate the model on their own
    samples. Biased toward clients with large losses; more candidates increase the bias. Even with
    m candidates, where all are chosen, drawing without replacement and equal weights cause a bias.
    The published variants estimate the loss from a batch or remember it: pass such losses instead.

    If fewer than m candidates answer, they are the cohort. If nobody answers, the cohort is empty
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
class PowerOfChoice(Recipe):
    """Recipe of :class:`PowerOfChoiceDesign`; asks candidates, drawn by importance, for their loss.

    Attributes
    ----------
    candidates
        How many clients are asked; 0 for three times the cohort's size.
    """

    name: ClassVar[str] = "power-of-choice"
    signals: ClassVar[tuple[SignalName, ...]] = ("loss",)

    candidates: int = 0

    def check(self) -> None:
        """Validate the number of candidates."""
        check_candidates(type(self).__name__, self.candidates, self.cohort_size)

    def ask(self, population: Population, round_: int, rng: np.random.Generator) -> Request:
        """Ask candidates for the loss of the current model."""
        number = n_candidates(self.candidates, self.cohort_size, population)
        return Request("loss", candidates_by_importance(population, number, rng))

    def design(self, population: Population, known: Knowledge) -> PowerOfChoiceDesign:
        """Make the design from what is known."""
        return PowerOfChoiceDesign(
            population, self.cohort_size, known.signal("loss"), rng=known.rng
        )
