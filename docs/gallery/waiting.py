"""What does a round cost? Loss against simulated time, for clients with fast and slow phones."""

import matplotlib.pyplot as plt
import numpy as np

import fedcohort.simulation as sim
from fedcohort import FirstResponders, SimilarityClustered, SizeClustered

digits = sim.load_dataset("digits")
data = sim.one_class_shards(digits, seed=0, clients_per_class=10, train_size=13, test_size=3)
phones = sim.Devices.generated(100, 0, speed=500, speed_spread=1.0)
recipes = [SizeClustered(10), SimilarityClustered(10), FirstResponders(10)]
simulation = sim.Simulation(
    [sim.Run(recipe, data, devices=phones) for recipe in recipes],
    lambda: sim.mlp(64),
    sim.LocalTraining(steps=10, batch_size=10, lr=0.1),
    sim.Options(device="cpu"),
)
for recipe, history in zip(recipes, simulation.run(rounds=60), strict=True):
    minutes = np.cumsum([each.cost.simulated_seconds for each in history.rounds]) / 60
    plt.plot(minutes, [each.quality.loss for each in history.rounds], label=recipe.name)
plt.xscale("log")
plt.xlabel("simulated minutes")
plt.ylabel("training loss")
plt.legend()
plt.savefig("waiting.png")
