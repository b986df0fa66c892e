"""Tools to test designs and plug-ins: the contracts that all of them pass, and helpers."""

from fedcohort._arguments import suggest_names as _suggest_names
from fedcohort.errors import ContractError
from fedcohort.testing.contract import EVERYWHERE, OF_RECIPES, ONCE, check_design
from fedcohort.testing.laws import (
    FALSE_ALARM,
    Candidate,
    Counts,
    Law,
    Moments,
    aggregate_variance,
    agree,
    follows_law,
    importance,
    independent_rows,
    law_of_rows,
    moments,
)
from fedcohort.testing.plugins import (
    PlayedRound,
    ScriptedFederation,
    ScriptedPlugin,
    ScriptedRound,
    check_plugin,
)

__all__ = [
    "EVERYWHERE",
    "FALSE_ALARM",
    "OF_RECIPES",
    "ONCE",
    "Candidate",
    "ContractError",
    "Counts",
    "Law",
    "Moments",
    "PlayedRound",
    "ScriptedFederation",
    "ScriptedPlugin",
    "ScriptedRound",
    "aggregate_variance",
    "agree",
    "check_design",
    "check_plugin",
    "follows_law",
    "importance",
    "independent_rows",
    "law_of_rows",
    "moments",
]

_suggest_names(__name__, __all__)
