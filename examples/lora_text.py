"""Low-rank adapters on a tiny transformer: clients train and send a few numbers of a large model.

A transformer learns to write a language of forty words from public text. Then sixty clients, with 3
to 50 sentences each, write dialects of it: each of two groups has exchanged some letters. The base
stays frozen and all clients share it, in one copy. Only adapters are trained, with Adam. The table
shows the clients' loss per letter and their accuracy, and how many numbers a client sends in a
round. Adapters learn the dialects nearly as well as all parameters do, for a fraction of the bytes.

Run it as ``python examples/lora_text.py``: 15 seconds on one core. Needs ``fedcohort[sim]``.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from fedcohort import SizeClustered
from fedcohort.simulation import (
    FederatedData,
    LocalTraining,
    Options,
    Run,
    Simulation,
    lora,
    small_transformer,
)

LETTERS, LENGTH, CLIENTS, ROUNDS = 16, 32, 60, 20
rng = np.random.default_rng(0)
#: Words of 2 to 6 letters; letter 0 is the space between them.
WORDS = [rng.integers(1, LETTERS, size=n).tolist() for n in rng.integers(2, 7, size=40)]
#: How each group of clients writes the letters 0 ... 15: some are exchanged.
DIALECTS = np.tile(np.arange(LETTERS), (2, 1))
DIALECTS[0, [1, 2, 3, 4]], DIALECTS[1, [5, 6, 7, 8]] = [2, 1, 4, 3], [6, 5, 8, 7]


def sentences(n: int) -> NDArray[np.int64]:
    """Write n sentences, each one letter longer than the model's inputs."""
    text: list[int] = []
    while len(text) < n * (LENGTH + 1):
        text += [*WORDS[min(int(rng.zipf(1.5)) - 1, len(WORDS) - 1)], 0]
    return np.array(text[: n * (LENGTH + 1)]).reshape(n, -1)


def federation() -> FederatedData:
    """Give each client 4 to 80 sentences of its dialect; a fifth of them is for testing."""
    sizes = rng.geometric(0.05, size=CLIENTS).clip(4, 80)
    owners = np.repeat(np.arange(CLIENTS), sizes)
    text = np.take_along_axis(DIALECTS[owners % 2], sentences(len(owners)), axis=1)
    return FederatedData.from_arrays(text[:, :-1], text[:, 1:], owners, test=0.2)


def transformer() -> nn.Module:
    """Make the base: 2 blocks of width 64."""
    return small_transformer(LETTERS, LETTERS, length=LENGTH, width=64, layers=2, heads=4)


def pretrained() -> nn.Module:
    """Train the base on public text."""
    torch.manual_seed(0)
    model = transformer()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(200):
        text = torch.from_numpy(sentences(32))
        loss = cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def main() -> None:
    """Adapt the base by adapters, and by training everything."""
    torch.set_num_threads(1)
    base, data = pretrained(), federation()
    sizes = data.population.sizes
    print(f"{CLIENTS} clients with {sizes.min()} to {sizes.max()} sentences to train on\n")
    print("            loss  accuracy  numbers that a client sends in a round")
    run, options = Run(SizeClustered(6), data), Options(device="cpu", measure_every=ROUNDS)
    training = LocalTraining(epochs=1, batch_size=8, optimizer="adam", lr=3e-3)
    for name, model, own in (
        ("base", base, replace(training, lr=0.0)),  # it stays as it is
        ("adapters", lora(base, rank=4), training),
        ("everything", base, training),
    ):
        simulation = Simulation([run], model, own, options)
        quality = simulation.run(ROUNDS if own.lr else 1)[0].last_quality
        sent = simulation.models.shape[1] if own.lr else 0
        print(f"{name:10}  {quality.loss:.2f}  {quality.accuracy:8.1%}  {sent}")


if __name__ == "__main__":
    main()
