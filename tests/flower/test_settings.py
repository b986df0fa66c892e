"""Settings that make no sense are refused when they are made, in one sentence."""

from __future__ import annotations

import inspect
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.serverapp.strategy import FedAvg

from fedcohort import Poisson, SizeClustered
from fedcohort.errors import DeploymentError, FedcohortError, FlowerError
from fedcohort.flower import CohortStrategy, Limits, SecureAggregation, Waits
from flower.federation import grid_of, model

NAN, INF = math.nan, math.inf
NO_NUMBER: list[Any] = [NAN, INF, -INF, "x", "1", True, [], {}, b"x", 1j]
NO_TIME = [*NO_NUMBER, -1, 0, 0.0, 1e-9, -0.5]
NO_WHOLE = [*NO_NUMBER, 1.5, 1.0, -1, 2**63]


def assert_is_a_sentence(error: FedcohortError, owner: str, name: str) -> None:
    """It is one line: who, what is needed, what came, and a way out."""
    text = str(error)
    assert text.startswith(f"{owner}: ")
    assert name in text
    assert "\n" not in text
    assert text.endswith((".", "?"))
    assert len(text) < 300


@pytest.mark.parametrize("value", [*NO_TIME, None], ids=repr)
@pytest.mark.parametrize("name", ["start", "round", "query", "reply"])
def test_a_wait_is_a_positive_number_of_seconds(name: str, value: Any) -> None:
    if name == "reply" and value is None:
        return
    with pytest.raises(FlowerError) as caught:
        Waits(**{name: value})

    assert_is_a_sentence(caught.value, "Waits", name)


@pytest.mark.parametrize("value", [1e-3, 1, 7.5, np.float32(2.0), np.int64(3), 10**9], ids=repr)
@pytest.mark.parametrize("name", ["start", "round", "query", "reply"])
def test_any_positive_number_is_a_wait(name: str, value: Any) -> None:
    assert getattr(Waits(**{name: value}), name) == value


@pytest.mark.parametrize("value", NO_TIME, ids=repr)
def test_a_function_of_the_round_gives_a_positive_number_of_seconds(value: Any) -> None:
    waits = Waits(round=lambda round_: value)

    with pytest.raises(FlowerError) as caught:
        waits.of_round(3)
    assert_is_a_sentence(caught.value, "Waits", "round")


def test_waits_and_limits_cannot_be_changed_or_given_by_position() -> None:
    with pytest.raises(AttributeError):
        Waits().start = 5.0  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Limits().max_share = 0.5  # type: ignore[misc]
    with pytest.raises(TypeError):
        Waits(5.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Limits(5)  # type: ignore[call-arg]


@pytest.mark.parametrize("value", [*NO_WHOLE, 0], ids=repr)
@pytest.mark.parametrize("name", ["max_size", "max_count", "min_replies", "give_up_after"])
def test_a_limit_that_counts_is_a_positive_integer(name: str, value: Any) -> None:
    with pytest.raises(DeploymentError) as caught:
        Limits(**{name: value})

    assert_is_a_sentence(caught.value, "Limits", name)


@pytest.mark.parametrize("name", ["min_replies", "give_up_after"])
def test_a_limit_of_rounds_is_always_there(name: str) -> None:
    with pytest.raises(DeploymentError) as caught:
        Limits(**{name: None})  # type: ignore[arg-type]

    assert_is_a_sentence(caught.value, "Limits", name)


@pytest.mark.parametrize("value", [*NO_NUMBER, 0, 0.0, -0.1, 1.01, 2], ids=repr)
def test_a_limit_of_shares_is_a_positive_number(value: Any) -> None:
    with pytest.raises(DeploymentError) as caught:
        Limits(max_share=value)

    assert_is_a_sentence(caught.value, "Limits", "max_share")


@pytest.mark.parametrize(
    "limits",
    [{"max_share": 1}, {"max_share": 1e-9}, {}],
    ids=str,
)
def test_limits_that_make_sense_are_taken(limits: dict[str, Any]) -> None:
    CohortStrategy(FedAvg(), SizeClustered(3), seed=0, limits=Limits(**limits))


ARGUMENTS: dict[str, list[Any]] = {
    "seed": [NAN, -1, "x", True, 1.5, [], 2**128],
    "estimator": [NAN, -1, 0, "x", True, None, 1.5, []],
    "sizes": [
        *(NAN, -1, 0, "x", True, 1.5, [], [3, 4]),
        *({"0": each} for each in (1.5, "abc", -1, NAN, True, None, 10**12 + 1)),
    ],
    "min_known": [*NO_WHOLE, 0, None],
    "groups": [NAN, -1, 0, "x", True, 1.5, [], ["a", "b"]],
    "chances": [NAN, -1, 0, "x", True, 1.5, [], {"0": 0.5}],  # presence is "ignore"
    "presence": [NAN, -1, 0, "x", True, None, 1.5, [], "known"],  # without chances
    "max_boost": [*NO_NUMBER, 0, 0.5, 2],
    "interval_cutoff": [*NO_WHOLE, 0, 2],
    "max_participations": [*NO_WHOLE, 0],
    "min_separation": [*NO_WHOLE, 0, None],
    "rest": [*NO_WHOLE, None],
    "eligible": [NAN, -1, 0, "x", True, 1.5, b"x"],
    "names": [NAN, -1, 0, "x", True, None, 1.5, []],
    "on_failure": [NAN, -1, 0, "x", True, None, 1.5, []],
    "max_draws": [*NO_WHOLE, 0],
    "max_norm": [*NO_NUMBER, 0, 0.0, -1, -1e-9, "Auto"],
    "rebuild_every": [*NO_WHOLE, 0, None],
    "tries": [*NO_WHOLE, None],
    "extra": [*NO_WHOLE, None],
    "sketch": [*NO_WHOLE, 0],
    "evaluate": [*NO_WHOLE, 0],
    "waits": [NAN, -1, 0, "x", True, 1.5, [], {}, Limits(), Waits],
    "limits": [NAN, -1, 0, "x", True, 1.5, [], {}, Waits(), Limits],
    "checkpoint": [NAN, -1, 0, True, 1.5, [], b"x"],
    "every": [*NO_WHOLE, 0, None],
    "log_file": [NAN, -1, 0, True, 1.5, [], b"x"],
    "audit_every": [*NO_WHOLE, 0],
    "decode": [NAN, -1, 0, "x", True, 1.5, [], b"x"],
    "secure": [NAN, -1, 0, "x", True, 1.5, [], SecureAggregation],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in ARGUMENTS.items() for value in values],
    ids=lambda each: f"{each!r:.30}",
)
def test_an_argument_that_makes_no_sense_is_refused_when_the_strategy_is_made(
    name: str, value: Any
) -> None:
    with pytest.raises(FedcohortError) as caught:
        CohortStrategy(FedAvg(), SizeClustered(3), **{name: value})

    owner = str(caught.value).partition(":")[0]
    assert owner in ("CohortStrategy", "Selector")
    subject = "size" if name == "sizes" else name
    assert_is_a_sentence(caught.value, owner, subject)


def test_every_argument_of_the_strategy_is_tried() -> None:
    names = inspect.signature(CohortStrategy).parameters

    assert set(names) == {"strategy", "recipe", *ARGUMENTS}


@pytest.mark.parametrize("value", [NAN, -1, 0, "x", True, None, FedAvg, frozenset({"x"})], ids=repr)
def test_what_is_no_strategy_or_no_recipe_is_refused(value: Any) -> None:
    with pytest.raises(FedcohortError):
        CohortStrategy(value, SizeClustered(3))
    with pytest.raises(FedcohortError, match="recipe must be a Recipe"):
        CohortStrategy(FedAvg(), value)


@pytest.mark.parametrize(
    ("recipe", "more", "draws"),
    [
        (SizeClustered(3), {}, 3),
        (Poisson(3), {}, 3),
        (SizeClustered(3), {"extra": 2}, 5),
    ],
    ids=str,
)
def test_no_more_replies_can_be_needed_than_draws_are_made(
    recipe: Any, more: dict[str, Any], draws: int
) -> None:
    CohortStrategy(FedAvg(), recipe, limits=Limits(min_replies=draws), **more)

    with pytest.raises(FlowerError) as caught:
        CohortStrategy(FedAvg(), recipe, limits=Limits(min_replies=draws + 1), **more)
    assert str(caught.value) == (
        f"CohortStrategy: min_replies must be at most the {draws} draws of a round; got "
        f"{draws + 1}. Lower it, or draw more clients."
    )


def test_a_size_of_a_name_that_no_node_has_is_logged_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0), SizeClustered(3), seed=0, sizes={"0": 5, "zero": 7}
    )

    with caplog.at_level(logging.WARNING, "flwr.fedcohort"):
        strategy.start(grid_of(), model(), num_rounds=2)

    assert caplog.messages.count("sizes has 1 names that no node has: ['zero']") == 1


def test_nothing_is_written_by_a_strategy_that_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedcohortError):
        CohortStrategy(FedAvg(), SizeClustered(3), checkpoint=tmp_path / "run", every=0)

    assert list(tmp_path.iterdir()) == []
