"""The one exception tree: every message says who, what is needed, what came, and the way out."""


class FedcohortError(Exception):
    """Something that a caller can put right; the command line prints it as one line."""


class PopulationError(FedcohortError, ValueError):
    """The clients, their sizes, importances or ids cannot be used."""


class PlanError(FedcohortError, ValueError):
    """The distributions of a plan do not add up."""


class DesignError(FedcohortError, ValueError):
    """A design cannot be built from, drawn with, or asked for what it was given."""


class AggregationError(FedcohortError, ValueError):
    """Updates and cohort do not fit each other."""


class InputError(FedcohortError, ValueError):
    """A file or an option of the command line cannot be used."""


class MissingExtraError(FedcohortError, ImportError):
    """An optional dependency is not installed."""
