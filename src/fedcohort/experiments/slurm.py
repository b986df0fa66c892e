"""Slurm: scripts for an array job whose tasks run an experiment's parts, and for what follows."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

from fedcohort._display import counted, short_repr
from fedcohort._fields import Record, whole
from fedcohort._whole_file import make_folder, reason_of, write_whole
from fedcohort.errors import ExperimentError
from fedcohort.experiments.run_folder import HEAD, RunFolder, keep_files, new_folder
from fedcohort.experiments.settings import Experiment
from fedcohort.experiments.units import plan_units, shared_units

#: Most tasks by default: Slurm's own limit for an array.
MOST_PARTS = 1000
PLAN = "array.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources(Record):
    """What a task asks Slurm for; None leaves it to the cluster.

    Attributes
    ----------
    time
        The time limit, as ``2:00:00``. A minute before it, a task saves its state.
    gpus
        GPUs of a task; 0 trains on the CPU.
    workers
        Workers of a task, each with a core.
    memory, partition, account
        As sbatch takes them.
    others
        Further options of sbatch, such as ``--qos=high``.
    """

    _owner = "slurm"
    _error = ExperimentError

    time: str | None = None
    gpus: int = whole(0)
    workers: int = whole(1, least=1)
    memory: str | None = None
    partition: str | None = None
    account: str | None = None
    others: Sequence[str] = ()

    def _check(self) -> None:
        texts = (self.time, self.memory, self.partition, self.account)
        for each in (*filter(None, texts), *self.others):
            if not each.isprintable() or any(sign in each for sign in "\"'#\\"):
                raise ExperimentError(
                    f"slurm: an option must be a word without quotes; got {each!r}. Write it into "
                    f"parts.sh."
                )
        if wrong := [each for each in self.others if not each.startswith("-")]:
            raise ExperimentError(
                f"slurm: --sbatch must be an option of sbatch, as --qos=high; got {wrong[0]!r}."
            )

    @property
    def device(self) -> str:
        """What tasks train on."""
        return "cuda" if self.gpus else "cpu"

    def lines(self, *, trains: bool) -> Iterator[str]:
        """Yield the options of a job; only those that train get GPUs, and a core per worker."""
        named = {"time": self.time, "partition": self.partition, "account": self.account}
        yield from (f"--{key}={value}" for key, value in named.items() if value is not None)
        if trains:
            yield f"--cpus-per-task={self.workers}"
            yield from [f"--gpus={self.gpus}"] if self.gpus else []
            yield from [f"--mem={self.memory}"] if self.memory is not None else []
            yield from self.others


@dataclass(frozen=True, slots=True)
class Plan:
    """How many tasks try grids, how many run parts, and the command that wrote the scripts."""

    trials: int
    parts: int
    command: str


@final
class SlurmFolder:
    """A folder with the scripts of an experiment on Slurm, and the run folders of its parts.

    It holds the experiment file and the user's own files, so that later changes to them do not
    matter. ``trials/K`` and ``parts/K`` are run folders, ``merged`` is the run folder of all.
    """

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path, self.plan, self.merged = path, plan, path / "merged"

    def __repr__(self) -> str:
        return short_repr(self, path=str(self.path), parts=self.plan.parts)

    @classmethod
    def create(
        cls,
        path: Path,
        experiment: Experiment,
        *,
        source: Path,
        parts: int | None,
        resources: Resources,
        changes: Sequence[str],
        command: Sequence[str],
    ) -> SlurmFolder:
        """Write the scripts and what they need into a new folder.

        ``parts`` is the number of tasks; by default, one for as many units as it has workers.
        ``changes`` are the options of ``fedcohort run`` that change the file.
        """
        units = plan_units(experiment, resources.device)
        n_runs, n_trials = (len(shared_units(units, only_trials=each)) for each in (False, True))
        if parts is None:
            parts = min(-(-n_runs // resources.workers), MOST_PARTS)
        if not 1 <= parts <= n_runs:
            raise ExperimentError(
                f"slurm: --parts must be from 1 to {n_runs}, as the experiment has "
                f"{counted(n_runs, 'unit')}; got {parts}. Give it more seeds, or fewer parts."
            )
        plan = Plan(min(parts, n_trials), parts, shlex.join(command))
        # The name of the file stays: panels and the experiment are named after it.
        scripts = _scripts(experiment.name, source.name, plan, resources, changes)
        with new_folder(path) as new:
            keep_files(experiment, source, new, source.name)
            make_folder(new / "log")
            for file, text in scripts.items():
                write_whole(new / file, text.encode())
            write_whole(new / PLAN, json.dumps(asdict(plan), indent=1).encode())
        return cls(path, plan)

    @classmethod
    def open(cls, path: Path) -> SlurmFolder:
        """Open what :meth:`create` made."""
        try:
            return cls(path, Plan(**json.loads((path / PLAN).read_text(encoding="utf-8"))))
        except OSError as error:
            raise ExperimentError(
                f"{path}: is not a folder of fedcohort slurm ({PLAN}: {reason_of(error)}). For run "
                f"folders see: fedcohort runs"
            ) from error
        except (TypeError, ValueError) as error:
            raise ExperimentError(
                f"{path / PLAN}: is damaged ({error}). Write the scripts again into another folder."
            ) from error

    def folders(self) -> Iterator[tuple[Path, RunFolder | None]]:
        """Yield the path of every part, first those of trials; None if it has not begun."""
        for kind, count in (("trials", self.plan.trials), ("parts", self.plan.parts)):
            for number in range(1, count + 1):
                path = self.path / kind / str(number)
                yield path, RunFolder.open(path) if (path / HEAD).exists() else None

    def submit_command(self, parts: str = "") -> str:
        """Return the command that submits the jobs; ``parts`` are the numbers of those to run."""
        return f"bash {shlex.quote(str(self.path / 'submit.sh'))} {parts}".rstrip()

    def submit(self) -> str:
        """Submit the jobs; return what ``submit.sh`` prints."""
        way_out = f"On a machine that submits jobs, run: {self.submit_command()}"
        try:
            done = subprocess.run(
                ["bash", "submit.sh"], cwd=self.path, capture_output=True, text=True, check=True
            )
        except OSError as error:
            raise ExperimentError(f"slurm: bash: {reason_of(error)}. {way_out}") from error
        except subprocess.CalledProcessError as error:
            why = " ".join(error.stderr.split()) or f"exit code {error.returncode}"
            raise ExperimentError(
                f"slurm: the jobs were not all submitted ({why}). {way_out}"
            ) from error
        return done.stdout.strip()


def _scripts(
    name: str, file: str, plan: Plan, resources: Resources, changes: Sequence[str]
) -> dict[str, str]:
    """Return the scripts by name. They run in their own folder: submit.sh goes there."""
    fedcohort = shlex.join([sys.executable, "-m", "fedcohort"])
    given = ["--device", resources.device, "--workers", str(resources.workers), *changes]

    def job(kind: str, what: str, *lines: str, trains: bool, log: str) -> str:
        options = [f"--job-name={name}-{kind}", f"--output=log/{log}.txt"]
        options += ["--open-mode=append", *resources.lines(trains=trains)]
        if trains:  # a minute before the time limit: stop after the round, with a checkpoint
            options += ["--requeue", "--signal=B:INT@60"]
        head = [f"#SBATCH {each}" for each in options]
        return "\n".join(
            ["#!/usr/bin/env bash", f"# {what}", *head, "set -euo pipefail", *lines, ""]
        )

    def task(kind: str, what: str, count: int, *options: str) -> str:
        return job(
            kind,
            what,
            f"exec {fedcohort} run {shlex.quote(file)} \\",
            f'    --part "$SLURM_ARRAY_TASK_ID/{count}" --out "{kind}/$SLURM_ARRAY_TASK_ID" \\',
            f"    {shlex.join([*options, *given])}",
            trains=True,
            log=f"{kind}-%a",
        )

    found = {}
    after, folders = "", "parts/*"
    submitted = []
    if plan.trials:
        what = f"Try the points of grids: a task of {plan.trials}."
        found["trials.sh"] = task("trials", what, plan.trials, "--only-trials")
        folders = "trials/* parts/*"
        submitted.append(f"trials=$(sbatch --parsable --array=1-{plan.trials} trials.sh)")
        after = ' \\\n    --dependency="afterok:${trials%%;*}" --kill-on-invalid-dep=yes'
    what = f"Run a part of the experiment: a task of {plan.parts}. It goes on if it was begun."
    taken = ["--trials-from", "trials"] if plan.trials else []
    found["parts.sh"] = task("parts", what, plan.parts, *taken)
    submitted.append(f'parts=$(sbatch --parsable --array="${{1:-1-{plan.parts}}}"{after} parts.sh)')
    found["merge.sh"] = job(
        "merge",
        "Merge the run folders of all parts into one.",
        f"[ -e merged/{HEAD} ] || exec {fedcohort} merge {folders} --out merged",
        trains=False,
        log="merge",
    )
    submitted.append(
        'merge=$(sbatch --parsable \\\n    --dependency="afterok:${parts%%;*}" '
        "--kill-on-invalid-dep=yes merge.sh)"
    )
    kinds = [line.partition("=")[0] for line in submitted]
    found["submit.sh"] = "\n".join(
        [
            "#!/usr/bin/env bash",
            "# Submit all jobs. Submit them again after a failure: what is done is kept, the rest",
            "# goes on from its checkpoints. Name parts to run only these: bash submit.sh 3,7-9",
            "set -euo pipefail",
            'cd -- "$(dirname -- "$0")"',
            *submitted,
            'echo "submitted: ' + ", ".join(f"{kind} ${kind}" for kind in kinds) + '"',
            "",
        ]
    )
    return found
