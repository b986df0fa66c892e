"""The time of a round on Fed-BioMed: CohortStrategy beside Fed-BioMed's own DefaultStrategy.

Run ``build/fedbiomed/bin/python benchmarks/fedbiomed_rounds.py [--rounds 30]``, where
``make test-frameworks`` has made the environment: two minutes. Three real nodes on this machine,
all of them in every round, a linear model on small tables; the experiments take turns, a
round each, in every order, so that all see the same machine. Bar: 1.2.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "fedbiomed-tabular"))

from local_nodes import LocalNodes, wait_for

from measurement import machine

ROWS = {"Nice": 200, "Lyon": 120, "Brest": 80}


def experiments(nodes: LocalNodes) -> dict[str, Any]:
    """Return an experiment for each strategy, both of which ask everyone."""
    from fedbiomed.common.logger import logger
    from fedbiomed.researcher.federated_workflows import Experiment
    from fedbiomed.researcher.strategies import DefaultStrategy
    from training_plan import LinearPlan

    from fedcohort.designs import RECIPES
    from fedcohort.fedbiomed import CohortStrategy

    logger.setLevel("ERROR")
    own = {
        "DefaultStrategy": DefaultStrategy(),
        "CohortStrategy": CohortStrategy(RECIPES["uniform"](len(ROWS)), seed=0),
        "CohortStrategy, ping=None": CohortStrategy(
            RECIPES["uniform"](len(ROWS)), seed=0, ping=None
        ),
    }
    found = {}
    for name, strategy in own.items():
        experiment = found[name] = Experiment(
            tags=["patients"],
            training_plan_class=LinearPlan,
            model_args={"n_features": 2, "n_classes": 2},
            training_args={"epochs": 1, "loader_args": {"batch_size": 16}},
            node_selection_strategy=strategy,
        )
        wait_for(experiment, nodes)
        experiment.set_training_data(None, from_tags=True)
        if isinstance(strategy, CohortStrategy):
            strategy.attach(experiment)
    return found


def seconds_of(found: Mapping[str, Any], rounds: int) -> dict[str, list[float]]:
    """Return how long each experiment's rounds took, but the first."""
    seconds: dict[str, list[float]] = {name: [] for name in found}
    order = list(found)
    for _ in range(rounds + 1):
        order = order[1:] + order[:1]
        for name in order:
            start = time.perf_counter()
            found[name].run_once(increase=True)
            seconds[name].append(time.perf_counter() - start)
    return {name: each[1:] for name, each in seconds.items()}


def main() -> None:
    """Print the medians and their ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, LocalNodes(Path(folder), ROWS) as nodes:
        seconds = seconds_of(experiments(nodes), options.rounds)
    print(machine())
    for name, own in seconds.items():
        low, middle, high = np.percentile(own, [10, 50, 90])
        ratio = np.mean(own) / np.mean(seconds["DefaultStrategy"])
        print(
            f"{name}: {middle:.3f} s a round ({low:.3f} to {high:.3f}), {len(own)} rounds; "
            f"mean over DefaultStrategy's: {ratio:.2f}"
        )


if __name__ == "__main__":
    main()
