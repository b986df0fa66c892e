"""The example runs as a user would run it: real nodes, one of them killed in a round."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROUND = re.compile(r"^  round (\d+): weights (\{.*?\}), failed (.*)$", flags=re.M)


@pytest.mark.slow
def test_a_killed_node_fails_its_round_and_is_drawn_again_when_it_is_back() -> None:
    command = [sys.executable, "examples/fedbiomed-tabular/demo.py"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FBM_")}

    result = subprocess.run(
        command, cwd=ROOT, env=clean, capture_output=True, text=True, timeout=600
    )

    assert result.returncode == 0, result.stdout + result.stderr
    rounds = ROUND.findall(result.stdout)
    assert [int(number) for number, _, _ in rounds] == list(range(11))
    failed = {int(number): why for number, _, why in rounds if why != "none"}
    assert list(failed) == [3]
    victim = failed[3].split("'")[1]
    assert "no reply" in failed[3]
    assert all(victim not in weights for _, weights, _ in rounds[3:8])
    assert f"{victim} is back" in result.stdout
