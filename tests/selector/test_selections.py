"""The log of a selector: what an auditor needs, whatever happened to the server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcohort import Multinomial, Selector, SimilarityClustered, SizeClustered
from fedcohort.errors import FedcohortError, SelectorError
from fedcohort.selector import read_selections
from selectors_for_tests import SIZES, frozen, updates_for

Line = dict[str, Any]


def saved(selector: Selector, path: Path) -> Path:
    selector.save(path)
    return path


def play(selector: Selector, rounds: int, available: Any = None) -> list[list[Any]]:
    """Play rounds in which all answer; return the cohorts."""
    cohorts = []
    for _ in range(rounds):
        cohort = selector.draw(available)
        selector.aggregate(updates_for(cohort))
        cohorts.append(list(cohort.ids))
    return cohorts


def lines_of(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_log_has_a_line_for_every_round(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    selector = Selector(SizeClustered(3), SIZES, seed=0, log=path)
    first = selector.draw()
    lost, *others = first.ids
    settled = selector.settle(others)
    selector.remember(dict.fromkeys(others, 0), failed={lost: "timeout"})
    selector.draw(available=[])
    selector.skip()
    selector = Selector.load(saved(selector, tmp_path / "s"), log=path)
    second = selector.draw()
    selector.aggregate({})

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1, 2]
    assert lines[0]["drawn"] == dict(zip(first.ids, first.counts.tolist(), strict=True))
    assert lines[0]["weights"] == dict(zip(others, settled.weights.tolist(), strict=True))
    assert lines[0]["failed"] == {lost: "timeout"}
    assert sorted(set(lines[0]["rows"])) == first.ids
    assert (lines[1]["drawn"], lines[1]["rows"], lines[1]["failed"]) == ({}, None, {})
    assert lines[2]["failed"] == dict.fromkeys(second.ids, "no answer")
    assert selector.selections is not None
    drawn_twice = np.zeros(len(SIZES), dtype=int)
    for each in (first, second):
        drawn_twice[each.clients] += each.counts
    assert selector.selections.drawn.tolist() == drawn_twice.tolist()
    assert selector.selections.expected == pytest.approx(2 * 3 * np.array([*SIZES.values()]) / 16)
    assert selector.selections.summary()["a"][0] == drawn_twice[0]


def test_a_log_file_needs_ids_that_differ_as_text(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    sizes = {1: 5, "1": 3}

    with pytest.raises(SelectorError, match=r"differ as text; got 1 and '1'\. Rename one"):
        Selector(SizeClustered(1), sizes, log=path)
    assert not path.exists()
    selector = Selector(SizeClustered(1), {1: 5}, log=path)
    with pytest.raises(SelectorError, match="ids that differ as text"):
        selector.clients = sizes
    assert selector.clients == {1: 5}
    assert Selector(SizeClustered(1), sizes, log=True).clients == sizes


def test_a_log_that_cannot_be_written_is_refused_at_construction(tmp_path: Path) -> None:
    with pytest.raises(FedcohortError, match="cannot be written"):
        Selector(SizeClustered(3), SIZES, seed=0, log=tmp_path / "none" / "log")


def test_a_log_that_fails_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    selector = Selector(SimilarityClustered(3), SIZES, seed=0, log=folder / "log")
    cohort, before = selector.draw(), frozen(selector)
    (folder / "log").unlink()
    folder.rmdir()

    with pytest.raises(FedcohortError, match="cannot be written"):
        selector.aggregate(updates_for(cohort))
    assert frozen(selector) == before
    folder.mkdir()
    selector.aggregate(updates_for(cohort))
    assert selector.round_ == 1


def test_rounds_that_a_crash_discarded_stay_in_the_file_and_do_not_count(tmp_path: Path) -> None:
    """Saved after round 2, crashed after round 4; then other clients are there."""
    path, state = tmp_path / "log", tmp_path / "state"
    selector = Selector(SizeClustered(2), SIZES, seed=0, log=path)
    first = play(selector, 2)
    saved(selector, state)
    play(selector, 3)
    again = Selector.load(state, log=path)
    second = play(again, 2, available=["a", "b"])
    saved(again, state)
    play(again, 1)

    third = play(Selector.load(state, log=path), 1, available=["c", "d"])

    every = lines_of(path)
    assert [line["round"] for line in every] == [0, 1, 2, 3, 4, 2, 3, 4, 4]
    assert [line["attempt"] for line in every] == [0, 0, 0, 0, 0, 1, 1, 1, 2]
    assert len({line["run"] for line in every}) == 1
    counting = read_selections(path)
    assert [line["round"] for line in counting] == [0, 1, 2, 3, 4]
    assert [list(line["drawn"]) for line in counting] == [*first, *second, *third]


def test_rounds_that_were_never_played_again_after_a_crash_do_not_count(tmp_path: Path) -> None:
    """The restarted run ended in round 2: rounds 3 and 4 of the first attempt led nowhere."""
    path, state = tmp_path / "log", tmp_path / "state"
    selector = Selector(SizeClustered(2), SIZES, seed=0, log=path)
    play(selector, 2)
    saved(selector, state)
    play(selector, 3)

    play(Selector.load(state, log=path), 1)

    found = [(line["round"], line["attempt"]) for line in read_selections(path)]
    assert found == [(0, 0), (1, 0), (2, 1)]


def test_every_new_selector_is_a_run_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "log"
    one, other = (Selector(Multinomial(2), SIZES, seed=0, log=path) for _ in range(2))
    play(one, 3)
    play(other, 1)

    first, second = lines_of(path)[0]["run"], lines_of(path)[-1]["run"]

    assert first != second
    assert [line["run"] for line in read_selections(path)] == [second]
    assert [line["round"] for line in read_selections(path, run=first)] == [0, 1, 2]


@pytest.mark.parametrize("kept", [1, 40, -2], ids=["a byte", "a part", "all but a byte"])
def test_a_line_that_was_cut_off_is_left_out_and_spoils_no_other(tmp_path: Path, kept: int) -> None:
    path, state = tmp_path / "log", tmp_path / "state"
    selector = Selector(SizeClustered(2), SIZES, seed=0, log=path)
    play(selector, 2)
    saved(selector, state)
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines(keepends=True)[0][:kept])

    play(Selector.load(state, log=path), 2)

    assert [line["round"] for line in read_selections(path)] == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_killed_server_leaves_a_log_that_can_be_read(tmp_path: Path) -> None:
    """kill -9 at ten moments: every round once, as the checkpoints say."""
    program = """
import sys, numpy as np
from fedcohort import Selector, SizeClustered
folder = sys.argv[1]
log = folder + "/log"
try:
    selector = Selector.load(folder + "/state", log=log)
except Exception:
    selector = Selector(SizeClustered(3), {str(k): k + 1 for k in range(8)}, seed=0, log=log)
print("ready", flush=True)
while selector.round_ < 10**6:
    cohort = selector.draw()
    selector.aggregate({each: np.ones(2) for each in cohort.ids})
    if selector.round_ % 3 == 0:
        selector.save(folder + "/state")
    if selector.round_ % 20 == 0:
        print("twenty more", flush=True)
"""
    for _ in range(10):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.stdout.readline()
            os.kill(process.pid, signal.SIGKILL)

    state = Selector.load(tmp_path / "state")
    found = read_selections(tmp_path / "log")
    assert [line["round"] for line in found] == list(range(len(found)))
    assert len(found) >= state.round_
    twin = Selector(SizeClustered(3), {str(k): k + 1 for k in range(8)}, seed=0)
    for line in found:
        cohort = twin.draw()
        assert line["drawn"] == dict(zip(cohort.ids, cohort.counts.tolist(), strict=True))
        twin.skip()


def test_a_line_says_when_who_was_there_how_long_it_took_and_why_not(tmp_path: Path) -> None:
    path = tmp_path / "log"
    selector = Selector(SizeClustered(2), SIZES, seed=0, log=path)
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    cohort = selector.draw(available=["a", "b", "c"])
    lost, *others = cohort.ids
    selector.remember(
        dict.fromkeys(others, 0), durations=dict.fromkeys(others, 2.5), failed={lost: "gone"}
    )
    play(selector, 1)

    first, second = lines_of(path)

    assert before <= datetime.fromisoformat(first["time"]) <= datetime.now(UTC)
    assert first["available"] == ["a", "b", "c"]
    assert second["available"] is None
    assert (first["durations"], first["failed"]) == (dict.fromkeys(others, 2.5), {lost: "gone"})
    assert (second["durations"], second["failed"]) == ({}, {})


def test_sizes_are_logged_when_they_change(tmp_path: Path) -> None:
    path, state = tmp_path / "log", tmp_path / "state"
    selector = Selector(SizeClustered(1), {"a": 4, "b": 2}, seed=0, log=path)
    play(selector, 2)
    selector.clients = {"a": 4, "b": 3, "c": 1}
    play(selector, 1)
    selector.clients = {"b": 3, "c": 1}
    play(selector, 1)
    play(Selector.load(saved(selector, state), log=path), 1)

    assert [line.get("sizes") for line in lines_of(path)] == [
        {"a": 4, "b": 2},
        None,
        {"b": 3, "c": 1},
        {"a": None},
        {"b": 3, "c": 1},
    ]


def test_many_available_clients_are_a_number_and_a_digest(tmp_path: Path) -> None:
    path = tmp_path / "log"
    selector = Selector(Multinomial(2), np.ones(3000, dtype=np.int64), seed=0, log=path)
    there = list(range(0, 3000, 2))

    play(selector, 1, available=there)
    play(selector, 1, available=there[:1000])

    first, second = lines_of(path)
    text = "\n".join(sorted(map(str, there)))
    assert first["available"] == {"n": 1500, "sha256": sha256(text.encode()).hexdigest()}
    assert second["available"] == there[:1000]


def test_a_log_that_failed_once_misses_no_sizes(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    selector = Selector(SizeClustered(3), SIZES, seed=0, log=folder / "log")
    cohort = selector.draw()
    (folder / "log").unlink()
    folder.rmdir()
    with pytest.raises(FedcohortError, match="cannot be written"):
        selector.aggregate(updates_for(cohort))
    folder.mkdir()

    selector.aggregate(updates_for(cohort))

    assert lines_of(folder / "log")[0]["sizes"] == SIZES


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "no such file"), ("id,size\na,3\n", "it has no round"), ('{"round": 3}\n', "no round")],
    ids=["missing", "a table", "another log"],
)
def test_what_is_no_log_is_refused_in_a_sentence(
    tmp_path: Path, content: str | None, why: str
) -> None:
    path = tmp_path / "log"
    if content is not None:
        path.write_text(content)

    with pytest.raises(SelectorError, match=rf"^read_selections: .*{why}.*\.$"):
        read_selections(path)


def test_an_empty_log_has_no_rounds(tmp_path: Path) -> None:
    Selector(SizeClustered(3), SIZES, seed=0, log=tmp_path / "log")

    assert read_selections(str(tmp_path / "log")) == []
