"""Who may take part: by name, or by a function of name, node and properties."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from fedcohort import Multinomial, Poisson, Population, Recipe, SizeClustered
from fedcohort.errors import FlowerError
from fedcohort.flower import CohortStrategy, Limits, Waits
from flower.federation import (
    SIZES,
    client_app,
    drawn,
    flat,
    grid_of,
    model,
    node_of,
    one_round,
    update_of,
    weights_of,
)
from flower.in_process import Clock, InProcessGrid
from populations import rng


def only_training() -> FedAvg:
    return FedAvg(fraction_evaluate=0.0)


def telling_grid(properties: Any) -> InProcessGrid:
    """Make a grid whose clients say more of themselves than their sizes."""
    return grid_of(app=client_app(properties=properties))


def trained_clients(grid: InProcessGrid) -> set[int]:
    return {grid.partitions[node] for kind, node in grid.asked if kind == "train"}


@pytest.mark.parametrize(
    "names", [{"0", "3", "4"}, ["0", "3", "4"], (0, 3, 4)], ids=["set", "list", "numbers"]
)
def test_only_clients_of_these_names_train(names: Any) -> None:
    strategy, grid = (
        CohortStrategy(only_training(), SizeClustered(4), seed=0, eligible=names),
        grid_of(),
    )

    strategy.start(grid, model(), num_rounds=8)

    assert trained_clients(grid) == {0, 3, 4}
    assert set(drawn(strategy)) == {"0", "3", "4"}


def test_a_function_sees_name_node_and_properties() -> None:
    grid = telling_grid(lambda k: {"battery": 10.0 * k, "site": "ab"[k % 2], "tags": ["x", "y"]})
    seen = {}

    def eligible(name: str, node_id: int, properties: Any) -> bool:
        seen[name] = (node_id, dict(properties))
        return bool(properties["battery"] >= 15)

    strategy = CohortStrategy(only_training(), SizeClustered(4), seed=0, eligible=eligible)
    strategy.start(grid, model(), num_rounds=8)

    assert trained_clients(grid) == {2, 3, 4}
    assert seen == {
        str(k): (node_of(grid, k), {"battery": 10.0 * k, "site": "ab"[k % 2], "tags": ["x", "y"]})
        for k in range(6)
    }


def test_a_function_is_asked_before_every_draw() -> None:
    """Client k rests in round k."""
    rounds: list[int] = []
    strategy = CohortStrategy(
        only_training(),
        SizeClustered(5),
        seed=0,
        eligible=lambda name, node_id, properties: int(name) != len(rounds),
    )
    grid, trained = grid_of(), list[set[int]]()
    for number in range(5):
        grid.asked.clear()
        assert one_round(strategy, grid, number + 1) is not None
        trained.append(trained_clients(grid))
        rounds.append(number)

    assert all(k not in clients for k, clients in enumerate(trained))
    assert set.union(*trained) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("recipe", [SizeClustered(3), Multinomial(3), Poisson(2)], ids=repr)
def test_the_law_of_the_draw_is_unbiased_over_the_eligible(recipe: Recipe) -> None:
    """The open round's design is exactly that of the eligible clients alone: E[w] = p / p(E)."""
    strategy = CohortStrategy(only_training(), recipe, seed=0, eligible={"0", "2", "4"})
    strategy.configure_train(1, model(), ConfigRecord(), grid_of())

    design = strategy.selector.design
    assert design is not None
    within = [50, 20, 10]
    sizes = design.population.sizes
    assert sizes[sizes > 0].tolist() == within
    weights = (design.expected_counts() * design.weight_per_draw())[sizes > 0]
    assert weights == pytest.approx(np.array(within) / sum(within), rel=1e-12)
    alone = recipe.build(Population(within), rng=rng())
    inclusion = design.inclusion_probability()[sizes > 0]
    assert inclusion == pytest.approx(alone.inclusion_probability(), rel=1e-12)


def test_the_model_moves_by_the_weights_of_the_eligible() -> None:
    """Two eligible clients of 30 and 10 samples and four draws: weights 3/4 and 1/4, always."""
    strategy = CohortStrategy(only_training(), SizeClustered(4), seed=0, eligible={"1", "4"})
    grid = grid_of()
    for number in range(1, 6):
        messages = list(strategy.configure_train(number, model(), ConfigRecord(), grid))
        weights = weights_of(strategy)
        moved, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))

        assert weights == {"1": 0.75, "4": 0.25}
        assert moved is not None
        expected = 1.0 + 0.75 * update_of(1) + 0.25 * update_of(4)
        assert flat(moved) == pytest.approx(expected, abs=1e-6)


def test_a_client_that_does_not_say_what_is_asked_for_takes_no_part_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Clients 3 and 4 say nothing of their batteries."""
    grid = telling_grid(lambda k: {} if k in (3, 4) else {"battery": 50.0})
    strategy = CohortStrategy(
        only_training(), SizeClustered(3), seed=0, eligible=lambda n, i, p: p["battery"] > 20
    )

    strategy.start(grid, model(), num_rounds=6)

    assert trained_clients(grid) == {0, 1, 2}
    lines = [line for line in caplog.messages if line.startswith("eligible: ")]
    assert lines in (
        ["eligible: 2 of 6 clients failed (3, 4): KeyError, 'battery'"],
        ["eligible: 2 of 6 clients failed (4, 3): KeyError, 'battery'"],
    )


def test_a_start_without_an_eligible_client_ends_in_a_sentence(clock: Clock) -> None:
    strategy = CohortStrategy(only_training(), SizeClustered(4), seed=0, eligible={"nobody"})

    with pytest.raises(FlowerError, match="a client with samples that can be drawn, within 600 s"):
        strategy.start(grid_of(), model(), num_rounds=2)


def test_rounds_without_an_eligible_client_wait_for_one_and_then_go_on(clock: Clock) -> None:
    """After the first round nobody is eligible until 40 s; rounds take 30 s: one is lost."""
    ends: list[float] = []
    strategy = CohortStrategy(
        FedAvg(),  # which would evaluate on everybody
        SizeClustered(4),
        seed=0,
        eligible=lambda name, node_id, properties: len(ends) < 2 or clock.now >= 40.0,
        waits=Waits(round=30.0),
        limits=Limits(give_up_after=3),
    )
    grid, models = grid_of(fails=lambda node, kind: kind == "evaluate"), list[Any]()

    def note(number: int, arrays: ArrayRecord) -> None:
        ends.append(clock.now)
        models.append(flat(arrays))

    strategy.start(grid, model(), num_rounds=4, evaluate_fn=note)

    assert ends[:3] == pytest.approx([0.0, 0.0, 30.0])
    assert ends[3] == pytest.approx(40.5, abs=0.5)
    assert ends[4] == ends[3]
    assert [bool((a == b).all()) for a, b in pairwise(models)] == [*(False, True, False, False)]


def test_an_eligible_client_without_samples_cannot_be_drawn(clock: Clock) -> None:
    strategy = CohortStrategy(only_training(), SizeClustered(4), seed=0, eligible={"5"})

    with pytest.raises(FlowerError, match="6 nodes came and 6 told their sizes"):
        strategy.start(grid_of(), model(), num_rounds=1)


def test_redraws_take_eligible_clients_only() -> None:
    grid = grid_of()
    grid.fails = lambda node, kind: kind == "train" and grid.partitions[node] == 3
    strategy = CohortStrategy(
        only_training(), SizeClustered(2), seed=0, on_failure="redraw", eligible={"0", "3", "4"}
    )

    strategy.start(grid, model(), num_rounds=10)

    assert trained_clients(grid) == {0, 3, 4}
    assert strategy.selections.failed.sum() > 0


def test_properties_survive_a_restart_and_nobody_is_asked_again(tmp_path: Path) -> None:
    grid = telling_grid(lambda k: {"site": "ab"[k % 2], "seconds": 1.5, "ids": [1, 2], "on": True})
    first, second = (
        CohortStrategy(
            only_training(), SizeClustered(3), seed=0, eligible=lambda n, i, p: p["site"] == "a"
        )
        for _ in range(2)
    )
    first.start(grid, model(), num_rounds=2)
    first.save(tmp_path / "state", model())
    grid.asked.clear()

    second.load(tmp_path / "state")
    second.start(grid, model(), num_rounds=4)

    assert {kind for kind, _ in grid.asked} == {"train"}
    assert trained_clients(grid) == {0, 2, 4}
    expected = {"site": "b", "seconds": 1.5, "ids": [1, 2], "on": True}
    assert second.directory.properties_of("3") == expected


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"text": "x" * 20_000}, "its properties must be at most 10000 characters"),
        ({"raw": b"bytes"}, "its properties must be text and numbers; got bytes"),
        ({"raw": [b"bytes"]}, "its properties must be text and numbers; got bytes"),
    ],
    ids=["long", "bytes", "list of bytes"],
)
def test_properties_that_cannot_be_kept_are_refused_with_the_reason(
    properties: dict[str, Any],
    reason: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = telling_grid(lambda k: properties if k == 3 else {})
    strategy = CohortStrategy(only_training(), SizeClustered(3), seed=0, checkpoint=tmp_path)

    strategy.start(grid, model(), num_rounds=2)

    assert sorted(strategy.directory.present) == ["0", "1", "2", "4", "5"]
    assert f"asking for sizes: 1 of 6 nodes failed ({node_of(grid, 3)}): {reason}" in caplog.text
    assert (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("eligible", ["0", b"0", 3, 1.5, True], ids=repr)
def test_what_is_neither_names_nor_a_function_is_refused(eligible: Any) -> None:
    with pytest.raises(FlowerError, match="eligible must be client names, or a function of name"):
        CohortStrategy(only_training(), SizeClustered(3), eligible=eligible)


def test_a_rule_also_counts_for_clients_that_are_away_if_weights_make_up_for_them() -> None:
    """Node 0 of 50 samples is away and may take part: the others are weighed as without it.

    Among the eligible, 50, 20 and 10 samples, those that are there weigh 30 of 80 together until
    their intervals say more.
    """
    strategy = CohortStrategy(
        *(only_training(), SizeClustered(4)),
        seed=0,
        eligible={"0", "2", "4"},
        presence="estimated",
        sizes={str(client): size for client, size in enumerate(SIZES)},
    )
    grid = grid_of()
    assert one_round(strategy, grid, 1) is not None
    del grid.partitions[node_of(grid, 0)]
    list(strategy.configure_train(2, model(), ConfigRecord(), grid))

    target, cohort = strategy.selector.target, strategy.selector.cohort
    assert target is not None
    assert cohort is not None
    by_id = dict(zip(target.ids, target.sizes.tolist(), strict=True))
    assert by_id == {"0": 50, "2": 20, "4": 10} | dict.fromkeys(("1", "3", "5"), 0)
    assert set(cohort.ids) == {"2", "4"}
    assert cohort.weights.sum() == pytest.approx(30 / 80)


def test_wrappers_for_privacy_refuse_weights_that_make_up_for_presence() -> None:
    wrapper = DifferentialPrivacyServerSideFixedClipping(only_training(), 1.0, 1.0, 4)

    with pytest.raises(FlowerError, match="needs equal weights, and with presence='estimated'"):
        CohortStrategy(wrapper, SizeClustered(4), seed=0, presence="estimated")
