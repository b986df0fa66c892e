"""The slow twins of the difference estimator's memories."""

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


def plainly_kept(update: np.ndarray, keep: str) -> np.ndarray:
    """Return one update as it is remembered: number by number."""
    size = [abs(float(x)) for x in update]
    if keep == "int8":
        scale = max(size) / 127
        return np.array([round(float(x) / scale) * scale if scale else 0.0 for x in update])
    shorter = update.astype(np.float32) if keep == "float16" else update
    return shorter.astype(keep).astype(np.float64)


class PlainRows:
    """Every client's last update as it is kept, and the clients in the order of silence."""

    def __init__(self, n: int, size: int, keep: str, most: int | None = None) -> None:
        self.kept, self.keep, self.most = np.zeros((n, size)), keep, most
        self.silence: list[int] = []

    def record(self, clients: np.ndarray, updates: np.ndarray) -> None:
        for client, update in zip(clients.tolist(), updates, strict=True):
            self.kept[client] = plainly_kept(update, self.keep)
            if client in self.silence:
                self.silence.remove(client)
            self.silence.append(client)
        while self.most is not None and len(self.silence) > self.most:
            self.kept[self.silence.pop(0)] = 0

    def h(self) -> np.ndarray:
        return self.kept.copy()


class PlainLowRank:
    """The last updates in a basis: the stack is written out, and its singular vectors taken."""

    def __init__(self, n: int, size: int, rank: int) -> None:
        self.z, self.basis = np.zeros((n, 0)), np.zeros((0, size))
        self.strength, self.rank = np.zeros(0), rank

    def record(self, clients: np.ndarray, updates: np.ndarray) -> None:
        stack = np.concatenate([0.98 * self.strength[:, None] * self.basis, updates])
        _, strength, rows = np.linalg.svd(stack, full_matrices=False)
        n = min(self.rank, int((strength > 1e-6 * strength[0]).sum()))
        basis = rows[:n]
        self.z = self.z @ (self.basis @ basis.T)
        self.z[clients] = updates @ basis.T
        self.basis, self.strength = basis, strength[:n]

    def h(self) -> np.ndarray:
        return self.z @ self.basis
