"""Optional dependencies: imported when asked for, and missed in one sentence."""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from numpy.typing import NDArray

from fedcohort.errors import MissingExtraError


def import_extra(module: str, *, extra: str, owner: str) -> ModuleType:
    """Import ``module``, or name the install command of the ``extra`` that brings it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"{owner}: needs {package}, which is not installed. "
            f"Run: pip install 'fedcohort[{extra}]'"
        ) from error


def frame_of(columns: Mapping[str, NDArray[Any]]) -> Any:
    """Return a pandas DataFrame of these columns; without pandas, a dict of them."""
    if find_spec("pandas") is None:
        return dict(columns)
    return import_module("pandas").DataFrame(dict(columns))
