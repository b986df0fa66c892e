"""Audits: who took part in a run, is that chance or a fault, and what did it do."""

from typing import TYPE_CHECKING

from fedcohort._lazy import attach

if TYPE_CHECKING:
    from fedcohort.participation.summary import Audit, audit
    from fedcohort.participation.table import Participation, read_participation
else:
    __getattr__, __dir__ = attach(
        __name__, {"summary": "Audit audit", "table": "Participation read_participation"}
    )

__all__ = ["Audit", "Participation", "audit", "read_participation"]
