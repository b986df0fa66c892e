"""Code of a user's own: named by import path, ``module:name`` or ``file.py:name``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from hashlib import sha256
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any

from fedcohort.errors import DataError, ExperimentError
from fedcohort.simulation import Dataset, FederatedData, load_dataset
from fedcohort.simulation.data.datasets import data_folder


def own_files(names: Iterable[str]) -> list[str]:
    """Return the Python files among import paths, as they are written."""
    files = (name.rpartition(":")[0] for name in names)
    return sorted({file for file in files if file.endswith(".py")})


def own_object(what: str, name: str, folder: Path) -> Any:
    """Return what ``name`` names, None where there is no such thing; files lie in ``folder``.

    ``what`` is for messages: a design, a data set, a model.
    """
    path, _, own = name.rpartition(":")
    module = _file(what, folder, path) if path.endswith(".py") else _module(what, path)
    return getattr(module, own, None)


def own_function(what: str, name: str, folder: Path) -> Any:
    """Return the function that ``name`` names."""
    found = own_object(what, name, folder)
    if not callable(found):
        path, _, own = name.rpartition(":")
        raise ExperimentError(
            f"{what} {name!r}: {own} must be a function; {path} has "
            f"{'none of that name' if found is None else repr(found)}."
        )
    return found


def own_file(what: str, folder: Path, path: str) -> Path:
    """Return the file beside the experiment, or in the ``code`` of the run that it comes from."""
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise ExperimentError(
            f"{what} file {path}: must lie beside or below the experiment file, which names it "
            f"from there. Copy it."
        )
    kept = folder / "code" / path
    return kept if kept.is_file() and not (folder / path).is_file() else folder / path


def place_in(folder: Path, error: BaseException) -> str | None:
    """Return the innermost line below ``folder`` that raised, as ``file.py, line 3``, if any."""
    home, found = folder.resolve(), None
    for frame, line in walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        if path.is_absolute() and path.is_relative_to(home):
            found = f"{path.relative_to(home)}, line {line}"
    return found


def _module(what: str, name: str) -> ModuleType:
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:
        raise ExperimentError(
            f"{what} {name!r}: cannot be imported ({type(error).__name__}: {error}). Install it, "
            f"or name its file as my_file.py:my_name."
        ) from error


def _file(what: str, folder: Path, name: str) -> ModuleType:
    """Import a file by its path, once."""
    path = own_file(what, folder, name).resolve()
    module_name = f"fedcohort_own_{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ExperimentError(f"{what} file {path}: is not there. Put it beside the experiment.")
    module = module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise ExperimentError(
            f"{what} file {path}: cannot be imported ({type(error).__name__}: {error}). Mend it."
        ) from error
    return module


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
