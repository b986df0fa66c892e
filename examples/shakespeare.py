"""A federation that learns to write: 1,060 roles of Shakespeare's plays, one client each.

The plays come with fedcohort, so nothing is downloaded. Each role holds what it says, from one to
641 sequences of 80 characters. In each of 80 rounds ten roles train a causal transformer of 21,633
parameters to predict the next character. The roles are drawn by their sizes, and the server steps
with Adam.

The table shows, before and after training, the loss and the accuracy on sequences that were held
out, and how many of the words that the model writes are words of the plays. Below it stands what
it writes, character by character. The model is tiny and has seen a few per cent of the text: it has
learned how words look and where lines end, and hardly more.

Run it as ``python examples/shakespeare.py``: 20 seconds on one core. Needs ``fedcohort[sim]``.
"""

import re

import torch
from torch import nn
from torch.nn.utils import vector_to_parameters

from fedcohort import SizeClustered
from fedcohort.optimizers import Adam
from fedcohort.simulation import (
    LocalTraining,
    Options,
    Run,
    Simulation,
    decode_text,
    encode_text,
    load_dataset,
    natural,
    small_transformer,
)

ROUNDS, WRITTEN, LENGTH = 80, 240, 80
START = "\nWhat "

roles = natural(load_dataset("shakespeare"))
words = set(re.findall("[a-z]+", decode_text(roles.dataset.x).lower()))


def network() -> nn.Module:
    """Return a small transformer for the data's 97 characters."""
    return small_transformer(97, 97, length=LENGTH, width=32, layers=1, heads=2)


def write(model: nn.Module) -> str:
    """Let the model go on from the start, one character at a time."""
    chance = torch.Generator().manual_seed(0)
    written = torch.from_numpy(encode_text(START)).long()
    with torch.no_grad():
        for _ in range(WRITTEN):
            scores = model(written[None, -LENGTH:])[0, -1]
            next_one = torch.multinomial((scores / 0.7).softmax(0), 1, generator=chance)
            written = torch.cat([written, next_one])
    return decode_text(written.numpy())


def show(when: str, simulation: Simulation) -> str:
    """Print a line of the table; return what the model writes."""
    model = network().eval()
    vector_to_parameters(torch.from_numpy(simulation.models[0]), model.parameters())
    text = write(model)
    found = re.findall("[a-z]+", text.lower())
    known = sum(word in words for word in found) / max(len(found), 1)
    quality = simulation.histories[0].last_quality
    assert quality is not None
    print(f"{when:13}  {quality.loss:.2f}  {quality.accuracy:7.1%}  {known:6.0%}")
    return text


if __name__ == "__main__":
    sizes = roles.population.sizes
    print(f"{roles.n_clients} roles with {sizes.min()} to {sizes.max()} sequences\n")
    run = Run(SizeClustered(10), roles, optimizer=Adam(lr=1.0), server_lr=0.03)
    training = LocalTraining(steps=5, batch_size=10, lr=1.0)
    options = Options(device="cpu", measure_every=ROUNDS, measure_clients=100)
    simulation = Simulation([run], network, training, options)
    print("               loss  accuracy  words of the plays")
    simulation.run(rounds=1)
    before = show("after 1 round", simulation)
    simulation.run(rounds=ROUNDS - 1)
    after = show("after all", simulation)
    for when, text in (("1 round", before), ("all rounds", after)):
        print(f"\nafter {when}:")
        print("\n".join(f"| {line}" for line in text.strip().splitlines()))
