"""Jobs as FLARE writes and reads them: FedJob, plain JSON, and the example on the simulator."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("nvflare", reason="the extra 'nvflare' is not installed")

from nvflare.fuel.utils.class_utils import ModuleScanner
from nvflare.fuel.utils.component_builder import ComponentBuilder
from nvflare.job_config.api import FedJob

from fedcohort import Difference, Poisson, Population, Recipe, SizeClustered
from fedcohort.designs import Knowledge, MultinomialDesign
from fedcohort.nvflare import CohortController, Limits
from fedcohort.optimizers import Yogi
from flare.in_process import lines

EXAMPLE = Path(__file__).parents[2] / "examples" / "nvflare-digits"
SETTINGS: list[dict[str, Any]] = [
    {"recipe": SizeClustered(2)},
    {"recipe": {"name": "poisson", "cohort_size": 2}, "seed": 3},
    {
        "recipe": Poisson(4),
        "seed": 7,
        "sizes": {"site-1": 3, "site-2": 5},
        "groups": {"site-1": "x", "site-2": "y"},
        "estimator": Difference(clusters=2),
        "server_optimizer": Yogi(lr=0.2),
        "on_failure": "redraw",
        "tries": 3,
        "min_clients": 2,
        "timeout": 5,
        "limits": Limits(max_norm=3.0, min_replies=2),
        "checkpoint": "kept",
        "every": 2,
        "resume": True,
        "log_file": "log",
        "num_rounds": 9,
    },
]


class Builder(ComponentBuilder):
    """Makes components as FLARE's server does."""

    def get_module_scanner(self) -> ModuleScanner:
        return ModuleScanner(["nvflare"], [], True)


def exported(controller: CohortController, folder: Path) -> dict[str, Any]:
    """Write a job; return the controller's part of its configuration."""
    job = FedJob(name="one")
    job.to_server(controller)
    job.export_job(str(folder))
    assert list(folder.rglob("custom/**/*.py")) == []  # the library is not copied
    file = next(folder.rglob("config_fed_server.json"))
    found: dict[str, Any] = json.loads(file.read_text())["workflows"][0]
    return found


@pytest.mark.parametrize("settings", SETTINGS, ids=["size", "by name", "everything"])
def test_a_job_keeps_every_setting(settings: dict[str, Any], tmp_path: Path) -> None:
    before = CohortController(**settings)
    config = exported(before, tmp_path)
    after = Builder().build_component(config)

    assert config["path"] == "fedcohort.nvflare.controller.CohortController"
    assert after._settings == before._settings
    names = ("min_clients", "timeout", "checkpoint", "every", "resume", "log_file", "num_rounds")
    assert [getattr(after, n) for n in names] == [getattr(before, n) for n in names]


@pytest.mark.slow
def test_the_example_trains_though_a_client_breaks(tmp_path: Path) -> None:
    log, text = simulated(tmp_path, "--fails-at", "error:site-2:1")

    assert [line["round"] for line in log] == [0, 1, 2, 3]
    assert all(sum(line["drawn"].values()) == 2 for line in log)
    broken = [line["failed"] for line in log if line["failed"]]
    assert broken
    assert all(re.match("error: TASK_ABORTED|error: EXEC", each["site-2"]) for each in broken)
    assert "1 of 2 clients failed (site-2): error: TASK_ABORTED" in text


@pytest.mark.slow
def test_the_example_trains_though_a_client_is_killed_and_goes_on_later(tmp_path: Path) -> None:
    flags = ("--on-failure", "redraw", "--timeout", "30")
    killed, _ = simulated(tmp_path, "--fails-at", "kill:site-2:1", "--rounds", "2", *flags)
    both, text = simulated(tmp_path, "--rounds", "4", *flags)

    assert killed[1]["failed"] == {"site-2": "no answer: the deadline has passed"}
    assert sum(killed[1]["weights"].values()) == pytest.approx(1.0)  # others took its place
    assert both[:2] == killed
    assert [line["round"] for line in both] == [0, 1, 2, 3]
    assert "goes on from the checkpoint: 2 of 4 rounds are done" in text


def simulated(folder: Path, *flags: str) -> tuple[list[dict[str, Any]], str]:
    """Run the example; return the selection log and what was printed.

    The simulator's workers look for free ports at the same time and sometimes take the same one:
    the job then ends for want of a client, and is run again.
    """
    for _ in range(3):
        command = [sys.executable, str(EXAMPLE / "job.py"), "--folder", str(folder), *flags]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300)
        text = result.stdout + result.stderr
        if "needs 4 clients" not in text:
            break
    assert result.returncode == 0, text[-3000:]
    return lines(folder / "selections.jsonl"), text


@dataclass(frozen=True)
class Mine(Recipe):
    """A recipe that is not one of the library's."""

    name: ClassVar[str] = "mine"

    def design(self, population: Population, known: Knowledge) -> MultinomialDesign:
        return MultinomialDesign(population, self.cohort_size)


def test_a_recipe_of_ones_own_is_a_component_of_the_job(tmp_path: Path) -> None:
    job = FedJob(name="one")
    job.to_server(CohortController(recipe=Mine(2)))
    job.export_job(str(tmp_path))
    file = next(tmp_path.rglob("config_fed_server.json"))
    config = json.loads(file.read_text())["workflows"][0]["args"]["recipe"]

    assert config == {"path": f"{Mine.__module__}.Mine", "args": {"cohort_size": 2}}
    assert [path.name for path in tmp_path.rglob("custom/**/*.py")][:1] == ["test_jobs.py"]
