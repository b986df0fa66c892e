"""Who trains? The digits that take part in each round, if every client has one digit."""

import matplotlib.pyplot as plt
import numpy as np

import fedcohort.simulation as sim
from fedcohort import Multinomial, SimilarityClustered

digits = sim.load_dataset("digits")
data = sim.one_class_shards(digits, seed=0, clients_per_class=10, train_size=13, test_size=3)
recipes = [Multinomial(10), SimilarityClustered(10)]
simulation = sim.Simulation(
    [sim.Run(recipe, data) for recipe in recipes],
    lambda: sim.mlp(64),
    sim.LocalTraining(steps=10, batch_size=10, lr=0.1),
    sim.Options(device="cpu"),
)
figure, rows = plt.subplots(2, sharex=True)
for axes, recipe, history in zip(rows, recipes, simulation.run(rounds=60), strict=True):
    weights = np.zeros((10, 60))
    for each in history.rounds:
        np.add.at(weights[:, each.round_], np.array(each.clients) // 10, each.weights)
    axes.imshow(weights, cmap="Greens", vmax=0.3, aspect="auto", interpolation="none")
    title = f"{recipe.name}; white: no client of this digit"
    axes.set(title=title, ylabel="digit", yticks=[0, 3, 6, 9])
rows[1].set_xlabel("round")
figure.savefig("digits-drawn.png")
