"""The strategy in Fed-BioMed's own rounds: it draws, weighs and settles as the selector does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fedbiomed.common.exceptions import FedbiomedStrategyError
from fedbiomed.common.optimizers import Optimizer
from fedbiomed.common.training_plans import TorchTrainingPlan
from fedbiomed.researcher.strategies import DefaultStrategy

from biomed.in_process import (
    SIZES,
    InProcessNodes,
    experiment_with,
    images,
    model_of,
    moved,
    update_of,
)
from fedcohort import Multinomial, Poisson, Recipe, Selector, SizeClustered
from fedcohort.designs import RECIPES
from fedcohort.fedbiomed import CohortStrategy, Limits

Make = Callable[..., Any]
GROUPS = {"Brest": "west", "Caen": "west", "Lyon": "south", "Metz": "east", "Nice": "south"}
ROUNDS = 6
#: A model of zeros: what is added to it is an update, array by array.
ZERO = {"intercept_": np.zeros(1), "coef_": np.zeros((1, 5))}
DRAWABLE = [kind for kind in RECIPES.values() if not kind(3).signals]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def by_hand(recipe: Recipe, lost: Callable[[int], str]) -> list[dict[str, Any]]:
    """Play the rounds with a selector in a plain loop, one node lost in each."""
    selector = Selector(recipe, SIZES, seed=5, groups=GROUPS)
    found: list[dict[str, Any]] = []
    while len(found) < ROUNDS:
        cohort = selector.draw()
        ids = [each for each in cohort.ids if each != lost(selector.round_)]
        if not len(cohort):
            selector.skip()
            continue
        settled = selector.settle(ids)
        weights = dict(zip(settled.ids, settled.weights.tolist(), strict=True))
        counts = dict(zip(cohort.ids, cohort.counts.tolist(), strict=True))
        found.append({"drawn": counts, "weights": weights})
        updates = {each: update_of(str(each), selector.round_) for each in ids}
        selector.aggregate({each: moved(ZERO, update) for each, update in updates.items()})
    return found


@pytest.mark.parametrize("kind", DRAWABLE, ids=lambda kind: kind.name)
def test_one_seed_gives_the_cohorts_and_weights_of_a_plain_loop(
    kind: type[Recipe], nodes: InProcessNodes, experiment: Make, tmp_path: Path
) -> None:
    def lost(round_: int) -> str:
        return list(SIZES)[round_ % len(SIZES)] if round_ % 2 else ""

    strategy = CohortStrategy(kind(3), seed=5, groups=GROUPS, log_file=tmp_path / "log")

    def train(name: str, params: dict[str, Any]) -> dict[str, Any] | None:
        round_ = strategy.selector.round_
        return None if name == lost(round_) else moved(params, update_of(name, round_))

    nodes.node = train
    experiment(strategy, round_limit=ROUNDS).run()

    found = [line for line in lines_of(tmp_path / "log") if line["drawn"]]
    expected = by_hand(kind(3), lost)
    assert [line["drawn"] for line in found] == [each["drawn"] for each in expected]
    assert [line["weights"] for line in found] == [each["weights"] for each in expected]
    assert any(line["failed"] for line in found)


def test_a_lost_nodes_weight_stays_on_the_model(nodes: InProcessNodes, experiment: Make) -> None:
    strategy = CohortStrategy(SizeClustered(2), seed=0, sizes={"Caen": 50, "Nice": 50})
    nodes.connected = ["Caen", "Nice"]
    nodes.node = lambda name, params: None if name == "Caen" else moved(params, np.arange(6.0))
    own = experiment(strategy, training_data=images({"Caen": 50, "Nice": 50}))

    own.run_once(increase=True)

    assert model_of(own) == pytest.approx(np.arange(6.0) / 2)
    assert own.training_replies()[0].keys() == {"Nice"}


def test_renormalise_spreads_a_lost_nodes_weight(nodes: InProcessNodes, experiment: Make) -> None:
    sizes = {"Caen": 50, "Nice": 50}
    strategy = CohortStrategy(SizeClustered(2), seed=0, sizes=sizes, on_failure="renormalise")
    nodes.connected = ["Caen", "Nice"]
    nodes.node = lambda name, params: (
        "it broke" if name == "Caen" else moved(params, np.arange(6.0))
    )
    own = experiment(strategy, training_data=images(sizes))

    own.run_once(increase=True)

    assert model_of(own) == pytest.approx(np.arange(6.0))


def test_weights_beyond_1_reach_the_aggregator_as_shares(
    nodes: InProcessNodes, experiment: Make
) -> None:
    recipe = RECIPES["uniform"](1)  # a client of size 0.9 M weighs 0.9 n
    sizes = {"Caen": 900, "Nice": 100}
    nodes.connected = ["Caen", "Nice"]
    strategy = CohortStrategy(recipe, seed=0, sizes=sizes)
    own = experiment(strategy, training_data=images(sizes))
    expected = Selector(recipe, sizes, seed=0).draw()

    own.run_once(increase=True)

    (name,), (weight,) = expected.ids, expected.weights
    assert model_of(own) == pytest.approx(weight * update_of(str(name)))
    assert weight != 1


def test_all_that_replied_weigh_as_in_default_strategy_when_everyone_is_drawn(
    nodes: InProcessNodes, experiment: Make
) -> None:
    own = experiment(CohortStrategy(SizeClustered(18), seed=0))  # 18 of 180 samples: n_i / 10 draws
    default = experiment_with_default(nodes)

    own.run_once(increase=True)
    default.run_once(increase=True)

    assert model_of(own) == pytest.approx(model_of(default), abs=1e-12)


def experiment_with_default(nodes: InProcessNodes) -> Any:
    class Attachable(DefaultStrategy):
        def attach(self, experiment: object) -> None:
            pass

    return experiment_with(Attachable(), nodes)


def test_a_server_optimiser_gets_the_aggregate(nodes: InProcessNodes, experiment: Make) -> None:
    settings: Mapping[str, Any] = {"recipe": Multinomial(2), "seed": 3}
    plain = experiment(CohortStrategy(**settings))
    halved = experiment(CohortStrategy(**settings), agg_optimizer=Optimizer(lr=0.5))

    plain.run_once(increase=True)
    halved.run_once(increase=True)

    assert model_of(halved) == pytest.approx(model_of(plain) / 2)


def test_nodes_are_asked_as_they_are_drawn_and_history_says_so(
    nodes: InProcessNodes, experiment: Make
) -> None:
    strategy = CohortStrategy(SizeClustered(2), seed=1)
    nodes.node = lambda name, params: "it broke"

    experiment(strategy).run_once(increase=True)

    (asked,) = nodes.asked
    assert sorted(strategy._sampling_node_history[0]) == asked
    assert strategy._success_node_history[0] == []


def test_only_connected_nodes_are_drawn(nodes: InProcessNodes, experiment: Make) -> None:
    nodes.connected = ["Brest", "Metz"]

    experiment(CohortStrategy(Multinomial(4), seed=1), round_limit=5).run()

    assert set().union(*nodes.asked) <= {"Brest", "Metz"}
    assert nodes.pings == 5


def test_without_ping_all_nodes_are_drawn(nodes: InProcessNodes, experiment: Make) -> None:
    nodes.connected = ["Brest", "Metz"]

    experiment(CohortStrategy(Multinomial(4), seed=1, ping=None), round_limit=5).run()

    assert not set().union(*nodes.asked) <= {"Brest", "Metz"}
    assert nodes.pings == 0


def test_nobody_there_ends_the_experiment_with_one_sentence(
    nodes: InProcessNodes, experiment: Make
) -> None:
    nodes.connected = []

    with pytest.raises(FedbiomedStrategyError, match=r"no node with samples is connected\. Start"):
        experiment(CohortStrategy(SizeClustered(2), seed=1)).run_once(increase=True)


def test_a_round_that_draws_nobody_is_over_at_once(
    nodes: InProcessNodes, experiment: Make, tmp_path: Path
) -> None:
    strategy = CohortStrategy(Poisson(1), seed=0, log_file=tmp_path / "log")

    own = experiment(strategy, round_limit=8)
    own.run()

    drawn = [bool(line["drawn"]) for line in lines_of(tmp_path / "log")]
    assert (drawn.count(True), len(nodes.asked)) == (8, 8)
    assert False in drawn


def test_the_difference_estimator_steps_by_its_memory_where_nobody_is_drawn(
    nodes: InProcessNodes, experiment: Make
) -> None:
    settings: Mapping[str, Any] = {"seed": 0, "estimator": "difference"}
    own = experiment(CohortStrategy(Poisson(1), **settings), round_limit=8)
    own.run()
    selector, model, asked = Selector(Poisson(1), SIZES, **settings), np.zeros(6), 0

    while asked < 8:
        cohort = selector.draw()
        asked += bool(len(cohort))
        model = model + selector.aggregate({str(each): update_of(str(each)) for each in cohort.ids})

    assert selector.round_ > 8
    assert model_of(own) == pytest.approx(model)


# Sizes


def test_nodes_without_known_sizes_are_all_asked_once_and_count(
    nodes: InProcessNodes, experiment: Make
) -> None:
    own = experiment(CohortStrategy(SizeClustered(2), seed=0), training_data=images(SIZES))

    own.run_once(increase=True)
    first = model_of(own)
    own.run_once(increase=True)

    total = sum(SIZES.values())
    assert first == pytest.approx(sum(n / total * update_of(each) for each, n in SIZES.items()))
    assert [len(asked) for asked in nodes.asked] == [len(SIZES), 2]
    assert own.strategy().selector.clients == SIZES
    assert own.strategy().selector.round_ == 1


def test_a_node_that_does_not_count_is_left_out_until_it_comes_back(
    nodes: InProcessNodes, experiment: Make
) -> None:
    own = experiment(CohortStrategy(SizeClustered(2), seed=0), training_data=images(SIZES))
    nodes.node = lambda name, params: None if name == "Nice" else moved(params, update_of(name))
    own.run_once(increase=True)
    own.run_once(increase=True)
    left_out = own.strategy().selector.clients
    nodes.connected.remove("Nice")
    own.run_once(increase=True)
    nodes.connected.append("Nice")
    nodes.node = lambda name, params: moved(params, update_of(name))

    own.run_once(increase=True)

    assert "Nice" not in left_out
    assert nodes.asked[-1] == sorted(SIZES)


def test_given_sizes_come_before_those_of_the_metadata(
    nodes: InProcessNodes, experiment: Make
) -> None:
    own = experiment(CohortStrategy(SizeClustered(2), seed=0, sizes={"Metz": 500}))

    own.run_once(increase=True)

    assert own.strategy().selector.clients == {**SIZES, "Metz": 500}


def test_a_claimed_size_is_bounded(nodes: InProcessNodes, experiment: Make) -> None:
    limits = Limits(max_size=40)
    own = experiment(CohortStrategy(SizeClustered(2), seed=0, limits=limits))

    own.run_once(increase=True)

    assert own.strategy().selector.clients == {each: min(n, 40) for each, n in SIZES.items()}


# What replies can be


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda own: {**own, "coef_": own["coef_"] * np.nan}, "is not finite"),
        (lambda own: {**own, "coef_": own["coef_"][:, 1:]}, "must be float64 of shape (1, 5)"),
        (lambda own: {"coef_": own["coef_"]}, "has other arrays than the model"),
        (lambda own: "no such column", "error: no such column"),
        (lambda own: None, "no reply"),
    ],
)
def test_a_reply_that_cannot_be_used_counts_as_lost(
    spoil: Callable[[Any], Any],
    reason: str,
    nodes: InProcessNodes,
    experiment: Make,
    tmp_path: Path,
) -> None:
    strategy = CohortStrategy(SizeClustered(2), seed=1, log_file=tmp_path / "log")
    nodes.node = lambda name, params: (
        spoil(moved(params, update_of(name))) if name == "Nice" else moved(params, update_of(name))
    )

    experiment(strategy, round_limit=5).run()

    failed = [line["failed"] for line in lines_of(tmp_path / "log") if line["failed"]]
    assert failed
    assert all(list(each) == ["Nice"] and reason in each["Nice"] for each in failed)


def test_too_few_replies_make_a_round_void(nodes: InProcessNodes, experiment: Make) -> None:
    own = experiment(CohortStrategy(SizeClustered(2), seed=1, limits=Limits(min_replies=2)))
    nodes.node = lambda name, params: (
        None if name != nodes.asked[-1][0] else moved(params, update_of(name))
    )

    own.run_once(increase=True)

    assert not model_of(own).any()
    assert own.strategy().selector.round_ == 1


def test_many_rounds_without_a_reply_end_the_experiment(
    nodes: InProcessNodes, experiment: Make
) -> None:
    limits = Limits(give_up_after=3)
    own = experiment(CohortStrategy(SizeClustered(2), seed=1, limits=limits), round_limit=9)
    nodes.node = lambda name, params: "no such column"

    with pytest.raises(FedbiomedStrategyError, match=r"3 rounds in a row .* no such column"):
        own.run()


class TorchPlan(TorchTrainingPlan):
    """A linear layer, and a normalisation layer, which counts batches."""

    def init_model(self, args: object) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(5, 1), torch.nn.BatchNorm1d(1))

    def init_optimizer(self, args: object) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model().parameters(), lr=0.1)

    def init_dependencies(self) -> list[str]:
        return ["import torch", "from typing import Any"]

    def training_step(self, data: Any, target: Any) -> Any:
        return self.model()(data).sum()

    def training_data(self) -> None:
        return None


@pytest.mark.filterwarnings("ignore:Secure RNG turned off")
@pytest.mark.parametrize("estimator", ["plain", "difference"])
def test_tensors_stay_tensors_and_counters_whole(
    estimator: Any, nodes: InProcessNodes, experiment: Make
) -> None:
    strategy = CohortStrategy(SizeClustered(2), seed=1, estimator=estimator)
    own = experiment(strategy, training_plan_class=TorchPlan, model_args={}, round_limit=3)
    before = own.training_plan().get_model_params(exclude_buffers=False)

    def train(name: str, params: dict[str, Any]) -> dict[str, Any] | None:
        lost = name == nodes.asked[-1][0]
        return None if lost else {key: value + 4 for key, value in params.items()}

    nodes.node = train
    own.run()

    after = own.training_plan().get_model_params(exclude_buffers=False)
    assert {key: (value.dtype, value.shape) for key, value in after.items()} == {
        key: (value.dtype, value.shape) for key, value in before.items()
    }
    assert (after["0.weight"] > before["0.weight"]).all()
    assert after["1.num_batches_tracked"] == 6  # half of 4, three times


def test_a_huge_update_is_scaled_and_not_rejected(
    nodes: InProcessNodes, experiment: Make, tmp_path: Path
) -> None:
    strategy = CohortStrategy(SizeClustered(2), seed=1, max_norm=5.0, log_file=tmp_path / "log")
    nodes.node = lambda name, params: moved(
        params, (1e6 if name == "Nice" else 1.0) * update_of(name)
    )
    own = experiment(strategy, round_limit=5)

    own.run()

    lines = lines_of(tmp_path / "log")
    assert not any(line["failed"] for line in lines)
    assert {each for line in lines for each in line["scaled"]} == {"Nice"}
    assert np.linalg.norm(model_of(own)) <= 5 * 5.0
