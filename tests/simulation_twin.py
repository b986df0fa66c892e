"""The slow twin of the simulator's engine: one client after the other, plain PyTorch."""

import copy

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedcohort.simulation.data.datasets import Dataset
from fedcohort.simulation.engine.local_training import Lane, LocalTraining, make_schedule
from fedcohort.simulation.engine.models import KeyedDropout, with_keyed_dropout


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def load(model: nn.Module, flat: torch.Tensor) -> None:
    nn.utils.vector_to_parameters(flat, trained(model))


def plain_update(
    model: nn.Module,
    start: torch.Tensor,
    lane: Lane,
    training: LocalTraining,
    dataset: Dataset,
    round_: int,
    *,
    integers: bool = False,
) -> torch.Tensor:
    """Train one client with torch's own optimiser on the batches of its own stream."""
    client, keys = with_keyed_dropout(copy.deepcopy(model))
    client.train()
    load(client, start.clone())
    schedule = make_schedule([lane], training, round_=round_, n_keys=len(keys))
    lr, decay = training.lr * training.lr_decay**round_, training.weight_decay
    optimizer: torch.optim.Optimizer = torch.optim.SGD(
        trained(client), lr=lr, momentum=training.momentum, weight_decay=decay
    )
    if training.optimizer == "adam":
        betas = (training.beta1, training.beta2)
        optimizer = torch.optim.Adam(
            trained(client), lr=lr, betas=betas, eps=training.eps, weight_decay=decay
        )
    for step in range(len(schedule.active)):
        used = schedule.sample_weights[step, 0] > 0
        rows = lane.samples[schedule.positions[step, 0][used]]
        x = torch.from_numpy(dataset.x[rows].astype(np.int64 if integers else np.float32))
        if not integers:
            x = x * dataset.scale + dataset.shift
        for name, word in zip(keys, schedule.keys[step, 0], strict=True):
            client.get_buffer(name).fill_(int(word))
        for module in client.modules():
            if isinstance(module, KeyedDropout):
                module.calls = 0
        outputs, labels = client(x), torch.from_numpy(dataset.y[rows])
        counted = labels >= 0
        # Of no label at all, the mean loss is 0.
        loss = cross_entropy(outputs[counted], labels[counted], reduction="sum") / max(
            1, int(counted.sum())
        )
        if training.mu:
            moved = nn.utils.parameters_to_vector(trained(client)) - start
            loss = loss + training.mu / 2 * (moved**2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(trained(client)).detach() - start
