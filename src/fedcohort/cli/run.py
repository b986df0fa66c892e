"""``fedcohort run`` and ``fedcohort resume``: run an experiment, show progress and a table."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedcohort._arguments import COMPUTE_DEVICES, brief
from fedcohort.cli.doctor import TRACKER_PACKAGES
from fedcohort.cli.options import (
    RUNS,
    RunDir,
    argument,
    designs_of_file,
    fresh_folder,
    keys_of_file,
    one_of,
    option,
    plain_console,
    run_paths,
)
from fedcohort.errors import ExperimentError, FedcohortError, InputError

if TYPE_CHECKING:
    from fedcohort.experiments import Experiment, Results, RunFolder


#: A group of options in the help.
CHANGED = "A part of the file, or other values"

TRACKER_HELP = "Also send every round to tensorboard, mlflow (both into the folder) or wandb."
TrackerName = Annotated[
    str | None, option("--tracker", "NAME", TRACKER_HELP, complete=one_of(TRACKER_PACKAGES))
]
WORKERS_HELP = "How many units run at a time, each in its process; auto: one per GPU, or per core."
Workers = Annotated[str, option("--workers -w", "N", WORKERS_HELP, default=True)]
RAY_HELP = "Run the units on the Ray cluster at this address instead; local: one on this machine."
RayAddress = Annotated[str | None, option("--ray", "ADDRESS", RAY_HELP)]
SET_HELP = "Change a value of the file, such as training.lr=0.1. Repeatable."
SEEDS_HELP = "Seeds instead of the file's, such as 0-4 or 0,3."
PANELS_HELP = "Only these of the file's panels, by label."
DEVICE_HELP = "auto (a GPU if there is one), cpu or cuda."
DESIGNS_HELP = "Only these of the file's designs, by label or recipe."
Seeds = Annotated[str | None, option("--seeds", "SEEDS", SEEDS_HELP, group=CHANGED)]
Designs = Annotated[
    str | None,
    option("--designs -d", "DESIGN,...", DESIGNS_HELP, complete=designs_of_file, group=CHANGED),
]
Panels = Annotated[str | None, option("--panels", "PANEL,...", PANELS_HELP, group=CHANGED)]
Changes = Annotated[
    list[str] | None,
    option("--set", "KEY=VALUE", SET_HELP, complete=keys_of_file, group=CHANGED),
]
#: Another group: a share of the units, as tasks of a cluster take it.
SHARED = "A share of the work"
PART_HELP = "Only part K of N: every N-th unit, and the trials they need. Goes on if it was begun."
ONLY_HELP = "With --part: every N-th trial of the grids instead."
FROM_HELP = "Take finished trials of grids from this run folder, or from the run folders in it."


def run(
    file: Annotated[Path, argument("FILE.toml", "The experiment file.")],
    seeds: Seeds = None,
    designs: Designs = None,
    panels: Panels = None,
    changes: Changes = None,
    out: Annotated[
        Path | None,
        option("--out -o", "DIR", f"A new folder. Default: {RUNS}/NAME, where NAME is the file's."),
    ] = None,
    device: Annotated[
        str,
        option("--device", "DEVICE", DEVICE_HELP, complete=one_of(COMPUTE_DEVICES), default=True),
    ] = "auto",
    workers: Workers = "1",
    ray: RayAddress = None,
    tracker: TrackerName = None,
    part: Annotated[str | None, option("--part", "K/N", PART_HELP, group=SHARED)] = None,
    only_trials: Annotated[
        bool, typer.Option("--only-trials", help=ONLY_HELP, rich_help_panel=SHARED)
    ] = False,
    trials_from: Annotated[
        Path | None, option("--trials-from", "DIR", FROM_HELP, group=SHARED)
    ] = None,
) -> None:
    """Run an experiment: every panel, design and seed of a file.

    Ctrl-C stops after the current round. fedcohort resume continues from there.
    """
    from fedcohort.experiments import RunFolder
    from fedcohort.experiments.tuning import take_trials
    from fedcohort.experiments.units import Part
    from fedcohort.simulation import Options

    if device not in COMPUTE_DEVICES:
        raise InputError(
            f"run: --device must be one of {', '.join(COMPUTE_DEVICES)}; got {device!r}."
        )
    if only_trials and part is None:
        raise InputError("run: --only-trials needs --part; got none. Pass --part 1/1 for all.")
    n_workers = _number("run", workers, ray)
    experiment = checked_experiment(file, seeds, designs, panels, changes)
    trains_on = Options(device=device).torch_device().type
    share = None if part is None else Part.read(part, only_trials=only_trials)
    path = fresh_folder(experiment.name) if out is None else out
    if share is not None and out is None:  # the same each time, so that it goes on
        path = RUNS / f"{experiment.name}-{str(share).replace(' ', '-').replace('/', '-of-')}"
    command = ["fedcohort", *sys.argv[1:]]
    folder = RunFolder.create(
        path, experiment, source=file, device=trains_on, command=command, part=share
    )
    with folder.discarded_unless_begun():
        if trials_from is not None:
            take_trials(folder, map(RunFolder.open, run_paths(trials_from)))
        _go(folder, n_workers, ray, tracker)


def checked_experiment(
    file: Path,
    seeds: str | None,
    designs: str | None,
    panels: str | None,
    changes: list[str] | None,
) -> Experiment:
    """Read an experiment file with its changes; refuse parts of it that cannot be made."""
    from fedcohort.experiments import read_experiment
    from fedcohort.experiments.own_code import check_parts

    experiment = read_experiment(
        file, seeds=seeds, designs=designs, panels=panels, changes=changes or ()
    )
    try:
        check_parts(experiment, file.parent)
    except FedcohortError as error:
        raise ExperimentError(f"{file}: {error}") from error
    return experiment


def resume(
    folder: RunDir,
    workers: Workers = "1",
    ray: RayAddress = None,
    tracker: TrackerName = None,
) -> None:
    """Resume a run. Its results equal those of an uninterrupted run."""
    from fedcohort.experiments import RunFolder

    n_workers = _number("resume", workers, ray)
    _go(RunFolder.open(folder), n_workers, ray, tracker)


def _number(command: str, workers: str, ray: str | None) -> int | Literal["auto"]:
    """Read ``--workers``."""
    if ray is not None and workers != "1":
        raise InputError(
            f"{command}: takes --workers or --ray; got both. Ray runs a unit for each of its cores."
        )
    if workers == "auto":
        return "auto"
    if re.fullmatch(r"[1-9]\d{0,3}", workers, re.ASCII) is None:
        raise InputError(
            f"{command}: --workers must be a number from 1 to 9999 or auto; got {brief(workers)}."
        )
    return int(workers)


def _go(
    folder: RunFolder, workers: int | Literal["auto"], ray: str | None, tracker_name: str | None
) -> None:
    """Execute the run. Show progress on standard error and a table at the end."""
    from fedcohort.experiments import FailedUnitsError, execute, read_results
    from fedcohort.experiments.progress import watched
    from fedcohort.experiments.units import worded_plan

    tracker = None
    if tracker_name is not None:
        from fedcohort.experiments.trackers import make_tracker

        tracker = make_tracker(tracker_name, folder.path, folder.experiment.name)
    try:
        with watched(worded_plan(folder.units, folder.experiment)) as observer:
            execute(folder, workers=workers, ray=ray, observer=observer, tracker=tracker)
    except KeyboardInterrupt:
        print(f"stopped; resume with: {folder.resume_command}", file=sys.stderr)
        raise
    except FailedUnitsError:
        with suppress(ExperimentError):  # nothing to show, or a table was lost with a worker
            print_summary(read_results(folder.path))
        raise
    finally:
        if tracker is not None:
            tracker.close()
    print_summary(read_results(folder.path))


def print_summary(results: Results) -> None:
    """Print a table per panel, and the path of the run folder."""
    from fedcohort.report.summary import summary_parts

    console = plain_console()
    for part in summary_parts(results):
        console.print(part)
    console.print(f"\nrun folder: {results.folder.path}", soft_wrap=True)
