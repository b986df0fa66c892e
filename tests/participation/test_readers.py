"""Readers: our own log, tables under usual names, and files that the frameworks wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcohort import Poisson, Selector, SizeClustered, audit, read_clients
from fedcohort.errors import FedcohortError, InputError
from fedcohort.participation import Participation, read_participation
from fedcohort.participation.framework_logs import from_framework
from fedcohort.selector.settings import Presence
from selectors_for_tests import SIZES

WRITTEN = Path(__file__).parent / "written"
#: Not asked.
NO = -1


def states(own: Participation) -> list[list[int]]:
    """Return 1 for an answer, 0 for a failure, by round and client."""
    found: list[list[int]] = own.dense(own.answered.astype(int), NO).tolist()
    return found


# Our own logs


def played(path: Path, **settings: Any) -> Selector:
    """Play three rounds: c fails in the second, d is away in the third."""
    selector = Selector(SizeClustered(3), SIZES, seed=0, log=path, **settings)
    for round_ in range(3):
        cohort = selector.draw(available=[each for each in SIZES if round_ < 2 or each != "d"])
        lost = cohort.ids[:1] if round_ == 1 else []
        came = [each for each in cohort.ids if each not in lost]
        selector.remember(
            dict.fromkeys(came, np.zeros(2)),
            durations=dict.fromkeys(came, 2.5),
            failed=dict.fromkeys(lost, "timeout"),
        )
    return selector


def test_our_own_log_has_everything(tmp_path: Path) -> None:
    selector = played(tmp_path / "log.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]

    own = read_participation(tmp_path / "log.jsonl")

    assert own.recipe == SizeClustered(3)
    assert dict(zip(own.ids, own.known_sizes().tolist(), strict=True)) == SIZES
    assert own.reasons == {"timeout": 1}
    assert own.hours is not None
    assert own.available is not None
    assert own.available[:, own.ids.index("d")].tolist() == [True, True, False]
    weights = own.dense(own.weight, 0.0)
    for k, line in enumerate(lines):
        expected = [line["weights"].get(each, 0.0) for each in own.ids]
        assert weights[k].tolist() == expected
    assert selector.selections is not None
    drawn = own.per_client(own.count)
    assert dict(zip(own.ids, drawn.astype(int).tolist(), strict=True)) == {
        each: n for each, (n, _) in selector.selections.summary().items()
    }


def test_members_that_join_and_leave_are_not_there_before_and_after(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    selector = Selector(Poisson(2), {"a": 3, "b": 2}, seed=0, log=path)
    for clients in ({"a": 3, "b": 2}, {"a": 3, "b": 2, "c": 4}, {"b": 2, "c": 4}):
        selector.clients = clients
        selector.draw()
        selector.skip()

    own = read_participation(path)

    assert own.available is not None
    assert own.available.tolist() == [[True, True, False], [True, True, True], [False, True, True]]


def test_replacements_were_asked_and_not_drawn(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    selector = Selector(SizeClustered(3), SIZES, seed=1, log=path, on_failure="redraw")
    lost = selector.draw().ids[:1]
    new = selector.redraw(lost)
    selector.remember({each: np.zeros(1) for each in selector.asked if each not in lost})
    assert new

    own = read_participation(path)

    place = own.client.tolist().index(own.ids.index(new[0]))
    assert (own.count[place], bool(own.answered[place])) == (0, True)


# Tables


def test_a_table_under_usual_names_with_semicolons(tmp_path: Path) -> None:
    file = tmp_path / "rounds.csv"
    file.write_text(
        "Server_Round;Hospital;Num Examples;Status;Region\n"
        "1;Nice;5;ok;south\n1;Lyon;3;timeout;\n2;Nice;5;completed;south\n2;Lyon;3;ok;\n"
    )

    own = read_participation(file)

    assert (own.ids, own.rounds.tolist()) == (("Lyon", "Nice"), [1, 2])
    assert states(own) == [[0, 1], [1, 1]]
    assert own.sizes is not None
    assert own.sizes.tolist() == [3, 5]
    assert own.groups == ("unlabelled", "south")


def test_json_lines_and_records_are_the_same(tmp_path: Path) -> None:
    rows = [
        {"round": r, "client": c, "weight": 0.5 if r or c == "a" else 0}
        for r in (0, 1)
        for c in "ab"
    ]
    lines, records = tmp_path / "a.jsonl", tmp_path / "a.json"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    records.write_text(json.dumps(rows))

    for source in (lines, records, rows):
        own = read_participation(source)
        assert states(own) == [[1, 0], [1, 1]]
        assert own.weight.tolist() == [0.5, 0, 0.5, 0.5]


def test_records_of_whole_rounds_are_divided(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    lines: list[dict[str, Any]] = [
        {"round": 1, "clients": ["A", "B"], "failed": ["B"], "num_examples": [5, 3]},
        {"round": 2, "selected": ["A", "C"], "completed": ["C"], "weight": {"C": 1.0}},
        {"round": 3, "cohort": ["A", "B"], "answered": ["B", "A"], "accuracy": 0.5},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    own = read_participation(path)

    entries = zip(own.row, own.client, own.answered, strict=True)
    assert [f"{row}{own.ids[client]}{'' if came else '-'}" for row, client, came in entries] == [
        *("0A", "0B-", "1A-", "1C", "2A", "2B"),
    ]
    assert own.ids == ("A", "B", "C")


@pytest.mark.parametrize(
    "round_",
    [
        {"clients": ["A", "B"], "failed": ["B"], "available": ["A", "B", "C"]},
        {"available": ["A", "B", "C"], "drawn": ["A", "B"], "answered": ["A"]},
        {"answered": ["A"], "failed": ["B"], "available": ["A", "B", "C"]},
        {"clients": ["A", "B"], "failed": ["B"], "n": [3, 4]},
        {"clients": {"A": {"status": "ok"}, "B": {"status": "failed"}}},
    ],
)
def test_other_lists_of_a_round_do_not_hide_who_was_asked(round_: dict[str, Any]) -> None:
    own = read_participation([{"round": k, **round_} for k in range(2)])

    assert own.ids[:2] == ("A", "B")
    assert own.per_client().tolist()[:2] == [2, 2]
    assert own.per_client(own.answered).tolist()[:2] == [2, 0]
    assert len(own.ids) == (3 if "available" in round_ else 2)


def test_records_of_rounds_may_hold_records_of_clients() -> None:
    rows = [
        {"round": 1, "clients": [{"id": "A", "status": "ok"}, {"id": "B", "status": "timeout"}]},
        {"round": 2, "clients": [{"id": "A"}], "failed": [{"id": "B"}]},
    ]

    own = read_participation(rows)

    assert own.per_client(own.answered).tolist() == [2, 0]
    assert own.per_client().tolist() == [2, 2]


def test_an_asked_client_whose_answer_never_came_has_failed() -> None:
    rows = [
        {"round": 0, "client": "a", "status": "drawn"},
        {"round": 0, "client": "b", "status": "drawn"},
        {"round": 0, "client": "a", "status": "answered"},
        {"round": 1, "client": "b", "status": "offline"},
        {"round": 1, "client": "a", "status": "drawn"},
    ]

    own = read_participation(rows)

    assert states(own) == [[1, 0], [0, NO]]
    assert own.available is not None
    assert own.available.tolist() == [[True, True], [True, False]]


def test_a_data_frame_and_sizes_of_a_file(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    sizes = tmp_path / "sizes.csv"
    sizes.write_text("id,size,group\na,5,x\nb,3,y\nc,2,y\n")
    frame = pandas.DataFrame({"round": [0, 0, 1], "client": ["a", "b", "a"]})

    own = read_participation(frame, sizes)

    assert own.ids == ("a", "b", "c")
    assert own.groups == ("x", "y", "y")
    assert audit(own, replay=False).intended.tolist() == [0.5, 0.3, 0.2]
    assert read_participation(frame, read_clients(sizes)).ids == own.ids


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"a": 1, "b": 2}], r"needs columns of rounds and clients.*got a, b\. Rename them"),
        ([{"round": "x", "client": 1}], r"row 1: round must be a number.*got 'x'"),
        ([{"round": 0.5, "client": 1}], r"row 1: round must be a whole number; got 0\.5"),
        ([{"round": 0, "client": ""}], r"row 1: client must be a name; it is empty"),
        ([{"round": 0, "client": 1, "status": "huh"}], r"status must be drawn, .*got 'huh'"),
        ([{"round": 0, "client": 1, "weight": -1}], r"weight must be a number of at least 0"),
        (
            [{"round": 1, "clients": ["A", None]}],
            "row 1: clients must list names of clients; got None",
        ),
        ([{"round": 1, "clients": []}], "needs at least one row; it has none"),
    ],
)
def test_a_table_that_cannot_be_read_says_why(rows: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_participation(rows)


def test_sizes_of_other_clients_are_refused() -> None:
    rows = [{"round": 0, "client": "a"}, {"round": 0, "client": "b"}]
    with pytest.raises(InputError, match=r"sizes must be of the clients of the records; none of"):
        read_participation(rows, {"x": 1})
    with pytest.raises(FedcohortError, match=r"one for each of the 2 clients of the log; got 3"):
        read_participation(rows, [1, 2, 3])
    with pytest.raises(InputError, match="participation must be a log, a table or a data frame"):
        audit(3)  # type: ignore[arg-type]


# Files that the frameworks wrote


def test_the_log_of_flares_fedavg() -> None:
    own = read_participation(WRITTEN / "flare-fedavg.txt")

    assert own.ids == ("site-1", "site-2", "site-3", "site-4", "site-5")
    assert states(own) == [
        [NO, 1, NO, 1, 1],
        [1, 1, 1, NO, NO],
        [NO, NO, 1, 1, 1],
        [1, 0, NO, 1, NO],
        [1, 0, 1, NO, NO],
        [1, NO, NO, 1, 1],
    ]
    assert own.reasons == {"TASK_ABORTED": 1, "EXECUTION_EXCEPTION": 1}
    assert own.hours is not None
    assert (own.seconds[own.answered] > 0).all()


def test_the_log_of_flares_scatter_and_gather_and_its_workspace(tmp_path: Path) -> None:
    """The slowest of five sites never answers before the server goes on with four."""
    server = tmp_path / "server"
    server.mkdir()
    (server / "log.txt").write_text((WRITTEN / "flare-scatter.txt").read_text())

    own = read_participation(tmp_path)

    assert states(own) == [[1, 1, 1, 1, 0]] * 4
    found = audit(own, replay=False)
    assert found.faults[0].clients == ("site-5",)
    with pytest.raises(InputError, match="must be the workspace of a FLARE job"):
        read_participation(Path(__file__).parents[1] / "memory")


def test_flares_json_log_reads_as_its_text_log() -> None:
    text = read_participation(WRITTEN / "flare-scatter.txt")
    from_json = read_participation(WRITTEN / "flare-scatter.json")

    assert states(from_json) == states(text)
    assert from_json.seconds == pytest.approx(text.seconds, nan_ok=True)


def test_the_log_of_a_fed_biomed_researcher() -> None:
    own = read_participation(WRITTEN / "fedbiomed.txt")

    assert (own.n_clients, own.n_rounds) == (3, 6)
    assert states(own) == [[1, 1, 1]] * 6
    assert own.reasons == {"node sent Status=Error during training": 1}
    assert "round 3 was played 2 times; only the last counts." in own.notes[0]


def test_flowers_own_log_gives_counts_and_failing_nodes() -> None:
    own = read_participation(WRITTEN / "flower.txt")
    record = read_participation(WRITTEN / "flower.jsonl")

    assert own.counts is not None
    assert own.counts.asked.tolist() == record.per_round().tolist()
    assert own.counts.answered.tolist() == record.per_round(record.answered).astype(int).tolist()
    (failing,) = own.ids
    assert record.per_client(~record.answered)[record.ids.index(failing)] == len(own.row)
    found = audit(own)
    assert found.bias is None
    assert found.faults[0].clients == (failing,)
    assert "36 of 40 answers came in 8 rounds; 4 failed." in str(found)


def test_flowers_older_log() -> None:
    text = (
        "[ROUND 1]\nconfigure_fit: strategy sampled 8 clients (out of 10)\n"
        "aggregate_fit: received 7 results and 1 failures\n"
    )

    own = from_framework("x", text)

    assert own is not None
    assert own.counts is not None
    assert [each.tolist() for each in own.counts] == [[10], [8], [7]]


# Pseudonyms


def test_pseudonyms_hide_ids_groups_and_reasons() -> None:
    rows = [
        {"round": r, "client": c, "group": "north", "status": "failed" if r else "ok",
         "reason": f"{c} at 10.0.0.1 is down"}
        for r in range(3) for c in ("Nice", "Lyon")
    ]  # fmt: skip
    own, key = read_participation(rows), bytes(range(32))

    hidden, other = own.with_pseudonyms(key), own.with_pseudonyms(bytes(32))

    said = f"{audit(hidden)}{audit(hidden).columns()}"
    assert not any(word in said for word in ("Nice", "Lyon", "north", "10.0.0.1", "records"))
    assert hidden.ids == own.with_pseudonyms(key).ids
    assert not set(hidden.ids) & set(other.ids)
    with pytest.raises(InputError, match="at least 16 bytes"):
        own.with_pseudonyms(b"short")


def test_where_weights_make_up_for_presence_the_bias_is_not_split(tmp_path: Path) -> None:
    found = []
    words: list[Presence] = ["ignore", "estimated"]
    for presence in words:
        path = tmp_path / presence
        sizes = {"a": 3, "b": 2, "c": 1}
        selector = Selector(SizeClustered(2), sizes, seed=0, log=path, presence=presence)
        for round_ in range(6):
            selector.draw(["a", "b"] if round_ % 2 else None)
            selector.skip()
        found.append(audit(path))

    assert found[0].bias is not None
    assert found[1].bias is None
    assert any("presence='estimated'" in note for note in found[1].participation.notes)
