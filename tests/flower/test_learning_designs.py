"""Designs that learn from updates, beyond the paper's, in a federation."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.serverapp.strategy import FedAvg

from fedcohort import Auto, Population, Recipe, Tournament
from fedcohort.flower import CohortStrategy
from fedcohort.memory import CountSketch, UpdateMemory
from fedcohort.streams import Stream, stream
from flower.differences import THETA, Federation, update_in
from flower.federation import DIMENSION, SIZES, flat, model

#: Half an ulp in [0.25, 1): what an update is rounded by when it is added to THETA.
ROUNDING = 2**-25


@pytest.mark.parametrize("estimator", ["plain", "difference"])
@pytest.mark.parametrize("sketch", [None, 4])
@pytest.mark.parametrize("recipe", [Tournament(4), Auto(4)], ids=repr)
def test_who_is_drawn_trains_and_is_learned_from(
    recipe: Recipe, sketch: int | None, estimator: str
) -> None:
    """The design of every round is the library's, on the last updates of those that trained."""
    strategy = CohortStrategy(FedAvg(), recipe, seed=0, sketch=sketch, estimator=estimator)  # type: ignore[arg-type]
    federation, population = Federation(), Population(SIZES)
    known = np.zeros((len(SIZES), sketch or DIMENSION), dtype=np.float32)
    shorten = CountSketch(DIMENSION, sketch, seed=0) if sketch else None
    memory = UpdateMemory(len(SIZES), DIMENSION, sketch=sketch)
    cohorts = []
    for number in range(8):
        federation.grid.asked.clear()
        now, moved = federation.play(strategy, number, model(THETA))

        ties = stream(0, round_=number, use=Stream.TIES)
        design = recipe.build(population, memory=memory, round_=number, rng=ties)
        cohort = design.draw(stream(0, round_=number, use=Stream.COHORT))
        drawn = dict(zip(cohort.clients.tolist(), cohort.counts.tolist(), strict=True))
        asked = [each for kind, each in federation.grid.asked if kind == "train"]
        assert {int(key): count for key, count in now.counts.items()} == drawn
        assert sorted(federation.grid.partitions[each] for each in asked) == sorted(drawn)
        assert moved is not None
        assert (flat(moved) != THETA).any()
        for client in drawn:
            sent = np.float32(THETA) + update_in(number, client) - np.float32(THETA)
            known[client] = sent if shorten is None else shorten(sent[None])[0]
            memory.record([client], [sent], round_=number)
        cohorts.append(drawn)

    assert strategy.selector.memory is not None
    assert strategy.selector.memory.updates == pytest.approx(known, abs=DIMENSION * ROUNDING)
    assert len({tuple(sorted(each)) for each in cohorts}) > 1
