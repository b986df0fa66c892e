"""Choosing from grids, as the paper does: by multinomial sampling's training loss at the end."""

from __future__ import annotations

import math

import numpy as np

from fedcohort.errors import ExperimentError
from fedcohort.experiments.run_folder import RunFolder
from fedcohort.experiments.settings import Training
from fedcohort.experiments.summary import window_of
from fedcohort.experiments.tables import SCHEMAS, read_table
from fedcohort.experiments.units import Unit


def chosen_training(folder: RunFolder, panel: str) -> Training:
    """Return the panel's training; from a grid, the candidate with the lowest final loss."""
    training = folder.experiment.panel(panel).training
    if not training.is_grid:
        return training
    losses = candidate_losses(folder, panel)
    best = min(losses, key=lambda point: losses[point])  # the first of equals
    if not math.isfinite(losses[best]):
        raise ExperimentError(
            f"{folder.path}: panel {panel!r}: every candidate of the grid diverges. Try smaller lr."
        )
    return training.model_copy(update={"lr": best[0], "mu": best[1]})


def candidate_losses(folder: RunFolder, panel: str) -> dict[tuple[float, float], float]:
    """Return the final loss of every (lr, mu) that was tried for the panel."""
    return {
        unit.candidate: final_loss(folder, unit)
        for unit in folder.units
        if unit.candidate is not None and unit.trials[0].panel == panel
    }


def final_loss(folder: RunFolder, unit: Unit) -> float:
    """Return the mean loss over the last rounds, as everywhere; infinite where it diverged."""
    if folder.diverged(unit).exists():
        return math.inf
    path = folder.table(unit, "rounds")
    table = read_table(path, SCHEMAS["rounds"], way_out=folder.resume_command)
    rounds, loss = table["round"].to_numpy(), table["loss"].to_numpy(zero_copy_only=False)
    total = folder.rounds_of(unit)
    late = loss[rounds >= total - window_of(total)]
    measured = late[~np.isnan(late)]
    return float(measured.mean()) if len(measured) else math.inf
