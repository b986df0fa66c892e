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


def blocks() -> list[list[tuple[str, str]]]:
    """Return the console blocks: every ``$ command`` with the output that follows it."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL):
        parts = [part.partition("\n") for part in re.split(r"^\$ ", block, flags=re.MULTILINE)]
        found.append([(command, output) for command, _, output in parts if command])
    return found


#: Calls that would run this test again.
RECURSIVE = ("make test", "make check")


def test_the_readme_names_the_two_commands() -> None:
    assert {"make demo", "make test"} <= {command for block in blocks() for command, _ in block}


@pytest.mark.parametrize("block", blocks(), ids=[block[0][0] for block in blocks()])
def test_the_commands_print_what_the_readme_says(
    block: list[tuple[str, str]], tmp_path: Path
) -> None:
    for entry in ROOT.iterdir():  # in a place of its own: commands leave files
        if entry.name not in (".git", "runs"):
            (tmp_path / entry.name).symlink_to(entry)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    outer = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # a make within a make says where it is
    own = {name: value for name, value in os.environ.items() if name not in outer}
    environment = {**own, "PATH": path, "COLUMNS": "80"}
    for command, output in block:
        if command in RECURSIVE:
            continue
        if command.startswith("make ") and not (ROOT / ".venv" / ".ready").exists():
            pytest.skip("make would first install a virtual environment")

        result = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True
        )

        assert result.returncode == 0, result.stderr
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        assert doctest.OutputChecker().check_output(output, result.stdout, flags), result.stdout
