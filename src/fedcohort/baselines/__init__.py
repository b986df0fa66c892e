"""Published ways to choose clients that are biased or need more communication."""

from typing import TYPE_CHECKING

from fedcohort._lazy import attach

if TYPE_CHECKING:
    from fedcohort.baselines.chosen import ChosenDesign
    from fedcohort.baselines.cohort_mean import CohortMean, CohortMeanDesign
    from fedcohort.baselines.deadline import Deadline, DeadlineDesign
    from fedcohort.baselines.divfl import DivFL, DivFLDesign
    from fedcohort.baselines.first_responders import FirstResponders, FirstRespondersDesign
    from fedcohort.baselines.hics import HiCS, HiCSDesign
    from fedcohort.baselines.norm_optimal import NormOptimal, NormOptimalDesign
    from fedcohort.baselines.oort import Oort, OortDesign, OortOptions
    from fedcohort.baselines.power_of_choice import PowerOfChoice, PowerOfChoiceDesign
    from fedcohort.baselines.round_robin import RoundRobin, RoundRobinDesign
    from fedcohort.baselines.shuffled import Shuffled, ShuffledDesign
    from fedcohort.baselines.uniform import Uniform, UniformDesign
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "chosen": "ChosenDesign",
            "cohort_mean": "CohortMean CohortMeanDesign",
            "deadline": "Deadline DeadlineDesign",
            "divfl": "DivFL DivFLDesign",
            "first_responders": "FirstResponders FirstRespondersDesign",
            "hics": "HiCS HiCSDesign",
            "norm_optimal": "NormOptimal NormOptimalDesign",
            "oort": "Oort OortDesign OortOptions",
            "power_of_choice": "PowerOfChoice PowerOfChoiceDesign",
            "round_robin": "RoundRobin RoundRobinDesign",
            "shuffled": "Shuffled ShuffledDesign",
            "uniform": "Uniform UniformDesign",
        },
    )

__all__ = [
    "ChosenDesign",
    "CohortMean",
    "CohortMeanDesign",
    "Deadline",
    "DeadlineDesign",
    "DivFL",
    "DivFLDesign",
    "FirstResponders",
    "FirstRespondersDesign",
    "HiCS",
    "HiCSDesign",
    "NormOptimal",
    "NormOptimalDesign",
    "Oort",
    "OortDesign",
    "OortOptions",
    "PowerOfChoice",
    "PowerOfChoiceDesign",
    "RoundRobin",
    "RoundRobinDesign",
    "Shuffled",
    "ShuffledDesign",
    "Uniform",
    "UniformDesign",
]
