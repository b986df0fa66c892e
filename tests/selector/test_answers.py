"""Answers are read once: how often updates are scanned and copied, and who keeps them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from fedcohort import Difference, Multinomial, Recipe, Selector, SimilarityClustered, Tournament
from fedcohort import _updates as update_checks
from fedcohort.similarity import measures

CLIENTS, DRAWS, DIMENSION, SKETCH = 12, 4, 50, 10
SIMILARITY = SimilarityClustered(DRAWS)


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many numbers each scan for finite ones reads."""
    sizes: list[int] = []

    def noting(function: Any, callers: tuple[str, ...] = ()) -> Any:
        def call(array: Any) -> Any:
            if not callers or sys._getframe(1).f_code.co_name in callers:
                sizes.append(int(np.size(array)))
            return function(array)

        return call

    # Measures also scale by the largest entry: only their check looks for finite numbers.
    of_checks = noting(update_checks.largest_entries, callers=("checked_updates",))
    monkeypatch.setattr(measures, "largest_entries", of_checks)
    monkeypatch.setattr(update_checks, "largest_entries", noting(update_checks.largest_entries))
    monkeypatch.setattr(np, "isfinite", noting(np.isfinite))
    return sizes


def rows_for(selector: Selector, n: int) -> np.ndarray:
    rows = np.random.default_rng(selector.round_).normal(size=(n, DIMENSION))
    return rows.astype(np.float32)


def play(selector: Selector) -> None:
    cohort = selector.draw()
    selector.aggregate(rows_for(selector, len(cohort)))


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        (Multinomial(DRAWS), {}),
        (Multinomial(DRAWS), {"estimator": "difference"}),
        (Multinomial(DRAWS), {"estimator": Difference(keep="int8")}),
        (SIMILARITY, {}),
        (SIMILARITY, {"estimator": "difference"}),
        (SIMILARITY, {"estimator": "difference", "overlap": True}),
        (SIMILARITY, {"estimator": "difference", "rebuild_every": 2}),
    ],
    ids=str,
)
def test_an_answer_is_scanned_once_and_so_is_the_step(
    recipe: Recipe, options: dict[str, Any], scanned: list[int]
) -> None:
    selector = Selector(recipe, [5] * CLIENTS, seed=0, **options)
    for _ in range(3):
        play(selector)
    cohort = selector.draw()
    scanned.clear()

    selector.aggregate(rows_for(selector, len(cohort)))

    assert sum(size for size in scanned if size >= DIMENSION) == (len(cohort) + 1) * DIMENSION


def test_a_sketch_is_scanned_too_since_its_sums_can_overflow(scanned: list[int]) -> None:
    selector = Selector(SIMILARITY, [5] * CLIENTS, seed=0, sketch=SKETCH, estimator="difference")
    for _ in range(3):
        play(selector)
    cohort = selector.draw()
    scanned.clear()

    selector.aggregate(rows_for(selector, len(cohort)))

    n = len(cohort)
    assert sum(size for size in scanned if size >= SKETCH) == (n + 1) * DIMENSION + n * SKETCH


def test_a_design_scans_what_is_remembered_once(scanned: list[int]) -> None:
    """Together with its answer, an update of a similarity round is scanned twice."""
    selector = Selector(SIMILARITY, [5] * CLIENTS, seed=0, estimator="difference")
    for _ in range(3):
        play(selector)
    scanned.clear()

    selector.draw()

    assert scanned.count(CLIENTS * DIMENSION) == 1
    assert max(size for size in scanned if size != CLIENTS * DIMENSION) <= CLIENTS**2


@pytest.mark.parametrize("options", [{"overlap": True}, {"rebuild_every": 2}], ids=str)
def test_the_memory_keeps_what_a_client_sent_if_the_caller_reuses_its_array(
    options: dict[str, Any],
) -> None:
    selector = Selector(Tournament(DRAWS), [5] * CLIENTS, seed=0, **options)
    cohort = selector.draw()
    buffer = rows_for(selector, len(cohort))
    sent = buffer.copy()
    selector.aggregate(buffer)
    buffer[:] = -1.0
    selector.draw()
    selector.skip()
    selector.draw()

    assert selector.memory is not None
    assert (selector.memory.updates[cohort.clients] == sent).all()
