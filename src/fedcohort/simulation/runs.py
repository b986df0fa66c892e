"""What is trained, and what a round of it drew."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index

from fedcohort.cohort import Cohort
from fedcohort.designs import Design, Recipe
from fedcohort.designs.recipe import estimator_for
from fedcohort.difference import Difference, EstimatorName
from fedcohort.simulation.cost import Cost
from fedcohort.simulation.devices import Devices
from fedcohort.simulation.federated_data import FederatedData
from fedcohort.simulation.openings import Opening


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One training: who is drawn how, on whose data, from which seed, and how it is aggregated.

    ``estimator`` is ``"plain"``, ``"difference"``, or a :class:`fedcohort.Difference`. Without
    ``devices`` all clients are equal (``Devices.equal``) and always there.
    """

    recipe: Recipe
    data: FederatedData
    seed: int = 0
    estimator: EstimatorName | Difference = "plain"
    devices: Devices | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", index(self.seed))
        # One name for each estimator: checkpoints are recognised by it.
        settings = estimator_for("Run", self.recipe, self.estimator)
        object.__setattr__(self, "estimator", settings or "plain")


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """A round's design, cohort and cost, and how long drawing took; no design: nobody was there."""

    opening: Opening
    design: Design | None
    cohort: Cohort
    cost: Cost
    seconds: float

    @property
    def round_(self) -> int:
        """The round, from 0."""
        return self.opening.round_
