"""Full and read-only disks, for real: a clear sentence, and nothing is lost."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from command_line import Result, refused, run
from small_runs import TWO_UNITS, contents, tables, write

Disk = Callable[[str], Path]
NOBODY = 65534


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Return what mounts a small disk; it is gone at the end."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = []

    def mount(size: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no mount here")
        if done.returncode:
            pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
        mounted.append(size)
        return path

    try:
        yield mount
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
def read_only(disk: Disk) -> Callable[[], Path]:
    """Return what makes the disk read-only, with what is on it by then."""

    def protect() -> Path:
        path = disk("50m")
        subprocess.run(["mount", "-o", "remount,ro", str(path)], check=True)
        return path

    return protect


def left(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_bsize


def fill(path: Path, *, leave: int) -> Path:
    """Leave so many bytes of a disk."""
    ballast = path / "ballast"
    ballast.write_bytes(bytes(max(0, left(path) - leave)))
    return ballast


# A folder needs 8 KiB, who holds what 8, a checkpoint about 400 (twice that while it is replaced),
# and a table 4 or 8: these fill up at the beginning, in each kind of file, and in the second unit.
@pytest.mark.parametrize("leave", [8, 12, 16, 100, 400, 404, 432, 816])
def test_a_run_on_a_full_disk_stops_and_goes_on_when_there_is_room(
    leave: int,
    disk: Disk,
    whole: dict[str, pa.Table],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = disk("3m")
    ballast = fill(path, leave=leave * 1024)
    target = path / "run"

    file = write(tmp_path, TWO_UNITS)
    first = run(capsys, "run", file, "--out", target)
    kept = target.exists()
    again = run(capsys, "resume", target) if kept else run(capsys, "run", file, "--out", target)
    ballast.unlink()
    last = run(capsys, "resume", target) if kept else run(capsys, "run", file, "--out", target)

    for result in (first, again):
        assert stopped(result), result.err
        assert (f"fedcohort resume {target}" in result.err) is kept
    assert last.code == 0
    assert tables(target) == whole
    assert [name for name in contents(target) if name.endswith(".part")] == []


def stopped(result: Result) -> bool:
    """Two, and after the lines of progress one sentence about the disk."""
    complaint = result.err.splitlines()[-1]
    return (
        (result.code, result.out) == (2, "")
        and complaint.startswith("fedcohort: ")
        and "no space left on device" in complaint
        and "standard output" not in complaint
        and "Traceback" not in result.err
    )


def test_the_way_out_of_a_full_disk_is_to_make_room(
    disk: Disk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = disk("200k")

    result = run(capsys, "run", write(tmp_path, TWO_UNITS), "--out", path / "run")

    assert "ake room" in result.err
    assert "hoose another path" not in result.err


@pytest.mark.parametrize("leave", [0, 4])
def test_a_folder_that_cannot_be_made_leaves_nothing_behind(
    leave: int, disk: Disk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is left is less than the two small files that a run begins with."""
    path = disk("64k")
    ballast = fill(path, leave=leave * 1024)
    target, file = path / "run", write(tmp_path, TWO_UNITS)

    first = run(capsys, "run", file, "--out", target)
    ballast.unlink()
    remaining = list(target.rglob("*"))

    assert refused(first, str(target), "no space left on device")
    assert remaining == []


def test_an_export_on_a_full_disk_is_one_sentence(
    disk: Disk, ran: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path, run_folder = disk("64k"), ran(TWO_UNITS)
    fill(path, leave=12 * 1024)

    for kind in ("--csv", "--parquet"):
        result = run(capsys, "export", run_folder, kind, "--out", path / "export")

        assert result.code == 2
        assert result.err.count("\n") == 1
        assert ": cannot be written (" in result.err
        assert "no space left on device" in result.err
    assert list(path.rglob("*.part")) == []


def test_a_report_on_a_full_disk_is_one_sentence(
    disk: Disk, ran: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path, run_folder = disk("64k"), ran(TWO_UNITS)

    result = run(capsys, "report", run_folder, "--out", path / "report.html")

    assert refused(result, "report.html: cannot be written (no space left on device)")
    assert list(path.iterdir()) == []


def test_a_new_run_on_a_read_only_disk_is_one_sentence(
    read_only: Callable[[], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = read_only()

    result = run(capsys, "run", write(tmp_path), "--out", path / "run")

    assert refused(result, f"{path / 'run'}: cannot be written (read-only file system)", "--out")


def test_a_run_on_a_read_only_disk_can_be_read_and_not_changed(
    disk: Disk, ran: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = disk("50m")
    folder = ran(TWO_UNITS, rounds=3, home=path)
    before = contents(folder)
    subprocess.run(["mount", "-o", "remount,ro", str(path)], check=True)

    resumed = run(capsys, "resume", folder)
    report = run(capsys, "report", folder)
    export = run(capsys, "export", folder, "--csv")
    listed = run(capsys, "runs", folder)
    elsewhere = run(capsys, "report", folder, "--out", tmp_path / "report.html")

    assert refused(resumed, f"{folder}: cannot be written (read-only file system)", "Copy it")
    assert refused(report, "report.html: cannot be written (read-only file system)")
    assert refused(export, "cannot be made (read-only file system)")
    assert (listed.code, elsewhere.code) == (0, 0)
    assert "interrupted" in listed.out
    assert contents(folder) == before


@pytest.fixture
def public() -> Iterator[Path]:
    """Return a folder that everybody may read and only its owner may change."""
    with TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@contextmanager
def somebody_else() -> Iterator[None]:
    """Lose root's right to read and write everywhere."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize(
    "command",
    [
        ("resume", "run"),
        ("export", "run", "--csv"),
        ("run", "small.toml", "--out", "new"),
        ("run", "small.toml", "--out", "locked/new"),
        ("run", "locked/small.toml"),
        ("resume", "locked/run"),
        ("runs", "locked"),
    ],
)
def test_a_folder_of_somebody_else_is_one_sentence(
    command: tuple[str, ...],
    ran: Callable[..., Path],
    public: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = ran(TWO_UNITS, rounds=3, home=public)
    before = contents(folder)
    (public / "locked").mkdir(mode=0o700)
    write(public / "locked")
    run(capsys, *command[:1], "--help")
    monkeypatch.chdir(public)

    with somebody_else():
        result = run(capsys, *command)

    assert refused(result, "permission denied")
    assert "standard output" not in result.err
    assert contents(folder) == before
