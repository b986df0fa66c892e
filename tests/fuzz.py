"""Random, often nonsensical calls of the documented API: refused in a sentence, or right.

``python tests/fuzz.py --seed 0 --calls 30000 --minutes 10`` makes that many calls or takes that
long, whichever ends first; ``--only 1234`` makes one of them again and says what it did. The call
with a number depends on the seed and the number alone. What is called is in ``fuzz_calls.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedcohort import FedcohortError
from fuzz_calls import SCENARIOS, Trial, check_refusal, fuzz_experiment_file


@dataclass
class Report:
    """How many calls were made, and what became of them."""

    calls: int = 0
    refusals: int = 0
    successes: int = 0
    failures: list[str] = field(default_factory=list)
    by_scenario: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.calls} calls: {self.successes} succeeded, {self.refusals} were refused in a "
            f"sentence, {len(self.failures)} failed"
        )


def has_simulator() -> bool:
    """Whether the extra 'sim' is installed, which experiment files need."""
    try:
        import fedcohort.experiments  # noqa: F401
    except FedcohortError:
        return False
    return True


def play(seed: int, number: int, folder: Path, report: Report, *, aloud: bool = False) -> None:
    """Make the call with a number."""
    kinds = [each for each in SCENARIOS if each is not fuzz_experiment_file or has_simulator()]
    rng = np.random.default_rng([seed, number])
    shares = np.array([SCENARIOS[each] for each in kinds], dtype=float)
    scenario = kinds[rng.choice(len(kinds), p=shares / shares.sum())]
    trial = Trial(rng, folder)
    report.calls += 1
    report.by_scenario[scenario.__name__] += 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                scenario(trial)
                report.successes += 1
            except FedcohortError as error:
                check_refusal(error)
                report.refusals += 1
                if aloud:
                    sys.stdout.write(f"refused: {error}\n")
    except Exception:
        did = "\n  ".join(trial.steps)
        why = "".join(traceback.format_exc(limit=-4))
        report.failures.append(
            f"--seed {seed} --only {number}: {scenario.__name__}\n  {did}\n{why}"
        )
    if aloud:
        sys.stdout.write("\n".join([*trial.steps, *report.failures, ""]))


@contextlib.contextmanager
def limited_memory() -> Iterator[None]:
    """Allow 4 GB more than the process has: a call that wants more fails, and kills nobody."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**32, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def fuzz(seed: int, calls: int, *, minutes: float = math.inf) -> Report:
    """Make random calls, and report what became of them."""
    report, end = Report(), time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as folder, limited_memory():
        for number in range(calls):
            if time.monotonic() > end:
                break
            play(seed, number, Path(folder), report)
    return report


def command_line() -> int:
    parser = argparse.ArgumentParser(description="Random calls of fedcohort's documented API.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calls", type=int, default=30_000)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--only", type=int, help="make only the call with this number")
    asked = parser.parse_args()
    if asked.only is not None:
        report = Report()
        with tempfile.TemporaryDirectory() as folder, limited_memory():
            play(asked.seed, asked.only, Path(folder), report, aloud=True)
    else:
        report = fuzz(asked.seed, asked.calls, minutes=asked.minutes)
        sys.stdout.write("\n".join([*report.failures, f"{report}\n"]))
    return 1 if report.failures else 0


if __name__ == "__main__":
    os.environ["COLUMNS"] = "80"
    sys.exit(command_line())
