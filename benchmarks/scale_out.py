"""Figure 1 with six seeds by one worker and by two: time, speed-up, equal tables.

Run ``python benchmarks/scale_out.py [--rounds N] [--workers 1,2] [--json]``: about five minutes on
2 idle cores with the default of 50 rounds, and half an hour with figure 1's 200. Every number of
workers is a process of its own, started as a user does it, and its time is that of the whole
command: imports, data, training, tables. All tables but the columns of measured times must be
equal, bit for bit.

Bar: 1.8 for two workers on two cores.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from fedcohort.experiments.workers import usable_cores
from measurement import machine

FIGURE_1 = Path(__file__).parents[1] / "experiments" / "figure1.toml"
SEEDS = "0-5"
#: Columns of measured times, which differ from run to run.
TIMES = ("draw_seconds", "train_seconds", "measure_seconds")


def run_with(workers: int, *, rounds: int, folder: Path) -> float:
    """Run figure 1; return the seconds of the whole command."""
    options = ["--seeds", SEEDS, "--set", f"rounds={rounds}", "--device", "cpu"]
    command = [sys.executable, "-m", "fedcohort", "run", str(FIGURE_1), *options]
    begin = time.perf_counter()
    subprocess.run(
        [*command, "--workers", str(workers), "--out", str(folder)],
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - begin


def tables(folder: Path) -> dict[str, pa.Table]:
    """Read every table of a run folder, without measured times."""
    found = {}
    for file in sorted(folder.rglob("*.parquet")):
        table = pq.read_table(file, partitioning=None)
        kept = [name for name in table.column_names if name not in TIMES]
        found[str(file.relative_to(folder))] = table.select(kept)
    return found


def measured(workers: list[int], rounds: int) -> list[dict[str, Any]]:
    """Run with each number of workers; compare with the first."""
    found: list[dict[str, Any]] = []
    with TemporaryDirectory() as name:
        first = None
        for number in workers:
            folder = Path(name) / str(number)
            seconds = run_with(number, rounds=rounds, folder=folder)
            first = tables(folder) if first is None else first
            found.append(
                {
                    "workers": number,
                    "seconds": seconds,
                    "speed_up": found[0]["seconds"] / seconds if found else 1.0,
                    "equal_tables": tables(folder) == first,
                }
            )
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--workers", default="1,2", help="numbers of workers, as 1,2,4")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    numbers = measured([int(each) for each in options.workers.split(",")], options.rounds)
    where = {**machine(), "usable_cores": usable_cores(), "rounds": options.rounds}
    if options.json:
        print(json.dumps({"machine": where, "runs": numbers}, indent=1))
        return
    table = Table("workers", "seconds", "speed-up", "equal tables", box=None)
    for each in numbers:
        cells = (f"{each['seconds']:.1f}", f"{each['speed_up']:.2f}")
        table.add_row(str(each["workers"]), *cells, "yes" if each["equal_tables"] else "NO")
    console = Console()
    console.print(table)
    console.print(", ".join(f"{key} {value}" for key, value in where.items()))


if __name__ == "__main__":
    main()
