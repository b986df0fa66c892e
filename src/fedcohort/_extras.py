"""Optional dependencies: imported when asked for, and missed in one sentence."""

from importlib import import_module
from types import ModuleType

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
