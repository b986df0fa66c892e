"""Who was drawn and who failed, over clients that come and go; what log lines say of it."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.serverapp.strategy import FedAdam, FedAvg

from fedcohort import Poisson, SizeClustered
from fedcohort.flower import CohortStrategy
from fedcohort.flower.grid import cause_of
from flower.federation import SIZES, client_app, drawn, failed, grid_of, model, one_round


def test_expected_counts_add_up_over_clients_that_come_and_go() -> None:
    """Client 3 is away in every other round, and is then not to be expected."""
    strategy, grid = CohortStrategy(FedAvg(), SizeClustered(4), seed=0), grid_of()
    node = next(node for node, client in grid.partitions.items() if client == 3)
    expected = dict.fromkeys(range(len(SIZES)), 0.0)
    for number in range(1, 7):
        grid.partitions.pop(node, None)
        if number % 2:
            grid.partitions[node] = 3
        total = sum(SIZES[client] for client in grid.partitions.values())
        for client in grid.partitions.values():
            expected[client] += 4 * SIZES[client] / total
        one_round(strategy, grid, number)

    found = strategy.selections.summary()

    assert {int(key): count for key, (_, count) in found.items()} == pytest.approx(expected)
    assert sum(drawn(strategy).values()) == 6 * 4


def test_failures_are_counted_by_client(caplog: pytest.LogCaptureFixture) -> None:
    strategy, grid = (
        CohortStrategy(FedAvg(fraction_evaluate=0.0), SizeClustered(4), seed=0),
        grid_of(),
    )
    grid.fails = lambda node, kind: kind == "train" and grid.partitions[node] == 3
    for number in (1, 2, 3):
        one_round(strategy, grid, number)

    with caplog.at_level("INFO", "fedcohort"):
        strategy.selections.log_summary()

    times = drawn(strategy)["3"]
    assert failed(strategy) == {"3": 3}
    assert f"client 3: drawn {times} times, 4.7 expected, failed 3 times" in caplog.text


def test_a_client_that_was_drawn_once_was_not_drawn_1_times(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One of two clients of equal size fails in the only round."""
    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), SizeClustered(2), seed=0)
    grid = grid_of(2, app=client_app([1, 1]))
    grid.fails = lambda node, kind: kind == "train" and grid.partitions[node] == 1

    with caplog.at_level("INFO", "fedcohort"):
        strategy.start(grid, model(), num_rounds=1)

    assert "client 0: drawn once, 1.0 expected" in caplog.messages
    assert "client 1: drawn once, 1.0 expected, failed once" in caplog.messages


def lines_of(caplog: pytest.LogCaptureFixture, inner: FedAvg, **more: Any) -> list[str]:
    """Train three rounds with ten clients; client 3 and all evaluations fail. Return the log."""
    grid = grid_of(10, app=client_app([10] * 10))
    grid.fails = lambda node, kind: (
        kind == "evaluate" or (kind == "train" and grid.partitions[node] == 3)
    )
    recipe = more.pop("recipe", SizeClustered(10))
    with caplog.at_level("INFO", "flwr"):
        CohortStrategy(inner, recipe, seed=0, **more).start(grid, model(), num_rounds=3)
    return caplog.messages


def test_a_round_has_one_number_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """All are drawn in every round, and client 3 fails."""
    lines = lines_of(caplog, FedAvg(fraction_evaluate=0.0))

    rounds = [line for line in lines if not line.startswith("audit: ")]
    numbers = [re.search(r"round (\d+)", line, re.IGNORECASE) for line in rounds]
    assert [int(found[1]) for found in numbers if found] == [1] * 3 + [2] * 3 + [3] * 3
    assert "[ROUND 2/3]" in lines
    assert any(line.startswith("round 2: drawn {'0': 1, ") for line in lines)
    assert any(line.startswith("training in round 2: 1 of 10 clients failed") for line in lines)
    silence = "audit: 1 of 10 clients has not answered since round 1: 10 % of all samples"
    assert silence in lines


@pytest.mark.parametrize("recipe", [SizeClustered(3), Poisson(3)], ids=repr)
@pytest.mark.parametrize("inner", [FedAvg, FedAdam])
def test_the_log_says_how_many_of_how_many_clients_are_asked(
    inner: type[FedAvg], recipe: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Flower's own lines would say 3 of 3, and a fraction that has no effect."""
    strategy = inner(fraction_train=0.3, fraction_evaluate=0.0)

    lines = lines_of(caplog, strategy, recipe=recipe)

    asked = [line for line in lines if line.startswith("configure_train")]
    drawn_lines = [line for line in lines if re.match(r"round \d+: drawn", line)]
    expected = [line.partition("}")[0].count(":") - 1 for line in drawn_lines]
    assert asked == [f"configure_train: asks {n} of 10 clients" for n in expected]
    assert not [line for line in lines if "Sampled" in line or "Fraction" in line]
    assert any("Minimum available nodes: 2" in line for line in lines)
    draws = f"training: {recipe!r} draws the clients, seed 0; fraction_train has no effect"
    assert draws in lines


@pytest.mark.parametrize(
    ("inner", "more", "line"),
    [
        (FedAvg(fraction_evaluate=0.0), {}, "evaluation: none by clients"),
        (
            FedAvg(fraction_evaluate=0.0),
            {"evaluate": 4},
            "configure_evaluate: asks 4 of 10 clients",
        ),
        (
            FedAvg(fraction_evaluate=0.0),
            {"evaluate": 4},
            "evaluation: SizeClustered(cohort_size=4) draws the clients",
        ),
        (
            FedAvg(fraction_evaluate=0.5),
            {},
            "evaluation: FedAvg chooses the clients, fraction_evaluate 0.5, min_evaluate_nodes 2",
        ),
        (FedAvg(fraction_evaluate=0.5), {}, "configure_evaluate: Sampled 5 nodes (out of 10)"),
    ],
)
def test_the_log_says_who_evaluates(
    inner: FedAvg, more: dict[str, Any], line: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert line in lines_of(caplog, inner, **more)


#: What Flower 1.41 gives for an exception of a client in a simulation, with shorter paths.
RAY = """<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'\x1b[36mray::\
ClientAppActor.run()\x1b[39m (pid=20403, ip=192.0.2.2, repr=<flwr.ClientAppActor>)
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "flwr/clientapp/client_app.py", line 161, in __call__
    return self._registered_funcs[full_name](message, context)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "program.py", line 18, in train
    raise KeyError("img")
{exception}

The above exception was the direct cause of the following exception:

\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=20403, ip=192.0.2.2, actor_id=142875f2)
  File "flwr/simulation/ray_transport/ray_actor.py", line 65, in run
    raise ClientAppException(str(ex)) from ex
flwr.clientapp.client_app.ClientAppException:
Exception ClientAppException occurred. Message: 'img''>"""


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        (RAY.format(exception="KeyError: 'img'"), "KeyError: 'img'"),
        (RAY.format(exception="ValueError: two\nlines"), "ValueError: two lines"),
        ("<class 'KeyError'>:<''img''>", "<class 'KeyError'>:<''img''>"),
        ("The actor died.\n\tclass_name: Actor", "The actor died.\n\tclass_name: Actor"),
        ("", ""),
    ],
    ids=["simulation", "two lines", "deployment", "no traceback", "empty"],
)
def test_a_reason_is_the_clients_exception_and_not_what_stands_around_it(
    reason: str, cause: str
) -> None:
    assert cause_of(reason) == cause
