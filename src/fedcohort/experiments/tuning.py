"""Tuning: the final loss of every point of a grid, and the point that each design trains with."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedcohort.errors import ExperimentError
from fedcohort.experiments.results import window_of
from fedcohort.experiments.run_folder import RunFolder
from fedcohort.experiments.settings import Panel, Rates
from fedcohort.experiments.tables import NUMBER, RUN, SCHEMAS, read_table
from fedcohort.experiments.units import PlannedRun, Unit, baseline_of, tuned_designs

#: The points that were tried: one line per panel, design and point of its grid. ``final_loss`` is
#: null where training diverged; ``chosen`` marks the point that the design trains with.
TUNING = pa.schema(
    [*RUN, *((name, NUMBER) for name in (*Rates._fields, "final_loss")), ("chosen", pa.bool_())]
)


def chosen_rates(folder: RunFolder, panel: Panel, design: str) -> Rates:
    """Return the rates of a design. From a grid, choose the point with the lowest final loss.

    The first one in case of a tie. With ``tune = "baseline"`` the baseline's choice is everyone's.
    """
    tuned = design if panel.tune == "each" else baseline_of(panel)
    if not panel.is_grid:
        return panel.candidates(design)[0]
    candidates = panel.candidates(tuned)
    losses = candidate_losses(folder, panel, tuned)
    if losses.keys() != set(candidates):
        reason = f"the grid of panel {panel.label!r} is not finished"
        raise ExperimentError(f"{folder.path}: {reason}. Run: {folder.resume_command}")
    best = min(candidates, key=lambda point: losses[point])
    if not math.isfinite(losses[best]):
        raise ExperimentError(
            f"{folder.path}: panel {panel.label!r}: every candidate of the grid diverges with "
            f"design {tuned!r}. Try smaller lr."
        )
    return best


def candidate_losses(folder: RunFolder, panel: Panel, design: str) -> dict[Rates, float]:
    """Return the final loss of every point that a design has tried for the panel."""
    run = PlannedRun(panel.label, design, panel.tuning_seed)
    return {
        unit.candidate: final_loss(folder, unit, run)
        for unit in folder.units
        if unit.candidate is not None and run in unit.runs and unit.is_done
    }


def take_trials(folder: RunFolder, others: Iterable[RunFolder]) -> None:
    """Copy the trials that other folders of the same experiment have finished."""
    for other in others:
        if (other.device, other.experiment.as_dict()) != (
            folder.device,
            folder.experiment.as_dict(),
        ):
            raise ExperimentError(
                f"{other.path}: its trials are of another experiment than {folder.path}, or of "
                f"another device. Name folders of the same file."
            )
        done = {unit.number: unit for unit in other.units if unit.candidate and unit.is_done}
        for unit in folder.units:
            if unit.number in done and not unit.is_done:
                unit.copy(done[unit.number])


def final_loss(folder: RunFolder, unit: Unit, run: PlannedRun) -> float:
    """Return a run's mean loss over the last ``window_of`` rounds; infinite if it diverged."""
    if unit.ended("diverged"):
        return math.inf
    path = unit.table("rounds")
    table = read_table(path, SCHEMAS["rounds"], way_out=folder.resume_command)
    own = table.filter(pc.field("design") == run.design)
    if pc.any(own["diverged"]).as_py():
        return math.inf
    rounds, loss = own["round"].to_numpy(), own["loss"].to_numpy(zero_copy_only=False)
    late = loss[rounds >= unit.rounds - window_of(unit.rounds)]
    measured = late[~np.isnan(late)]
    return float(measured.mean()) if len(measured) else math.inf


def tuning_table(folder: RunFolder) -> pa.Table:
    """Return the points that were tried so far; see ``TUNING``."""
    lines = []
    for panel in folder.experiment.panels:
        for entry in tuned_designs(panel):
            losses = candidate_losses(folder, panel, entry.label)
            known = known_rates(folder, panel, entry.label)
            run = {"panel": panel.label, "design": entry.label, "seed": panel.tuning_seed}
            for point, loss in losses.items():
                value = loss if math.isfinite(loss) else None
                own = {**run, **point._asdict(), "final_loss": value, "chosen": point == known}
                lines.append(own)
    return pa.Table.from_pylist(lines, schema=TUNING)


def worded_choice(folder: RunFolder, panel: Panel) -> str:
    """Describe which design chose which point of the panel's grid; empty without a grid.

    For example ``lr = 0.1, chosen by multinomial with seed 0``.
    """
    tuned = tuned_designs(panel)
    found = {entry.label: known_rates(folder, panel, entry.label) for entry in tuned}
    if not found or None in found.values():
        return ""
    texts = {label: worded_rates(panel, rates) for label, rates in found.items() if rates}
    how = f"with seed {panel.tuning_seed}"
    if panel.tune_rounds is not None:
        how += f" after {panel.tune_rounds} rounds"
    if panel.tune == "baseline":
        ((label, text),) = texts.items()
        return f"{text} for all designs, chosen by {label} {how}"
    each = ", ".join(f"{label}: {text}" for label, text in texts.items())
    return f"{each}; each chosen {how}"


def worded_rates(panel: Panel, rates: Rates) -> str:
    """Name those values of a point that the panel gives a list for: ``lr 0.1 mu 0.5``."""
    return " ".join(f"{name} {getattr(rates, name):g}" for name in panel.grid_names)


def known_rates(folder: RunFolder, panel: Panel, design: str) -> Rates | None:
    """Return the rates of a design; None while its grid is being tried."""
    try:
        return chosen_rates(folder, panel, design)
    except ExperimentError:
        return None
