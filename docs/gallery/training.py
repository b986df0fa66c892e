"""What does it do to training? Test accuracy, with the mean and the range of three seeds."""

import matplotlib.pyplot as plt
import numpy as np

import fedcohort.simulation as sim
from fedcohort import CohortMean, Multinomial, SimilarityClustered

digits = sim.load_dataset("digits")
data = sim.one_class_shards(digits, seed=0, clients_per_class=10, train_size=13, test_size=3)
ways = {
    "FedAvg of most frameworks": (CohortMean(10), "plain"),
    "similarity": (SimilarityClustered(10), "plain"),
    "difference estimator": (Multinomial(10), "difference"),
}
simulation = sim.Simulation(
    [sim.Run(recipe, data, seed=s, estimator=e) for recipe, e in ways.values() for s in range(3)],
    lambda: sim.mlp(64),
    sim.LocalTraining(steps=10, batch_size=10, lr=0.1),
    sim.Options(device="cpu"),
)
accuracy = [[each.quality.accuracy for each in h.rounds] for h in simulation.run(rounds=80)]
rounds = np.arange(1, 81)
for name, own in zip(ways, np.array(accuracy).reshape(3, 3, 80), strict=True):
    (line,) = plt.plot(rounds, own.mean(axis=0), label=name)
    plt.fill_between(rounds, own.min(axis=0), own.max(axis=0), alpha=0.2, color=line.get_color())
plt.xlabel("round")
plt.ylabel("test accuracy")
plt.legend()
plt.savefig("training.png")
