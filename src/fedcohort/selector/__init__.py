"""The server loop: who trains in each round, and everything that a server keeps between rounds."""

from typing import TYPE_CHECKING

from fedcohort._lazy import attach

if TYPE_CHECKING:
    from fedcohort.selector.answers import Answers
    from fedcohort.selector.selections import read_selections
    from fedcohort.selector.selector import Selector
else:
    __getattr__, __dir__ = attach(
        __name__,
        {"answers": "Answers", "selections": "read_selections", "selector": "Selector"},
    )

__all__ = ["Answers", "Selector", "read_selections"]
