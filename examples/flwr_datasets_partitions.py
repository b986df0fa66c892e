"""Clients that a partitioner of ``flwr-datasets`` made, in fedcohort.

The digits of scikit-learn become a ``datasets.Dataset`` in memory. The Dirichlet partitioner, or
another one (``--partitioner``), divides it among fifty clients. The first table shows how much
Algorithm 1 (``size``), which needs only sizes, lowers the variance of the clients' weights. Then
the simulator trains. The second table shows ``V``, the mean squared distance between a cohort's
aggregate and that of all clients, divided by that of multinomial sampling on the same models. It is
below 1 for both designs, and lowest for similarity. The losses are those of one seed.

Run it as ``python examples/flwr_datasets_partitions.py``: six seconds, nothing is downloaded. Needs
``pip install '.[sim]' flwr-datasets`` in a clone.
"""

import argparse

import numpy as np
import torch
from datasets import Dataset
from flwr_datasets.partitioner import DirichletPartitioner, Partitioner, PathologicalPartitioner
from sklearn.datasets import load_digits

from fedcohort import Multinomial, SimilarityClustered, SizeClustered, diagnostics
from fedcohort.simulation import FederatedData, LocalTraining, Options, Run, Simulation, mlp

CLIENTS, DRAWS, ROUNDS = 50, 5, 60

PARTITIONERS: dict[str, Partitioner] = {
    "dirichlet": DirichletPartitioner(CLIENTS, "label", alpha=0.1, min_partition_size=0, seed=0),
    "pathological": PathologicalPartitioner(CLIENTS, "label", num_classes_per_partition=2, seed=0),
}


def federation(partitioner: Partitioner) -> FederatedData:
    """Divide the digits; every row says its position, so that images stay where they are."""
    images, labels = load_digits(return_X_y=True)
    rows = {"label": labels.tolist(), "position": list(range(len(labels)))}
    partitioner.dataset = Dataset.from_dict(rows)
    parts = [partitioner.load_partition(k)["position"] for k in range(partitioner.num_partitions)]
    return FederatedData.from_arrays(images, labels, [list(part) for part in parts], scale=1 / 16)


def main() -> None:
    """Compare three designs on the partitioner's clients."""
    parser = argparse.ArgumentParser(description="Clients from flwr-datasets, in fedcohort.")
    parser.add_argument("--partitioner", choices=PARTITIONERS, default="dirichlet")
    data = federation(PARTITIONERS[parser.parse_args().partitioner])
    population, rng = data.population, np.random.default_rng(0)
    print(f"{CLIENTS} clients with {population.sizes.min()} to {population.sizes.max()} images")
    recipes = [Multinomial(DRAWS), SizeClustered(DRAWS), SimilarityClustered(DRAWS)]
    designs = [recipe.build(population, rng=rng) for recipe in recipes[:2]]
    variances = [diagnostics.weight_variance(design).sum() for design in designs]
    print(f"variance of the weights, size over multinomial: {variances[1] / variances[0]:.2f}\n")

    torch.set_num_threads(1)  # small models train fastest on one
    training = LocalTraining(steps=10, batch_size=10, lr=0.1)
    options = Options(device="cpu", oracle_every=2)
    runs = [Run(recipe, data) for recipe in recipes]
    histories = Simulation(runs, lambda: mlp(64), training, options).run(rounds=ROUNDS)
    print("design       V over multinomial's  final loss")
    for recipe, history in zip(recipes, histories, strict=True):
        found = [each.yardstick for each in history.rounds if each.yardstick]
        multinomial = sum(each.multinomial_variance for each in found)
        ratio = sum(each.design_variance for each in found) / multinomial
        loss = np.mean([each.quality.loss for each in history.rounds[-10:] if each.quality])
        print(f"{recipe.name:12} {ratio:20.2f} {loss:11.3f}")


if __name__ == "__main__":
    main()
