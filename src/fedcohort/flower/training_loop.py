"""The rounds of a training: play, evaluate, save."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from logging import INFO, NOTSET, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, final

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedcohort._whole_file import make_folder
from fedcohort.deployment.checkpoint import must_resume
from fedcohort.flower.settings import FLOWER

if TYPE_CHECKING:
    from fedcohort.flower.strategy import CohortStrategy

#: Evaluates the model on the server: (round, model) -> metrics.
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@final
@dataclass(slots=True)
class TrainingLoop:
    """Plays the rounds of a strategy, as Flower's own loop does, but with bounded waits."""

    strategy: CohortStrategy
    grid: Grid
    path: Path | None
    every: int
    configs: tuple[ConfigRecord, ConfigRecord]
    evaluate_fn: EvaluateFn | None
    timeout: float

    def first_model(self, initial_arrays: ArrayRecord, *, resume: bool) -> ArrayRecord:
        """Return the model to start from: the checkpoint's where there is one to resume."""
        path, strategy = self.path, self.strategy
        if path is None and resume:
            raise FLOWER.refusal(
                "resume needs a checkpoint folder; got none. Pass checkpoint=FOLDER when the "
                "strategy is made."
            )
        has_begun = not resume and strategy.rounds_done > 0  # a second start overwrites its own
        if path is None or has_begun or not must_resume(FLOWER, path, resume=resume):
            return initial_arrays
        return strategy.load(path)

    def run(self, arrays: ArrayRecord, last: int) -> Result:
        """Play the rounds that are left until ``last``, and keep their metrics."""
        strategy, result = self.strategy, Result(arrays=arrays)
        saved = strategy.rounds_done
        if (path := self.path) is not None:
            make_folder(path.parent)
        with _logged_by_flower():
            strategy.summary()
            self._evaluate(result, saved)
            try:
                for number in range(saved + 1, last + 1):
                    FLOWER.logger.info("[ROUND %d/%d]", number, last)
                    self._play(result, number)
                    self._evaluate(result, number)
                    if path is not None and number % self.every == 0:
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
        replies = strategy.clock.exchange(grid, messages, seconds, strategy.is_enough)
        arrays, metrics = strategy.aggregate_train(number, replies)
        if arrays is not None:
            result.arrays = arrays
        _keep(result.train_metrics_clientapp, number, metrics)
        messages = list(strategy.configure_evaluate(number, result.arrays, evaluate_config, grid))
        seconds = min(self.timeout, strategy.clock.seconds(is_last=True))
        replies = strategy.clock.exchange(grid, messages, seconds)
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
        FLOWER.logger.info("metrics: %s", metrics)
    if metrics is not None:
        records[number] = metrics


@contextmanager
def _logged_by_flower() -> Iterator[None]:
    """Send the library's log lines to Flower's handlers inside the block."""
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
