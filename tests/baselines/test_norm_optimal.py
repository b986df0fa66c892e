"""Norm-optimal coins."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedcohort import NormOptimal, Population, diagnostics
from fedcohort.designs import MultinomialDesign, NormOptimalDesign, PoissonDesign
from fedcohort.designs.recipe import estimator_for
from fedcohort.errors import DesignError
from populations import CIFAR_SIZES, rng

norms_of_six = st.lists(st.integers(0, 50), min_size=6, max_size=6)
#: Sizes, norms and q: every V below is a sum of six terms, each of less than ten roundings.
ROUNDING = 100 * 2.0**-53


def test_by_hand_two_are_certain_and_the_others_share_what_is_left() -> None:
    """u = 1, 2, 3, 10, 20 (n = 5, m = 3).

    l = 5: 3 <= 36/20 fails; l = 4: 2 <= 16/10 fails; l = 3: 1 <= 6/3 holds. So q = u / 6 for the
    three smallest, and V = 1 (6 - 1) + 4 (3 - 1) + 9 (2 - 1) = 22, over the squared total 5^2.
    """
    norms = np.array([3.0, 10.0, 1.0, 20.0, 2.0])
    design = NormOptimalDesign(Population([1] * 5), 3, norms)

    assert design.expected_counts() == pytest.approx([1 / 2, 1, 1 / 6, 1, 1 / 3], rel=1e-15)
    assert diagnostics.aggregate_variance(design, norms[:, None]) == pytest.approx(22 / 25)


def test_by_hand_the_approximate_iteration_takes_two_passes() -> None:
    """u = 1, 2, 3, 10, 20, m = 3: q = 1/12, 1/6, 1/4, 5/6, 1; C = 2 / (4/3) caps the 10.

    Then q = 1/8, 1/4, 3/8, 1, 1 and C = 1 / (3/4): q = 1/6, 1/3, 1/2, the exact chances.
    """
    design = NormOptimalDesign(Population([1] * 5), 3, [1, 2, 3, 10, 20], approximate=True)

    assert design.expected_counts() == pytest.approx([1 / 6, 1 / 3, 1 / 2, 1, 1], rel=1e-15)


def test_by_hand_the_iteration_goes_on_while_its_factor_is_above_one() -> None:
    """u = 11, 5, 4, m = 2: q = 1, 1/2, 2/5; C = 1 / .9: q = 1, 5/9, 4/9."""
    design = NormOptimalDesign(Population([1] * 3), 2, [11, 5, 4], approximate=True)

    assert design.expected_counts() == pytest.approx([1, 5 / 9, 4 / 9], rel=1e-15)


def test_the_approximate_iteration_may_stop_short_of_the_exact_chances() -> None:
    """Each pass caps a few more of 2^0 ... 2^19: after four, others are still to come."""
    norms = 2.0 ** np.arange(20)
    exact = NormOptimalDesign(Population([1] * 20), 18, norms)
    iterated = NormOptimalDesign(Population([1] * 20), 18, norms, approximate=True)

    assert exact.expected_counts().sum() == pytest.approx(18, rel=1e-15)
    assert iterated.expected_counts().sum() < 16.5
    assert diagnostics.aggregate_variance(
        iterated, norms[:, None]
    ) > diagnostics.aggregate_variance(exact, norms[:, None])


@given(norms_of_six, st.integers(1, 6), st.lists(st.floats(0.01, 1), min_size=6, max_size=6))
def test_v_is_the_formula_and_no_other_coins_of_that_size_have_a_smaller_one(
    norms: list[int], m: int, others: list[float]
) -> None:
    """Any chances q' in (0, 1] with the same sum m: V' = sum u^2 (1/q' - 1)."""
    population = Population([3, 1, 4, 1, 5, 9])
    assume(m <= np.count_nonzero(norms))
    design = NormOptimalDesign(population, m, norms)
    lengths = population.importance * norms
    rest = np.where(lengths > 0, others, 0.0)
    for _ in range(50):  # scale up, cap, and again: the sum arrives at m
        rest = np.minimum(1.0, rest * np.where(rest < 1, m / rest.sum(), 1.0))
    assume(abs(rest.sum() - m) < 1e-9)
    some = lengths > 0
    chances = design.expected_counts()

    variance = design.aggregate_spread(np.array(norms, dtype=float)[:, None])

    formula = float((lengths[some] ** 2 * (1 / chances[some] - 1)).sum())
    other = float((lengths[some] ** 2 * (1 / rest[some] - 1)).sum())
    scale = float((lengths[some] ** 2 / chances[some]).sum())
    assert chances.sum() == pytest.approx(m, rel=ROUNDING)
    assert variance == pytest.approx(formula, abs=ROUNDING * scale)
    # Both sums may be 1e-9 off m, and V changes by at most its sum of u^2 / q^2 times that.
    assert variance <= other + 1e-9 * float((lengths[some] ** 2 / rest[some] ** 2).sum())


def test_it_is_never_above_poisson_sampling_and_far_below_where_norms_differ() -> None:
    population = Population(CIFAR_SIZES)
    updates = rng().standard_normal((100, 5)) * rng(1).lognormal(sigma=2, size=(100, 1))
    norms = np.linalg.norm(updates, axis=1)

    best = diagnostics.aggregate_variance(NormOptimalDesign(population, 10, norms), updates)
    coins = diagnostics.aggregate_variance(PoissonDesign(population, 10), updates)

    assert best < 0.5 * coins


def test_it_can_be_above_multinomial_sampling() -> None:
    """Four equal clients with equal updates, m = 2: .25 against 0."""
    population, updates = Population([1] * 4), np.ones((4, 1))

    best = diagnostics.aggregate_variance(NormOptimalDesign(population, 2, np.ones(4)), updates)

    assert best == 0.25
    assert diagnostics.aggregate_variance(MultinomialDesign(population, 2), updates) == 0.0


def test_a_client_of_norm_zero_is_never_drawn_and_says_so() -> None:
    design = NormOptimalDesign(Population([2, 1, 1]), 2, [0.0, 3.0, 1.0])

    assert design.expected_counts().tolist() == [0.0, 1.0, 1.0]
    assert not design.unbiased
    assert diagnostics.bias(design).tolist() == [-0.5, 0.0, 0.0]
    assert diagnostics.aggregate_variance(design, [[0.0], [3.0], [-1.0]]) == 0.0


@pytest.mark.parametrize("norms", [[0.0, 0.0], [np.nan, np.nan]])
def test_where_nobody_has_a_norm_the_cohort_is_empty(norms: list[float]) -> None:
    cohort = NormOptimalDesign(Population([2, 1]), 1, norms).draw(rng())

    assert len(cohort) == 0
    assert cohort.residual == 1.0


@pytest.mark.parametrize("approximate", [False, True])
def test_norms_of_any_scale_leave_every_client_a_chance(approximate: bool) -> None:
    norms = [1e17, 1e17, 1.0, 1e-150]
    design = NormOptimalDesign(Population([1] * 4), 2, norms, approximate=approximate)

    assert (design.expected_counts() > 0).all()
    assert (design.expected_counts() <= 1).all()


@pytest.mark.parametrize(
    ("signals", "message"),
    [
        (None, r"NormOptimal: needs the signal 'update_norm', but it was not collected"),
        ({"loss": np.ones(3)}, r"needs the signal 'update_norm'"),
        ({"update_norm": np.ones(2)}, r"per client, shape \(3,\); got float64 of shape \(2,\)"),
        ({"update_norm": np.array([1.0, -2.0, 1.0])}, r"at least 0; client 1 has -2.0"),
        ({"update_norm": np.array([1.0, np.inf, 1.0])}, r"finite and at least 0; client 1 has inf"),
    ],
)
def test_norms_that_cannot_be_used_are_refused(signals: object, message: str) -> None:
    with pytest.raises(DesignError, match=message):
        NormOptimal(2).build(Population([1, 2, 3]), signals=signals, rng=rng())  # type: ignore[arg-type]


def test_the_recipe_asks_all_clients_with_samples() -> None:
    recipe = NormOptimal(2, approximate=True)

    request = recipe.ask(Population([1, 0, 3]), 0, rng())
    design = recipe.build(Population([1, 0, 3]), signals={"update_norm": np.ones(3)}, rng=rng())

    assert request is not None
    assert (request.signal, request.clients.tolist()) == ("update_norm", [0, 2])
    assert isinstance(design, NormOptimalDesign)
    assert design.approximate


def test_a_norm_that_is_nothing_beside_the_largest_counts_as_zero() -> None:
    """One over its chance would be infinite, and the variance not a number."""
    design = NormOptimalDesign(Population([1, 1]), 1, norms=[1.0, 1e-310])

    assert design.expected_counts().tolist() == [1.0, 0.0]
    assert not design.unbiased
    assert np.isfinite(design.weight_per_draw()).all()
    assert design.aggregate_variance([[1.0], [1e-310]]) == 0.0


def test_it_is_refused_with_the_difference_estimator() -> None:
    """h = (4, 2), updates (0, 2), one draw of two equal clients: 3 on average instead of 1."""
    population, h = Population([1, 1]), np.array([[4.0], [2.0]])
    design = NormOptimalDesign(population, 1, norms=[0.0, 2.0])
    mean = design.weight_per_draw() * design.expected_counts() @ (np.array([[0.0], [2.0]]) - h)

    assert (mean + population.importance @ h).tolist() == [3.0]
    with pytest.raises(DesignError, match=r"Run: norm-optimal is biased with every estimator but"):
        estimator_for("Run", NormOptimal(1), "difference")
    assert estimator_for("Run", NormOptimal(1), "plain") is None
