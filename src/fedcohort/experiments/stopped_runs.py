"""A run that cannot go on: one sentence says why, what is kept, and how to go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from logging import getLogger

from fedcohort.errors import ExperimentError, FedcohortError, SimulationError, WriteError
from fedcohort.experiments.own_code import place_in
from fedcohort.experiments.run_folder import RunFolder

log = getLogger(__name__)


@contextmanager
def saying_why(folder: RunFolder) -> Iterator[None]:
    """Turn what stops a run into one sentence; what is nobody's but ours passes through."""
    try:
        yield
    except WriteError as error:
        log.error("stopped: %s", error)
        raise ExperimentError(
            f"{error.place}: the run stopped, and what it had done is kept. Make room, then "
            f"go on with: {folder.resume_command}"
        ) from error
    except SimulationError as error:
        log.error("stopped: %s", error)
        raise ExperimentError(_stopped(folder, str(error))) from error
    except FedcohortError:
        raise
    except Exception as error:
        if _is_out_of_memory(error):
            log.error("stopped: %s", error)
            why = "it needs more memory than there is. Lower cohort_size, batch_size or the model."
            raise ExperimentError(_stopped(folder, why)) from error
        place = place_in(folder.path / "code", error)
        if place is None:
            raise
        log.exception("stopped")
        why = f"{place} raises {type(error).__name__}: {error}. Mend it."
        if folder.has_begun:
            why = f"code/{why} Then: {folder.resume_command}"
        raise ExperimentError(_stopped(folder, why)) from error


def _is_out_of_memory(error: Exception) -> bool:
    """Whether numpy or torch, which has no class of its own on the CPU, wants more memory."""
    text = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, (RuntimeError, ValueError))
        and any(each in text for each in ("allocate memory", "out of memory", "array is too big"))
    )


def _stopped(folder: RunFolder, why: str) -> str:
    """Say why a run stopped, and what is left of it."""
    if folder.has_begun:
        return f"{folder.path}: the run stopped, and what it had done is kept: {why}"
    return f"{folder.path}: the run stopped with nothing to keep: {why}"
