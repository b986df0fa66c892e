"""Write a plug-in for a framework: options, limits, client directory, round, checkpoint."""

from fedcohort._arguments import suggest_names as _suggest_names
from fedcohort.deployment.arrays import (
    ArrayCheck,
    ClientUpdate,
    LazyArrays,
    ModelArrays,
    as_arrays,
    like_parameters,
)
from fedcohort.deployment.checkpoint import must_resume
from fedcohort.deployment.directory import Claim, Directory, claimed_size
from fedcohort.deployment.limits import Limits, Patience
from fedcohort.deployment.options import PluginKeywords, SelectorOptions
from fedcohort.deployment.plugin import Plugin
from fedcohort.deployment.round import NO_ANSWER, ClientAnswer, Round, Rounds, TrainingRound
from fedcohort.deployment.waits import BackOff, TimeLimit, looks

__all__ = [
    "NO_ANSWER",
    "ArrayCheck",
    "BackOff",
    "Claim",
    "ClientAnswer",
    "ClientUpdate",
    "Directory",
    "LazyArrays",
    "Limits",
    "ModelArrays",
    "Patience",
    "Plugin",
    "PluginKeywords",
    "Round",
    "Rounds",
    "SelectorOptions",
    "TimeLimit",
    "TrainingRound",
    "as_arrays",
    "claimed_size",
    "like_parameters",
    "looks",
    "must_resume",
]

_suggest_names(__name__, __all__)
