"""Who is alike? The tree over the clients' updates that clustered sampling cuts."""

import matplotlib.pyplot as plt
import numpy as np
from scipy.cluster.hierarchy import dendrogram, linkage

from fedcohort.similarity import arccos

rng = np.random.default_rng(0)
kinds = rng.integers(4, size=40)  # what the server does not know
directions = rng.standard_normal((4, 200))
updates = directions[kinds] + rng.standard_normal((40, 200))  # or those that you received
dendrogram(linkage(arccos(updates), "ward"), labels=kinds, color_threshold=1.5)
plt.title("40 clients of 4 kinds; the tree was not told the kinds")
plt.ylabel("distance of the updates")
plt.xlabel("client, by its kind")
plt.savefig("alike.png")
