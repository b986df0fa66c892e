"""A server that writes a line about every round: its time, its nodes, its model, its memory."""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedcohort import SizeClustered
from fedcohort.flower import CohortStrategy, Limits, Waits
from soak.task import DIMENSION, MAX_NORM, layers

app = ServerApp()


class Notes:
    """What a soak checks afterwards, a line for every round."""

    def __init__(self, folder: Path, grid: Grid, seconds: float) -> None:
        self._file, self._seconds = folder / "rounds.jsonl", seconds
        self._nodes, self._asked, self._longest_call = list[int](), set[int](), 0.0
        for name in ("get_node_ids", "push_messages", "pull_messages"):
            setattr(grid, name, self._timed(name, getattr(grid, name)))
        self._began = 0.0
        self.strategy: CohortStrategy | None = None

    def _timed(self, name: str, call: Callable[..., Iterable[Any]]) -> Callable[..., Any]:
        """Return a call to the SuperLink that notes its time, and its nodes: listed or asked."""

        def timed(*args: Any) -> list[Any]:
            start = time.monotonic()
            if name == "push_messages":
                self._asked |= {message.metadata.dst_node_id for message in args[0]}
            found = list(call(*args))
            self._longest_call = max(self._longest_call, time.monotonic() - start)
            self._nodes = found if name == "get_node_ids" else self._nodes
            return found

        return timed

    def seconds(self, round_: int) -> float:
        """Return a round's limit; called when it begins."""
        self._began, self._longest_call = time.time(), 0.0
        return self._seconds

    def write(self, number: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Write the line of a round that has ended; called as ``evaluate_fn``."""
        assert self.strategy is not None
        directory = self.strategy.directory
        line = {
            "number": number,
            "began": self._began,
            "ended": time.time(),
            "limit": self._seconds,
            "call": self._longest_call,
            "nodes": self._nodes,
            "asked": sorted(self._asked),
            "seated": {key: directory.connection_of(key) for key in directory.present},
            "sizes": {key: directory.sizes[key] for key in directory.participants()},
            "order": list(map(str, self.strategy.selector.population.ids)),
            "model": np.concatenate([a.ravel() for a in arrays.to_numpy_ndarrays()]).tolist(),
            "rss": _resident_megabytes(),
        }
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return None


def _resident_megabytes() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and note every round."""
    config = context.run_config
    folder = Path(str(config["folder"]))
    notes = Notes(folder, grid, float(config["round-seconds"]))
    waits = Waits(
        start=200.0,
        round=notes.seconds,
        reply=float(config["reply-seconds"]),
        query=float(config["query-seconds"]),
    )
    notes.strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0, min_available_nodes=int(config["min-nodes"])),
        SizeClustered(int(config["cohort-size"])),
        seed=int(config["seed"]),
        on_failure=str(config["on-failure"]),  # type: ignore[arg-type]
        waits=waits,
        # The table counts rounds without a reply: on a busy machine there can be many in a row.
        limits=Limits(give_up_after=1000),
        max_norm=MAX_NORM,
        log_file=folder / "selections.jsonl",
    )
    notes.strategy.start(
        grid,
        ArrayRecord(layers(np.zeros(DIMENSION, dtype=np.float32))),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=notes.write,
    )
