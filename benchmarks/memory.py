"""The estimators' memory: bytes and milliseconds a round, by form, clients and size.

Every case runs in a process of its own: a selector draws ``--cohort`` of n clients, and gets
updates of d numbers for ``--rounds`` rounds. The last ten numbers are the output layer's bias. The
table has what the memory takes in the last round, what a checkpoint takes, the largest anonymous
memory of the process beyond what the plain estimator took, and the time of a round over that of the
plain estimator in the same process.

    python benchmarks/memory.py                       # all forms: 1,000 clients of 122,570 numbers
    python benchmarks/memory.py --clients 100000 --cohort 100 --forms rank64,int8+output
    python benchmarks/memory.py --parameters 10000000 --forms none+output --rounds 5
    python benchmarks/memory.py --clients 20 --new 4 --rounds 100 --forms float32,float32-30

A form is one of the difference estimator, or ``keep+features`` of the regression estimator:
``int8+output``, ``none+given`` (ten numbers a client), ``rank32+none``. A number after a form is
``max_remembered``. With ``--new`` as many clients leave and others come for the first time in
every round.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort import Difference, Multinomial, Regression, Selector
from fedcohort.memory import EstimatorSettings

FORMS = (
    *("float32", "float16", "int8", "rank32"),
    *("none+given", "none+output", "int8+none", "int8+output", "float16+output", "rank32+output"),
)
PARAMETERS = 122_570


def settings_of(form: str, n: int) -> EstimatorSettings:
    """Return the estimator of a form of the table, for n clients."""
    kept, _, features = form.partition("+")
    keep: Any = {"none": None}.get(kept, "rank" if kept.startswith("rank") else kept)
    rank: Any = {"rank": int(kept.removeprefix("rank"))} if keep == "rank" else {}
    if features:
        given = np.random.default_rng(1).random((n, 10)) if features == "given" else "output"
        return Regression(None if features == "none" else given, keep=keep, **rank)
    if rank:
        return Difference(keep="rank", **rank)
    keep, _, most = form.partition("-")
    return Difference(keep=keep, max_remembered=int(most) if most else None)


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return 1024 * int(line.split()[1])
    return 0


class Peak:
    """The largest anonymous memory while it is watched, every five milliseconds."""

    def __init__(self) -> None:
        self.bytes, self._ended = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.005):
            self.bytes = max(self.bytes, anonymous_bytes())


def rounds(selector: Selector, updates: np.ndarray, n: int, new: int = 0) -> float:
    """Play rounds, and return the milliseconds of the median one."""
    times = []
    for k in range(n):
        start = time.perf_counter()
        if new:
            others = list(selector.clients.items())[new:]
            selector.clients = dict(others) | {f"{k}, {each}": 1 for each in range(new)}
        cohort = selector.draw()
        selector.aggregate([[row[:-10], row[-10:]] for row in updates[: len(cohort)]])
        times.append(time.perf_counter() - start)
    return 1000 * float(np.median(times))


def see_everyone(selector: Selector, updates: np.ndarray) -> None:
    """Let every client be seen once, as after many rounds."""
    estimator = selector.estimator
    assert estimator is not None
    for start in range(0, estimator.n_clients, len(updates)):
        some = np.arange(start, min(start + len(updates), estimator.n_clients))
        estimator.record(some, updates[: len(some)])


def measure(form: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one form in this process."""
    n, m, d = arguments.clients, arguments.cohort, arguments.parameters
    updates = np.random.default_rng(0).standard_normal((m, d), dtype=np.float32)
    plain = Selector(Multinomial(m), np.ones(n, dtype=np.int64), seed=0)
    with Peak() as without:
        rounds(plain, updates, 2)
        plain_ms = rounds(plain, updates, arguments.rounds, arguments.new)
    sizes, settings = np.ones(n, dtype=np.int64), settings_of(form, n)
    selector = Selector(Multinomial(m), sizes, seed=0, estimator=settings)
    with Peak() as peak:
        rounds(selector, updates, 2)
        if arguments.seen:
            see_everyone(selector, updates)
        ms = rounds(selector, updates, arguments.rounds, arguments.new)
    estimator = selector.estimator
    assert estimator is not None
    found = {"form": form, "ms": ms, "plain_ms": plain_ms, "bytes": estimator.nbytes}
    found["peak"] = max(0, peak.bytes - without.bytes)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        selector.save(Path(folder) / "selector")
        found["save_ms"] = 1000 * (time.perf_counter() - start)
        found["saved"] = (Path(folder) / "selector").stat().st_size
    return found


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--cohort", type=int, default=10)
    parser.add_argument("--parameters", type=int, default=PARAMETERS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--seen", type=int, default=0, help="1: every client was seen before")
    parser.add_argument("--new", type=int, default=0, help="clients that are new in each round")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure every form, and print a table."""
    arguments = parsed()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments)))
        return
    n, m, d = arguments.clients, arguments.cohort, arguments.parameters
    print(f"{n} clients, {m} a round, {d} numbers; MB = 1e6 bytes\n")
    print("form           memory MB  saved MB   peak MB   ms/round  over plain    save ms")
    for form in arguments.forms.split(","):
        command = [sys.executable, __file__, *sys.argv[1:], "--one", form]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(ended.stdout)
        megabytes = "".join(f"{found[name] / 1e6:>10.1f}" for name in ("bytes", "saved", "peak"))
        ratio, save = found["ms"] / found["plain_ms"], found["save_ms"]
        print(f"{form:<14}{megabytes}{found['ms']:>11.2f}{ratio:>12.2f}{save:>11.1f}")


if __name__ == "__main__":
    main()
