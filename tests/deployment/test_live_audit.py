"""The audit of a run while it goes on: log lines, warnings, numbers, whatever happens."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcohort import Selector, SizeClustered
from fedcohort.participation.live import LiveAudit

SIZES = {"Nice": 510, "Lyon": 340, "Lille": 300, "Brest": 260, "Metz": 240, "Caen": 200}
LOGGER = logging.getLogger("fedcohort")


def played(rounds: int, *, leaves: int = 10**6, log: Any = True, **settings: Any) -> Selector:
    """Play rounds; Metz does not answer from ``leaves`` on."""
    selector = Selector(SizeClustered(4), SIZES, seed=0, log=log)
    assert selector.selections is not None
    path = selector.selections.path
    selector.selections.follower = LiveAudit(LOGGER, path=path, **settings)
    for round_ in range(rounds):
        cohort = selector.draw()
        lost = [each for each in cohort.ids if each == "Metz" and round_ >= leaves]
        came = {each: np.zeros(1) for each in cohort.ids if each not in lost}
        selector.remember(came, failed=dict.fromkeys(lost, "timeout"))
    return selector


@pytest.mark.parametrize("has_file", [False, True])
def test_a_client_that_left_is_named_once_while_the_run_goes_on(
    has_file: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "fedcohort"):
        log = tmp_path / "log.jsonl" if has_file else True
        selector = played(60, leaves=20, log=log, every=20, first_shown=1)

    said = [m for m in caplog.messages if m.startswith("audit: ")]
    lines = [each for each in said if "of all samples" in each and "instead of" not in each]
    warnings = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert said[0].startswith("audit: all 6 clients that were asked answer")
    assert any("1 of 6 clients has not answered since round 2" in each for each in lines)
    assert len(warnings) == 1
    assert "(Metz; " in warnings[0]
    assert "Share of the aggregate: " in warnings[0]
    assert selector.selections is not None
    assert selector.selections.figures["audit_findings"] == 1
    assert selector.selections.figures["audit_dropout_bias"] > 0.02


def test_without_rounds_to_wait_for_it_speaks_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "fedcohort"):
        selector = played(10)
        before = [m for m in caplog.messages if m.startswith("audit: ")]
        assert selector.selections is not None
        selector.selections.log_summary()

    after = [m for m in caplog.messages if m.startswith("audit: ")]
    assert (len(before), len(after)) == (0, 1)


def test_the_same_rounds_give_the_same_audit_with_and_without_a_file(tmp_path: Path) -> None:
    figures = [
        played(40, leaves=20, log=log, every=40).selections.figures  # type: ignore[union-attr]
        for log in (True, tmp_path / "log.jsonl")
    ]

    assert figures[0] == figures[1]


def test_an_audit_that_fails_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log.jsonl"
    selector = played(2, log=path)
    path.unlink()
    assert selector.selections is not None

    selector.selections.log_summary()

    assert "the audit of who took part failed" in caplog.text
