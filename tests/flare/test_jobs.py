"""Jobs as FLARE writes and reads them: FedJob, plain JSON, and the example on the simulator."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="the extra 'nvflare' is not installed")

from nvflare.fuel.utils.class_utils import ModuleScanner
from nvflare.fuel.utils.component_builder import ComponentBuilder
from nvflare.job_config.api import FedJob

from documented_blocks import blocks_of
from fedcohort import Difference, Poisson, Population, Recipe, Regression, SizeClustered
from fedcohort.designs import Knowledge, MultinomialDesign
from fedcohort.nvflare import CohortController, Limits
from fedcohort.optimizers import Yogi
from fedcohort.selector import read_selections
from flare.in_process import lines

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "nvflare-digits"
PAGE = (ROOT / "docs" / "how-to" / "nvflare.md").read_text(encoding="utf-8")
SETTINGS: list[dict[str, Any]] = [
    {"recipe": SizeClustered(2)},
    {
        "recipe": {"name": "poisson", "cohort_size": 2},
        "seed": 3,
        "on_failure": "redraw",
        "tries": 3,
    },
    {
        "recipe": Poisson(4),
        "seed": 7,
        "sizes": {"site-1": 3, "site-2": 5},
        "groups": {"site-1": "x", "site-2": "y"},
        "estimator": Difference(keep="rank", rank=2),
        "server_optimizer": Yogi(lr=0.2),
        "on_failure": "renormalise",
        "min_clients": 2,
        "timeout": 5,
        "limits": Limits(max_count=3, min_replies=2),
        "max_norm": "auto",
        "rebuild_every": 2,
        "max_participations": 9,
        "min_separation": 2,
        "rest": 3,
        "checkpoint": "kept",
        "every": 2,
        "resume": True,
        "log_file": "log",
        "num_rounds": 9,
    },
]
FEATURES: list[Any] = [
    {"site-1": np.array([0.25, 0.75]), "site-2": np.array([1.0, 0.0])},
    {"site-1": [np.float32(0.25), "south"], "site-2": (1, "north")},
    {"site-1": {"age": np.int64(3), "region": "south"}, "site-2": {"age": 4.5, "region": None}},
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
    assert after._options == before._options
    assert after._optimizer == before._optimizer
    names = ("min_clients", "timeout", "checkpoint", "every", "resume", "log_file", "num_rounds")
    assert [getattr(after, n) for n in names] == [getattr(before, n) for n in names]


@pytest.mark.parametrize("features", FEATURES, ids=["arrays", "lists", "by name"])
@pytest.mark.parametrize("is_mapping", [False, True], ids=["settings", "mapping"])
def test_a_job_keeps_features(features: Any, is_mapping: bool, tmp_path: Path) -> None:
    estimator: Any = Regression(features=features, keep="float16")
    if is_mapping:
        estimator = {"name": "regression", "features": features, "keep": "float16"}
    sizes = {"site-1": 3, "site-2": 5}
    before = CohortController(recipe=SizeClustered(2), seed=1, sizes=sizes, estimator=estimator)

    after = Builder().build_component(exported(before, tmp_path))

    assert after.selector.seed == before.selector.seed
    tables = []
    for own in (before, after):
        own.selector.clients = sizes
        tables.append(own.selector._records.features)
    assert tables[0].names == tables[1].names
    assert tables[0].encoded().values.tolist() == tables[1].encoded().values.tolist()
    assert tables[1].known.all()


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
    (command,) = [line for line in PAGE.splitlines() if "--fails-at kill" in line]
    (shown,) = [block.text for block in blocks_of(PAGE) if block.text.startswith("round 0: ")]
    killed, said = simulated(tmp_path, *shlex.split(command)[2:])
    log = tmp_path / "selections.jsonl"
    with log.open("a") as file:  # as if the server died between a line and its checkpoint
        file.write(json.dumps({**killed[-1], "round": 4}) + "\n")
    both, text = simulated(tmp_path, "--rounds", "6")

    assert shown in said
    assert both[:4] == killed
    assert [line["round"] for line in both] == [0, 1, 2, 3, 4, 4, 5]
    assert [line["round"] for line in read_selections(log)] == list(range(6))
    assert "continues from the checkpoint: 4 of 6 rounds are done" in text


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
