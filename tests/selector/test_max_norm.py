"""``max_norm``: larger updates are scaled down to it once, and everything after sees the scaled."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from fedcohort import (
    Cohort,
    Design,
    Multinomial,
    Population,
    Recipe,
    Selector,
    SimilarityClustered,
)
from fedcohort.designs import Knowledge, MultinomialDesign, ObservedRound
from fedcohort.errors import SelectorError
from fedcohort.selector.max_norm import MULTIPLE, WINDOW
from laws import law

#: Powers of two everywhere: factors, weights and sums are exact.
SIZES = [1, 1, 2, 4]
BOUND = 4.0
ROWS = np.array([[2.0, 0.0], [0.0, -8.0], [1.0, 0.0], [0.0, 16.0]])
SEEN = np.array([3, 10, 5, 12])
FACTORS = np.array([1.0, 0.5, 1.0, 0.25])
SCALED = FACTORS[:, None] * ROWS

torch_too = pytest.param(
    "torch", marks=pytest.mark.skipif(find_spec("torch") is None, reason="torch is missing")
)
KINDS = pytest.mark.parametrize("kind", ["numpy", torch_too])
FORMS = pytest.mark.parametrize("form", ["flat", "named"])


def made_by(kind: str) -> Callable[[Any], Any]:
    if kind == "numpy":
        return np.asarray
    import torch

    return torch.as_tensor


def update(client: int, form: str, kind: str) -> Any:
    make = made_by(kind)
    if form == "flat":
        return make(ROWS[client].copy())
    return {"seen": make(SEEN[client]), "w": make(ROWS[client, :1]), "b": make(ROWS[client, 1:])}


def flat(step: Any) -> NDArray[np.float64]:
    """Return the floats of a step, in the order of ``ROWS``."""
    parts = [step["w"], step["b"]] if isinstance(step, Mapping) else [step]
    return np.concatenate([np.asarray(part, dtype=np.float64).reshape(-1) for part in parts])


def play(selector: Selector, rows: NDArray[Any] = ROWS) -> Cohort:
    cohort = selector.draw()
    selector.aggregate(rows[cohort.clients])
    return cohort


def norms_of(selector: Selector, rounds: list[list[float]]) -> None:
    """Play rounds of all clients with updates of these norms."""
    for norms in rounds:
        selector.draw()
        selector.aggregate({each: np.array([norms[int(each)], 0.0]) for each in selector.asked})


@dataclass(frozen=True)
class Everyone(Recipe):
    """Draws every client once, and notes the norms that it observes."""

    name: ClassVar[str] = "everyone"
    keeps: ClassVar[tuple[str, ...]] = ("norm",)

    cohort_size: int = 4
    told: list[list[float]] = field(default_factory=list, compare=False, repr=False)

    def design(self, population: Population, known: Knowledge) -> Design:
        from scripted_recipes import ScriptedDesign

        return ScriptedDesign(population, list(range(population.n_clients)))

    def observe(self, kept: Mapping[str, NDArray[np.float64]], observed: ObservedRound) -> None:
        self.told.append(observed.norms.tolist())


@KINDS
@FORMS
@pytest.mark.parametrize("estimator", ["plain", "difference", "regression"])
def test_the_aggregate_is_unbiased_for_the_scaled_updates(
    estimator: Any, form: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By enumeration, after rounds that filled the memory; counters are rounded once."""
    selector = Selector(Multinomial(2), SIZES, seed=0, estimator=estimator, max_norm=BOUND)
    for _ in range(3):
        cohort = selector.draw()
        selector.aggregate({i: update(i, form, kind) for i in cohort.ids})
    state, mean = selector.state(), np.zeros(2)
    for counts, chance in law(MultinomialDesign(Population(SIZES), 2)).items():
        clients = np.flatnonzero(counts)
        cohort = Cohort.of_shares(clients, np.array(counts)[clients], 2)
        monkeypatch.setattr(MultinomialDesign, "draw", lambda self, rng, own=cohort: own)
        selector.restore(state)
        selector.draw()
        step = selector.step({i: update(i, form, kind) for i in clients.tolist()})
        mean += float(chance) * flat(step)
        if form == "named":
            exact = cohort.weights @ (FACTORS * SEEN)[clients]
            assert int(step["seen"]) == np.rint(exact)

    expected = np.array(SIZES) / 8 @ SCALED
    if estimator == "regression":  # its numbers are no powers of two: sums of ten outcomes round
        np.testing.assert_allclose(mean, expected, rtol=0, atol=10 * 16 * 2**-52)
    else:
        assert mean.tolist() == expected.tolist()


@KINDS
@FORMS
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("estimator", ["plain", "difference", "regression"])
def test_what_a_framework_averages_is_the_step(
    estimator: Any, lost: bool, whole: bool, form: str, kind: str
) -> None:
    selector = Selector(Everyone(), SIZES, seed=0, estimator=estimator, max_norm=BOUND)
    selector.draw()
    selector.aggregate({i: update(i, form, kind) for i in range(4)})
    selector.draw()
    ids = range(1, 4) if lost else range(4)
    answers = selector.receive({i: update(i, form, kind) for i in ids}, whole=whole)

    shares = list(selector.for_average(answers))
    total = sum(weight for _, weight, _ in shares)
    found = sum(weight / total * flat(own) for _, weight, own in shares)

    expected = flat(selector.step({i: update(i, form, kind) for i in ids}))
    assert found == pytest.approx(expected, rel=1e-6)  # floats of 32 bits, some roundings
    if form == "named":
        step = selector.step({i: update(i, form, kind) for i in ids})
        assert {int(own["seen"]) for _, _, own in shares} == {int(step["seen"])}


def test_memory_estimator_and_recipe_know_the_scaled_update() -> None:
    recipe = Everyone()
    selector = Selector(recipe, SIZES, seed=0, estimator="difference", max_norm=BOUND)
    play(selector)
    learning = Selector(SimilarityClustered(4), [1] * 4, seed=0, max_norm=BOUND)
    cohort = play(learning)

    assert selector.estimator is not None
    assert selector.estimator.of(np.arange(4)).tolist() == SCALED.tolist()
    assert recipe.told == [[2.0, 4.0, 1.0, 4.0]]
    assert learning.memory is not None
    assert learning.memory.updates[cohort.clients].tolist() == SCALED[cohort.clients].tolist()


@pytest.mark.parametrize("whole", [True, False])
def test_known_norms_are_used(whole: bool) -> None:
    """They say 8 where the update has 2: it is halved."""
    selector = Selector(Everyone(), SIZES, seed=0, max_norm=BOUND)
    selector.draw()
    norms = {0: 8.0, 1: 1.0, 2: 1.0, 3: 1.0}
    answers = selector.receive(dict(enumerate(ROWS)), norms=norms, whole=whole)

    assert answers.factors is not None
    assert answers.factors.tolist() == [0.5, 1.0, 1.0, 1.0]
    assert answers.scaled.tolist() == [0]
    average = sum(weight * own for _, weight, own in selector.for_average(answers))
    assert average.tolist() == ((ROWS[0] / 2 + ROWS[1:].sum(0)) / 4).tolist()


def test_updates_that_are_not_finite_are_lost_and_not_scaled() -> None:
    rows = ROWS.copy()
    rows[1, 0], rows[3, 1] = np.nan, np.inf
    selector = Selector(Everyone(), SIZES, seed=0, max_norm=1.0)
    selector.draw()
    answers = selector.receive(rows)

    assert answers.clients.tolist() == [0, 2]
    assert answers.scaled.tolist() == [0]
    assert selector.step(answers).tolist() == [0.5, 0.0]


def test_the_caller_keeps_its_updates() -> None:
    rows = ROWS.copy()
    selector = Selector(Everyone(), SIZES, seed=0, max_norm=1.0)
    selector.draw()
    selector.aggregate(rows)

    assert (rows == ROWS).all()


def test_scaled_updates_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "log"
    selector = Selector(Everyone(), SIZES, seed=0, max_norm=BOUND, log=path)
    with caplog.at_level(logging.INFO, logger="fedcohort"):
        play(selector)
        play(selector, np.ones((4, 2)))

    assert [json.loads(line)["scaled"] for line in path.read_text().splitlines()] == [[1, 3], []]
    said = [line for line in caplog.messages if "scaled" in line]
    assert said == ["round 0: scaled down to the norm 4: 2 updates, of [1, 3]"]


def test_auto_follows_the_median_of_the_last_rounds() -> None:
    """Round 0 has no bound. Its huge update is one of four: the median is not moved by it."""
    selector = Selector(Everyone(), SIZES, seed=0, max_norm="auto")
    assert selector.max_norm is None
    norms_of(selector, [[1.0, 2.0, 4.0, 1e30]])
    assert selector.max_norm == MULTIPLE * 3.0
    norms_of(selector, [[1.0, 1.0, 1.0, 1e30]])
    assert selector.max_norm == MULTIPLE * 1.5

    norms_of(selector, [[7.0, 7.0, 7.0, 7.0]] * (WINDOW - 1))
    state = selector.state()
    assert state["bound.lengths"].tolist() == [4] * WINDOW
    assert state["bound.norms"][:4].tolist() == [1.0, 1.0, 1.0, 30.0]  # after scaling
    assert selector.max_norm == MULTIPLE * 7.0


def test_auto_is_fixed_before_the_draw() -> None:
    """A round without answers, or skipped, teaches nothing."""
    selector = Selector(Everyone(), SIZES, seed=0, max_norm="auto")
    norms_of(selector, [[1.0] * 4])
    selector.draw()
    assert selector.max_norm == MULTIPLE
    selector.receive({0: np.array([1e3, 0.0])})
    assert selector.max_norm == MULTIPLE
    selector.skip()
    selector.draw()
    selector.aggregate({})

    assert selector.max_norm == MULTIPLE


def test_updates_of_zeros_set_no_bound() -> None:
    selector = Selector(Everyone(), SIZES, seed=0, max_norm="auto")
    norms_of(selector, [[0.0] * 4])

    assert selector.max_norm is None


@pytest.mark.parametrize("estimator", ["plain", "difference", "regression"])
def test_auto_goes_on_after_loading_bit_for_bit(estimator: Any, tmp_path: Path) -> None:
    def rows(round_: int) -> NDArray[np.float64]:
        rng = np.random.default_rng(round_)
        return rng.normal(size=(4, 2)) * np.where(rng.random(4) < 0.3, 1e3, 1.0)[:, None]

    whole = Selector(Multinomial(3), SIZES, seed=0, estimator=estimator, max_norm="auto")
    steps, bounds, n_scaled = [], [], 0
    for round_ in range(2 * WINDOW):
        if round_ == WINDOW + 3:
            whole.save(tmp_path / "state")
        cohort = whole.draw()
        answers = whole.receive(rows(round_)[cohort.clients])
        n_scaled += len(answers.scaled)
        bounds.append(whole.max_norm)
        steps.append(whole.aggregate(answers).tolist())
    again = Selector.load(tmp_path / "state")
    for round_ in range(WINDOW + 3, 2 * WINDOW):
        cohort = again.draw()

        assert again.max_norm == bounds[round_]
        assert again.aggregate(rows(round_)[cohort.clients]).tolist() == steps[round_]
    assert n_scaled > 10


def test_a_state_with_other_norms_is_refused() -> None:
    selector = Selector(Everyone(), SIZES, seed=0, max_norm="auto")
    norms_of(selector, [[1.0] * 4] * 2)
    state = selector.state()

    for name, value in (
        ("norms", state["bound.norms"][1:]),
        ("norms", -state["bound.norms"]),
        ("norms", np.nan * state["bound.norms"]),
        ("lengths", np.array([8, 0])),
        ("lengths", np.ones(8, np.int64)[:0]),
    ):
        with pytest.raises(SelectorError, match="its norms of past updates do not match"):
            selector.restore({**state, f"bound.{name}": value})
    assert selector.max_norm == MULTIPLE


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "Auto", True, [3]])
def test_another_bound_is_refused(value: Any) -> None:
    need = "Selector: max_norm must be a number above 0, or 'auto'; got"
    with pytest.raises(SelectorError, match=f"^{need}"):
        Selector(Multinomial(2), SIZES, max_norm=value)


@pytest.mark.parametrize(("n", "said"), [(1, "1 update, of [0]"), (2, "2 updates, of [0, 1]")])
def test_one_scaled_update_is_singular(n: int, said: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="fedcohort")
    selector = Selector(Everyone(), SIZES, seed=0, max_norm=1.0)
    selector.draw()
    selector.aggregate(np.where(np.arange(4)[:, None] < n, 9.0, 0.1) * np.ones((4, 2)))

    assert said in caplog.text
