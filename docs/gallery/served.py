"""Who is served worst? The accuracy of every client after training, lowest first."""

import matplotlib.pyplot as plt
import numpy as np

import fedcohort.simulation as sim
from fedcohort import Multinomial, Stratified

digits = sim.load_dataset("digits")
data = sim.one_class_shards(digits, seed=0, clients_per_class=10, train_size=13, test_size=3)
simulation = sim.Simulation(
    [sim.Run(recipe, data) for recipe in (Multinomial(10), Stratified(10))],
    lambda: sim.mlp(64),
    sim.LocalTraining(steps=10, batch_size=10, lr=0.1),
    sim.Options(device="cpu"),
)
simulation.run(rounds=80)
for name, quality in zip(("multinomial", "stratified"), simulation.client_quality(), strict=True):
    plt.plot(np.sort(quality.accuracy), label=name)
plt.xlabel("client, the worst served first")
plt.ylabel("accuracy on its own samples")
plt.legend()
plt.savefig("served.png")
