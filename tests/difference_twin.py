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
        for client, update in zip(clients, updates, strict=True):
            if self.of[client] is None and len(self.means) < self.most:
                self.of[client] = len(self.means)
                self.means.append(update)
            else:
                self.of[client] = self.place_of(update)
        for cluster in {self.of[client] for client in clients}:
            members = [u for c, u in zip(clients, updates, strict=True) if self.of[c] == cluster]
            self.means[cluster or 0] = np.array(
                [math.fsum(column) / len(members) for column in zip(*members, strict=True)]
            )

    def place_of(self, update: np.ndarray) -> int:
        distances = [math.dist(update, mean) for mean in self.means]
        nearest = distances.index(min(distances))
        pairs = {
            (a, b): math.dist(self.means[a], self.means[b])
            for a in range(len(self.means))
            for b in range(a + 1, len(self.means))
        }
        if not pairs or distances[nearest] <= min(pairs.values()):
            return nearest
        kept, freed = min(pairs, key=lambda pair: pairs[pair])
        self.means[kept] = (self.means[kept] + self.means[freed]) / 2
        self.of = [kept if cluster == freed else cluster for cluster in self.of]
        self.means[freed] = update
        return freed

    def h(self) -> np.ndarray:
        zero = np.zeros(self.size)
        return np.array([zero if c is None else self.means[c] for c in self.of])
