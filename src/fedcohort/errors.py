"""The one exception tree: every message says who, what is needed, the value, and the way out."""


class FedcohortError(Exception):
    """An error that the caller can correct; the command line prints it as one line."""


class PopulationError(FedcohortError, ValueError):
    """The clients, their sizes, importances or ids cannot be used."""


class PlanError(FedcohortError, ValueError):
    """The distributions of a plan do not add up."""


class DesignError(FedcohortError, ValueError):
    """A design cannot be built or drawn from with these arguments."""


class ContractError(FedcohortError, AssertionError):
    """A design does not keep the contract of all designs; tests fail with it."""


class SelectorError(FedcohortError, ValueError):
    """A selector refuses a call, or its state cannot be read."""


class AggregationError(FedcohortError, ValueError):
    """Updates and cohort do not fit each other."""


class MemoryOfUpdatesError(FedcohortError, ValueError):
    """Updates cannot be remembered, or a memory cannot be read."""


class DataError(FedcohortError, ValueError):
    """A data set, a partition or a user's arrays cannot be used."""


class SimulationError(FedcohortError, ValueError):
    """A model, its training or a checkpoint cannot be used."""


class ExperimentError(FedcohortError, ValueError):
    """An experiment file or a run folder cannot be used."""


class DeploymentError(FedcohortError, ValueError):
    """A federation cannot be run as it was asked for."""


class FlowerError(DeploymentError):
    """A federation on Flower cannot be run as it was asked for."""


class FedBioMedError(DeploymentError):
    """A federation on Fed-BioMed cannot be run as it was asked for."""


class NvflareError(DeploymentError):
    """A federation on NVIDIA FLARE cannot be run as it was asked for."""


class ArgumentError(FedcohortError, TypeError):
    """A call has a keyword argument that the function or class does not know."""


class StreamError(FedcohortError, ValueError):
    """An address of a random stream is out of range."""


class InputError(FedcohortError, ValueError):
    """A file or an option of the command line cannot be used."""


class WriteError(InputError):
    """A file cannot be written; ``place`` says which and why."""

    def __init__(self, place: str) -> None:
        super().__init__(f"{place}. Choose another path.")
        self.place = place


class MissingExtraError(FedcohortError, ImportError):
    """An optional dependency is not installed."""
