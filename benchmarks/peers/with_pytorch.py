"""A plain PyTorch loop: one client after the other, as a first program would."""

from __future__ import annotations

import copy

import numpy as np
import torch

from peers.contract import Laps, Task, Trained, main
from peers.torch_model import accuracy, mean_loss, new_model, parameters_of, samples, train_locally
from peers.workload import COHORT, Federation


def train(federation: Federation, task: Task, laps: Laps) -> Trained:
    """Draw, train, average, measure."""
    rng, taken = np.random.default_rng(task.seed), 0
    own: tuple[float | None, float | None] = None, None
    torch.manual_seed(task.seed)
    model = new_model(federation.start)
    clients = [samples(x, y) for x, y in zip(federation.x, federation.y, strict=True)]
    everyone = tuple(torch.cat(parts) for parts in zip(*clients, strict=True))
    test = samples(federation.test_x, federation.test_y)
    laps.begin()
    for _ in range(task.rounds):
        trained = []
        for client in rng.choice(len(clients), COHORT, replace=False):
            local = copy.deepcopy(model)
            taken += train_locally(local, *clients[client])
            trained.append(local.state_dict())
        model.load_state_dict(
            {name: torch.stack([s[name] for s in trained]).mean(dim=0) for name in trained[0]}
        )
        if task.evaluate:
            own = mean_loss(model, *everyone), accuracy(model, *test)
        laps.lap()
    return Trained(parameters_of(model), taken, *own)


if __name__ == "__main__":
    main(train, "torch", "numpy")
