"""The server loop: who trains in each round, and all that a server keeps between rounds."""

from typing import TYPE_CHECKING

from fedcohort._lazy import attach

if TYPE_CHECKING:
    from fedcohort.selector.selector import Selector
else:
    __getattr__, __dir__ = attach(__name__, {"selector": "Selector"})

__all__ = ["Selector"]
