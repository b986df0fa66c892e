"""How long a round's selection takes in a Flower server, beside Flower's own.

Run ``python benchmarks/flower_selection.py [--json]``: seconds. Nodes are in this process and are
only drawn; similarity knows an update of every client, sketched to 64 numbers. Flower's own is
``FedAvg.configure_train`` with the same number of nodes.

Bars: 50 ms at 1,000 nodes for designs that need sizes, 1 s for similarity, 1 s at 100,000 nodes.
"""

import argparse
import json
import logging
import sys
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Strategy

from fedcohort import Multinomial, Poisson, Recipe, SimilarityClustered, SizeClustered
from fedcohort.flower import CohortStrategy
from fedcohort.memory import UpdateMemory
from measurement import machine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from flower.in_process import InProcessGrid, play_the_server

ROUNDS = 5
#: Numbers of the model.
DIMENSION = 10_000


def selection_ms(strategy: Strategy, n_nodes: int) -> float:
    """Return the median time of a round's selection after the first, in milliseconds."""
    grid = InProcessGrid(ClientApp(), {node: node for node in range(1, n_nodes + 1)})
    arrays, times = ArrayRecord([np.zeros(DIMENSION, dtype=np.float32)]), []
    for round_ in range(1, ROUNDS + 2):
        start = time.perf_counter()
        list(strategy.configure_train(round_, arrays, ConfigRecord(), grid))
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times[1:]))


def ours(recipe: Recipe, n_nodes: int) -> float:
    """Measure a recipe over clients of random sizes."""
    rng = np.random.default_rng(0)
    sizes: dict[str | int, int] = {
        k + 1: int(n) for k, n in enumerate(rng.integers(10, 1000, n_nodes))
    }
    strategy = CohortStrategy(FedAvg(), recipe, seed=0, sizes=sizes, sketch=64)
    if recipe.learns:
        strategy.selector.clients = {str(key): size for key, size in sizes.items()}
        memory = UpdateMemory(n_nodes, DIMENSION, sketch=64)
        memory.record(range(n_nodes), rng.normal(size=(n_nodes, DIMENSION)), round_=0)
        strategy.selector.memory = memory
    return selection_ms(strategy, n_nodes)


def main() -> None:
    """Print a line per design and number of nodes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    logging.disable(logging.CRITICAL)
    play_the_server()
    found: dict[str, float] = {}
    for n_nodes, m in ((1_000, 10), (100_000, 100)):
        recipes: list[Recipe] = [Multinomial(m), Poisson(m), SizeClustered(m)]
        if n_nodes == 1_000:
            recipes.append(SimilarityClustered(m))
        for recipe in recipes:
            found[f"{recipe.name}, {n_nodes} nodes"] = ours(recipe, n_nodes)
        inner = FedAvg(fraction_train=m / n_nodes)
        found[f"FedAvg's own, {n_nodes} nodes"] = selection_ms(inner, n_nodes)
    if as_json:
        print(json.dumps({"machine": machine(), "selection_ms": found}, indent=2))
        return
    print(machine())
    for name, value in found.items():
        print(f"{name:28s} {value:8.1f} ms")


if __name__ == "__main__":
    main()
