"""pfl: its FederatedAveraging on its SimulatedBackend, with in-memory PyTorch data sets.

Every client works in passes over its samples, in the same order every time (pfl keeps the batches
of a data set). With evaluation: two CentralEvaluationCallbacks, on all training samples for the
loss and on all test samples for the accuracy. pfl evaluates before the first round and after each
but the first, so as often as there are rounds; the model of the last round is evaluated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, StringMetricName, Weighted, get_overall_value
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from peers.contract import Laps, Task, Trained, main
from peers.torch_model import LocalStepCounter, new_model, parameters_of, samples
from peers.workload import BATCH, COHORT, EPOCHS, EVALUATION_BATCH, LR, Federation


class Classifier(nn.Module):
    """The model with the loss and the metrics that pfl asks for."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return what training minimises."""
        return cross_entropy(self.layers(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, wanted: str) -> dict[str, Weighted]:
        """Return the one metric that a data set is for."""
        scores = self.layers(x)
        if wanted == "loss":
            return {"loss": Weighted(cross_entropy(scores, y, reduction="sum").item(), len(y))}
        return {"accuracy": Weighted((scores.argmax(dim=1) == y).sum().item(), len(y))}


class LapCallback(TrainingProcessCallback[Any]):
    """Ends a round, after all other callbacks, and keeps its metrics."""

    def __init__(self, laps: Laps) -> None:
        self._laps = laps
        self.metrics = Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Note the time."""
        self.metrics = aggregate_metrics
        self._laps.lap()
        return False, Metrics()


def evaluation(x: Any, y: Any, wanted: str) -> CentralEvaluationCallback:
    """Measure one metric on these samples after every round."""
    dataset = PyTorchTensorDataset(samples(x, y), eval_kwargs={"wanted": wanted})
    return CentralEvaluationCallback(
        dataset,
        NNEvalHyperParams(local_batch_size=EVALUATION_BATCH),
        format_fn=lambda name: StringMetricName(f"central {wanted} | {name}"),
    )


def train(federation: Federation, task: Task, laps: Laps) -> Trained:
    """Run pfl's algorithm."""
    np.random.seed(task.seed)  # noqa: NPY002 - pfl draws from the global generator
    torch.manual_seed(task.seed)
    users = [
        PyTorchTensorDataset(samples(x, y), user_id=str(k), eval_kwargs={"wanted": "loss"})
        for k, (x, y) in enumerate(zip(federation.x, federation.y, strict=True))
    ]
    sampler = get_user_sampler("random", range(len(users)))
    population = FederatedDataset(users.__getitem__, sampler)
    classifier = Classifier(new_model(federation.start))
    model = PyTorchModel(
        classifier,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(classifier.parameters(), lr=1.0),
    )
    last = LapCallback(laps)
    measuring = [
        evaluation(federation.x, federation.y, "loss"),
        evaluation(federation.test_x, federation.test_y, "accuracy"),
    ]
    counter = LocalStepCounter()
    laps.begin()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=task.rounds,
            # The drawn clients' own metrics before and after training: in the first round alone.
            evaluation_frequency=task.rounds,
            train_cohort_size=COHORT,
            val_cohort_size=None,
        ),
        SimulatedBackend(population, population),
        model,
        NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=EPOCHS, local_learning_rate=LR),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[*(measuring if task.evaluate else []), last],
    )
    found = {str(name): get_overall_value(value) for name, value in last.metrics}
    return Trained(
        parameters_of(classifier),
        counter.taken,
        found.get("central loss | loss"),
        found.get("central accuracy | accuracy"),
    )


if __name__ == "__main__":
    main(train, "pfl", "torch", "numpy")
