"""Data sets as experiment files name them: those of the library, and a user's own."""

from __future__ import annotations

from pathlib import Path

from fedcohort.errors import DataError, ExperimentError
from fedcohort.experiments.own_code import own_function
from fedcohort.simulation import Dataset, FederatedData, load_dataset
from fedcohort.simulation.data_folder import data_folder


def load_data(name: str, folder: Path) -> Dataset | FederatedData:
    """Load a data set of the library, or call the function of a file that lies in ``folder``.

    The function gets the data folder (``FEDCOHORT_DATA``, or the user's cache).
    """
    if ":" not in name:
        return load_dataset(name)
    load = own_function("data set", name, folder)
    try:
        found = load(data_folder())
    except DataError as error:
        raise ExperimentError(f"data set {name!r}: {error}") from error
    except (Exception, SystemExit) as error:
        raise ExperimentError(
            f"data set {name!r}: cannot be loaded ({type(error).__name__}: {error}). Mend it."
        ) from error
    if not isinstance(found, (Dataset, FederatedData)):
        raise ExperimentError(
            f"data set {name!r}: must be a fedcohort.simulation.Dataset or FederatedData; the "
            f"function returned {type(found).__name__}. Return FederatedData.from_arrays(...)."
        )
    return found
