"""fedcohort init."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from command_line import refused, run
from fedcohort.cli.init import FILES
from small_runs import contents

CLIENT = '''"""A client."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from app.task import load

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    model = msg.content["arrays"]
    config = context.run_config
    unused = model + 1
    if config["slow"]:
        unused = 2
    data = load(
        context.node_config["partition-id"],
        config["batch-size"],
    )
    loss = fit(model, data)
    metrics = {"loss": loss, "num-examples": len(data[0])}
    return Message(metrics)
'''
SERVER = """from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    other = FedAvg()
    if context.run_config["adam"]:
        chosen = FedAdam(
            eta=0.1,
        )
    result = chosen.start(grid=grid)
"""
PROJECT = """
[tool.flwr.app.components]
serverapp = "app.server:app"
clientapp = "app.client:app"
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Return the folder of a Flower app."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "client.py").write_text(CLIENT)
    (tmp_path / "app" / "server.py").write_text(SERVER)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    return tmp_path


@pytest.mark.slow
def test_the_experiment_runs_as_it_is_and_its_data_and_model_are_the_users_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="the extra 'sim' is not installed")
    monkeypatch.chdir(tmp_path)

    written = run(capsys, "init")
    result = run(capsys, "run", "experiment/experiment.toml", "--set", "rounds=4")

    assert written.out.splitlines()[:3] == [f"experiment/{name}" for name in FILES]
    assert "\n  fedcohort run experiment/experiment.toml\n" in written.out
    assert result.code == 0
    assert {path.name for path in Path("runs/experiment/code").iterdir()} == set(FILES[1:])


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my_data.py").write_text("precious")
    before = contents(tmp_path)

    result = run(capsys, "init", tmp_path)

    assert refused(result, f"init: {tmp_path} has my_data.py already.")
    assert contents(tmp_path) == before


def test_a_client_counts_its_samples_by_the_statements_of_its_own_training(
    app: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(capsys, "init", "--flower", app, "-m", "7")

    assert result.code == 0
    text = (app / "app" / "client.py").read_text()
    added = text.split("app = ClientApp()\n")[1].split("@app.train")[0].strip()
    assert added == (
        "def num_examples(context: Context) -> int:\n"
        "    config = context.run_config\n"
        "    data = load(\n"
        '        context.node_config["partition-id"],\n'
        '        config["batch-size"],\n'
        "    )\n"
        "    return len(data[0])\n"
        "\n\n"
        "register_size_query(app, num_examples)"
    )
    server = (app / "app" / "server.py").read_text()
    wrap = "        chosen = CohortStrategy(chosen, SizeClustered(cohort_size=7), seed=0)"
    assert f"        )\n{wrap}\n    result = " in server
    for each in (text, server):
        ast.parse(each)
        assert each.count("fedcohort") == each.count("from fedcohort")
    assert "+register_size_query(app, num_examples)" in result.out
    assert refused(run(capsys, "init", "--flower", app), "uses fedcohort already")


def test_the_changes_are_only_shown_if_asked_for(
    app: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(app)

    shown = run(capsys, "init", "--flower", app, "--diff")

    assert contents(app) == before
    added = [line for line in shown.out.splitlines() if line[:1] == "+" and line[:3] != "+++"]
    assert len([line for line in added if line != "+"]) == 12
    assert refused(run(capsys, "init", "--diff"), "init: --diff needs --flower")


@pytest.mark.parametrize(
    ("file", "old", "new", "sentence"),
    [
        ("pyproject.toml", "clientapp", "other", "must name a clientapp and a serverapp"),
        ("pyproject.toml", "[tool", "[[tool", "must name a clientapp and a serverapp"),
        ("pyproject.toml", "app.client", "app.none", "none.py: cannot be read"),
        ("app/client.py", "@app.train()", "@app.query()", "needs app = ClientApp() and a function"),
        ("app/client.py", "num-examples", "n", "the metrics of train must hold 'num-examples'"),
        ("app/client.py", "len(data[0])", "len(model)", "counted without the server's message"),
        ("app/client.py", "def train", "def", "is not a Python program"),
        ("app/server.py", "chosen.start", "begin", "needs a strategy in a variable"),
    ],
)
def test_an_app_of_another_kind_is_refused_and_stays_as_it_is(
    file: str, old: str, new: str, sentence: str, app: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (app / file).write_text((app / file).read_text().replace(old, new))
    before = contents(app)

    result = run(capsys, "init", "--flower", app)

    assert refused(result, sentence)
    assert contents(app) == before


def test_a_strategy_that_ignores_weights_is_refused_before_the_app_is_changed(
    app: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
    server = app / "app" / "server.py"
    server.write_text(SERVER.replace("FedAdam", "FedXgbBagging"))
    before = contents(app)

    result = run(capsys, "init", "--flower", app)

    assert refused(result, f"init: {server}: FedXgbBagging ignores the weights", "FedAvg")
    assert contents(app) == before
