"""A table of measurements in clinics, with a network in PyTorch and the simulator.

Scikit-learn's breast cancer table (569 biopsies with 30 measurements; nothing is downloaded) is
divided among 30 clinics of unequal size: most see mainly benign or mainly malignant cases. A
small network learns to tell them apart. In each round 5 clinics train, drawn in four ways. Each way
runs with five seeds, from the same first models and with the same batches.

The table shows the accuracy on biopsies that were held out, over the last ten rounds: the mean,
and the lowest of any round and seed. It also shows V, the variance of a round's aggregate, over
that of multinomial sampling. This is a case without gain: the task is so easy that all four end
within two points of each other, although V differs by a factor of five.

Run it as ``python examples/tabular_pytorch.py``: 8 seconds on one core. Needs ``fedcohort[sim]``.
"""

import numpy as np
from sklearn.datasets import load_breast_cancer
from torch import nn

from fedcohort import Multinomial, Recipe, SimilarityClustered, SizeClustered
from fedcohort.memory import EstimatorName
from fedcohort.simulation import FederatedData, LocalTraining, Options, Run, Simulation

CLINICS, DRAWS, ROUNDS, LAST, SEEDS = 30, 5, 60, 10, range(5)


def clinics() -> FederatedData:
    """Return the biopsies of every clinic; a fifth of each clinic's are for testing."""
    table, malignant = load_breast_cancer(return_X_y=True)
    table = (table - table.mean(axis=0)) / table.std(axis=0)
    rng = np.random.default_rng(0)
    shares = [rng.dirichlet(np.full(CLINICS, 0.3)) for _ in range(2)]
    clinic = [int(rng.choice(CLINICS, p=shares[label])) for label in malignant]
    return FederatedData.from_arrays(table, malignant, np.array(clinic), test=0.2)


def network() -> nn.Module:
    """Return a network with 514 parameters."""
    return nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))


WAYS: dict[str, tuple[Recipe, EstimatorName]] = {
    "multinomial": (Multinomial(DRAWS), "plain"),
    "size": (SizeClustered(DRAWS), "plain"),
    "similarity": (SimilarityClustered(DRAWS), "plain"),
    "difference": (Multinomial(DRAWS), "difference"),
}

if __name__ == "__main__":
    data = clinics()
    sizes = data.population.sizes
    print(f"{data.n_clients} clinics with {sizes.min()} to {sizes.max()} biopsies\n")
    runs = [
        Run(recipe, data, seed=seed, estimator=estimator)
        for recipe, estimator in WAYS.values()
        for seed in SEEDS
    ]
    training = LocalTraining(steps=10, batch_size=10, lr=0.1)
    simulation = Simulation(runs, network, training, Options(device="cpu", oracle_every=10))
    histories = simulation.run(rounds=ROUNDS)
    print("             accuracy   lowest  V over multinomial's")
    for place, name in enumerate(WAYS):
        own = histories[len(SEEDS) * place : len(SEEDS) * (place + 1)]
        late = np.array([[e.quality.accuracy for e in h.rounds[-LAST:] if e.quality] for h in own])
        known = [each.yardstick for h in own for each in h.rounds[ROUNDS // 2 :] if each.yardstick]
        v = sum(each.design_variance for each in known)
        plain = sum(each.multinomial_variance for each in known)
        print(f"{name:12} {late.mean():.1%}     {late.min():.1%}   {v / plain:.2f}")
