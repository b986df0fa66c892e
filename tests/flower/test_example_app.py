"""The example is an app that Flower Hub takes, and that ``flwr run`` runs on both engines."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytest.importorskip("sklearn", reason="the extra 'sim' is not installed")

from flower_programs import QUIET, end_programs, free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-mnist"
ROOT = EXAMPLE.parents[1]
#: Flower names a class of pathspec that is deprecated.
OLD_PATTERNS = "ignore:GitWildMatchPattern:DeprecationWarning"


@pytest.mark.filterwarnings(OLD_PATTERNS)
def test_the_app_has_what_flower_hub_asks_for(capsys: pytest.CaptureFixture[str]) -> None:
    """These are the checks of ``flwr app publish`` before it sends anything."""
    publish = import_module("flwr.cli.app_cmd.publish")

    config, warnings = publish.load_and_validate(EXAMPLE / "pyproject.toml", check_module=False)
    publish._validate_app_name(EXAMPLE.name, "the folder")
    publish._validate_description(config["project"]["description"])
    files = publish._collect_file_paths(EXAMPLE)
    publish._validate_files(files)

    assert warnings == []
    names = {str(path.relative_to(EXAMPLE)) for path in files}
    assert {"LICENSE", "README.md", "pyproject.toml", "flower_mnist/server_app.py"} <= names
    assert "Validation passed" in capsys.readouterr().out


@pytest.mark.filterwarnings(OLD_PATTERNS)
def test_the_bundle_is_of_format_1_and_has_only_the_app() -> None:
    build = import_module("flwr.cli.build")

    bundle, about = build.build_fab_from_files(build.collect_files(EXAMPLE))

    assert (about.fab_format_version, about.flwr_version_min) == (1, "1.41")
    assert about.flwr_version_target == "1.41.0"
    names = zipfile.ZipFile(io.BytesIO(bundle)).namelist()
    assert {name for name in names if name.endswith(".py")} == {
        f"flower_mnist/{path.name}" for path in (EXAMPLE / "flower_mnist").glob("*.py")
    }
    assert "LICENSE" in names


def test_the_licence_is_the_repositorys() -> None:
    assert (EXAMPLE / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def rounds_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture
def flwr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Call ``flwr`` with a SuperLink for simulations of its own; return what it prints as JSON."""
    monkeypatch.delenv("FEDCOHORT_DATA", raising=False)
    home = str(tmp_path / "home")
    beside = Path(sys.executable).parent
    environment = {
        **os.environ,
        **QUIET,
        "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": home,
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
    }

    def call(*arguments: str) -> Any:
        command = [str(beside / "flwr"), *arguments, "--format", "json"]
        result = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return json.loads(result.stdout)

    yield call
    end_programs(home)


def ended(flwr: Callable[..., Any], run_id: str, *, within: float = 300.0) -> str:
    """Wait until a run has ended; return how."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        status = str(flwr("list", "--run-id", run_id)["runs"][0]["status"])
        if status.startswith("finished"):
            return status
        time.sleep(5)  # to look takes a second of work
    return "still running"


@pytest.mark.slow
def test_the_app_runs_in_simulation_and_goes_on_from_its_checkpoint(
    flwr: Callable[..., Any], tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="Flower's simulation engine is not installed")
    log, folder = tmp_path / "log.jsonl", tmp_path / "checkpoint"
    shown = re.search(r'--federation-config "([^"]+)"', (EXAMPLE / "README.md").read_text())
    assert shown is not None

    def run(rounds: int) -> str:
        settings = f"log-file='{log}' checkpoint='{folder}' num-server-rounds={rounds}"
        options = ["--run-config", settings, "--federation-config", shown[1]]
        return ended(flwr, flwr("run", str(EXAMPLE), *options)["run-id"])

    assert [run(2), run(3)] == ["finished:completed"] * 2
    assert [line["round"] for line in rounds_of(log)] == [0, 1, 2]
    assert all(line["failed"] == {} for line in rounds_of(log))
    assert [path.name for path in folder.iterdir()] == ["checkpoint"]


@pytest.mark.slow
def test_the_app_runs_in_a_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.delenv("FEDCOHORT_DATA", raising=False)
    log = tmp_path / "log.jsonl"
    federations = import_module("local_federation")
    try:
        with federations.LocalFederation(tmp_path / "flower", 2) as federation:
            status = federation.run(min_nodes=2, num_server_rounds=2, log_file=str(log))

            assert status == "finished:completed", federation.log_of("superlink")[-3000:]
    finally:
        for name in ("local_federation", "certificates"):
            sys.modules.pop(name, None)
    assert [line["round"] for line in rounds_of(log)] == [0, 1]
    assert all(line["failed"] == {} for line in rounds_of(log))
