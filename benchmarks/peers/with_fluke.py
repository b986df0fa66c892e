"""fluke: its FedAVG, its in-memory FastDataLoader and its ClassificationEval.

Every client works in shuffled passes over its samples. With evaluation: fluke's own evaluation on
the server's test set, with accuracy as the only metric; fluke has no evaluation of the training
loss, so a callback has its evaluator do that on all training samples (the same metric included).
Only what FedAVG needs of fluke's dependencies is installed.
"""

from __future__ import annotations

from typing import Any

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.utils import FederationObserver
from torch import nn
from torchmetrics import Accuracy

from peers.contract import Laps, Task, Trained, main
from peers.torch_model import LocalStepCounter, new_model, parameters_of, samples
from peers.workload import (
    BATCH,
    CLASSES,
    CLIENTS,
    COHORT,
    EPOCHS,
    EVALUATION_BATCH,
    LR,
    Federation,
)


def loader(x: Any, y: Any, batch: int, *, shuffle: bool) -> FastDataLoader:
    """Return fluke's loader of these samples."""
    return FastDataLoader(
        *samples(x, y), num_labels=CLASSES, batch_size=batch, shuffle=shuffle, skip_singleton=False
    )


class RoundObserver(FederationObserver):
    """Ends a round, and where it evaluates, first takes the training loss."""

    def __init__(self, laps: Laps, training: FastDataLoader | None) -> None:
        self._laps, self._training = laps, training
        self._model: nn.Module | None = None
        self.loss: float | None = None
        self.accuracy: float | None = None

    def start_round(self, round: int, global_model: Any) -> None:  # noqa: A002
        """Remember the server's model, which changes in place."""
        self._model = global_model

    def server_evaluation(self, round: int, eval_type: str, evals: Any, **rest: Any) -> None:  # noqa: A002
        """Keep the accuracy."""
        self.accuracy = evals.get("accuracy")

    def end_round(self, round: int) -> None:  # noqa: A002
        """Take the loss, and the time."""
        if self._training is not None:
            evaluator = FlukeENV().get_evaluator()
            found = evaluator.evaluate(round, self._model, self._training, nn.CrossEntropyLoss())
            self.loss = found["loss"]
        self._laps.lap()


def train(federation: Federation, task: Task, laps: Laps) -> Trained:
    """Run fluke's algorithm."""
    environment = FlukeENV()
    environment.set_seed(task.seed)
    environment.set_device("cpu")
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=task.evaluate)
    accuracy = Accuracy(task="multiclass", num_classes=CLASSES, top_k=1, average="micro")
    environment.set_evaluator(ClassificationEval(1, CLASSES, accuracy=accuracy))
    pairs = zip(federation.x, federation.y, strict=True)
    container = DummyDataContainer(
        [loader(x, y, BATCH, shuffle=True) for x, y in pairs],
        [None] * CLIENTS,
        loader(federation.test_x, federation.test_y, EVALUATION_BATCH, shuffle=False),
        CLASSES,
    )
    model = new_model(federation.start)
    algorithm = FedAVG(
        CLIENTS,
        DataSplitter(container),
        DDict(
            client={
                "batch_size": BATCH,
                "local_epochs": EPOCHS,
                "loss": "CrossEntropyLoss",
                "optimizer": {"name": "SGD", "lr": LR},
                "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1},
            },
            server={"weighted": True},
            model=model,
        ),
    )
    everyone = loader(federation.x, federation.y, EVALUATION_BATCH, shuffle=False)
    observer = RoundObserver(laps, everyone if task.evaluate else None)
    algorithm.set_callbacks(observer)
    counter = LocalStepCounter()
    laps.begin()
    algorithm.run(task.rounds, COHORT / CLIENTS)
    return Trained(
        parameters_of(algorithm.server.model), counter.taken, observer.loss, observer.accuracy
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(train, "fluke-fl", "torch", "numpy")
