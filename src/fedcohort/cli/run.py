"""``fedcohort run`` and ``fedcohort resume``: run an experiment file into a run folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedcohort.cli.options import RUNS, RunDir, designs_of_file, fresh_folder, keys_of_file, one_of
from fedcohort.errors import ExperimentError, FedcohortError, InputError, WriteError

if TYPE_CHECKING:
    from fedcohort.experiments import RunFolder

DEVICES = ("auto", "cpu", "cuda")

TRACKER_NAMES = ("tensorboard", "mlflow", "wandb")
#: A group of options in the help.
CHANGED = "A part of the file, or other values"

TrackerName = Annotated[
    str | None,
    typer.Option(
        "--tracker",
        metavar="NAME",
        show_default=False,
        help="Also send every round to tensorboard, mlflow (both into the folder) or wandb.",
        autocompletion=one_of(TRACKER_NAMES),
    ),
]


def run(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE.toml", show_default=False, help="The experiment file."),
    ],
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="SEEDS",
            show_default=False,
            help="Instead of the file's: as 0-4 or 0,3.",
            rich_help_panel=CHANGED,
        ),
    ] = None,
    designs: Annotated[
        str | None,
        typer.Option(
            "--designs",
            "-d",
            metavar="DESIGN,...",
            show_default=False,
            help="Only these of the file's designs, by label or recipe.",
            autocompletion=designs_of_file,
            rich_help_panel=CHANGED,
        ),
    ] = None,
    panels: Annotated[
        str | None,
        typer.Option(
            metavar="PANEL,...",
            show_default=False,
            help="Only these of the file's panels, by label.",
            rich_help_panel=CHANGED,
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            show_default=False,
            help="Change a value of the file, as training.lr=0.1; may be given more than once.",
            autocompletion=keys_of_file,
            rich_help_panel=CHANGED,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            show_default=False,
            help=f"A new folder. Default: {RUNS}/NAME, NAME that of the file.",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="DEVICE",
            help="auto (a GPU where there is one), cpu or cuda.",
            autocompletion=one_of(DEVICES),
        ),
    ] = "auto",
    tracker: TrackerName = None,
) -> None:
    """Run an experiment: every panel, design and seed of a file.

    Ctrl-C stops after the current round. fedcohort resume continues from there.
    """
    from fedcohort.experiments import RunFolder, read_experiment
    from fedcohort.experiments.own_code import check_parts
    from fedcohort.simulation import Options

    if device not in DEVICES:
        raise InputError(f"run: --device must be one of {', '.join(DEVICES)}; got {device!r}.")
    experiment = read_experiment(
        file, seeds=seeds, designs=designs, panels=panels, changes=changes or ()
    )
    try:
        check_parts(experiment, file.parent)
    except FedcohortError as error:
        raise ExperimentError(f"{file}: {error}") from error
    trains_on = Options(device=device).torch_device().type
    path = fresh_folder(experiment.name) if out is None else out
    command = ["fedcohort", *sys.argv[1:]]
    folder = RunFolder.create(path, experiment, source=file, device=trains_on, command=command)
    try:
        _go(folder, tracker)
    except FedcohortError as error:
        if not isinstance(error.__cause__, WriteError):  # with free disk space, resume can continue
            folder.discard_unless_begun()
        raise


def resume(
    folder: RunDir,
    tracker: TrackerName = None,
) -> None:
    """Resume a run. Its results equal those of an uninterrupted run."""
    from fedcohort.experiments import RunFolder

    _go(RunFolder.open(folder), tracker)


def _go(folder: RunFolder, tracker_name: str | None) -> None:
    """Execute the run. Show progress on standard error and a table at the end."""
    from fedcohort.cli.run_display import print_summary, watched
    from fedcohort.experiments import execute, read_results
    from fedcohort.experiments.trackers import make_tracker

    name = folder.experiment.name
    tracker = None if tracker_name is None else make_tracker(tracker_name, folder.path, name)
    try:
        with watched() as observer:
            execute(folder, observer=observer, tracker=tracker)
    except KeyboardInterrupt:
        print(f"stopped; go on with: {folder.resume_command}", file=sys.stderr)
        raise
    finally:
        if tracker is not None:
            tracker.close()
    print_summary(read_results(folder.path))
