"""Slurm: scripts that a linter accepts, and a real cluster whose tasks and nodes are killed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from command_line import lint, refused, run
from fedcohort.experiments import RunFolder
from small_runs import SMALL, contents, small_run, whole_folder, write
from two_nodes import OWN, Gate, SlurmCluster, missing_programs, slurm_cluster, until

Capture = pytest.CaptureFixture[str]
#: A unit for each of two seeds; with two panels there are four.
SEEDS = SMALL.replace("cohort_size = 3", "cohort_size = 10")
GRID = SEEDS.replace("lr = 0.1", "lr = [0.1, 0.2]")
#: Rounds, checkpoints, and a unit of each seed that waits at a gate.
LONG = GRID.replace("rounds = 6", "rounds = 30\ntune_rounds = 4").replace("every = 2", "every = 7")
LONG = LONG.replace('"multinomial"', '"mine.py:Waiting"') + '[model]\nname = "mine.py:own"\n'


@pytest.mark.parametrize("text", [SEEDS, GRID], ids=["plain", "grid"])
def test_the_scripts_have_no_mistake_that_a_linter_finds(
    text: str, tmp_path: Path, capsys: Capture
) -> None:
    """With the names that shells find hardest."""
    (tmp_path / "it's mine").mkdir()
    file = write(tmp_path / "it's mine", text, "a 'b'; c.toml")
    asked = ("--time", "1:00", "--gpus", 1, "--mem", "4G", "-p", "main", "-A", "me", "-w", 2)
    out = tmp_path / "it's mine" / "jobs"

    result = run(
        capsys, "slurm", file, "--out", out, *asked, "--sbatch=--qos=high", "--seeds", "0,1"
    )

    scripts = sorted(out.glob("*.sh"))
    names = ["merge.sh", "parts.sh", "submit.sh", *(["trials.sh"] if text is GRID else [])]
    assert result.code == 0
    assert [path.name for path in scripts] == names
    lint("shellcheck", *map(str, scripts))


def test_the_scripts_ask_for_what_was_asked(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "jobs"
    asked = ("--time", "2:00:00", "--gpus", 1, "--mem", "8G", "--sbatch=--qos=high", "-w", 2)

    run(capsys, "slurm", write(tmp_path, SEEDS), "--out", out, *asked)

    text = {path.stem: path.read_text() for path in out.glob("*.sh")}
    lines = {"time=2:00:00", "gpus=1", "mem=8G", "qos=high", "cpus-per-task=2", "requeue"}
    assert all(f"#SBATCH --{line}\n" in text["parts"] for line in lines)
    assert "#SBATCH --time=2:00:00\n" in text["merge"]
    assert not any(word in text["merge"] for word in ("gpus", "requeue", "mem", "qos"))
    assert "--device cuda --workers 2" in text["parts"]
    # On a GPU both seeds train together: one unit, so one part.
    assert '"${1:-1-1}"' in text["submit"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--parts", 3], "slurm: --parts must be from 1 to 2, as the experiment has 2 units; got"),
        (["--mem", '8 "G"'], "an option must be a word without quotes"),
        (["--sbatch", "qos"], "--sbatch must be an option of sbatch, as --qos=high; got 'qos'"),
        (["--set", "training.lr=no"], "lr"),
    ],
)
def test_jobs_that_cannot_be_are_refused(
    options: list[object], sentence: str, tmp_path: Path, capsys: Capture
) -> None:
    file = write(tmp_path, SEEDS)

    result = run(capsys, "slurm", file, "--out", tmp_path / "jobs", *options)

    assert refused(result, sentence)
    assert set(contents(tmp_path)) == {file.name}


def test_without_slurm_the_scripts_are_kept_and_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    file, out = write(tmp_path, SEEDS), tmp_path / "jobs"
    (tmp_path / "bin").mkdir()
    for name in ("bash", "dirname"):
        (tmp_path / "bin" / name).symlink_to(f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    result = run(capsys, "slurm", file, "--out", out, "--submit")
    again = run(capsys, "slurm", file, "--out", out)
    states = run(capsys, "status", out)
    no_jobs = run(capsys, "status", tmp_path)

    assert result.code == 2
    assert "slurm: the jobs were not all submitted (" in result.err
    assert f"sbatch: command not found). On a machine that submits jobs, run: bash {out}" in (
        result.err
    )
    assert refused(again, f"{out}: must be a new or empty folder.")
    assert [line.split() for line in states.out.splitlines()[2:4]] == [
        ["parts/1", "not", "begun"],
        ["parts/2", "not", "begun"],
    ]
    assert "0 of 2 parts complete; missing: 1-2\n" in states.out
    assert refused(no_jobs, f"{tmp_path}: is not a folder of fedcohort slurm (array.json: no such")


@pytest.fixture
def slurm() -> Iterator[SlurmCluster]:
    if missing := missing_programs():
        pytest.skip(
            f"Slurm is not installed ({', '.join(missing)}); Debian's packages: slurmctld, "
            f"slurmd, slurm-client, munge"
        )
    with slurm_cluster() as found:
        yield found


@pytest.mark.slow
def test_killed_tasks_and_nodes_change_nothing(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """A task and then a node die in the middle. The node's task is requeued, the other is not.

    What the user changes after ``fedcohort slurm`` does not matter.
    """
    once, gate = tmp_path / "once", Gate(tmp_path / "gate")
    once.mkdir()
    for home in (tmp_path, once):
        (home / "mine.py").write_text(OWN)
    file = write(tmp_path, LONG)
    for name, value in {**slurm.env, "GATE": str(gate.path)}.items():
        monkeypatch.setenv(name, value)
    out = tmp_path / "jobs"

    def log() -> str:
        return slurm.call("squeue") + "".join(p.read_text() for p in (out / "log").glob("*"))

    def is_complete(part: int) -> bool:
        return RunFolder.open(out / "parts" / str(part)).progress().state == "complete"

    submitted = run(capsys, "slurm", file, "--out", out, "--time", 60, "--submit")
    (tmp_path / "mine.py").write_text("broken")
    file.write_text("broken")
    array = submitted.out.partition(", parts ")[2].partition(",")[0]
    until(lambda: gate.n_waiting() == 2, 600, log)
    slurm.call("scancel", "--signal=KILL", "--batch", f"{array}_1")
    task = int((out / "parts" / "2" / "lock").read_text())
    parent = int(Path(f"/proc/{task}/stat").read_text().rpartition(")")[2].split()[1])
    node = slurm.call("squeue", "-h", "-o", "%N", "-j", f"{array}_2")
    slurm.lose(node, parent, task)
    until(lambda: slurm.call("squeue", "-h", "-t", "PENDING", "-j", array), 300, log)
    lost = run(capsys, "status", out).out
    gate.set("open")
    slurm.start(node)
    slurm.call("scontrol", "update", f"jobid={array}_2", "starttime=now")  # else in two minutes
    until(lambda: is_complete(2), 600, log)
    half = run(capsys, "status", out).out
    subprocess.run(["bash", out / "submit.sh", "1"], check=True, capture_output=True)
    until((out / "merged" / "run.json").exists, 600, log)

    assert "0 of 2 parts complete; missing: 1-2\n" in lost
    assert (
        f"1 of 2 parts complete; missing: 1\nIf no job waits or runs, submit with: bash {out}"
        in (half)
    )
    assert half.endswith("submit.sh 1\n")
    assert whole_folder(out / "merged") == whole_folder(small_run(once, LONG))
    assert (
        f"all 2 complete and merged\nrun folder: {out / 'merged'}" in run(capsys, "status", out).out
    )
    for part in ("1", "2"):
        text = (out / "parts" / part / "log.txt").read_text()
        assert text.count("resumed after round 14") == 1
