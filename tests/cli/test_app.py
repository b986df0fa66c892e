"""The command line as a program."""

import subprocess
import sys

import pytest

import fedcohort
from command_line import SIZES, refused, run


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ((), ("--help",), ("plan", "--help"), ("compare", "--help")):
        result = run(capsys, *arguments)
        assert result.code == 0
        assert "Usage: fedcohort" in result.out
    assert run(capsys, "--version").out == f"fedcohort {fedcohort.__version__}\n"


def test_an_unknown_command_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(run(capsys, "compar"), "No such command 'compar'")


@pytest.mark.parametrize("options", [("plan", "--rows", "0"), ("compare", "--json")])
def test_a_reader_that_leaves_early_causes_no_traceback(options: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "fedcohort", *options, str(SIZES), "-m", "10"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None

    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()

    assert (process.wait(), errors) == (1, b"")


def test_an_interrupt_is_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedcohort.cli.plan.read_clients", interrupted)

    result = run(capsys, "plan", SIZES, "-m", 2)

    assert (result.code, result.err) == (130, "")
