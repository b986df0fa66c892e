"""The bias of rules and absence over the first rounds, by enumeration and by simulation."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from fedcohort import Multinomial, Poisson, Recipe, Selector, SizeClustered, Uniform, diagnostics
from fedcohort.baselines import Oort, Shuffled
from fedcohort.errors import DesignError
from fedcohort.selector import long_run
from selector.test_attendance import FOUR, UNBIASED, exact_boost, laws_of

CHANCES = [1.0, 0.5, 0.5, 0.3]


@pytest.mark.parametrize("recipe", UNBIASED, ids=repr)
@pytest.mark.parametrize(
    "rules", [{"min_separation": 2}, {"max_participations": 1, "min_separation": 2}], ids=str
)
def test_the_bias_of_rules_is_that_of_all_histories(recipe: Recipe, rules: dict[str, Any]) -> None:
    """The slow twin walks every history in fractions, with a selector each."""
    mean = [Fraction(0)] * 4
    for _, chance, own in laws_of(recipe, 3, rules):
        if own.target is not None:
            for k, size in enumerate(own.target.sizes.tolist()):
                mean[k] += chance * Fraction(size, own.target.total) / 3

    selector = Selector(recipe, FOUR, seed=0, **rules)
    found = diagnostics.participation_bias(selector, rounds=3)

    exact = [float(m - Fraction(s, 10)) for m, s in zip(mean, FOUR.values(), strict=True)]
    assert found.values == pytest.approx(exact, abs=1e-14)
    assert not found.standard_errors.any()
    assert max(map(abs, exact)) > 0.02
    assert selector.round_ == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"min_separation": 2},
        {"presence": "estimated", "interval_cutoff": 2},
        {"presence": "known", "chances": CHANCES, "max_boost": 2.0, "max_participations": 2},
    ],
    ids=str,
)
def test_simulated_runs_agree_with_the_enumeration(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By z with 1e-6 false alarms; 300 runs of 4 rounds detect a bias of 0.06."""
    selector = Selector(SizeClustered(2), FOUR, seed=0, **settings)
    exact = diagnostics.participation_bias(selector, rounds=4, chances=CHANCES)
    monkeypatch.setattr(long_run, "MOST_OUTCOMES", 0)
    found = diagnostics.participation_bias(selector, rounds=4, chances=CHANCES, rng=0, runs=300)

    bound = norm.isf(1e-6 / 8) * found.standard_errors
    assert (bound < 0.06).all()
    assert (np.abs(found.values - exact.values) <= bound + 1e-12).all()


def test_without_rules_and_absence_there_is_none() -> None:
    found = diagnostics.participation_bias(Selector(Poisson(2), FOUR, seed=0), rounds=50)

    assert found.values == pytest.approx(np.zeros(4), abs=1e-15)


def test_estimated_presence_starts_too_low_by_the_exact_amount() -> None:
    selector = Selector(Uniform(2, unbiased=True), [1, 1], seed=0, presence="estimated")
    found = diagnostics.participation_bias(selector, rounds=5, chances=[1.0, 0.3])

    exact = np.mean([0.3 * exact_boost(0.3, rounds) for rounds in range(5)])
    assert found.values == pytest.approx([0.0, 0.5 * (exact - 1)], rel=1e-12)


@pytest.mark.parametrize("most", [200_000, 0], ids=["exact", "simulated"])
def test_a_client_without_a_known_chance_is_left_out(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_run, "MOST_OUTCOMES", most)
    known = {"a": 1.0, "b": 1.0, "c": 1.0}
    selector = Selector(Multinomial(2), FOUR, seed=0, presence="known", chances=known)
    found = diagnostics.participation_bias(selector, rounds=2, rng=0, runs=2)

    assert found.values == pytest.approx([4 / 90, 3 / 90, 2 / 90, -0.1])


def test_wrong_chances_cost_what_they_miss() -> None:
    """Clients come half as often as weights assume: they get half of their importance."""
    selector = Selector(Multinomial(2), FOUR, seed=0, presence="known", chances=[0.5] * 4)
    found = diagnostics.participation_bias(selector, rounds=2, chances=[0.25] * 4)

    assert found.values == pytest.approx([-0.2, -0.15, -0.1, -0.05])


def test_a_design_of_one_round_is_not_taken_for_the_next() -> None:
    """Over a pass of two rounds, each of three clients takes part once."""
    selector = Selector(Shuffled(2), [1, 1, 1], seed=0)

    assert np.abs(diagnostics.participation_bias(selector, rounds=1).values).max() > 0.3
    assert diagnostics.participation_bias(selector, rounds=2).values == pytest.approx([0, 0, 0])


def test_a_recipe_of_past_signals_starts_without_any() -> None:
    found = diagnostics.participation_bias(Selector(Oort(2), FOUR, seed=0), rounds=1)

    assert found.values == pytest.approx([-0.15, -0.05, 0.05, 0.15])


def test_a_federation_without_samples_is_refused() -> None:
    selector = Selector(Multinomial(1), FOUR, seed=0)
    selector.clients = {}
    with pytest.raises(DesignError, match="participation_bias: needs a client with samples"):
        diagnostics.participation_bias(selector, rounds=2)


def test_weights_that_are_not_the_designs_are_refused() -> None:
    selector = Selector(Uniform(2), FOUR, seed=0, estimator="mifa")
    with pytest.raises(DesignError, match="needs the weights of the design; those of MIFA"):
        diagnostics.participation_bias(selector, rounds=2)


def test_many_clients_are_simulated() -> None:
    selector = Selector(Multinomial(5), [1] * 200, seed=0, min_separation=3)
    found = diagnostics.participation_bias(selector, rounds=10, rng=0, runs=20)

    assert (found.standard_errors > 0).all()
    assert abs(found.values.sum()) < 1e-12


@pytest.mark.parametrize("chances", [[1, 1, 1], [0, 1, 1, 1], [1, 1, 1, 2], "x"], ids=repr)
def test_chances_that_make_no_sense_are_refused(chances: Any) -> None:
    with pytest.raises(DesignError, match=r"^participation_bias: chances must be"):
        diagnostics.participation_bias(
            Selector(Poisson(2), FOUR, seed=0), rounds=2, chances=chances
        )
