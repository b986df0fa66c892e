"""Help can be read at any width, and its examples run."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from command_line import SIZES, run
from fedcohort.cli.app import app
from fedcohort.designs import RECIPES
from fedcohort.synthetic import clustered_updates

COMMANDS = [each.callback.__name__ for each in app.registered_commands if each.callback]
#: The files that the examples name; short, so that all of them run in seconds.
DIGITS = """
rounds = 2
seeds = [0, 1]
cohort_size = 5
[data]
dataset = "digits"
partition = "iid"
n_clients = 20
[model]
name = "mlp"
[training]
steps = 1
batch_size = 10
lr = 0.1
[[design]]
recipe = "multinomial"
[[design]]
recipe = "size"
"""


def helped(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *command: str,
    columns: int = 80,
) -> str:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", columns)
    result = run(capsys, *command, "--help")
    assert result.code == 0
    return result.out


def examples(text: str) -> list[str]:
    """Return the command lines below a command's help."""
    lines = [line.strip().removeprefix("Example: ") for line in text.splitlines()]
    return [line for line in lines if re.match(r"(echo .* \| )?fedcohort ", line)]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_keeps_within_the_window_and_breaks_no_example(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    columns: int,
) -> None:
    text = helped(capsys, monkeypatch, *command.split(), columns=columns)
    widest = helped(capsys, monkeypatch, *command.split(), columns=500)

    assert max(len(line.rstrip()) for line in text.splitlines()) <= columns
    assert examples(text) == examples(widest)
    # No sentence was cut off, and no markup was swallowed.
    assert "…" not in text
    squeezed = [re.sub(r"[\s│╭╮╰╯─]+", "", each) for each in (text, widest)]
    assert sorted(squeezed[0]) == sorted(squeezed[1])


def test_every_command_stands_in_a_panel_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = helped(capsys, monkeypatch)

    described = re.findall(r"^│ (\w+) +\S.*\.  *│$", text, flags=re.MULTILINE)
    assert described == COMMANDS
    assert re.findall(r"^╭─ (.*?) ─", text, flags=re.MULTILINE) == [
        "Options",
        "From a list of sizes",
        "Experiments",
        "This installation",
    ]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_h_is_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    text = helped(capsys, monkeypatch, *command.split())

    short = run(capsys, *command.split(), "-h")

    assert (short.code, short.out) == (0, text)


@pytest.mark.parametrize("command", ["plan", "compare"])
def test_help_names_every_design(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    text = " ".join(helped(capsys, monkeypatch, command).split())

    assert f"Designs: {', '.join(RECIPES)}." in text


@pytest.mark.slow
def test_the_examples_of_all_commands_run_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("torch", "pyarrow", "sklearn", "matplotlib", "plotly"):
        pytest.importorskip(module, reason="not all extras are installed")
    lines = [line for name in COMMANDS for line in examples(helped(capsys, monkeypatch, name))]
    # compare reads a folder that run makes
    lines.sort(key=lambda line: line == "fedcohort compare runs/digits")
    assert len(lines) >= 14
    monkeypatch.chdir(tmp_path)
    Path("sizes.csv").write_text(SIZES.read_text())
    Path("digits.toml").write_text(DIGITS)
    np.save("updates.npy", clustered_updates(100, seed=0))

    for line in lines:
        before, _, command = line.rpartition(" | ")
        stdin = shlex.split(before)[1] if before else None
        result = run(capsys, *shlex.split(command)[1:], stdin=stdin)
        assert result.code == 0, (line, result.err)

    made = {"line.png", "both.html", "runs/digits/report.html", "runs/short", "runs/digits/export"}
    assert all(Path(name).exists() for name in made)
    assert list(Path("runs/digits/figures").glob("*.pdf"))
