"""The side-by-side benchmark: its tables are what was recorded, and one missing peer stops nobody.

It is run as a program, in processes of its own, without network and without installing anything.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def peers(*arguments: object, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmark."""
    paths = [str(ROOT / "benchmarks"), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-m", "peers", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **settings},
        check=False,
    )


def runs(package: str, *steady: float, **changed: Any) -> list[dict[str, Any]]:
    """Record a run of each kind per repetition; rounds take ``steady`` but the first and last."""
    return [
        {
            "seed": seed,
            "evaluate": evaluate,
            "versions": {package: "1.2"},
            "import_seconds": 1.0,
            "setup_seconds": 0.5,
            "round_seconds": [7.0, seconds, seconds, seconds, 9.0],
            "cores": 1.0,
            "peak_mb": 500,
            "local_steps": 2500,
            "loss": 1.5 + seed,
            "accuracy": 0.5,
            "moved": 2.0,
            "doubts": [],
            **changed,
        }
        for seed, seconds in enumerate(steady)
        for evaluate in (False, True)
    ]


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    results = {
        "machine": {
            "date": "2026-01-02",
            "cpu": "a processor",
            "cores": 2,
            "python": "3.11.0",
            "load_before": 0.25,
        },
        "workload": {"data": "mnist", "rounds": 5, "repetitions": 3},
        "peers": {
            "fedcohort": {"runs": runs("fedcohort", 0.1, 0.2, 0.1)},
            "pytorch": {"runs": runs("torch", 0.3, 0.4, 0.4)},
            "fedjax": {"runs": runs("fedjax", 0.05, 0.15, 0.06)},
            "pfl": {"not_installed": "no wheel was found"},
            "fluke": {"runs": runs("fluke-fl", 0.3, doubts=["9600 local steps instead of 10000"])},
            "flower": {"runs": [{"seed": 0, "evaluate": False, "error": "exit code 1: no Ray"}]},
        },
    }
    path = tmp_path / "recorded.json"
    path.write_text(json.dumps(results))
    return path


def test_a_ratio_is_taken_within_a_repetition_and_leaves_out_the_first_and_last_round(
    recorded: Path,
) -> None:
    printed = peers("--table", recorded).stdout.splitlines()

    # 0.3 / 0.1, 0.4 / 0.2 and 0.4 / 0.1: medians of the times would give 0.4 / 0.1.
    expected = "3.00 (2.00 to 4.00)"
    assert f"| plain PyTorch loop | 1.2 | {expected} | {expected} |" in printed
    assert "| fedcohort | 1.2 | 1 | 1 |" in printed
    assert "| fedcohort | 2500 | 1.50 to 3.50 | 0.50 | 2.00 |" in printed


def test_who_is_faster_than_fedcohort_is_said(recorded: Path) -> None:
    printed = peers("--table", recorded).stdout

    faster = "FedJAX (train: 0.60); FedJAX (train and evaluate: 0.60)"
    verdict = f"Faster than fedcohort, by the median: {faster}."
    assert verdict in printed


def test_what_went_wrong_is_listed_and_has_no_row_of_times(recorded: Path) -> None:
    printed = peers("--table", recorded).stdout

    assert "- pfl could not be installed: no wheel was found." in printed
    assert "- Flower simulation: exit code 1: no Ray." in printed
    assert printed.count("- fluke: 9600 local steps instead of 10000.") == 1
    assert "| Flower simulation |" not in printed


def test_the_tables_go_between_the_markers_of_a_page(recorded: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Before.\n<!-- bench-peers: begin -->\nold\n<!-- bench-peers: end -->\nAfter.\n"
    )

    printed = peers("--table", recorded, "--page", page).stdout
    once = page.read_text()
    peers("--table", recorded, "--page", page)

    assert once.startswith("Before.\n")
    assert once.endswith("\nAfter.\n")
    assert printed.strip() in once
    assert "old" not in once
    assert page.read_text() == once


def test_a_page_without_markers_is_refused_in_one_sentence(recorded: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Before.\n")

    result = peers("--table", recorded, "--page", page)

    assert result.returncode == 2
    assert "the page needs the lines <!-- bench-peers: begin -->" in result.stderr
    assert result.stderr.count("\n") == 1
    assert page.read_text() == "Before.\n"


def test_the_page_on_speed_shows_what_was_recorded_last() -> None:
    printed = peers("--table", ROOT / "results" / "peers" / "figure1.json").stdout.strip()

    page = (ROOT / "docs" / "explanation" / "speed.md").read_text()
    assert "| fedcohort |" in printed
    assert f"<!-- bench-peers: begin -->\n\n{printed}\n\n<!-- bench-peers: end -->" in page


@pytest.mark.slow
def test_a_peer_that_cannot_be_installed_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    kept = tmp_path / "kept.json"

    result = peers(
        *("--only", "pytorch", "pfl", "--rounds", 3, "--repetitions", 1, "--synthetic"),
        *("--build", tmp_path / "build", "--out", kept),
        PIP_NO_INDEX="1",
        PIP_CONFIG_FILE=os.devnull,
    )

    found = json.loads(kept.read_text())
    assert result.returncode == 0
    assert "- pfl could not be installed: No matching distribution found for" in result.stdout
    assert "runs" not in found["peers"]["pfl"]
    assert not (tmp_path / "build" / "pfl" / ".ready").exists()
    for name in ("fedcohort", "pytorch"):
        assert [run["doubts"] for run in found["peers"][name]["runs"]] == [[], []]
        assert [run["local_steps"] for run in found["peers"][name]["runs"]] == [1500, 1500]
    assert found["workload"]["data"] == "synthetic"
