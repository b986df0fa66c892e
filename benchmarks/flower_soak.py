"""A Flower deployment under fire: nodes are killed, hung and restarted, and clients lie.

Run ``python benchmarks/flower_soak.py [--brief]``. A SuperLink and SuperNodes run on loopback. In
every round a fifth of the nodes is struck: hung by SIGSTOP for some seconds, sometimes for longer
than the SuperLink waits for it, or killed by SIGKILL and started again, under the old name (a new
node id) or a new one. One node claims another's name; others lie in turn, in every way of
``LIES``. The table at the end says what happened; faults follow, and the exit status is 1. It is
3 if the machine is too busy for the clients to start.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Literal

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "soak_app"))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "flower-mnist"))

from local_federation import LocalFederation

from measurement import machine
from soak_checks import (
    VERDICTS,
    Incarnation,
    Soak,
    alarm,
    lines_of,
    played,
    returns,
    silent_though_well,
    verdicts,
    z_scores,
)

APP = Path(__file__).parent / "soak_app"
LIES = [lie for lie in VERDICTS if lie != "honest"]
#: Ways to kill: what comes after, or before.
KILLS = ("same name", "new name", "hang, kill", "same name, later")
#: The share of nodes that a round strikes.
STRUCK = 0.2
#: Seconds after which the SuperLink drops a silent node: two heartbeats of 30 s, and some.
DROPPED = 65.0
#: Seconds for all nodes to start and tell their sizes.
START = 240.0
#: The exit status if the clients could not start.
NOT_STARTED = 3
#: Seconds of a long hang: the SuperLink drops the node, and takes it back.
LONG = 75.0


@dataclass(slots=True)
class Slot:
    """A node's place: who runs there now, and what happens to it next."""

    number: int
    partition: int
    now: Incarnation
    claims: str | None = None
    state: Literal["up", "stopped", "dead"] = "up"
    due: float = 0.0
    ends: bool = False


class Disturber:
    """Strikes nodes, revives them, and tells clients to lie."""

    def __init__(
        self, federation: LocalFederation, folder: Path, options: argparse.Namespace
    ) -> None:
        self._federation, self._folder = federation, folder
        self._n_nodes, self._hang = options.nodes, options.reply_seconds
        self._rng = np.random.default_rng(options.seed)
        self.incarnations: list[Incarnation] = []
        self.blows: Counter[str] = Counter()
        self._slots: dict[int, Slot] = {}
        self._next = options.nodes
        for number in range(options.nodes - 1):
            self._slots[number] = Slot(number, number, self._begun(str(number)))

    def start_impostor(self) -> None:
        """Start the last node, under the name of the first."""
        number = self._n_nodes - 1
        self._federation.start_node(number, claims="0")
        self._slots[number] = Slot(number, number, self._begun("0"), claims="0")

    def tick(self) -> None:
        """Do what is due: revive nodes, and learn their ids."""
        for slot in self._slots.values():
            if slot.now.node is None and slot.state == "up":
                slot.now.node = self._federation.node_id(slot.number)
            if slot.state == "up" or time.time() < slot.due:
                continue
            if slot.state == "stopped" and not slot.ends:
                self._federation.signal_node(slot.number, SIGCONT)
                slot.now.stopped[-1] = (slot.now.stopped[-1][0], time.time())
                slot.state = "up"
            elif slot.state == "stopped":
                self._kill(slot, after=0)
            else:
                self._start(slot)

    def strike(self) -> None:
        """Strike a fifth of the nodes, and choose who lies."""
        n_blows = max(1, round(STRUCK * self._n_nodes))
        ready = [slot for slot in self._slots.values() if slot.state == "up" and slot.now.node]
        for k in self._rng.permutation(len(ready))[:n_blows].tolist():
            self._hit(ready[k])
        self._order_lies([slot for slot in ready if slot.claims is None])

    def end(self) -> None:
        """Kill what is left."""
        for slot in self._slots.values():
            if slot.state != "dead":
                self._kill(slot, after=0)

    def _hit(self, slot: Slot) -> None:
        ghosts = sum(0 <= time.time() - each.ended < DROPPED for each in self.incarnations)
        most = max(1, round(0.3 * self._n_nodes))
        # The name that the impostor claims must stay with its owner.
        is_spared = slot.number == 0 or slot.claims is not None
        if is_spared or ghosts >= most or self._rng.random() < 0.4:
            is_long = not is_spared and self._rng.random() < 0.1 and not self._has_long()
            self._stop(slot, LONG if is_long else self._short())
            self.blows["long hang" if is_long else "hang"] += 1
            return
        kind = min(KILLS, key=lambda each: self.blows[each])
        self.blows[kind] += 1
        if kind == "hang, kill":
            self._stop(slot, self._short(), ends=True)
            return
        if kind == "new name":
            slot.partition, self._next = self._next, self._next + 1
        self._kill(slot, after=self._rng.uniform(5, 20) if kind == "same name, later" else 0)

    def _short(self) -> float:
        """Return the seconds of a hang, about as long as a round."""
        return float(self._hang * self._rng.uniform(0.5, 1.5))

    def _has_long(self) -> bool:
        return any(slot.due - time.time() > 2 * self._hang for slot in self._slots.values())

    def _stop(self, slot: Slot, seconds: float, *, ends: bool = False) -> None:
        self._federation.signal_node(slot.number, SIGSTOP)
        now = time.time()
        slot.now.stopped.append((now, np.inf))
        slot.state, slot.due, slot.ends = "stopped", now + seconds, ends

    def _kill(self, slot: Slot, *, after: float) -> None:
        self._federation.signal_node(slot.number, SIGKILL)
        slot.now.ended = time.time()
        slot.state, slot.due = "dead", time.time() + after

    def _start(self, slot: Slot) -> None:
        if self._rng.random() < 0.4:
            (self._folder / f"size-lie-{slot.partition}").touch()
        self._federation.start_node(slot.number, partition=slot.partition)
        slot.now, slot.state = self._begun(str(slot.partition)), "up"

    def _begun(self, name: str) -> Incarnation:
        self.incarnations.append(Incarnation(name, None, time.time()))
        return self.incarnations[-1]

    def _order_lies(self, slots: list[Slot]) -> None:
        """Let three clients lie, in the ways that were heard least."""
        for path in self._folder.glob("lie-*"):
            path.unlink()
        told = Counter(line["lie"] for line in lines_of(self._folder / "sent.jsonl"))
        kinds = sorted(LIES, key=lambda lie: (told[lie], self._rng.random()))
        chosen = self._rng.permutation(len(slots))[:3].tolist()
        for k, lie in zip(chosen, kinds, strict=False):
            path = self._folder / f"new-{slots[k].partition}"
            path.write_text(lie)
            path.rename(self._folder / f"lie-{slots[k].partition}")


def soaked(options: argparse.Namespace, folder: Path) -> tuple[Soak, Counter[str], list[str]]:
    """Run a soak; return what was noted, the blows, and whether it ended as it must."""
    ended: list[str] = []
    # The impostor comes later.
    with LocalFederation(folder / "flower", options.nodes - 1, app=APP) as federation:
        disturber = Disturber(federation, folder, options)
        config = {
            "folder": str(folder),
            "num_server_rounds": options.rounds,
            "min_nodes": options.nodes - 1,
            "cohort_size": options.cohort_size,
            "on_failure": options.on_failure,
            "round_seconds": options.round_seconds,
            "reply_seconds": options.reply_seconds,
            "seed": options.seed,
        }
        longest = START + 2 * options.rounds * options.round_seconds
        training = threading.Thread(
            target=lambda: ended.append(federation.run(timeout=longest, pause=20, **config)),
            daemon=True,
        )
        training.start()
        stuck = _disturbed(disturber, training, folder / "rounds.jsonl", options)
        disturber.end()
        training.join(timeout=60)
        faults = stuck or [
            f"the run ended as {each}" for each in ended or ["?"] if each != "finished:completed"
        ]
        if faults:
            faults.append(federation.log_of("superlink")[-3000:])
    lines = [json.dumps(asdict(each)) + "\n" for each in disturber.incarnations]
    (folder / "nodes.jsonl").write_text("".join(lines))
    soak = Soak.read(folder, seed=options.seed, on_failure=options.on_failure)
    return soak, disturber.blows, faults


def _disturbed(
    disturber: Disturber, training: threading.Thread, path: Path, options: argparse.Namespace
) -> list[str]:
    """Strike after every round until training ends; return a fault if a round never ends."""
    seen, quiet = 0, time.time() + START
    while training.is_alive() and seen <= options.rounds:
        disturber.tick()
        if (n_lines := len(lines_of(path))) > seen:
            seen, quiet = n_lines, time.time() + (options.round_seconds if n_lines > 1 else START)
            if seen == 2:
                disturber.start_impostor()
            elif 2 < seen <= options.rounds:
                disturber.strike()
        if time.time() > quiet + 30:
            return [f"hung: no round ended in time after round {max(seen - 1, 0)}"]
        time.sleep(0.3)
    return []


def table(soak: Soak, blows: Counter[str]) -> dict[str, str]:
    """Return the soak in words and numbers."""
    rounds = played(soak)
    if not rounds:
        return {"rounds": "0"}
    longest = max(note["ended"] - note["began"] for note, _ in rounds)
    kinds = Counter(
        reason.partition(":")[0] for _, line in rounds for reason in line["failed"].values()
    )
    told, heard = Counter[str](), Counter[str]()
    for sent, became in verdicts(soak):
        told[sent["lie"]] += 1
        heard[sent["lie"]] += became != "silent"
    scores, back = z_scores(soak), returns(soak)
    waits = [known - free for _, free, known in back if known is not None]
    n_hangs = blows["hang"] + blows["long hang"] + blows["hang, kill"]
    limit = rounds[0][0]["limit"]
    lies = [f"{lie} {heard[lie]} of {n}" for lie, n in sorted(told.items()) if lie != "honest"]
    size_lies = sum(sent["lie"] == "size" for sent in soak.sent)
    n_draws = sum(sum(line["drawn"].values()) for _, line in rounds)
    n_failed = sum(len(line["failed"]) for _, line in rounds)
    return {
        "rounds": f"{len(rounds)} in {rounds[-1][0]['ended'] - rounds[0][0]['began']:.0f} s",
        "draws, failures": f"{n_draws}, {n_failed}",
        "nodes started": str(len(soak.incarnations)),
        "kills": str(sum(blows[kind] for kind in KILLS)),
        "hangs": f"{n_hangs}, of them {blows['long hang']} of {LONG:g} s",
        "restarts": ", ".join(f"{kind} {blows[kind]}" for kind in KILLS),
        "failures by kind": ", ".join(f"{kind} {n}" for kind, n in kinds.most_common()) or "none",
        "lies in time, of those told": ", ".join([*lies, f"size {size_lies} of {size_lies}"]),
        "no answer though well": str(silent_though_well(soak)),
        "rounds without a reply": str(sum(not line["weights"] for _, line in rounds)),
        "longest round": f"{longest:.2f} s of {limit:g} s",
        "longest call to SuperLink": f"{max(note['call'] for note, _ in rounds):.2f} s",
        "known again": f"{len(back)} nodes, after {max(waits, default=0)} rounds at most",
        "draws against their law": f"|z| up to {max(map(abs, scores.values()), default=0):.1f} "
        f"over {len(scores)} clients, alarm at {alarm(len(scores)):.1f}",
        "server's memory": f"{rounds[0][0]['rss']:.0f} MB after the first round, "
        f"{rounds[-1][0]['rss']:.0f} MB after the last",
    }


def main() -> int:
    """Run the soak and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--brief", action="store_true", help="5 nodes, 10 rounds: two minutes")
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--cohort-size", type=int, default=3)
    parser.add_argument("--on-failure", choices=["keep", "redraw"], default="keep")
    parser.add_argument("--round-seconds", type=float, default=20.0)
    parser.add_argument("--reply-seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep all files in this new folder")
    options = parser.parse_args()
    options.nodes = options.nodes or (5 if options.brief else 10)
    options.rounds = options.rounds or (10 if options.brief else 100)
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        soak, blows, faults = soaked(options, folder)
    print(machine())
    told = {sent["client"] for sent in soak.sent}
    if not played(soak) and len(told) < options.nodes - 1:
        print(f"not started: {len(told)} of {options.nodes - 1} clients could say their sizes")
        return NOT_STARTED
    for what, value in table(soak, blows).items():
        print(f"{what:28s} {value}")
    faults += soak.faults()
    for fault in faults:
        print(f"FAULT: {fault}")
    print("no faults" if not faults else f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
