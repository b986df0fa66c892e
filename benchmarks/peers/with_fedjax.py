"""FedJAX: its federated_averaging, compiled, on its in-memory federated data.

Every client works in shuffled passes over its samples. With evaluation: FedJAX's
evaluate_average_loss on all training samples and its evaluate_model on all test samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fedjax
import haiku as hk
import jax
import numpy as np

from peers.contract import Laps, Task, Trained, main
from peers.workload import (
    BATCH,
    CLASSES,
    COHORT,
    EVALUATION_BATCH,
    HIDDEN,
    LR,
    STEPS,
    Federation,
    Parameters,
    as_floats,
)

#: The names that haiku gives to the layers.
LAYERS = ("linear", "linear_1")


def new_model(sample: Mapping[str, Any]) -> fedjax.Model:
    """Return 784-50-10."""

    def forward(batch: Mapping[str, Any]) -> Any:
        layers = [hk.Linear(HIDDEN), jax.nn.relu, hk.Linear(CLASSES)]
        return hk.Sequential(layers)(batch["x"])

    return fedjax.create_model_from_haiku(
        hk.transform(forward),
        sample,
        lambda batch, scores: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], scores),
        {"accuracy": fedjax.metrics.Accuracy()},
    )


def to_haiku(start: Parameters) -> dict[str, dict[str, Any]]:
    """Return these parameters as haiku names and lays them out."""
    arrays = [jax.numpy.asarray(array.T) for array in start]
    return {name: {"w": arrays[2 * k], "b": arrays[2 * k + 1]} for k, name in enumerate(LAYERS)}


def from_haiku(params: Mapping[str, Mapping[str, Any]]) -> Parameters:
    """Return parameters as ``torch.nn.Linear`` lays them out."""
    arrays = [params[name][part] for name in LAYERS for part in ("w", "b")]
    return tuple(np.asarray(array).T.copy() for array in arrays)


class BatchCounter:
    """Counts the batches that clients train on."""

    def __init__(self) -> None:
        self.taken = 0

    def __call__(self, batch: Any) -> Any:
        """Pass the batch on."""
        self.taken += 1
        return batch


def batches(x: Any, y: Any) -> list[Mapping[str, Any]]:
    """Cut samples into batches to evaluate on, once."""
    dataset = fedjax.ClientDataset({"x": as_floats(x), "y": y.reshape(-1).astype(np.int32)})
    return list(dataset.batch(batch_size=EVALUATION_BATCH))


def train(federation: Federation, task: Task, laps: Laps) -> Trained:
    """Run FedJAX's algorithm."""
    counter = BatchCounter()
    own: tuple[float | None, float | None] = None, None
    clients = fedjax.InMemoryFederatedData(
        {
            f"{k:03d}": {"x": as_floats(x), "y": y.astype(np.int32)}
            for k, (x, y) in enumerate(zip(federation.x, federation.y, strict=True))
        }
    ).preprocess_batch(counter)
    everyone = batches(federation.x, federation.y)
    test = batches(federation.test_x, federation.test_y)
    model = new_model(everyone[0])
    per_example_loss = fedjax.model_per_example_loss(model)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(LR),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=None, num_steps=STEPS),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(clients, COHORT, seed=task.seed)
    state = algorithm.init(to_haiku(federation.start))
    counter.taken = 0  # the container looks at its batches when it is made
    laps.begin()
    for _ in range(task.rounds):
        state, _ = algorithm.apply(state, sampler.sample())
        if task.evaluate:
            loss = fedjax.evaluate_average_loss(
                state.params, everyone, jax.random.PRNGKey(0), per_example_loss
            )
            own = float(loss), float(fedjax.evaluate_model(model, state.params, test)["accuracy"])
        # JAX computes behind Python's back: the round ends when the model is there.
        jax.block_until_ready(state.params)
        laps.lap()
    return Trained(from_haiku(state.params), counter.taken, *own)


if __name__ == "__main__":
    main(train, "fedjax", "jax", "jaxlib", "numpy")
