"""One seed, one sequence of cohorts: FLARE draws as a plain loop with the same clients does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="the extra 'nvflare' is not installed")

from numpy.typing import NDArray
from nvflare.app_common.abstract.fl_model import FLModel

from fedcohort import Recipe, Selector
from fedcohort.designs import RECIPES
from fedcohort.nvflare import CohortController
from flare.in_process import Federation, lines

SIZES = {f"site-{k}": size for k, size in enumerate((5, 9, 2, 14, 1, 7, 3, 8, 0, 6, 4, 5))}
GROUPS = {name: k % 3 for k, name in enumerate(SIZES)}
ROUNDS, HALF = 12, 6


def update_of(name: str, round_: int) -> NDArray[np.float64]:
    """Multiples of 1/4: every sum of them is exact."""
    k = int(name.removeprefix("site-"))
    return (((np.arange(9) * (k % 3 + 1) + k + 5 * round_) % 17) - 8) / 4


def arrays_of(update: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Divide an update into weights and the output layer's bias."""
    return {"weight": update[:6], "bias": update[6:]}


def answer_of(name: str, task: str) -> float:
    """Answer what a client is asked before the draw."""
    k = int(name.removeprefix("site-"))
    return {"num_examples": SIZES[name], "duration": 1.0 + k % 4}.get(task, (k * 5 % 8 + 1) / 4)


def fails(name: str, round_: int) -> bool:
    return (int(name.removeprefix("site-")) + round_) % 5 == 0


def client(name: str) -> Any:
    def answer(task: str, model: FLModel) -> FLModel:
        if task != "train":
            return FLModel(metrics={task: answer_of(name, task)})
        round_ = model.current_round
        if fails(name, round_):
            raise RuntimeError("it fails")
        # A difference from the model: the update is exact whatever the model.
        loss = answer_of(name, "loss")
        params = arrays_of(update_of(name, round_))
        return FLModel(params=params, params_type="DIFF", metrics={"rms_loss": loss})

    return answer


def in_flare(recipe: Recipe, folder: Path, **settings: Any) -> list[dict[str, Any]]:
    """Play half of the rounds, and the rest after a restart."""
    for last in (HALF, ROUNDS):
        controller = CohortController(
            recipe=recipe,
            seed=5,
            groups=GROUPS,
            num_rounds=last,
            min_clients=len(SIZES),
            log_file="log",
            checkpoint="state",
            resume=True,
            **settings,
        )
        own = Federation({name: client(name) for name in reversed(SIZES)}, folder)
        own.run(controller, arrays_of(np.zeros(9)))
    return lines(folder / "log")


def by_hand(recipe: Recipe, **settings: Any) -> list[dict[str, Any]]:
    selector = Selector(recipe, SIZES, seed=5, groups=GROUPS, **settings)
    found = []
    for round_ in range(ROUNDS):
        request = selector.ask()
        signals: dict[str, Any] = {}
        if request is not None:
            asked = request.signal
            signals = {asked: {each: answer_of(str(each), asked) for each in request.ids}}
        cohort = selector.draw(signals=signals)
        while selector.redraw([each for each in selector.asked if fails(str(each), round_)]):
            pass
        ids = [each for each in selector.asked if not fails(str(each), round_)]
        settled = selector.settle(ids)
        drawn = dict(zip(cohort.ids, cohort.counts.tolist(), strict=True))
        weights = dict(zip(settled.ids, settled.weights.tolist(), strict=True))
        found.append({"drawn": drawn, "weights": weights})
        updates = {each: arrays_of(update_of(str(each), round_)) for each in ids}
        losses = {each: answer_of(str(each), "loss") for each in ids}
        selector.aggregate(updates, losses=losses, durations=dict.fromkeys(ids, 0.0))
    return found


CASES: list[tuple[Recipe, dict[str, Any]]] = [
    *((kind(4), dict[str, Any]()) for kind in RECIPES.values()),
    (RECIPES["size"](4), {"on_failure": "redraw"}),
    (RECIPES["similarity"](4), {"on_failure": "redraw"}),
    (RECIPES["tournament"](4), {"on_failure": "renormalise"}),
    (RECIPES["multinomial"](4), {"estimator": "difference"}),
]


@pytest.mark.parametrize(
    ("recipe", "settings"), CASES, ids=[f"{r.name}, {[*s.values()]}" for r, s in CASES]
)
def test_flare_draws_and_weighs_as_a_plain_loop(
    recipe: Recipe, settings: dict[str, Any], tmp_path: Path
) -> None:
    flare, hand = in_flare(recipe, tmp_path, **settings), by_hand(recipe, **settings)

    assert len(flare) == ROUNDS
    for line, expected in zip(flare, hand, strict=True):
        assert {key: line[key] for key in expected} == expected
    assert any(line["failed"] for line in flare)
