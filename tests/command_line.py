"""Running the command line in this process, and linters in their own."""

import io
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedcohort.cli.app import main


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


def run(
    capsys: pytest.CaptureFixture[str], *arguments: object, stdin: str | bytes | None = None
) -> Result:
    """Call ``fedcohort`` and read what it printed."""
    with pytest.MonkeyPatch.context() as patch:
        if stdin is not None:
            data = stdin if isinstance(stdin, bytes) else stdin.encode()
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        patch.setenv("COLUMNS", "80")
        code = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return Result(code, printed.out, printed.err)


def refused(result: Result, *parts: str) -> bool:
    """Exit code 2, nothing on standard output, one line that says all of ``parts``."""
    one_line = result.err.startswith("fedcohort: ") and result.err.count("\n") == 1
    return (
        result.code == 2
        and result.out == ""
        and one_line
        and all(part in result.err for part in parts)
    )


def lint(*command: str) -> None:
    """Run a linter, which is beside this Python or on the path."""
    beside = Path(sys.executable).with_name(command[0])
    program = str(beside) if beside.exists() else shutil.which(command[0])
    if program is None:
        pytest.skip(f"{command[0]} is not installed")
    result = subprocess.run([program, *command[1:]], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


#: The designs that are compared where nobody knows updates.
DESIGNS = [
    "multinomial",
    "size",
    "size:whole_rows_first",
    "poisson",
    "uniform:unbiased",
    "uniform",
    "cohort-mean",
]
#: The bundled list of sizes.
SIZES = Path(__file__).parents[1] / "examples" / "sizes.csv"
