"""fedcohort draw: cohorts of rounds that are run by hand."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import SIZES, Result, refused, run
from fedcohort import Selector, SizeClustered, read_clients
from fedcohort._lock import locked
from fedcohort.errors import InputError

Capture = pytest.CaptureFixture[str]
GROUPED = "id,group,size\na,N,5\nb,N,3\nc,S,4\nd,S,11\n"


def drawn(capsys: Capture, *arguments: object, stdin: str | None = None) -> list[dict[str, Any]]:
    result = run(capsys, "draw", *arguments, "--json", stdin=stdin)
    assert result.code == 0, result.err
    rounds: list[dict[str, Any]] = json.loads(result.out)["rounds"]
    return rounds


def ids(each: dict[str, Any]) -> list[object]:
    return [line["client"] for line in each["clients"]]


def test_the_rounds_are_those_of_a_selector(capsys: Capture) -> None:
    rounds = drawn(capsys, SIZES, "-m", 10, "--rounds", 20, "--seed", 3)

    selector = Selector(SizeClustered(10), read_clients(SIZES), seed=3)
    assert [each["round"] for each in rounds] == list(range(20))
    for each in rounds:
        cohort = selector.draw()
        assert ids(each) == cohort.ids
        assert [line["draws"] for line in each["clients"]] == cohort.counts.tolist()
        assert [line["weight"] for line in each["clients"]] == cohort.weights.tolist()
        assert each["residual"] == cohort.residual
        selector.skip()


def test_table_csv_and_json_say_the_same(capsys: Capture) -> None:
    options = (SIZES, "-m", 3, "--rounds", 2, "--design", "poisson")

    rounds = drawn(capsys, *options)
    rows = list(csv.reader(io.StringIO(run(capsys, "draw", *options, "--csv").out)))
    table = run(capsys, "draw", *options).out

    flat = [(each["round"], *line.values()) for each in rounds for line in each["clients"]]
    assert rows == [["round", "client", "draws", "weight"], *[list(map(str, row)) for row in flat]]
    lines = [line.split() for line in table.splitlines()]
    assert [line[-3] for line in lines[2:] if "model)" not in line] == [row[1] for row in flat]
    kept = [float(line[-1]) for line in lines if "model)" in line]
    assert kept == [float(f"{each['residual']:.6g}") for each in rounds]


@pytest.mark.parametrize("design", ["size", "poisson", "round-robin", "cohort-mean", "stratified"])
def test_a_state_goes_on_with_the_rounds_of_one_call(
    design: str, tmp_path: Path, capsys: Capture
) -> None:
    file, state = tmp_path / "sites.csv", tmp_path / "rounds.state"
    file.write_text(GROUPED)
    options = (file, "-m", 2, "--design", design, "--seed", 1)

    at_once = drawn(capsys, *options, "--rounds", 7)
    parts = [*drawn(capsys, *options, "--state", state, "--rounds", 3)]
    for n in (1, 3):
        parts += drawn(capsys, file, "--state", state, "--rounds", n)

    assert parts == at_once
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rounds.state", "sites.csv"]


def test_python_goes_on_with_the_state(tmp_path: Path, capsys: Capture) -> None:
    state = tmp_path / "rounds.state"
    options = (SIZES, "-m", 5, "--state", state)
    first = drawn(capsys, *options, "--rounds", 2)

    selector = Selector.load(state)
    again = selector.draw()  # the last round is open until the next one is drawn
    selector.skip()
    third = selector.draw()
    selector.skip()
    selector.save(state)

    assert again.ids == ids(first[1])
    assert drawn(capsys, SIZES, "-m", 5, "--rounds", 3)[2]["clients"][0]["client"] == third.ids[0]
    assert drawn(capsys, *options)[0]["round"] == 3


@pytest.mark.parametrize("rule", ["keep", "redraw", "renormalise"])
def test_failures_are_settled_as_a_selector_does(
    rule: str, tmp_path: Path, capsys: Capture
) -> None:
    state = tmp_path / "rounds.state"
    first = drawn(capsys, SIZES, "-m", 5, "--state", state, "--on-failure", rule, "--rounds", 2)

    one, two = ids(first[1])[:2]
    (settled,) = drawn(capsys, SIZES, "--state", state, "--failed", one)
    (again,) = drawn(capsys, SIZES, "--state", state, "--failed", two)
    after = drawn(capsys, SIZES, "--state", state)

    selector = Selector(SizeClustered(5), read_clients(SIZES), seed=0, on_failure=rule)  # type: ignore[arg-type]
    selector.draw()
    selector.skip()
    selector.draw()
    for gone, found in (([one], settled), ([one, two], again)):
        new = selector.redraw([gone[-1]])
        left = [each for each in selector.asked if each not in gone]
        cohort = selector.settle(left)
        assert ids(found) == cohort.ids
        assert [line["weight"] for line in found["clients"]] == cohort.weights.tolist()
        assert (found["round"], found["failed"], found["residual"]) == (1, gone, cohort.residual)
        assert set(new) <= set(found["ask"])
        assert bool(found["ask"]) == (rule == "redraw")
    # Failures do not change who is drawn next.
    assert after == drawn(capsys, SIZES, "-m", 5, "--rounds", 3)[2:]


def test_several_failures_are_one_option_or_several(tmp_path: Path, capsys: Capture) -> None:
    text = '[{"id": "Nice, Sud", "n": 5}, {"id": "Lyon", "n": 3}, {"id": "Brest", "n": 4}]'
    state = tmp_path / "rounds.state"
    drawn(capsys, "-", "-m", 3, "--design", "uniform:unbiased", "--state", state, stdin=text)

    options = ("draw", "-", "--state", state, "--failed", "Brest, Lyon", "--failed", "Nice, Sud")
    result = run(capsys, *options, stdin=text)

    assert [" ".join(line.split()) for line in result.out.splitlines()[2:]] == [
        "0 Brest (failed) 0",
        "Lyon (failed) 0",
        "Nice, Sud (failed) 0",
        "(the current model) 1",
    ]


def test_clients_come_go_and_change_size(tmp_path: Path, capsys: Capture) -> None:
    file, state = tmp_path / "sites.csv", tmp_path / "rounds.state"
    file.write_text("id,size\na,5\nb,3\nc,4\n")
    run(capsys, "draw", file, "-m", 2, "--state", state)
    file.write_text("id,size\na,5\nb,7\nd,4\n")

    result = run(capsys, "draw", file, "--state", state, "--rounds", 30, "--json")

    assert result.err == (
        "draw: since the last round 1 client came, 1 went and 1 changed size or group.\n"
    )
    rounds = json.loads(result.out)["rounds"]
    assert {each for one in rounds for each in ids(one)} == {"a", "b", "d"}


def test_groups_may_change(tmp_path: Path, capsys: Capture) -> None:
    file, state = tmp_path / "sites.csv", tmp_path / "rounds.state"
    file.write_text(GROUPED)
    options = ("-m", 2, "--design", "stratified", "--state", state)
    run(capsys, "draw", file, *options)
    file.write_text(GROUPED.replace("a,N", "a,S"))

    result = run(capsys, "draw", file, *options, "--rounds", 9, "--json")

    assert result.err.endswith("0 clients came, 0 went and 1 changed size or group.\n")
    # b is now alone in its group: it is drawn in every round, with weight 3 / 23.
    for each in json.loads(result.out)["rounds"]:
        assert {"client": "b", "draws": 1, "weight": 3 / 23} in each["clients"]


def test_a_second_process_is_refused(tmp_path: Path, capsys: Capture) -> None:
    state = tmp_path / "rounds.state"
    run(capsys, "draw", SIZES, "-m", 2, "--state", state)
    before = state.read_bytes()

    with locked(tmp_path / ".rounds.state.lock", "other", error=InputError, keep=False):
        result = run(capsys, "draw", SIZES, "--state", state)

    assert refused(result, f"rounds.state: process {os.getpid()} is using it. Wait for it, or")
    assert state.read_bytes() == before


@pytest.mark.slow
def test_processes_at_the_same_time_draw_each_round_once(tmp_path: Path, capsys: Capture) -> None:
    state = tmp_path / "rounds.state"
    command = [sys.executable, "-m", "fedcohort", "draw", str(SIZES), "-m", "5", "--state"]
    processes = [
        subprocess.Popen([*command, str(state), "--json"], stdout=-1, stderr=-1) for _ in range(3)
    ]

    ended = [(process.communicate(), process.returncode) for process in processes]

    rounds = [json.loads(out)["rounds"][0] for (out, _), code in ended if code == 0]
    rounds.sort(key=lambda each: int(each["round"]))
    assert rounds == drawn(capsys, SIZES, "-m", 5, "--rounds", len(rounds))
    assert all(b"is using it" in err for (_, err), code in ended if code)
    assert [path.name for path in tmp_path.iterdir()] == ["rounds.state"]


@pytest.mark.slow
def test_what_was_not_printed_is_drawn_again(tmp_path: Path, capsys: Capture) -> None:
    """Killed in the middle of its output, the command leaves the state as it was."""
    state = tmp_path / "rounds.state"
    drawn(capsys, SIZES, "-m", 50, "--state", state)
    before = state.read_bytes()
    command = [sys.executable, "-m", "fedcohort", "draw", str(SIZES), "--state", str(state)]
    process = subprocess.Popen([*command, "--rounds", "400", "--csv"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(1) == b"r"  # more than the pipe holds follows

    process.send_signal(signal.SIGKILL)
    process.communicate()

    assert state.read_bytes() == before
    assert drawn(capsys, SIZES, "--state", state)[0]["round"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["rounds.state"]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ((), ("draw: needs --cohort-size, the number of draws in a round; got none.",)),
        (("-m", 0), ("cohort_size must be a whole number of at least 1; got 0",)),
        (("-m", 3, "--rounds", 0), ("--rounds",)),
        (("-m", 3, "--design", "siz"), ("unknown design 'siz'", "Did you mean 'size'?")),
        (("-m", 3, "--design", "tournament"), ("'tournament' needs the clients' updates, which",)),
        (("-m", 3, "--design", "oort"), ("'oort' needs the clients' signals, which",)),
        (("-m", 3, "--json", "--csv"), ("draw: needs one of --json and --csv; got both.",)),
        (("-m", 3, "--failed", "a"), ("draw: --failed needs --state, and draws no new round;",)),
        (("-m", 3, "--on-failure", "drop"), ("on_failure must be one of keep, redraw, renormal",)),
        (("-m", 3, "--state", "none/a"), ("none/a: cannot be written (no such file",)),
    ],
)
def test_bad_options_are_one_sentence_and_exit_code_2(
    options: tuple[object, ...], parts: tuple[str, ...], capsys: Capture
) -> None:
    assert refused(run(capsys, "draw", SIZES, *options), *parts)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (
            ("-m", 4),
            (
                "was begun with --cohort-size 3 --design size --seed 0 --on-failure keep; got ",
                "got --cohort-size 4. Leave it out, or begin another state.",
            ),
        ),
        (("--seed", 1), ("got --seed 1. Leave it out",)),
        (("--design", "size:whole_rows_first"), ("got --design size:whole_rows_first.",)),
        (("--on-failure", "redraw"), ("got --on-failure redraw.",)),
        (("--failed", "no"), ("draw: --failed must name clients of round 0; got 'no'. They",)),
        (("--failed", "x", "--rounds", 2), ("draws no new round; got --rounds.",)),
    ],
)
def test_a_state_keeps_what_it_was_begun_with(
    options: tuple[object, ...], parts: tuple[str, ...], tmp_path: Path, capsys: Capture
) -> None:
    state = tmp_path / "rounds.state"
    run(capsys, "draw", SIZES, "-m", 3, "--state", state)

    result = run(capsys, "draw", SIZES, "--state", state, *options)
    same: Result = run(capsys, "draw", SIZES, "-m", 3, "--design", "size", "--state", state)

    assert refused(result, *parts)
    assert same.code == 0


def test_a_foreign_state_is_refused(tmp_path: Path, capsys: Capture) -> None:
    state = tmp_path / "rounds.state"
    state.write_text("no state")

    result = run(capsys, "draw", SIZES, "-m", 3, "--state", state)

    assert refused(result, "rounds.state cannot be used (it is not an archive of fedcohort)")
    assert state.read_text() == "no state"
