"""What a soak must have shown: checks of what its server, its clients and its disturber noted."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.streams import Stream, stream

Line = dict[str, Any]

#: How a reason begins, by the lie that it answers; None where the server must accept the reply.
VERDICTS: dict[str, str | None] = {
    "honest": None,
    "float64": None,
    "negative": None,
    "nan": "is not finite",
    "shape": "has other arrays than the model",
    "type": "has other arrays than the model",
    "norm": None,
    "examples": "has no number under",
    "metrics": "needs one record of arrays and one of metrics",
    "exception": "error ",
}
#: Reasons that say nothing about a reply: it came too late, or its node was dropped meanwhile.
SILENT = ("no answer", "error 5", "error 6")
#: The chance that the test of the draws fails although they follow the law.
FALSE_ALARM = 1e-3
#: Seconds beyond its limit that a round may take for the average, besides calls to the SuperLink.
GRACE = 1.0
#: Calls to the SuperLink that can be under way when a round's time ends: sending, and one look.
LAST_CALLS = 2
#: Rounds after which a client is known again, once the SuperLink has dropped its old node.
PATIENCE = 2


@dataclass(slots=True)
class Incarnation:
    """A node from its start to its end: its client's name, its id, and when it was well."""

    name: str
    node: int | None
    started: float
    ended: float = math.inf
    stopped: list[tuple[float, float]] = field(default_factory=list)

    def is_well(self, start: float, end: float) -> bool:
        """Whether the node ran from ``start`` to ``end``."""
        runs = self.started <= start and end <= self.ended
        return runs and not any(a < end and start < b for a, b in self.stopped)


@dataclass(frozen=True, slots=True)
class Soak:
    """Everything that was noted; ``rounds`` and ``selections`` have one line for every round."""

    rounds: list[Line]
    selections: list[Line]
    sent: list[Line]
    incarnations: list[Incarnation]
    seed: int
    on_failure: str

    @classmethod
    def read(cls, folder: Path, *, seed: int, on_failure: str) -> Soak:
        """Read the files of a soak."""
        names = ("rounds", "selections", "sent", "nodes")
        rounds, selections, sent, nodes = (lines_of(folder / f"{name}.jsonl") for name in names)
        begun = [Incarnation(**each) for each in nodes]
        return cls(rounds, selections, sent, begun, seed, on_failure)

    def faults(self) -> list[str]:
        """Return everything that is not as it must be."""
        found = [*late_rounds(self), *wrong_weights(self), *wrong_models(self)]
        return [*found, *wrong_verdicts(self), *unlawful_draws(self), *lost_clients(self)]


def lines_of(path: Path) -> list[Line]:
    """Read a file of JSON lines; an unfinished last line is left out."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def played(soak: Soak) -> list[tuple[Line, Line]]:
    """Return the rounds with their selections, without the line before the first round."""
    notes = [line for line in soak.rounds if line["number"] > 0]
    return list(zip(notes, soak.selections, strict=False))


def late_rounds(soak: Soak) -> list[str]:
    """Find rounds that took longer than they may."""
    return [
        f"round {note['number']} took {note['ended'] - note['began']:.1f} s of {note['limit']:g}"
        for note, _ in played(soak)
        if note["ended"] - note["began"] > note["limit"] + GRACE + LAST_CALLS * note["call"]
    ]


def wrong_weights(soak: Soak) -> list[str]:
    """Find rounds whose logged weights are not what the draws and the failure rule give."""
    found = []
    for note, line in played(soak):
        # Nobody is asked with less time than sending took.
        out_of_time = note["ended"] - note["began"] >= note["limit"] - note["call"]
        if soak.on_failure == "redraw":
            lawful = redrawn_weights(note, line, soak.seed)
            lawful = lawful if out_of_time else lawful[-1:]
        else:
            lawful = [shares(line["drawn"], line["failed"], sum(line["drawn"].values()))]
        if line["weights"] not in lawful:
            found.append(f"round {note['number']}: weights {line['weights']}, lawful {lawful}")
    return found


def shares(counts: Mapping[str, int], failed: Iterable[str], total: int) -> dict[str, float]:
    """Return the weights of those that did not fail: draws by the number of draws."""
    return {each: n / total for each, n in counts.items() if n and each not in set(failed)}


def redrawn_weights(note: Line, line: Line, seed: int, tries: int = 10) -> list[dict[str, float]]:
    """Return the weights after every batch of replacements, by plain loops.

    The last entry is what a round in time must have. One that ran out of time stops before.
    """
    names = [each for each in note["order"] if note["sizes"].get(each)]
    owner = [each for each in names for _ in range(note["sizes"][each])]
    rng = stream(seed, round_=line["round"], use=Stream.REDRAW)
    counts, total = Counter[str](line["drawn"]), sum(line["drawn"].values())
    asked, failed, new, lost = set(counts), set[str](), set(counts), 0
    found = [shares(counts, line["failed"], total)]
    while new and line["failed"]:
        failed |= (batch := new & set(line["failed"]))
        lost += sum(counts.pop(each) for each in batch)
        new = set()
        owner = [each for each in owner if each not in failed]
        if lost and tries and owner:
            tries -= 1
            for unit in rng.integers(len(owner), size=lost).tolist():
                counts[owner[unit]] += 1
                new |= {owner[unit]} - asked
            lost = 0
        asked |= new
        found.append(shares(counts, line["failed"], total))
    return found


def wrong_models(soak: Soak) -> list[str]:
    """Find rounds whose model did not move by the weighted sum of the clients' known updates."""
    from soak.task import MAX_NORM, update_of

    found, before = [], np.array(soak.rounds[0]["model"]) if soak.rounds else np.zeros(0)
    for note, line in played(soak):
        after, step = np.array(note["model"]), np.zeros(len(before))
        for each, weight in line["weights"].items():
            own = update_of(int(each)).astype(float)
            if each in line["scaled"]:  # 1e20 everywhere, before it was scaled
                own = np.full(len(before), MAX_NORM / math.sqrt(len(before)))
            step += weight * own
        # Some roundings in float32 at the client, and some in the average.
        allowed = 8 * float(np.finfo(np.float32).eps) * (1 + np.abs(before) + np.abs(after))
        if (np.abs(after - before - step) > allowed).any():
            found.append(f"round {note['number']}: the model moved by another step than the log's")
        before = after
    return found


def verdict(note: Line, line: Line, sent: Line) -> str:
    """Return what became of a reply: accepted, silent, or the reason why it was refused."""
    if note["seated"].get(sent["client"]) != sent["node"]:
        return "silent"
    reason = line["failed"].get(sent["client"])
    if reason is None:
        return "accepted" if sent["client"] in line["weights"] else "silent"
    return "silent" if reason.startswith(SILENT) else str(reason)


def verdicts(soak: Soak) -> list[tuple[Line, str]]:
    """Return what clients sent, and what became of it."""
    by_number = {note["number"]: (note, line) for note, line in played(soak)}
    trained = [sent for sent in soak.sent if sent["number"] in by_number]
    return [(sent, verdict(*by_number[sent["number"]], sent)) for sent in trained]


def silent_though_well(soak: Soak) -> int:
    """Count drawn clients that gave no answer although their node ran for the whole round."""
    node_of = {each.node: each for each in soak.incarnations}
    found = 0
    for note, line in played(soak):
        for key, reason in line["failed"].items():
            each = node_of.get(note["seated"].get(key))
            is_well = each is not None and each.is_well(note["began"], note["ended"])
            found += is_well and reason.startswith(SILENT)
    return found


def wrong_verdicts(soak: Soak) -> list[str]:
    """Find lies that were accepted, honest replies that were refused, and heard impostors."""
    found = []
    for sent, became in verdicts(soak):
        if became == "silent" and sent["lie"] != "name":
            continue
        expected = VERDICTS.get(sent["lie"], "")
        is_right = became == "accepted" if expected is None else became.startswith(expected or "?")
        if not is_right:
            found.append(f"round {sent['number']}: {sent['lie']} of {sent['client']}: {became}")
    return found


def draws_beside_law(soak: Soak) -> dict[str, tuple[int, float, float]]:
    r"""Return each client's draws, their expectation and an upper bound of their variance.

    In a round with sizes n_i of the present clients, :math:`E[c_i] = m p_i`, and the variance is
    at most the multinomial one, :math:`m p_i (1 - p_i)`.
    """
    found: dict[str, NDArray[np.float64]] = {}
    for note, line in played(soak):
        total, m = sum(note["sizes"].values()), sum(line["drawn"].values())
        for each, size in note["sizes"].items():
            p = size / total
            row = np.array([line["drawn"].get(each, 0), m * p, m * p * (1 - p)])
            found[each] = found.get(each, np.zeros(3)) + row
    return {each: (int(row[0]), float(row[1]), float(row[2])) for each, row in found.items()}


def z_scores(soak: Soak, *, least: float = 5.0) -> dict[str, float]:
    """Return z of the clients whose draws vary enough for a normal law."""
    table = draws_beside_law(soak)
    return {k: (n - e) / math.sqrt(v) for k, (n, e, v) in table.items() if v >= least}


def alarm(n_clients: int) -> float:
    """Return the |z| that one of so many clients passes with a chance of ``FALSE_ALARM``."""
    return NormalDist().inv_cdf(1 - FALSE_ALARM / (2 * max(n_clients, 1)))


def unlawful_draws(soak: Soak) -> list[str]:
    """Find clients that were drawn too often or too seldom, and clients that were not there."""
    scores = z_scores(soak)
    found = [f"client {k}: z = {z:.1f}" for k, z in scores.items() if abs(z) > alarm(len(scores))]
    for note, line in played(soak):
        if absent := line["drawn"].keys() - note["sizes"].keys():
            found.append(f"round {note['number']}: drew {sorted(absent)}, who were not there")
    return found


def returns(soak: Soak) -> list[tuple[Incarnation, int, int | None]]:
    """Return the nodes that had told their size, each with two rounds.

    In the first, the server saw the node and no other with its name; since the second it is known.
    """
    told = {sent["node"]: sent["when"] for sent in reversed(soak.sent) if sent["lie"] == "known"}
    nodes_of: dict[str, set[int]] = {}
    for each in soak.incarnations:
        if each.node is not None:
            nodes_of.setdefault(each.name, set()).add(each.node)
    found = []
    for each in soak.incarnations:
        if each.node not in told:
            continue
        rivals = nodes_of[each.name] - {each.node}
        # The reply needs a few seconds from the client app to the server.
        since = told[each.node] + 5
        rounds = [note for note, _ in played(soak) if note["began"] > since]
        free = [n for n in rounds if each.node in n["nodes"] and not rivals & set(n["nodes"])]
        known = [n for n in rounds if n["seated"].get(each.name) == each.node]
        if free:
            found.append((each, free[0]["number"], known[0]["number"] if known else None))
    return found


def lost_clients(soak: Soak) -> list[str]:
    """Find clients that are not known though they could be, and nodes that were never asked."""
    last = max((note["number"] for note, _ in played(soak)), default=0)
    found = []
    for each, free, known in returns(soak):
        if (last + 1 if known is None else known) > free + PATIENCE:
            found.append(f"client {each.name} could be known in round {free}; it was in {known}")
    asked = {node for note, _ in played(soak) for node in note["asked"]}
    for each in soak.incarnations:
        rounds = [note for note, _ in played(soak) if each.node in note["nodes"]]
        spans = zip(rounds, rounds[PATIENCE + 2 :], strict=False)
        long = [(a, b) for a, b in spans if b["began"] - a["began"] > 30]
        if each.node not in asked and any(each.is_well(a["began"], b["began"]) for a, b in long):
            found.append(f"node {each.node} of client {each.name} was never asked")
    return found
