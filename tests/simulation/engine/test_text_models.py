"""Text models in the batched engine against one client after the other."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

import torch
from torch import nn

from fedcohort.simulation import Dataset, LocalTraining, gru, lstm, small_transformer
from fedcohort.simulation.engine.gradients import ResidentData
from fedcohort.simulation.engine.local_training import Lane, LocalTrainer
from fedcohort.simulation.engine.models import flat_parameters, make_model
from populations import rng
from simulation_twin import plain_update

CPU = torch.device("cpu")
TOKENS, LENGTH = 11, 7
#: Every number of a step is within a few hundred float32 roundings of its exact value, and
#: gradients and parameters are of order 1.
RTOL, ATOL = 1e-4, 1e-6

small = partial(small_transformer, TOKENS, TOKENS, length=LENGTH, width=8, layers=2, heads=2)
MODELS: dict[str, Callable[..., nn.Module]] = {
    "transformer": small,
    "dropout": partial(small, dropout=0.3),
    "gru": partial(gru, TOKENS, TOKENS, embedding=4, hidden=6),
    "lstm": partial(lstm, TOKENS, TOKENS, embedding=4, hidden=6),
}
TRAININGS = {
    "steps": LocalTraining(steps=3, batch_size=4, lr=0.5),
    "epochs": LocalTraining(epochs=2, batch_size=4, lr=0.5, momentum=0.9, mu=0.1),
}


def sentences(n: int = 40, *, one_label: bool = False) -> Dataset:
    """Random sequences, labelled by their next token; some end early, and one has no label."""
    whole = rng(1).integers(TOKENS, size=(n, LENGTH + 1))
    x, y = whole[:, :-1].astype(np.uint8), whole[:, 1:].copy()
    y[np.arange(LENGTH) >= rng(2).integers(1, LENGTH + 1, size=(n, 1))] = -1
    y[5] = -1
    if one_label:
        y = whole[:, -1]
    return Dataset(x, y, x[:9], y[:9], n_classes=TOKENS)


def updates_and_plain_ones(
    source: Callable[[], nn.Module], data: Dataset, training: LocalTraining
) -> tuple[torch.Tensor, torch.Tensor]:
    """Train clients with fewer samples than a batch, exactly one batch and several."""
    models = [make_model(source, seed=seed) for seed in (0, 1)]
    starts = torch.stack([flat_parameters(model) for model in models])
    sizes = [2, 4, 11, 1]
    lanes = [
        Lane(k % 2, k % 2, k, rng(k).choice(len(data.y), size, replace=False))
        for k, size in enumerate(sizes)
    ]
    lanes[3].samples[:] = 5  # the one without labels
    trainer = LocalTrainer(models[0], training, ResidentData(data, CPU, integers=True))
    plain = [
        plain_update(models[0], starts[lane.model], lane, training, data, 3, integers=True)
        for lane in lanes
    ]
    return trainer.updates(starts, lanes, round_=3), torch.stack(plain)


@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS)
@pytest.mark.parametrize("source", MODELS.values(), ids=MODELS)
def test_text_models_train_as_one_client_after_the_other(
    source: Callable[[], nn.Module], training: LocalTraining
) -> None:
    updates, plain = updates_and_plain_ones(source, sentences(), training)

    torch.testing.assert_close(updates, plain, rtol=RTOL, atol=ATOL)
    assert (plain[:3].abs().amax(dim=1) > 1e-3).all()
    assert (updates[3] == 0).all()  # the client whose only sample has no label


@pytest.mark.parametrize("source", MODELS.values(), ids=MODELS)
def test_models_of_the_last_position_train_on_one_label_per_sample(
    source: Callable[..., nn.Module],
) -> None:
    data, training = sentences(one_label=True), TRAININGS["epochs"]

    updates, plain = updates_and_plain_ones(partial(source, last=True), data, training)

    torch.testing.assert_close(updates, plain, rtol=RTOL, atol=ATOL)
    assert (plain.abs().amax(dim=1) > 1e-3).all()
