"""A design that learns may be built in every k-th round only."""

from pathlib import Path
from typing import Any

import pytest

from fedcohort import Multinomial, PowerOfChoice, Selector, SimilarityClustered, Tournament
from fedcohort.designs import SimilarityClusteredDesign
from fedcohort.errors import SelectorError
from populations import rng

SIZES = [5, 3, 8, 1, 4, 4, 2, 9]


def play(selector: Selector, rounds: int) -> list[Any]:
    """Play rounds, and return who was drawn in each."""
    drawn = []
    for _ in range(rounds):
        cohort = selector.draw()
        seeds = {each: [selector.round_, int(each)] for each in cohort.ids}
        selector.aggregate(
            {each: rng(hash(tuple(s)) % 2**32).random(6) for each, s in seeds.items()}
        )
        drawn.append(cohort.ids)
    return drawn


def test_a_design_holds_until_its_turn_and_then_knows_all_updates() -> None:
    selector = Selector(SimilarityClustered(3), SIZES, seed=1, rebuild_every=3)
    seen = []
    for _ in range(7):
        play(selector, 1)
        seen.append(selector.design)

    assert seen[0] is seen[1] is seen[2]
    assert seen[3] is seen[4] is seen[5]
    assert len({id(each) for each in seen}) == 3
    assert selector.memory is not None
    assert selector.memory.last_seen.max() == 5


def test_every_third_round_builds_what_every_round_would_build() -> None:
    """The law of round 3 knows the updates of rounds 0 to 2, as it would with 1."""
    slow = Selector(SimilarityClustered(3), SIZES, seed=1, rebuild_every=3)
    play(slow, 3)
    memory = slow.memory

    plain = Selector(SimilarityClustered(3), SIZES, seed=1)
    assert memory is not None
    design = slow.next_design()
    play(slow, 1)

    assert isinstance(design, SimilarityClusteredDesign)
    assert isinstance(slow.design, SimilarityClusteredDesign)
    assert abs(design.plan.units - slow.design.plan.units).sum() == 0
    assert plain.draw().ids == Selector(SimilarityClustered(3), SIZES, seed=1).draw().ids


@pytest.mark.parametrize("rounds", range(1, 8))
@pytest.mark.parametrize("recipe", [SimilarityClustered(3), Tournament(3)], ids=str)
def test_a_loaded_selector_draws_the_same_cohorts(recipe: Any, rounds: int, tmp_path: Path) -> None:
    """Saved in any round between two designs: what is pending is saved too."""
    whole = Selector(recipe, SIZES, seed=4, rebuild_every=3)
    expected = play(whole, 12)

    first = Selector(recipe, SIZES, seed=4, rebuild_every=3)
    play(first, rounds)
    first.save(tmp_path / "saved")

    assert play(Selector.load(tmp_path / "saved"), 12 - rounds) == expected[rounds:]


def test_clients_that_are_away_need_a_law_of_their_own() -> None:
    selector = Selector(SimilarityClustered(3), SIZES, seed=1, rebuild_every=5)
    play(selector, 2)

    cohort = selector.draw(available=[0, 1, 2, 3])

    assert set(cohort.ids) <= {0, 1, 2, 3}


def test_a_forgotten_client_leaves_what_is_pending() -> None:
    selector = Selector(SimilarityClustered(3), SIZES, seed=1, rebuild_every=5)
    play(selector, 3)
    drawn = int(selector.draw().ids[0])
    selector.skip()

    selector.forget([drawn])

    assert play(selector, 4)


@pytest.mark.parametrize(
    ("recipe", "arguments", "message"),
    [
        (SimilarityClustered(2), {"rebuild_every": 0}, "must be a whole number of at least 1"),
        (SimilarityClustered(2), {"rebuild_every": 2, "overlap": True}, "since overlap builds"),
        (PowerOfChoice(2), {"rebuild_every": 2}, "since power-of-choice asks clients for"),
    ],
)
def test_what_needs_every_round_is_refused(recipe: Any, arguments: Any, message: str) -> None:
    with pytest.raises(SelectorError, match=rf"^Selector: rebuild_every .*{message}"):
        Selector(recipe, SIZES, seed=0, **arguments)


def test_a_design_that_never_changes_ignores_it() -> None:
    slow = Selector(Multinomial(3), SIZES, seed=2, rebuild_every=4)

    assert play(slow, 9) == play(Selector(Multinomial(3), SIZES, seed=2), 9)


@pytest.mark.parametrize("seed", range(3))
def test_a_loaded_selector_with_new_clients_only_draws_the_same_cohorts(
    seed: int, tmp_path: Path
) -> None:
    """All clients are replaced between two designs: the first design of the new ones counts."""
    whole = Selector(SimilarityClustered(3), SIZES, seed=seed, rebuild_every=5)
    play(whole, 7)
    whole.forget(list(whole.clients))
    whole.clients = {10 + k: size for k, size in enumerate(SIZES)}
    whole.save(tmp_path / "saved")

    again = Selector.load(tmp_path / "saved")

    assert play(again, 8) == play(whole, 8)
