"""The slow twins of the difference estimator's memories."""

import math

import numpy as np


class PlainUpdates:
    """Every client's last update."""

    def __init__(self, n: int, size: int) -> None:
        self.kept = np.zeros((n, size))

    def record(self, clients: np.ndarray, updates: np.ndarray) -> None:
        for client, update in zip(clients, updates, strict=True):
            self.kept[client] = update

    def h(self) -> np.ndarray:
        return self.kept.copy()


class PlainClusters:
    """Means of K clusters: client by client, one number after the other."""

    def __init__(self, n: int, size: int, clusters: int) -> None:
        self.size, self.most = size, clusters
        self.means: list[np.ndarray] = []
        self.of: list[int | None] = [None] * n

    def record(self, clients: np.ndarray, updates: np.ndarray) -> None:
        chosen: dict[int, list[np.ndarray]] = {}
        opening = [k for k, client in enumerate(clients) if self.of[client] is None][
            : self.most - len(self.means)
        ]
        for k in opening:
            self.of[clients[k]] = len(self.means)
            self.means.append(updates[k])
        for k, client in enumerate(clients):
            if k not in opening:
                distances = [math.dist(updates[k], mean) for mean in self.means]
                self.of[client] = distances.index(min(distances))
            chosen.setdefault(self.of[client] or 0, []).append(updates[k])
        for cluster, members in chosen.items():
            self.means[cluster] = np.array(
                [math.fsum(column) / len(members) for column in zip(*members, strict=True)]
            )

    def h(self) -> np.ndarray:
        zero = np.zeros(self.size)
        return np.array([zero if c is None else self.means[c] for c in self.of])
