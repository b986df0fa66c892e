"""The rounds of a training: play, evaluate, save."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from logging import INFO, NOTSET, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fedcohort._arguments import checked_whole
from fedcohort._whole_file import make_folder, read_arrays, write_arrays
from fedcohort.errors import FlowerError
from fedcohort.flower.grid import exchange
from fedcohort.flower.settings import checked_path

if TYPE_CHECKING:
    from fedcohort.flower.strategy import CohortStrategy

log = getLogger("flwr.fedcohort")

#: Evaluates the model on the server: (round, model) -> metrics.
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
FORMAT = "fedcohort flower state 6"
#: The saved arrays, by part and name.
Parts = Mapping[str, Mapping[str, NDArray[Any]]]
#: The file in a checkpoint folder.
FILE = "checkpoint"


@final
class Checkpoint:
    """The folder and the interval of checkpoints; ``folder`` None saves nothing."""

    def __init__(self, folder: str | Path | None, every: int, seed: object) -> None:
        if folder is not None and seed is None:
            raise FlowerError(
                "CohortStrategy: checkpoint needs a seed, which a restarted server must pass "
                "again; got None. Pass seed=0 or another number."
            )
        found = checked_path("checkpoint", folder)
        self.path = None if found is None else found / FILE
        self.every = checked_whole("CohortStrategy", "every", every, least=1, error=FlowerError)


def write_checkpoint(path: Path, head: Mapping[str, Any], parts: Parts) -> None:
    """Write what a restarted server needs, whole or not at all."""
    arrays = {f"{part}.{name}": array for part, of in parts.items() for name, array in of.items()}
    arrays["head"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
    make_folder(path.parent)
    write_arrays(path, FORMAT, arrays)


def read_checkpoint(
    path: Path, origin: Mapping[str, str]
) -> tuple[dict[str, Any], defaultdict[str, dict[str, NDArray[Any]]]]:
    """Return head and parts; refuse a file of another ``origin``."""
    try:
        arrays = read_arrays(path, FORMAT)
    except (OSError, ValueError) as error:
        raise FlowerError(
            f"CohortStrategy: {path} cannot be read ({error}). Start without it."
        ) from error
    head: dict[str, Any] = json.loads(arrays.pop("head").tobytes())
    for name, own in origin.items():
        if head[name] != own:
            raise FlowerError(
                f"CohortStrategy: {path} was written with another {name}, {head[name]}; got "
                f"{own}. Use the same one."
            )
    parts: defaultdict[str, dict[str, NDArray[Any]]] = defaultdict(dict)
    for name, array in arrays.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = array
    return head, parts


@final
@dataclass(slots=True)
class TrainingLoop:
    """Plays the rounds of a strategy, as Flower's own loop does, but with bounded waits."""

    strategy: CohortStrategy
    grid: Grid
    checkpoint: Checkpoint
    configs: tuple[ConfigRecord, ConfigRecord]
    evaluate_fn: EvaluateFn | None
    timeout: float

    def first_model(self, initial_arrays: ArrayRecord, *, resume: bool) -> ArrayRecord:
        """Return the model to start from: the checkpoint's where there is one to resume."""
        path = self.checkpoint.path
        if path is None and resume:
            raise FlowerError(
                "CohortStrategy: resume needs a checkpoint folder; got none. Pass "
                "checkpoint=FOLDER when the strategy is made."
            )
        if path is None or not path.exists():
            return initial_arrays
        if resume:
            return self.strategy.load(path)
        if not self.strategy.rounds_done:
            raise FlowerError(
                f"CohortStrategy: {path} is there already. Call start(resume=True) to go on from "
                f"it, or use another folder."
            )
        return initial_arrays

    def run(self, arrays: ArrayRecord, last: int) -> Result:
        """Play the rounds that are left until ``last``, and keep their metrics."""
        strategy, result = self.strategy, Result(arrays=arrays)
        saved = strategy.rounds_done
        if (path := self.checkpoint.path) is not None:
            make_folder(path.parent)
        with _logged_by_flower():
            strategy.summary()
            self._evaluate(result, saved)
            try:
                for number in range(saved + 1, last + 1):
                    log.info("[ROUND %d/%d]", number, last)
                    self._play(result, number)
                    self._evaluate(result, number)
                    if path is not None and number % self.checkpoint.every == 0:
                        strategy.save(path, result.arrays)
                        saved = number
            finally:
                if path is not None and strategy.rounds_done > saved:
                    strategy.save(path, result.arrays)
            strategy.selections.log_summary()
        return result

    def _play(self, result: Result, number: int) -> None:
        """Play one round."""
        strategy, grid = self.strategy, self.grid
        train_config, evaluate_config = self.configs
        messages = list(strategy.configure_train(number, result.arrays, train_config, grid))
        seconds = min(self.timeout, strategy.clock.seconds())
        replies = exchange(grid, messages, seconds, strategy.is_enough)
        arrays, metrics = strategy.aggregate_train(number, replies)
        if arrays is not None:
            result.arrays = arrays
        _keep(result.train_metrics_clientapp, number, metrics)
        messages = list(strategy.configure_evaluate(number, result.arrays, evaluate_config, grid))
        seconds = min(self.timeout, strategy.clock.seconds(is_last=True))
        replies = exchange(grid, messages, seconds)
        metrics = strategy.aggregate_evaluate(number, replies) if messages else None
        _keep(result.evaluate_metrics_clientapp, number, metrics)

    def _evaluate(self, result: Result, number: int) -> None:
        """Evaluate on the server."""
        if self.evaluate_fn is not None:
            metrics = self.evaluate_fn(number, result.arrays)
            _keep(result.evaluate_metrics_serverapp, number, metrics)


def _keep(records: dict[int, MetricRecord], number: int, metrics: MetricRecord | None) -> None:
    """Keep a round's metrics, and log them if there are any."""
    if metrics:
        log.info("metrics: %s", metrics)
    if metrics is not None:
        records[number] = metrics


@contextmanager
def _logged_by_flower() -> Iterator[None]:
    """Meanwhile send the library's log lines to Flower's handlers."""
    library = getLogger("fedcohort")
    level = library.level
    handlers = [each for each in getLogger("flwr").handlers if each not in library.handlers]
    for each in handlers:
        library.addHandler(each)
    library.setLevel(INFO if level == NOTSET else level)
    try:
        yield
    finally:
        for each in handlers:
            library.removeHandler(each)
        library.setLevel(level)
