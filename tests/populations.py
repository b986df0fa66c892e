"""Populations that tests share."""

import numpy as np
from hypothesis import strategies as st

from fedcohort import Plan, Population

#: The paper's unbalanced federation: 100 clients.
CIFAR_SIZES = [100] * 10 + [250] * 30 + [500] * 30 + [750] * 20 + [1000] * 10


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def same(plan: Plan, other: Plan) -> bool:
    return bool((plan.units.toarray() == other.units.toarray()).all())


def populations(max_clients: int = 4) -> st.SearchStrategy[Population]:
    """Few clients, for enumeration: equal ones, empty ones, and nine orders of magnitude apart."""
    small = st.integers(0, 9)
    size = st.one_of(small, small, st.sampled_from([1, 10**9]))
    lists = st.lists(size, min_size=1, max_size=max_clients).filter(any)
    return lists.map(Population)


def larger_populations() -> st.SearchStrategy[Population]:
    """Up to 40 clients whose sizes may lie nine orders of magnitude apart."""
    size = st.one_of(st.integers(0, 20), st.integers(0, 10**9))
    return st.lists(size, min_size=1, max_size=40).filter(any).map(Population)


def cohort_sizes(max_size: int = 3) -> st.SearchStrategy[int]:
    return st.integers(1, max_size)


def random_merges(n: int, generator: np.random.Generator) -> np.ndarray:
    """Join n leaves two nodes at a time, any two alike; shape (n - 1, 2), children first."""
    nodes, merges = list(range(n)), []
    for new in range(n, 2 * n - 1):
        left, right = generator.choice(len(nodes), size=2, replace=False)
        merges.append((nodes[left], nodes[right]))
        nodes = [node for i, node in enumerate(nodes) if i not in (left, right)] + [new]
    return np.array(merges, dtype=int).reshape(-1, 2)
