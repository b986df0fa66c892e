"""The change that the page shows turns an app like those of ``flwr new`` into one of ours."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import Context, RecordDict

from documented_blocks import blocks_of
from fedcohort.cli.app import main
from flower.in_process import InProcessGrid

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "flower.md"

#: An app in the shape that ``flwr new`` gives it; client k has k + 1 samples.
APP = {
    "task": """
from types import SimpleNamespace

def load_data(partition_id, num_partitions, batch_size):
    return SimpleNamespace(dataset=[0] * (partition_id + 1)), None
""",
    "client_app": """
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from task import load_data

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    trainloader, _ = load_data(context.node_config["partition-id"], 6, 32)
    moved = [each + 1.0 for each in msg.content["arrays"].to_numpy_ndarrays()]
    metrics = MetricRecord({"num-examples": len(trainloader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    metrics = MetricRecord({"num-examples": 1, "accuracy": 0.5})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
""",
    "server_app": """
import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    fraction_evaluate = context.run_config["fraction-evaluate"]
    strategy = FedAvg(fraction_evaluate=fraction_evaluate)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord([np.zeros(3)]), num_rounds=2)
    context.state["arrays"] = result.arrays
""",
}
PROJECT = """
[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"
"""


def changes() -> dict[str, list[tuple[str, str]]]:
    """Return what the page replaces by what, by file."""
    (diff,) = (block for block in blocks_of(PAGE.read_text()) if block.language == "diff")
    found: dict[str, list[tuple[str, str]]] = {}
    for part in diff.text.split("--- ")[1:]:
        name, _, hunks = part.partition("\n")
        for hunk in hunks.split("@@\n"):
            lines = hunk.splitlines(keepends=True)
            before = "".join(line[1:] for line in lines if line[0] in " -")
            after = "".join(line[1:] for line in lines if line[0] in " +")
            found.setdefault(name.removesuffix(".py"), []).append((before, after))
    return found


def test_the_page_counts_the_lines_that_change() -> None:
    """Empty lines do not count, and none is replaced."""
    added = 0
    for before, after in (hunk for hunks in changes().values() for hunk in hunks):
        assert after.startswith(before)
        added += sum(map(bool, after.removeprefix(before).splitlines()))

    assert added == 9
    assert "you add nine lines:" in PAGE.read_text()
    assert "you add [nine lines]" in (PAGE.parents[2] / "README.md").read_text()


def changed_by_the_page(folder: Path) -> None:
    for name, hunks in changes().items():
        text = (folder / f"{name}.py").read_text()
        for before, after in hunks:
            assert text.count(before) == 1, before
            text = text.replace(before, after)
        (folder / f"{name}.py").write_text(text)


def changed_by_the_command(folder: Path) -> None:
    assert main(["init", "--flower", str(folder)]) == 0


@pytest.fixture(params=[changed_by_the_page, changed_by_the_command])
def modules(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write the changed app; import it, and forget it afterwards."""
    for name, text in APP.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    request.param(tmp_path)
    texts = list(APP)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda name: import_module(name)
    for name in texts:
        sys.modules.pop(name, None)


def test_the_changed_app_draws_its_clients_by_their_sizes(
    modules: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Six clients have 1 to 6 samples; five draws a round."""
    client, server = modules("client_app"), modules("server_app")
    grid = InProcessGrid(client.app, {100 + k: k for k in range(6)})
    config: Any = {"num-partitions": 6}
    original = client.app.__call__

    def call(message: Any, context: Context) -> Any:
        context.node_config |= config
        context.run_config |= {"batch-size": 32}
        return original(message, context)

    grid.app = call  # type: ignore[assignment]
    settings: Any = {"fraction-evaluate": 0.5}
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=settings)

    with caplog.at_level("INFO", "fedcohort"):
        server.app(grid, context)

    (moved,) = context.state.array_records["arrays"].to_numpy_ndarrays()
    drawn = [line.partition("drawn ")[2] for line in caplog.messages if line.startswith("round ")]
    assert moved.tolist() == pytest.approx([2.0] * 3)
    assert [sum(map(int, re.findall(r"': (\d)", line))) for line in drawn] == [5, 5]
