"""Synthetic sizes and updates with a known structure, for tests and benchmarks."""

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import MOST as _MOST
from fedcohort._arguments import checked_number, checked_whole, suggest_names
from fedcohort.streams import Stream, checked_seed, stream

#: (clients, samples each) of the unbalanced federation of Fraboni et al. (2021), figure 2.
UNBALANCED = ((10, 100), (30, 250), (30, 500), (20, 750), (10, 1000))


def unbalanced_sizes(n_clients: int, *, seed: int) -> NDArray[np.int64]:
    """Return the sizes of figure 2, repeated as often as needed, in random order.

    Examples
    --------
    >>> unbalanced_sizes(100, seed=0).sum()
    np.int64(48500)
    """
    n_clients = _whole("unbalanced_sizes", "n_clients", n_clients)
    sizes = np.repeat([size for _, size in UNBALANCED], [clients for clients, _ in UNBALANCED])
    rng = stream(checked_seed("unbalanced_sizes", seed), use=Stream.SYNTHETIC)
    return rng.permutation(np.resize(sizes, n_clients))


def clustered_updates(
    n_clients: int,
    *,
    seed: int,
    dimension: int = 64,
    n_clusters: int = 10,
    noise: float = 0.5,
) -> NDArray[np.float32]:
    """Return one update per client: a random cluster's unit centre plus noise of length ``noise``.

    Examples
    --------
    >>> clustered_updates(3, seed=0).shape
    (3, 64)
    """
    owner = "clustered_updates"
    n_clients = _whole(owner, "n_clients", n_clients)
    n_clusters = _whole(owner, "n_clusters", n_clusters)
    rng = stream(checked_seed(owner, seed), use=Stream.SYNTHETIC, client=0)
    centres = _unit_centres(n_clusters, _whole(owner, "dimension", dimension), rng)
    noise = checked_number(owner, "noise", noise, least=0, most=1e30)
    return _noisy(centres[rng.integers(n_clusters, size=n_clients)], noise, rng)


def dirichlet_updates(
    n_clients: int,
    *,
    alpha: float,
    seed: int,
    dimension: int = 64,
    n_classes: int = 10,
    noise: float = 0.5,
) -> NDArray[np.float32]:
    """Return updates that mix random class vectors by shares from Dir(alpha).

    Examples
    --------
    >>> dirichlet_updates(3, alpha=0.1, seed=0).shape
    (3, 64)
    """
    owner = "dirichlet_updates"
    n_clients = _whole(owner, "n_clients", n_clients)
    n_classes = _whole(owner, "n_classes", n_classes)
    alpha = checked_number(owner, "alpha", alpha, least=1e-9)
    noise = checked_number(owner, "noise", noise, least=0, most=1e30)
    rng = stream(checked_seed(owner, seed), use=Stream.SYNTHETIC, client=1)
    centres = _unit_centres(n_classes, _whole(owner, "dimension", dimension), rng)
    shares = rng.dirichlet(np.full(n_classes, alpha), size=n_clients).astype(np.float32)
    return _noisy(shares @ centres, noise, rng)


def _whole(owner: str, name: str, value: object) -> int:
    return checked_whole(owner, name, value, least=1, most=_MOST)


def _unit_centres(number: int, dimension: int, rng: np.random.Generator) -> NDArray[np.float32]:
    centres = rng.standard_normal((number, dimension), dtype=np.float32)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    return centres


def _noisy(
    points: NDArray[np.float32], noise: float, rng: np.random.Generator
) -> NDArray[np.float32]:
    length = np.float32(noise / np.sqrt(points.shape[1]))
    return points + length * rng.standard_normal(points.shape, dtype=np.float32)


suggest_names(__name__, ("clustered_updates", "dirichlet_updates", "unbalanced_sizes"))
