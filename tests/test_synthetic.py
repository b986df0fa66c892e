"""Generated federations, and the numbers that were published for them beforehand."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import norm

from fedcohort import Population
from fedcohort.designs import (
    MultinomialDesign,
    SimilarityClusteredDesign,
    SizeClusteredDesign,
    TournamentDesign,
)
from fedcohort.synthetic import (
    UNBALANCED,
    clustered_updates,
    dirichlet_updates,
    unbalanced_sizes,
)
from populations import CIFAR_SIZES, rng


def updates_of(kind: str, n_clients: int, seed: int) -> np.ndarray:
    if kind == "clusters":
        return clustered_updates(n_clients, seed=seed)
    return dirichlet_updates(n_clients, alpha=float(kind.removeprefix("Dir ")), seed=seed)


KINDS = ["clusters", "Dir 0.1", "Dir 10"]


def test_a_hundred_sizes_are_the_papers_in_random_order() -> None:
    sizes = unbalanced_sizes(100, seed=0)

    assert sorted(sizes.tolist()) == CIFAR_SIZES
    assert sizes.tolist() != CIFAR_SIZES


@pytest.mark.parametrize("n_clients", [1, 37, 1000])
def test_more_sizes_repeat_the_papers(n_clients: int) -> None:
    sizes = unbalanced_sizes(n_clients, seed=1)

    assert sizes.shape == (n_clients,)
    assert Counter(sizes.tolist()) == Counter((CIFAR_SIZES * 10)[:n_clients])
    assert sum(clients for clients, _ in UNBALANCED) == 100


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_federation_again_and_another_seed_another(kind: str) -> None:
    updates = updates_of(kind, 30, 5)

    assert updates.dtype == np.float32
    assert updates.shape == (30, 64)
    assert (updates == updates_of(kind, 30, 5)).all()
    assert (updates != updates_of(kind, 30, 6)).any(axis=1).all()
    assert (unbalanced_sizes(100, seed=5) == unbalanced_sizes(100, seed=5)).all()
    assert (unbalanced_sizes(100, seed=5) != unbalanced_sizes(100, seed=6)).any()


@pytest.mark.parametrize("dimension", [8, 64])
def test_noise_has_the_length_that_is_asked_for(dimension: int) -> None:
    """Sum of n d squares of mean noise^2 / d: relative deviation sqrt(2 / (n d)), 6 of them."""
    n = 4000
    quiet, loud = (
        clustered_updates(n, seed=2, dimension=dimension, noise=noise) for noise in (0.0, 0.5)
    )

    squared = float(((loud - quiet).astype(np.float64) ** 2).sum() / n)

    assert squared == pytest.approx(0.25, rel=6 * np.sqrt(2 / (n * dimension)))
    np.testing.assert_allclose(np.linalg.norm(quiet, axis=1), 1.0, rtol=dimension * 2.0**-24)


def test_clusters_are_as_many_as_asked_for() -> None:
    quiet = clustered_updates(500, seed=2, n_clusters=7, noise=0.0)

    kinds = Counter(map(bytes, quiet))
    assert len(kinds) == 7
    # 500 clients in 7 clusters at random: 71 each, deviation 8; six of them.
    assert max(abs(number - 500 / 7) for number in kinds.values()) <= 6 * np.sqrt(500 * 6 / 49)


def test_small_alpha_gives_one_class_and_large_alpha_all() -> None:
    """Without noise: a class vector, of length 1, or the mean of ten that hardly agree."""
    one, all_ = (
        np.linalg.norm(dirichlet_updates(500, alpha=alpha, seed=2, noise=0.0), axis=1)
        for alpha in (0.001, 1000.0)
    )

    assert np.median(one) == pytest.approx(1.0, abs=1e-3)
    assert all_.max() < 0.6
    assert np.linalg.matrix_rank(dirichlet_updates(500, alpha=1.0, seed=2, noise=0.0), 1e-3) == 10


#: V / V_MD of Algorithm 1, Algorithm 2 and the tournament, n = 100, m = 10, means of 20 seeds of
#: another generator by the same description; and the deviation of one seed, from 300 seeds.
PUBLISHED = {
    "clusters": ((0.887, 0.457, 0.320), (0.015, 0.048, 0.020)),
    "Dir 0.1": ((0.892, 0.573, 0.499), (0.013, 0.037, 0.023)),
    "Dir 10": ((0.886, 0.816, 0.792), (0.006, 0.008, 0.005)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_published_variances_come_out_again(kind: str) -> None:
    """Two means of 20 seeds each; false alarms .001 over all nine, Bonferroni.

    The bound lies at 3.9 deviations. Noise of .4 or .6 instead of .5 moves the tournament's mean
    on Dir 0.1 by .055, that is 7.6.
    """
    published, deviation = PUBLISHED[kind]
    ratios = []
    for seed in range(20):
        population = Population(unbalanced_sizes(100, seed=seed))
        updates = updates_of(kind, 100, seed)
        designs = (
            SizeClusteredDesign(population, 10, rng=rng(seed)),
            SimilarityClusteredDesign(population, 10, updates, rng=rng(seed)),
            TournamentDesign(population, 10, updates, rng=rng(seed)),
        )
        multinomial = MultinomialDesign(population, 10).aggregate_variance(updates)
        ratios.append([design.aggregate_variance(updates) / multinomial for design in designs])

    off = np.abs(np.mean(ratios, axis=0) - published)

    bound = norm.isf(0.001 / 2 / 9) * np.sqrt(2 / 20)
    assert (off <= bound * np.array(deviation)).all()
    assert (np.array(ratios)[:, 2] < np.array(ratios)[:, 1]).all()
