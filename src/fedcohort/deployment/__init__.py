"""Write a plug-in for a framework: options, limits, client directory, round, checkpoint."""

from fedcohort._arguments import suggest_names as _suggest_names
from fedcohort.deployment.arrays import ArrayCheck, ClientUpdate, LazyArrays, ModelArrays
from fedcohort.deployment.checkpoint import read_checkpoint, write_checkpoint
from fedcohort.deployment.directory import Claim, Directory, claimed_size
from fedcohort.deployment.limits import Limits, Patience
from fedcohort.deployment.options import SelectorOptions
from fedcohort.deployment.plugin import Plugin
from fedcohort.deployment.round import ClientAnswer, Round, Rounds, TrainingRound
from fedcohort.deployment.waits import BackOff, TimeLimit

__all__ = [
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
    "Round",
    "Rounds",
    "SelectorOptions",
    "TimeLimit",
    "TrainingRound",
    "claimed_size",
    "read_checkpoint",
    "write_checkpoint",
]

_suggest_names(__name__, __all__)
