"""Who took part, from the logs that FLARE, Fed-BioMed and Flower write by themselves."""

from __future__ import annotations

import ast
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

import numpy as np

from fedcohort._display import counted
from fedcohort.errors import InputError
from fedcohort.participation.table import (
    Entry,
    FailureCounts,
    Participation,
    hours_of,
    made,
    ordered_texts,
)

COLOURS = re.compile("\x1b\\[[0-9;]*m")
TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)[,.](\d+)")
#: The server's logs in a workspace of FLARE, the most detailed first.
SERVER_LOGS = ("log.txt", "log_fl.txt", "log.json")

FLARE_ROUND = re.compile(r"\bRound (\d+) started\.")
FLARE_SAMPLED = re.compile(r"Sampled clients: (\[.*\])")
FLARE_SENT = re.compile(r"assigned task to client (.+): name=train\b")
FLARE_JOINED = re.compile(r"New client (.+)@\S+ joined")
FLARE_PEER = re.compile(r"\bpeer=([^,\]]+).*?- Aggregated \d+/\d+ results")
FLARE_ACCEPTED = re.compile(r"Contribution from (.+?) ACCEPTED by the aggregator at round (\d+)")
FLARE_REFUSED = re.compile(r"Contribution from (.+?) (?:NOT ACCEPTED|REJECTED)")
FLARE_FAILED = re.compile(r"(?:Ignore the result from|Result from) (.+?) at round.*?code: (\w+)")

BIOMED_SAMPLED = re.compile(r"Sampled nodes in round (\d+) (\[.*\])")
BIOMED_REPLIED = re.compile(r"Nodes that successfully reply in round (\d+) (\[.*\])")
BIOMED_FAILED = re.compile(r"(FB409|Unsuccessful training reply):? ?(.*?) ?\(node = (\S+) ?\)")

FLOWER_ROUND = re.compile(r"\[ROUND (\d+)(?:/\d+)?\]")
FLOWER_ASKED = re.compile(
    r"configure_(?:train|fit): (?:strategy )?[Ss]ampled (\d+) (?:nodes|clients) \(out of (\d+)\)"
)
FLOWER_CAME = re.compile(r"aggregate_(?:train|fit): [Rr]eceived (\d+) results and (\d+) failures")
FLOWER_FAILED = re.compile(r"Received error in reply from node (\d+): (.*)")
FLOWER_EVALUATES = re.compile(r"(?:configure|aggregate)_evaluate")


def server_log(folder: Path) -> Path:
    """Return the server's log in a workspace of FLARE."""
    found = [
        path
        for name in SERVER_LOGS
        for path in sorted(folder.rglob(name))
        if any(FLARE_ROUND.search(line) for line in _lines(_text(path)))
    ]
    if not found:
        raise InputError(
            f"audit: {folder} must be the workspace of a FLARE job, with the server's log; it has "
            f"no {', '.join(SERVER_LOGS)} with rounds. Name the log itself."
        )
    return found[0]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _lines(text: str) -> Iterator[str]:
    """Yield the lines without colours; those of FLARE's JSON log as in its text log."""
    for line in text.splitlines():
        if line.startswith('{"asctime"'):
            try:
                own = json.loads(line)
            except ValueError:
                continue
            parts = ("asctime", "name", "levelname", "fl_ctx", "message")
            yield " - ".join(str(own.get(part, "")) for part in parts)
        else:
            yield COLOURS.sub("", line)


def from_framework(source: str, text: str) -> Participation | None:
    """Read the log of a framework; None if it is not one."""
    lines = list(_lines(text))
    for is_own, read in (
        (BIOMED_SAMPLED, _from_biomed),
        (FLOWER_ASKED, _from_flower),
        (FLARE_ROUND, _from_flare),
    ):
        if any(is_own.search(line) for line in lines):
            return read(source, lines)
    return None


def _from_flare(source: str, lines: Iterable[str]) -> Participation:
    """Read the log of a FLARE server.

    FedAvg names the clients that it samples; ScatterAndGather sends to all.

    Clients that got the task of a round, and gave no result that was aggregated, have failed.
    """
    entries: dict[tuple[int, str], Entry] = {}
    times: dict[int, str] = {}
    began: dict[tuple[int, str], float] = {}
    clients, sampled = set[str](), set[int]()
    reasons: Counter[str] = Counter()
    now, last, at = -1, math.nan, ""
    for line in lines:
        if stamp := TIME.search(line):  # the banner of a round has none
            last, at = _seconds(stamp), stamp[1]
        if found := FLARE_ROUND.search(line):
            now = int(found[1])
            for key in [key for key in entries if key[0] >= now]:  # played again after a restart
                del entries[key]
            times[now] = at
        elif found := FLARE_JOINED.search(line):
            clients.add(found[1].strip())
        elif found := FLARE_SAMPLED.search(line):
            sampled.add(now)
            for each in _names(found[1]):
                entries[now, each] = Entry(now, each, answered=False)
                began[now, each] = last
        elif found := FLARE_SENT.search(line):
            each = found[1]
            entries.setdefault((now, each), Entry(now, each, answered=False))
            began[now, each] = last
        elif found := FLARE_FAILED.search(line):
            reasons[found[2]] += 1
        elif found := FLARE_REFUSED.search(line):
            reasons["not accepted"] += 1
        elif (found := FLARE_ACCEPTED.search(line)) or (found := FLARE_PEER.search(line)):
            key = (int(found[2]) if found.re is FLARE_ACCEPTED else now, found[1])
            took = last - began.get(key, math.nan)
            entries[key] = Entry(*key, answered=True, seconds=took)
    for round_ in times.keys() - sampled:  # ScatterAndGather sends to all, busy or not
        for each in clients or {name for _, name in entries}:
            entries.setdefault((round_, each), Entry(round_, each, answered=False))
    if now < 0 or not entries:
        raise InputError(
            f"{source}: has rounds of FLARE, and no client of them. Give the server's log.txt."
        )
    silent = sum(not each.answered for each in entries.values()) - reasons.total()
    if silent > 0:
        reasons["no result in its round"] += silent
    hours = hours_of([times[each] for each in sorted(times)])
    return made(
        source,
        "the log of a FLARE server",
        entries.values(),
        rounds=times,
        ids=ordered_texts(clients | {each for _, each in entries}),
        reasons=reasons,
        hours=hours,
    )


def _seconds(stamp: re.Match[str]) -> float:
    return datetime.fromisoformat(stamp[1]).timestamp() + float(f"0.{stamp[2]}")


def _names(text: str) -> list[str]:
    """Return the names in a list as Python writes it."""
    try:
        found = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return []
    return [str(each) for each in found]


def _from_biomed(source: str, lines: Iterable[str]) -> Participation:
    """Read the log of a Fed-BioMed researcher. A round that was played again counts once."""
    asked: dict[int, list[str]] = {}
    replied: dict[int, set[str]] = {}
    times: dict[int, str] = {}
    reasons: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    again = Counter[int]()
    now = -1
    for line in lines:
        if found := BIOMED_SAMPLED.search(line):
            now = int(found[1])
            again[now] += 1
            asked[now], replied[now] = _names(found[2]), set()
            times[now] = stamp[1] if (stamp := TIME.search(line)) else ""
        elif found := BIOMED_REPLIED.search(line):
            replied[int(found[1])] = set(_names(found[2]))
        elif found := BIOMED_FAILED.search(line):
            reasons[found[2] or found[1]] += 1
            lost[found[3]] += 1
    entries = [
        Entry(round_, each, each in replied[round_])
        for round_, names in asked.items()
        for each in names
    ]
    notes = [
        f"{source}: round {round_} was played {n} times; only the last counts."
        for round_, n in again.items()
        if n > 1
    ]
    if lost:
        who = ", ".join(f"{each} ({n})" for each, n in lost.most_common(5))
        notes.append(f"{source}: {counted(lost.total(), 'failure')} in all attempts: {who}.")
    hours = hours_of([times[each] for each in sorted(times)])
    return made(
        source,
        "the log of a Fed-BioMed researcher",
        entries,
        rounds=asked,
        reasons=reasons,
        hours=hours,
        notes=tuple(notes),
    )


def _from_flower(source: str, lines: Iterable[str]) -> Participation:
    """Read the log of a Flower server: numbers of clients, and the ids of those that failed."""
    numbers: dict[int, list[int]] = {}
    entries: list[Entry] = []
    reasons: Counter[str] = Counter()
    now, trains = 0, False
    for line in lines:
        if found := FLOWER_ROUND.search(line):
            now, trains = int(found[1]), True
            numbers[now] = [0, 0, 0]
        elif now and (found := FLOWER_ASKED.search(line)):
            numbers[now][:2] = [int(found[2]), int(found[1])]
        elif now and (found := FLOWER_CAME.search(line)):
            numbers[now][2] = int(found[1])
        elif FLOWER_EVALUATES.search(line):
            trains = False
        elif trains and (found := FLOWER_FAILED.search(line)):
            entries.append(Entry(now, found[1], answered=False, weight=0.0))
            reasons[found[2].strip()[:80]] += 1
    table = np.array([numbers[each] for each in sorted(numbers)], dtype=np.int64).reshape(-1, 3)
    return made(
        source,
        "the log of a Flower server",
        entries,
        rounds=numbers,
        reasons=reasons,
        counts=FailureCounts(*table.T),
        notes=(
            f"{source}: Flower logs how many clients take part, and names only those that fail. "
            f"For the whole audit, record the next run: fedcohort.flower.record(strategy, path).",
        ),
    )
