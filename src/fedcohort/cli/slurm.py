"""``fedcohort slurm`` and ``fedcohort status``: an experiment as jobs of a Slurm cluster."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from fedcohort._display import counted, plain_table
from fedcohort.cli.options import a_run_folder, argument, option, plain_console
from fedcohort.cli.run import Changes, Designs, Panels, Seeds, checked_experiment
from fedcohort.cli.runs import worded_time

#: A group of options in the help.
ASKED = "What a task asks for"


def slurm(
    file: Annotated[Path, argument("FILE.toml", "The experiment file.")],
    out: Annotated[Path, option("--out -o", "DIR", "A new folder, which all nodes can reach.")],
    parts: Annotated[
        int | None,
        option("--parts", "N", "How many tasks share the units. Default: one per unit.", least=1),
    ] = None,
    submit: Annotated[bool, typer.Option("--submit", help="Submit the jobs at once.")] = False,
    time: Annotated[
        str | None, option("--time -t", "TIME", "Time limit, as 2:00:00.", group=ASKED)
    ] = None,
    gpus: Annotated[int, option("--gpus -G", "N", "GPUs; 0: the CPU.", group=ASKED, least=0)] = 0,
    workers: Annotated[
        int, option("--workers -w", "N", "Workers, each with a core.", group=ASKED, least=1)
    ] = 1,
    memory: Annotated[str | None, option("--mem", "SIZE", "Memory, as 8G.", group=ASKED)] = None,
    partition: Annotated[
        str | None, option("--partition -p", "NAME", "Partition.", group=ASKED)
    ] = None,
    account: Annotated[str | None, option("--account -A", "NAME", "Account.", group=ASKED)] = None,
    others: Annotated[
        list[str] | None,
        option("--sbatch", "OPTION", "Another option of sbatch. Repeatable.", group=ASKED),
    ] = None,
    seeds: Seeds = None,
    designs: Designs = None,
    panels: Panels = None,
    changes: Changes = None,
) -> None:
    """Write the scripts that run an experiment on a Slurm cluster.

    An array job runs the parts, each in its own run folder. Another job merges them when all are
    done. Submitted again, parts that failed go on from their checkpoints.
    """
    from fedcohort.experiments.slurm import Resources, SlurmFolder
    from fedcohort.experiments.units import plan_units, worded_plan

    experiment = checked_experiment(file, seeds, designs, panels, changes)
    resources = Resources(
        time=time,
        gpus=gpus,
        workers=workers,
        memory=memory,
        partition=partition,
        account=account,
        others=others or (),
    )
    given = {"--seeds": seeds, "--designs": designs, "--panels": panels}
    options = [word for key, value in given.items() if value is not None for word in (key, value)]
    options += [word for change in changes or () for word in ("--set", change)]
    folder = SlurmFolder.create(
        out,
        experiment,
        source=file,
        parts=parts,
        resources=resources,
        changes=options,
        command=["fedcohort", *sys.argv[1:]],
    )
    plan, console = folder.plan, plain_console()
    units = worded_plan(plan_units(experiment, resources.device), experiment)
    shared = f"{counted(plan.trials, 'task')} for trials, then " if plan.trials else ""
    console.print(f"plan: {units}; {shared}{counted(plan.parts, 'part')}", soft_wrap=True)
    told = folder.submit() if submit else f"submit with: {folder.submit_command()}"
    console.print(f"{told}\nthen see: fedcohort status {folder.path}", soft_wrap=True)


def status(
    folder: Annotated[Path, argument("DIR", "A folder of fedcohort slurm.", a_run_folder)],
) -> None:
    """Show which parts of an experiment on Slurm are missing."""
    from fedcohort.experiments.slurm import SlurmFolder

    found = SlurmFolder.open(folder)
    table = plain_table("part", "state", "rounds", "time", left=("state",), min_width=20)
    missing: list[int] = []
    for path, run in found.folders():
        row = ("not begun", "", "")
        if run is not None:
            progress = run.progress()
            rounds = f"{progress.done}/{progress.total}"
            row = (progress.state, rounds, worded_time(progress.seconds))
        table.add_row(f"{path.parent.name}/{path.name}", *row)
        if row[0] != "complete" and path.parent.name == "parts":
            missing.append(int(path.name))
    console = plain_console()
    console.print(table)
    n, numbers = found.plan.parts, _ranges(missing)
    if missing:
        told = f"\n{n - len(missing)} of {counted(n, 'part')} complete; missing: {numbers}"
        which = numbers if len(missing) < n else ""
        way_out = f"If no job waits or runs, submit with: {found.submit_command(which)}"
    elif found.merged.exists():
        told, way_out = f"\nall {n} complete and merged", f"run folder: {found.merged}"
    else:
        told, way_out = f"\nall {n} complete, not merged", f"submit with: {found.submit_command()}"
    console.print(f"{told}\n{way_out}", soft_wrap=True)


def _ranges(numbers: list[int]) -> str:
    """Shorten numbers as sbatch reads them.

    Examples
    --------
    >>> _ranges([1, 2, 3, 7, 9, 10])
    '1-3,7,9-10'
    """
    found = []
    for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        found.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(found)
