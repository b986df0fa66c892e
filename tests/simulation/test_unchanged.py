"""Designs that ask for nothing draw and train as they did before devices, signals and costs.

The numbers were printed by ``python tests/simulation/test_unchanged.py`` on the commit before; they
detect change, not error.
"""

import hashlib
import json
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort import Multinomial, Poisson, SimilarityClustered, SizeClustered, Uniform
from fedcohort.simulation import (
    LocalTraining,
    Run,
    load_dataset,
    mlp,
    one_class_shards,
)
from simulation.federations import made

#: Of all cohorts with their counts and weights, and the runs' last losses.
BEFORE: dict[str, tuple[str, list[float]]] = {
    "plain": (
        "de881aa811fe596d",
        [2.755323, 2.404396, 2.359397, 2.444393, 2.554046, 2.416994],
    ),
    "overlap and yardstick": (
        "4cf27f79c411e715",
        [2.620175, 2.404396, 2.359397, 2.444393, 2.554046, 2.416994],
    ),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "overlap and yardstick": {"overlap": True, "oracle_every": 2},
}


def played(options: dict[str, Any]) -> tuple[str, list[float]]:
    data = one_class_shards(
        load_dataset("digits"), seed=0, clients_per_class=3, train_size=30, test_size=8
    )
    recipes = [SimilarityClustered(4), Multinomial(4), Uniform(4), Poisson(4), SizeClustered(4)]
    runs = [Run(recipe, data, 5) for recipe in recipes]
    runs.append(Run(Multinomial(4), data, 5, estimator="difference"))
    training = LocalTraining(steps=3, batch_size=6, lr=0.1)
    simulation = made(*runs, model=lambda: mlp(64, 8), training=training, **options)
    simulation.run(4)
    rows = [row for history in simulation.histories for row in history.as_dicts(times=False)]
    cohorts = json.dumps([[row["clients"], row["counts"], row["weights"]] for row in rows])
    losses = [history.measured[-1].quality for history in simulation.histories]
    digest = hashlib.sha256(cohorts.encode()).hexdigest()[:16]
    return digest, [round(quality.loss, 6) for quality in losses if quality is not None]


@pytest.mark.parametrize("name", list(BEFORE))
def test_runs_are_as_they_were(name: str) -> None:
    """Cohorts exactly; losses up to another machine's order of float32 sums in 12 steps."""
    digest, losses = played(OPTIONS[name])

    assert digest == BEFORE[name][0]
    assert losses == pytest.approx(BEFORE[name][1], rel=1e-4)


if __name__ == "__main__":
    print({name: played(options) for name, options in OPTIONS.items()})  # noqa: T201
