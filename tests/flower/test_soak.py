"""The soak's checks see what they must see, and its brief form passes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from fedcohort import Selector, SizeClustered

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
SEED = 3


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(BENCHMARKS / "soak_app"))
    return import_module("soak_checks")


def soak_of(checks: Any, on_failure: Any, n_rounds: int = 60) -> Any:
    """Play a soak without a network: in every third round only the clients "0" and "2" answer."""
    task = import_module("soak.task")
    names = [str(k) for k in range(5)]
    sizes = {name: task.size_of(int(name)) for name in names}
    nodes = {name: 100 + int(name) for name in names}
    selector = Selector(SizeClustered(3), sizes, seed=SEED, on_failure=on_failure, log=True)
    model = np.zeros(task.DIMENSION)
    blank: dict[str, Any] = {"nodes": list(nodes.values()), "seated": nodes, "sizes": sizes}
    blank |= {"asked": list(nodes.values()), "limit": 9.0, "call": 0.1}
    rounds = [{"number": 0, "model": model.tolist()}]
    selections, sent = [], [_sent(name, nodes[name], 0, "known") for name in names]
    for k in range(n_rounds):
        drawn = selector.draw()
        asked, new, silent = list(drawn.ids), list(drawn.ids), {"1", "3", "4"} if k % 3 == 0 else {}
        failed = {str(each): "no answer: late" for each in new if each in silent}
        while failed and (new := selector.redraw([each for each in new if each in failed])):
            asked += new
            failed |= {str(each): "no answer: late" for each in new if each in silent}
        settled = selector.settle([each for each in asked if each not in failed])
        weights = dict(zip(settled.ids, settled.weights.tolist(), strict=True))
        model = model + sum(w * task.update_of(int(each)) for each, w in weights.items())
        selector.skip()
        counts = dict(zip(drawn.ids, drawn.counts.tolist(), strict=True))
        line = {"round": k, "drawn": counts, "weights": weights, "failed": failed, "scaled": []}
        selections.append(line)
        times = {"began": 100.0 + 10 * k, "ended": 106.0 + 10 * k}
        note = {**blank, **times, "number": k + 1, "order": names, "model": model.tolist()}
        rounds.append(note)
        sent += [_sent(str(each), nodes[str(each)], k + 1, "honest") for each in asked]
    begun = [checks.Incarnation(name, nodes[name], 0.0) for name in names]
    return checks.Soak(rounds, selections, sent, begun, SEED, on_failure)


def _sent(client: str, node: int, number: int, lie: str) -> dict[str, Any]:
    return {"client": client, "node": node, "number": number, "lie": lie, "when": 50.0}


def _late(soak: Any) -> None:
    soak.rounds[7]["ended"] += 20


def _weight(soak: Any) -> None:
    line = next(line for line in soak.selections if len(line["weights"]) > 1)
    each = next(iter(line["weights"]))
    line["weights"][each] += 1e-9


def _model(soak: Any) -> None:
    soak.rounds[5]["model"][0] += 1e-3


def _believed_lie(soak: Any) -> None:
    next(sent for sent in soak.sent if sent["number"] == 2)["lie"] = "nan"


def _impostor(soak: Any) -> None:
    soak.sent.append(_sent("9", 109, 4, "name"))


def _favourite(soak: Any) -> None:
    for line in soak.selections:
        line["drawn"] = {"0": 3}


def _absent(soak: Any) -> None:
    soak.selections[3]["drawn"]["7"] = 1


def _forgotten(soak: Any) -> None:
    for note in soak.rounds[1:]:
        note["seated"] = {key: node for key, node in note["seated"].items() if key != "2"}


def _never_asked(soak: Any) -> None:
    for note in soak.rounds[1:]:
        note["asked"] = [node for node in note["asked"] if node != 102]


@pytest.mark.parametrize("on_failure", ["keep", "redraw"])
def test_a_soak_that_keeps_the_law_has_no_faults(checks: Any, on_failure: str) -> None:
    soak = soak_of(checks, on_failure)

    assert any(line["failed"] for line in soak.selections)
    assert soak.faults() == []


@pytest.mark.parametrize("on_failure", ["keep", "redraw"])
@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (_late, "round 7 took"),
        (_weight, "lawful"),
        (_model, "the model moved by another step"),
        (_believed_lie, "nan of"),
        (_impostor, "name of 9"),
        (_favourite, "client 0: z ="),
        (_absent, "drew ['7'], who were not there"),
        (_forgotten, "client 2 could be known in round"),
        (_never_asked, "node 102 of client 2 was never asked"),
    ],
)
def test_a_fault_is_found(
    checks: Any, on_failure: str, harm: Callable[[Any], None], fault: str
) -> None:
    soak = deepcopy(soak_of(checks, on_failure))
    harm(soak)

    assert any(fault in each for each in soak.faults()), soak.faults()


@pytest.mark.slow
def test_a_brief_soak_finds_no_fault() -> None:
    result = subprocess.run(
        [sys.executable, str(BENCHMARKS / "flower_soak.py"), "--brief", "--on-failure", "redraw"],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    if result.returncode == 3:
        pytest.skip(result.stdout.splitlines()[-1])

    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("no faults\n")
