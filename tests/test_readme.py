"""Every command of the README runs, and prints what the README says."""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def examples() -> list[tuple[str, str]]:
    """Return every ``$ command`` of the console blocks with the output that follows it."""
    blocks = re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL)
    parts = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)]
    split = [part.partition("\n") for part in parts if part]
    return [(command, output) for command, _, output in split]


#: Calls that would run this test again.
RECURSIVE = ("make test", "make check")


def test_the_readme_names_the_two_commands() -> None:
    assert {"make demo", "make test"} <= {command for command, _ in examples()}


@pytest.mark.parametrize(("command", "output"), examples(), ids=[c for c, _ in examples()])
def test_the_command_prints_what_the_readme_says(command: str, output: str, tmp_path: Path) -> None:
    if command in RECURSIVE:
        pytest.skip(f"{command} runs this test")
    makes = command.startswith("make ")
    if makes and not (ROOT / ".venv" / ".ready").exists():
        pytest.skip("make would first install a virtual environment")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "80"}

    result = subprocess.run(
        command,
        shell=True,
        cwd=ROOT if makes else tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )

    assert result.returncode == 0, result.stderr
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(output, result.stdout, flags), result.stdout
