"""Help can be read at any width, and its examples run."""

import re
import shlex
from pathlib import Path
from socketserver import BaseServer
from unittest.mock import Mock

import numpy as np
import pytest

from command_line import SIZES, run
from fedcohort import Selector, SizeClustered, read_clients
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


#: The least of a Flower app.
APP = {
    "pyproject.toml": """
[tool.flwr.app.components]
serverapp = "server:app"
clientapp = "client:app"
""",
    "client.py": """
app = ClientApp()
@app.train()
def train(msg, context):
    return {"num-examples": 3}
""",
    "server.py": """
strategy = FedAvg()
strategy.start()
""",
}


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
        "From the log of a run",
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


def make_logs() -> None:
    """Write the logs that the examples name."""
    clients = read_clients(SIZES)
    selector = Selector(SizeClustered(10), clients, seed=0, log="selections.jsonl")
    for _ in range(5):
        cohort = selector.draw()
        selector.remember(dict.fromkeys(cohort.ids, np.zeros(1)))
    rows = [f"{round_},{each}" for round_ in range(5) for each in clients.ids[:20]]
    Path("rounds.csv").write_text("\n".join(["round,client", *rows]))
    written = Path(__file__).parents[1] / "participation" / "written" / "flare-fedavg.txt"
    Path("workspace").mkdir()
    Path("workspace/log.txt").write_text(written.read_text())


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
    Path("my-app").mkdir()
    for name, text in APP.items():
        Path("my-app", name).write_text(text)
    np.save("updates.npy", clustered_updates(100, seed=0))
    make_logs()
    # watch ends with Ctrl-C alone
    monkeypatch.setattr(BaseServer, "serve_forever", Mock(side_effect=KeyboardInterrupt))

    for line in lines:
        before, _, command = line.rpartition(" | ")
        stdin = shlex.split(before)[1] if before else None
        result = run(capsys, *shlex.split(command)[1:], stdin=stdin)
        assert result.code == 0, (line, result.err)

    made = {
        "line.png",
        "my-experiment/my_data.py",
        "both.html",
        "audit.html",
        "clients.csv",
        "runs/digits/report.html",
        "runs/short",
        "runs/digits/export",
    }
    assert all(Path(name).exists() for name in made)
    assert list(Path("runs/digits/figures").glob("*.pdf"))
