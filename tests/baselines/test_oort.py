"""Oort's utility and its two lotteries; systematic sampling."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcohort import Oort, Population, diagnostics
from fedcohort.baselines.oort import SystematicDraw, _utility
from fedcohort.designs import OortDesign, OortOptions
from fedcohort.errors import DesignError
from fedcohort.testing import agree
from laws import capped_chances
from populations import rng

NAN = np.nan


def past(
    losses: list[float], seconds: list[float] | None = None, rounds: list[float] | None = None
) -> dict[str, np.ndarray]:
    unknown = [NAN if math.isnan(loss) else 1.0 for loss in losses]
    return {
        "past_loss": np.array(losses),
        "past_duration": np.array(seconds or unknown),
        "past_round": np.array(rounds or unknown),
    }


def test_by_hand_the_utility() -> None:
    """n l = 10, 20, 30, 110, clipped at the median quantile .5 = 25: 10, 20, 25, 25.

    Scaled: 0, 2/3, 1, 1. In round 9, t = 10, last drawn in rounds 1, 3, 4, 9 of it:
    sqrt(.1 ln 10 / L) is added. Durations 1, 2, 4, 8, of which T is the quantile 1/3, 2: the last
    two lose (2/4)^2 and (2/8)^2.
    """
    signals = past([1.0, 2.0, 1.0, 11.0], [1.0, 2.0, 4.0, 8.0], [0.0, 2.0, 3.0, 8.0])
    options = OortOptions(clip=0.5, pace=1 / 3)

    utility = _utility(np.array([10, 10, 30, 10]), signals, 9, options)  # type: ignore[arg-type]

    bonus = [math.sqrt(0.1 * math.log(10) / last) for last in (1, 3, 4, 9)]
    expected = [bonus[0], 2 / 3 + bonus[1], (1 + bonus[2]) / 4, (1 + bonus[3]) / 16]
    assert utility == pytest.approx(expected, rel=1e-12)


def test_by_hand_the_chances() -> None:
    """Six clients, m = 4, epsilon .5: two of the known, two of the new, of which there are three.

    Utilities in round 0 (no bonus, no one slow) 1, .8, .76, 0: the second has .8, and 95 % of it
    are .76, which is in. Two places by 1, .8, .76: chances 2 u / 2.56.
    """
    options = OortOptions(exploration=0.5, clip=1.0)
    signals = past([1.0, 0.8, 0.7601, 0.0, NAN, NAN, NAN])
    design = OortDesign(Population([1] * 7), 4, signals, round_=0, options=options, rng=rng())

    chances = design.expected_counts()

    scale = 2 / (1 + 0.8 + 0.7601)
    expected = [scale, 0.8 * scale, 0.7601 * scale, 0, 2 / 3, 2 / 3, 2 / 3]
    assert chances == pytest.approx(expected, abs=2 / 2**24)
    np.testing.assert_allclose(diagnostics.bias(design), chances / 4 - 1 / 7)
    cohort = design.draw(rng())
    assert cohort.weights.tolist() == [0.25] * 4
    assert cohort.residual == 0.0


@pytest.mark.parametrize(("round_", "known"), [(0, 1), (20, 3), (74, 7), (75, 8), (1000, 8)])
def test_the_share_of_new_clients_decays(round_: int, known: int) -> None:
    """Of 10: 1 - .9 * .98^t; .98^20 = .668, .98^74 = .2242, and .2 at the least from 75 on."""
    losses = [1.0] * 20 + [NAN] * 20
    design = OortDesign(Population([1] * 40), 10, past(losses), round_=round_, rng=rng())

    assert (design.exploit.draws, design.explore.draws) == (known, 10 - known)


@pytest.mark.parametrize(
    ("losses", "round_", "exploit"),
    [
        ([NAN] * 5, 0, 0),
        ([1.0] * 5, 0, 4),
        ([1.0, NAN, NAN, NAN, NAN], 0, 0),
        ([1.0, 1.0, 1.0, NAN, NAN], 0, 2),
        ([1.0, NAN, NAN, NAN, NAN], 1000, 1),
    ],
)
def test_where_one_kind_is_too_few_the_other_fills_up(
    losses: list[float], round_: int, exploit: int
) -> None:
    design = OortDesign(Population([1] * 5), 4, past(losses), round_=round_, rng=rng())

    assert design.exploit.draws == exploit
    assert design.draw(rng()).counts.tolist() == [1] * 4


def test_with_a_cutoff_of_one_the_top_is_taken() -> None:
    options = OortOptions(exploration=0.0, exploration_least=0.0, clip=1.0, cutoff=1.0)
    signals = past([3.0, 1.0, 2.0, 2.0])

    two, three = (
        OortDesign(Population([1] * 4), m, signals, round_=5, options=options, rng=rng())
        for m in (2, 3)
    )

    assert three.expected_counts().tolist() == [1, 0, 1, 1]
    chances = two.expected_counts()
    assert chances[1] == 0
    assert chances[0] > chances[2] == chances[3] > 0


SLOW_LAST = past([2.0, 2.0, 1.9, 2.0], [1.0, 1.0, 1.0, 10.0])


def test_by_hand_a_slow_client_has_a_hundredth_of_its_chance() -> None:
    """Scaled utilities 1, 1, 0, 1, and ten times the preferred duration takes (1/10)^2."""
    recipe = Oort(1, exploration=0.0, exploration_least=0.0, clip=1.0, cutoff=0.0)

    design = recipe.build(Population([10] * 4), signals=SLOW_LAST, rng=rng())

    expected = [1 / 2.01, 1 / 2.01, 0, 0.01 / 2.01]
    assert design.expected_counts() == pytest.approx(expected, abs=3 / 2**24)


@pytest.mark.slow
def test_the_schemes_bias_is_toward_useful_and_fast_clients() -> None:
    """One place, 5,000 rounds. False alarms: 1e-6 over the clients; sees a bias that is .04 off.

    The bonus b of all clients grows with the round: utilities 1 + b, 1 + b, b, (1 + b) / 100. The
    last two stay below .95 (1 + b), so that the others have chance 1/2 in every round.
    """
    recipe = Oort(1, exploration=0.0, exploration_least=0.0, clip=1.0)

    found = diagnostics.estimated_bias(
        recipe, Population([10] * 4), signals=SLOW_LAST, rng=rng(), rounds=5_000
    )

    assert agree(found.values, np.array([0.25, 0.25, -0.25, -0.25]), found.standard_errors)
    assert found.standard_errors.max() < 0.04 / 5.1


@pytest.mark.parametrize(
    ("signals", "message"),
    [
        (None, r"OortDesign: needs the signal 'past_loss'"),
        ({"past_loss": np.ones(2)}, r"OortDesign: needs the signal 'past_duration'"),
        (past([1.0, 1.0], [1.0, -1.0]), r"'past_duration' must be .*client 1 has -1.0"),
    ],
)
def test_signals_that_cannot_be_used_are_refused(signals: object, message: str) -> None:
    with pytest.raises(DesignError, match=message):
        Oort(1).build(Population([1, 2]), signals=signals, rng=rng())  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["exploration", "clip", "cutoff", "pace", "penalty"])
def test_hyper_parameters_out_of_range_are_refused(key: str) -> None:
    with pytest.raises(
        DesignError, match=rf"^Oort: {key} must be a number from 0 to .*; got -0.5. "
    ):
        Oort(1, **{key: -0.5})


def test_nobody_is_asked() -> None:
    assert Oort(1).ask(Population([1, 2]), 0, rng()) is None


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=12),
    st.integers(1, 6),
    st.integers(0, 2**32 - 1),
)
def test_a_comb_picks_distinct_clients_with_capped_chances(
    masses: list[int], draws: int, seed: int
) -> None:
    draws = min(draws, sum(mass > 0 for mass in masses))
    if draws == 0:
        return
    comb = SystematicDraw(np.arange(len(masses)), np.array(masses), draws)
    exact = capped_chances(masses, draws)

    assert [
        length * chance.denominator for length, chance in zip(comb.lengths, exact, strict=True)
    ] == [chance.numerator * comb.step for chance in exact]
    outcomes = comb.outcomes.toarray()
    assert (outcomes.sum(axis=1) == draws).all()
    assert outcomes.max() == 1
    assert len(outcomes) <= len(masses)
    np.testing.assert_allclose(comb.probabilities @ outcomes, comb.chances, atol=1e-14)
    drawn = comb.drawn_at(rng(seed).integers(comb.step, size=5))
    known = {tuple(np.flatnonzero(outcome)) for outcome in outcomes}
    assert {tuple(sorted(line)) for line in drawn.tolist()} <= known


def test_losses_near_the_end_of_floats_keep_the_chances() -> None:
    signals = {
        "past_loss": np.array([1e308, 1e308, 1e300]),
        "past_duration": np.ones(3),
        "past_round": np.zeros(3),
    }

    design = OortDesign(Population([5, 5, 5]), 1, signals, round_=3, rng=rng())

    assert design.expected_counts().sum() == pytest.approx(1.0, abs=1e-12)
