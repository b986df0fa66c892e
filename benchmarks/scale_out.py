"""Figure 1 with six seeds by one worker, two workers, two parts on Slurm, and two nodes of Ray.

Run ``python benchmarks/scale_out.py [--rounds N] [--ways 1,2,slurm,ray] [--json]``: about five
minutes on 2 idle cores with the default of 50 rounds for one and two workers, and half an hour
with figure 1's 200. Every way is started as a user does it, and its time is that of the whole
command: imports, data, training, tables; on Slurm from the submission to the merged run folder. The
clusters, of two nodes with a core each, are started before. All tables but the columns of measured
times must be equal, bit for bit. Slurm needs its Debian packages, Ray the extra ``ray``.

Bar: 1.8 for two workers on two cores.

``--start-up`` measures instead how long a run of two tiny units takes in each way, and how long
a pool of two processes needs to import the same modules.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from fedcohort.experiments.workers import usable_cores
from measurement import machine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from two_nodes import slurm_cluster, two_ray_nodes, until

FIGURE_1 = Path(__file__).parents[1] / "experiments" / "figure1.toml"
SEEDS = "0-5"
#: Two units that take no time.
TINY = """
rounds = 2
seeds = [0, 1]
cohort_size = 10
[data]
dataset = "digits"
partition = "one-class"
clients_per_class = 2
train_size = 20
test_size = 5
[training]
steps = 1
batch_size = 10
lr = 0.1
[[design]]
recipe = "multinomial"
[[design]]
recipe = "size"
"""
POOL = """
def work(k):
    import fedcohort.experiments
    return k

if __name__ == "__main__":
    {pool}
    list(pool.map(work, range(2)))
"""
#: Columns of measured times, which differ from run to run.
TIMES = ("draw_seconds", "train_seconds", "measure_seconds")


def command(*arguments: object) -> list[str]:
    """Return a command of fedcohort."""
    return [sys.executable, "-m", "fedcohort", *map(str, arguments)]


def timed(words: Sequence[str], env: dict[str, str] | None = None) -> float:
    """Run a command; return its seconds."""
    begin = time.perf_counter()
    subprocess.run(words, stdout=subprocess.DEVNULL, env=env, check=True)
    return time.perf_counter() - begin


def run_with(way: str, file: Path, options: Sequence[object], folder: Path) -> float:
    """Run an experiment in one way into ``folder``; return the seconds of the whole command."""
    run = command("run", file, *options, "--device", "cpu", "--out", folder)
    if way == "slurm":
        return on_slurm(command("slurm", file, *options, "--parts", 2, "--submit"), folder)
    if way == "local ray":
        return timed([*run, "--ray", "local"])
    if way == "ray":
        with two_ray_nodes() as nodes:
            return timed([*run, "--ray", nodes.address])
    return timed([*run, "--workers", way])


def on_slurm(slurm: list[str], folder: Path) -> float:
    """Run two parts on a cluster of two nodes; give the merged run the name of ``folder``."""
    jobs = folder.with_name("jobs")
    with slurm_cluster() as found:
        begin = time.perf_counter()
        timed([*slurm, "--out", str(jobs)], found.env)
        until((jobs / "merged" / "run.json").exists, 3600)
        seconds = time.perf_counter() - begin
    (jobs / "merged").rename(folder)
    return seconds


def tables(folder: Path) -> dict[str, pa.Table]:
    """Read every table of a run folder, without measured times."""
    found = {}
    for file in sorted(folder.rglob("*.parquet")):
        table = pq.read_table(file, partitioning=None)
        kept = [name for name in table.column_names if name not in TIMES]
        found[str(file.relative_to(folder))] = table.select(kept)
    return found


def measured(ways: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """Run in each way; compare with the first."""
    found: list[dict[str, Any]] = []
    options = ("--seeds", SEEDS, "--set", f"rounds={rounds}")
    with TemporaryDirectory() as name:
        first = None
        for way in ways:
            folder = Path(name) / way
            seconds = run_with(way, FIGURE_1, options, folder)
            first = tables(folder) if first is None else first
            found.append(
                {
                    "way": way,
                    "seconds": seconds,
                    "speed_up": found[0]["seconds"] / seconds if found else 1.0,
                    "equal_tables": tables(folder) == first,
                }
            )
    return found


def start_ups() -> list[dict[str, Any]]:
    """Measure a run of two tiny units in each way, and pools that only import, in turns."""
    found: list[dict[str, Any]] = []
    pools = {
        "ProcessPoolExecutor": "from concurrent.futures import ProcessPoolExecutor as Pool\n    "
        "from multiprocessing import get_context\n    pool = Pool(2, get_context('spawn'))",
        "joblib's loky": "from joblib.externals.loky import get_reusable_executor\n    "
        "pool = get_reusable_executor(2)",
    }
    with TemporaryDirectory() as name:
        file = Path(name) / "tiny.toml"
        file.write_text(TINY)
        for way in ("1", "2", "local ray"):
            found.append({"way": way, "seconds": run_with(way, file, (), Path(name) / way)})
        for way, pool in pools.items():
            program = Path(name) / "pool.py"
            program.write_text(POOL.format(pool=pool))
            found.append({"way": way, "seconds": timed([sys.executable, str(program)])})
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--ways", default="1,2", help="numbers of workers, slurm, ray")
    parser.add_argument("--start-up", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    load = f"{os.getloadavg()[0]:.1f}"
    numbers = start_ups() if options.start_up else measured(options.ways.split(","), options.rounds)
    where = {**machine(), "usable_cores": usable_cores(), "load average before": load}
    if not options.start_up:
        where["rounds"] = options.rounds
    if options.json:
        print(json.dumps({"machine": where, "runs": numbers}, indent=1))
        return
    table = Table(*(key.replace("_", " ") for key in numbers[0]), box=None)
    for each in numbers:
        table.add_row(*(f"{v:.2f}" if isinstance(v, float) else str(v) for v in each.values()))
    console = Console()
    console.print(table)
    console.print(", ".join(f"{key} {value}" for key, value in where.items()))


if __name__ == "__main__":
    main()
