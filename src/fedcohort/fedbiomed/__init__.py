"""Every design in a Fed-BioMed experiment; needs Fed-BioMed, in an environment of its own."""

from importlib.util import find_spec

from fedcohort.errors import MissingExtraError

if find_spec("fedbiomed") is None:
    raise MissingExtraError(
        "fedcohort.fedbiomed: needs fedbiomed, which is not installed. Run: pip install fedcohort "
        "'fedbiomed[researcher]', in an environment of its own: it pins what others need newer"
    )

from fedcohort._deployment import Limits
from fedcohort.fedbiomed.strategy import CohortStrategy

__all__ = ["CohortStrategy", "Limits"]
