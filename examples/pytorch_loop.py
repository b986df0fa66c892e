"""A server loop of one's own in PyTorch, with a convolutional network.

A hundred clients have images of one digit each (scikit-learn's, nothing is downloaded); the server
draws ten of them a round, in three ways:

* ``multinomial``: by size alone,
* ``similarity``: one of each cluster of clients whose last updates point the same way,
* ``multinomial, difference``: by size alone, and what the server remembers of the clients takes
  the variance out (the difference estimator; it works with every unbiased design).

One sees the loss and the accuracy on the test images, averaged over the last ten rounds: the two
ways that use past updates end with a lower loss and a higher accuracy than multinomial sampling.

Run it as ``python examples/pytorch_loop.py``: 15 seconds on one core. Needs ``fedcohort[sim]``.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedcohort import Difference, Multinomial, Population, Recipe, SimilarityClustered
from fedcohort.similarity import UpdateMemory

CLIENTS, DRAWS, ROUNDS, LAST = 100, 10, 80, 10

images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
images = (images.float() / 16).reshape(-1, 1, 8, 8)
#: Of every digit's images a fifth for testing, the rest for ten clients.
digits = [torch.nonzero(labels == digit).flatten() for digit in range(10)]
test = torch.cat([digit[::5] for digit in digits])
pieces = [piece for d in digits for piece in d[torch.arange(len(d)) % 5 != 0].tensor_split(10)]
population = Population([len(piece) for piece in pieces])


def make_network() -> nn.Module:
    """Return a network with 1,610 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 10)
    )


def local_update(network: nn.Module, model: Tensor, client: int) -> Tensor:
    """Take five steps of SGD on the client's images; return its model minus the global one."""
    vector_to_parameters(model.clone(), network.parameters())
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(5):
        optimiser.zero_grad()
        cross_entropy(network(images[pieces[client]]), labels[pieces[client]]).backward()
        optimiser.step()
    return parameters_to_vector(network.parameters()).detach() - model


def quality(network: nn.Module, model: Tensor) -> tuple[float, float]:
    """Return the global model's loss and accuracy on the test images."""
    vector_to_parameters(model, network.parameters())
    with torch.no_grad():
        scores = network(images[test])
    right = (scores.argmax(dim=1) == labels[test]).float().mean()
    return float(cross_entropy(scores, labels[test])), float(right)


def serve(recipe: Recipe, estimator: Difference | None = None) -> tuple[float, float]:
    """Train by cohorts; return the mean loss and accuracy of the last rounds."""
    torch.manual_seed(0)
    network, rng = make_network(), np.random.default_rng(0)
    model = parameters_to_vector(network.parameters()).detach()
    memory = UpdateMemory(CLIENTS, len(model), sketch=128)  # for the design
    settings = estimator or Difference(shrink=0)  # which remembers nothing: the plain aggregate
    variates = settings.memory(population.importance, torch.zeros_like(model))
    qualities = []
    for round_ in range(ROUNDS):
        cohort = recipe.build(population, memory, None, round_, rng).draw(rng)
        updates = torch.stack([local_update(network, model, i) for i in cohort.clients])
        model = model + variates.aggregate(cohort.clients, cohort.weights, updates)
        variates.record(cohort.clients, updates)
        memory.record(cohort.clients, updates.numpy(), round_=round_)
        qualities.append(quality(network, model))
    losses, accuracies = zip(*qualities[-LAST:], strict=True)
    return float(np.mean(losses)), float(np.mean(accuracies))


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("                         loss  accuracy")
    for name, recipe, estimator in (
        ("multinomial", Multinomial(DRAWS), None),
        ("similarity", SimilarityClustered(DRAWS), None),
        ("multinomial, difference", Multinomial(DRAWS), Difference()),
    ):
        loss, accuracy = serve(recipe, estimator)
        print(f"{name:24} {loss:.3f}   {accuracy:.1%}", flush=True)
