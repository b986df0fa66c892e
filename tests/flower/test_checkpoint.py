"""Checkpoints: a training that was interrupted goes on as if it had not been."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp import strategy as flwr

from fedcohort import Difference, Oort, SimilarityClustered, SizeClustered, recipe
from fedcohort._archive import json_array, json_value, read_archive, write_archive
from fedcohort.deployment.checkpoint import KIND
from fedcohort.errors import FedcohortError, FlowerError
from fedcohort.flower import CohortStrategy, Limits
from fedcohort.selector import read_selections
from flower.federation import drawn, flat, grid_of, model
from flower.in_process import InProcessGrid
from flower.test_evaluation import evaluating_app

ROUNDS = 9
INNERS: dict[str, Callable[[], flwr.FedAvg]] = {
    "FedAvg": lambda: flwr.FedAvg(fraction_evaluate=0.0),
    "FedAdam": lambda: flwr.FedAdam(fraction_evaluate=0.0),
    "FedAvgM": lambda: flwr.FedAvgM(fraction_evaluate=0.0, server_momentum=0.9),
}
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("FedAvg", {"recipe": SizeClustered(3)}),
    ("FedAvg", {"recipe": SimilarityClustered(3)}),
    ("FedAvg", {"recipe": SizeClustered(3), "on_failure": "redraw"}),
    ("FedAvg", {"recipe": SizeClustered(3), "evaluate": 2}),
    ("FedAvg", {"recipe": SizeClustered(3), "estimator": Difference(keep="int8")}),
    ("FedAvg", {"recipe": Oort(3)}),
    ("FedAdam", {"recipe": SizeClustered(3), "evaluate": 2}),
    ("FedAdam", {"recipe": SizeClustered(3), "estimator": "difference", "evaluate": 3}),
    ("FedAvgM", {"recipe": SimilarityClustered(3), "estimator": "difference"}),
]


class Killed(BaseException):
    """What ends a server in the middle."""


def killed_in(last: int, seen: list[int] | None = None) -> Any:
    """Evaluate on the server until a round, then die."""

    def evaluate_fn(number: int, arrays: ArrayRecord) -> MetricRecord:
        if seen is not None:
            seen.append(number)
        if number == last:
            raise Killed
        return MetricRecord({"sum": float(flat(arrays).sum())})

    return evaluate_fn


class Server:
    """Makes one strategy again and again, as a restarted process does."""

    def __init__(self, folder: Path, inner: str = "FedAvg", **more: Any) -> None:
        self.folder = folder
        self._inner, self._more = inner, {"recipe": SizeClustered(3), "every": 2, **more}
        folder.mkdir(exist_ok=True)

    @property
    def file(self) -> Path:
        return self.folder / "run" / "checkpoint"

    def strategy(self, **other: Any) -> CohortStrategy:
        more = {**self._more, **other}
        return CohortStrategy(
            INNERS[self._inner](),
            more.pop("recipe"),
            seed=3,
            checkpoint=self.folder / "run",
            log_file=self.folder / "log.jsonl",
            **more,
        )

    def run(self, rounds: int = ROUNDS, **more: Any) -> tuple[CohortStrategy, Any]:
        strategy = self.strategy()
        return strategy, strategy.start(failing(), model(), num_rounds=rounds, **more)

    def log(self) -> list[tuple[Any, ...]]:
        """Return what does not depend on the clock or the number of starts."""
        names = ("round", "drawn", "rows", "weights", "failed", "available")
        lines = read_selections(self.folder / "log.jsonl")
        return [tuple(line[name] for name in names) for line in lines]


def failing() -> InProcessGrid:
    """Make a grid in which client 1 never trains."""
    grid = grid_of(app=evaluating_app())
    grid.fails = lambda node, kind: kind == "train" and grid.partitions[node] == 1
    return grid


@pytest.mark.parametrize(("inner", "more"), SETTINGS, ids=str)
def test_a_killed_server_ends_with_the_same_model_and_log(
    inner: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """It is killed after rounds 1, 4 and 7, and each time another process goes on."""
    whole, broken = Server(tmp_path / "whole", inner, **more), Server(tmp_path / "b", inner, **more)
    expected_strategy, expected = whole.run()
    for last in (1, 4, 7):
        with pytest.raises(Killed):
            broken.run(resume=True, evaluate_fn=killed_in(last))

    strategy, result = broken.run(resume=True)

    assert (flat(result.arrays) == flat(expected.arrays)).all()
    assert broken.log() == whole.log()
    assert drawn(strategy) == drawn(expected_strategy)
    assert strategy.rounds_done == ROUNDS
    for number in (8, 9):
        for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
            assert getattr(result, name).get(number) == getattr(expected, name).get(number)


@recipe
def first_ones(population: Any, known: Any, rng: Any) -> list[int]:
    """Choose by a function, whose expected counts nobody knows."""
    return list(range(known.cohort_size))


def test_a_recipe_made_from_a_function_can_be_resumed(tmp_path: Path) -> None:
    whole, broken = (Server(tmp_path / name, recipe=first_ones(3)) for name in ("whole", "broken"))
    _, expected = whole.run()
    broken.run(rounds=4)

    strategy, result = broken.run(resume=True)

    assert (flat(result.arrays) == flat(expected.arrays)).all()
    assert broken.log() == whole.log()
    assert np.isnan(strategy.selections.expected).all()


@pytest.mark.parametrize("kind", ["train", "query.num_examples"])
def test_a_server_that_dies_while_it_waits_for_replies_plays_that_round_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something happens in the middle of the fifth round, or before the first."""
    whole, broken = Server(tmp_path / "whole"), Server(tmp_path / "broken")
    _, expected = whole.run()
    grid, pulls = failing(), [0]

    def pull(ids: Any, original: Any = grid.pull_messages) -> Any:
        pulls[0] += {kind_ for kind_, _ in grid.asked[-1:]} == {kind}
        if pulls[0] == (5 if kind == "train" else 1):
            raise Killed
        return original(ids)

    monkeypatch.setattr(grid, "pull_messages", pull)
    with pytest.raises(Killed):
        broken.strategy().start(grid, model(), num_rounds=ROUNDS)

    _, result = broken.run(resume=True)

    assert (flat(result.arrays) == flat(expected.arrays)).all()
    assert broken.log() == whole.log()


def test_evaluation_cohorts_go_on_where_one_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, broken = (Server(tmp_path / name, evaluate=2) for name in ("whole", "broken"))
    _, expected = whole.run()
    grid, pulls = failing(), [0]

    def pull(ids: Any, original: Any = grid.pull_messages) -> Any:
        pulls[0] += grid.asked[-1][0] == "evaluate"
        if pulls[0] == 5:
            raise Killed
        return original(ids)

    monkeypatch.setattr(grid, "pull_messages", pull)
    with pytest.raises(Killed):
        broken.strategy().start(grid, model(), num_rounds=ROUNDS)

    _, result = broken.run(resume=True)

    assert list(result.evaluate_metrics_clientapp) == [6, 7, 8, 9]
    for number, metrics in result.evaluate_metrics_clientapp.items():
        assert metrics == expected.evaluate_metrics_clientapp[number]


def test_a_server_that_lost_its_power_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    """Nothing can be saved any more: the file is that of round 4 when round 5 is over."""
    whole, broken = Server(tmp_path / "whole"), Server(tmp_path / "broken")
    _, expected = whole.run()

    def evaluate_fn(number: int, arrays: ArrayRecord) -> None:
        if number == 5:
            shutil.copy(broken.file, tmp_path / "copy")
            raise Killed

    with pytest.raises(Killed):
        broken.run(evaluate_fn=evaluate_fn)
    shutil.copy(tmp_path / "copy", broken.file)
    again = broken.strategy()
    again.load(broken.file)
    at = again.rounds_done

    _, result = broken.run(resume=True)

    assert at == 4
    assert (flat(result.arrays) == flat(expected.arrays)).all()


@pytest.mark.parametrize(("every", "saved"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (10, [5])])
def test_a_checkpoint_is_written_every_so_many_rounds_and_at_the_end(
    every: int, saved: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, found = Server(tmp_path, every=every), list[int]()
    original = CohortStrategy.save

    def save(self: CohortStrategy, path: Any, arrays: ArrayRecord) -> None:
        found.append(self.rounds_done)
        original(self, path, arrays)

    monkeypatch.setattr(CohortStrategy, "save", save)
    server.run(rounds=5)

    assert found == saved
    assert [path.name for path in server.file.parent.iterdir()] == ["checkpoint"]


def test_the_folder_can_be_text_and_is_made(tmp_path: Path) -> None:
    folder = str(tmp_path / "a" / "b")
    log = str(tmp_path / "log.jsonl")
    strategy = CohortStrategy(
        INNERS["FedAvg"](), SizeClustered(3), seed=3, checkpoint=folder, log_file=log
    )

    strategy.start(grid_of(), model(), num_rounds=2)
    arrays = CohortStrategy(INNERS["FedAvg"](), SizeClustered(3), seed=3).load(
        folder + "/checkpoint"
    )

    assert (tmp_path / "a" / "b" / "checkpoint").is_file()
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 2
    assert flat(arrays).shape == (10,)


def test_resuming_without_a_file_starts_from_the_beginning(tmp_path: Path) -> None:
    whole, other = Server(tmp_path / "whole"), Server(tmp_path / "other")

    _, expected = whole.run(rounds=3)
    _, result = other.run(rounds=3, resume=True)

    assert (flat(result.arrays) == flat(expected.arrays)).all()


def test_a_checkpoint_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.run(rounds=3)
    before = server.file.read_bytes()

    with pytest.raises(FlowerError) as caught:
        server.run(rounds=3)

    assert str(caught.value) == (
        f"CohortStrategy: {server.file} exists already. Pass resume=True to continue from it, or "
        f"use another file."
    )
    assert server.file.read_bytes() == before


def test_a_second_start_of_the_same_strategy_goes_on(tmp_path: Path) -> None:
    server = Server(tmp_path)
    strategy = server.strategy()
    first = strategy.start(failing(), model(), num_rounds=3)

    strategy.start(failing(), first.arrays, num_rounds=2)

    assert strategy.rounds_done == 5
    again = server.strategy()
    again.load(server.file)
    assert again.rounds_done == 5


def test_resuming_without_a_folder_is_refused() -> None:
    strategy, grid = CohortStrategy(INNERS["FedAvg"](), SizeClustered(3), seed=3), grid_of()

    with pytest.raises(FlowerError, match=r"resume needs a checkpoint folder; got none\. Pass"):
        strategy.start(grid, model(), num_rounds=2, resume=True)
    assert grid.asked == []


@pytest.mark.parametrize("rounds", [0, 3, 5])
def test_with_more_rounds_done_than_asked_the_saved_model_is_returned(
    rounds: int, tmp_path: Path
) -> None:
    server, seen = Server(tmp_path), list[int]()
    _, expected = server.run(rounds=5)
    before = server.file.read_bytes()

    strategy, result = server.run(rounds, resume=True, evaluate_fn=killed_in(-1, seen))

    assert (flat(result.arrays) == flat(expected.arrays)).all()
    assert strategy.rounds_done == 5
    assert seen == [5]
    assert server.file.read_bytes() == before
    assert len(server.log()) == 5


def test_rounds_are_counted_over_all_starts(tmp_path: Path) -> None:
    server, seen = Server(tmp_path), list[int]()
    server.run(rounds=3)

    _, result = server.run(rounds=6, resume=True, evaluate_fn=killed_in(-1, seen))

    assert seen == [3, 4, 5, 6]
    assert list(result.train_metrics_clientapp) == [4, 5, 6]
    assert list(result.evaluate_metrics_serverapp) == [3, 4, 5, 6]


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[:-1],
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole + b"x",
        lambda whole: whole[:200] + bytes([whole[200] ^ 1]) + whole[201:],
        lambda whole: b"",
        lambda whole: b"something else\n" + whole,
        lambda whole: whole.replace(b"archive 1", b"archive 0"),
    ],
    ids=["cut", "half", "longer", "a bit", "empty", "other", "old"],
)
def test_a_damaged_checkpoint_is_refused_in_one_sentence_and_left_alone(
    damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    server = Server(tmp_path)
    server.run(rounds=3)
    damaged = damage(server.file.read_bytes())
    server.file.write_bytes(damaged)

    with pytest.raises(FlowerError, match=r"checkpoint cannot be read \(.+\)\. Start without it\."):
        server.run(rounds=5, resume=True)
    assert server.file.read_bytes() == damaged
    assert len(server.log()) == 3


def test_a_folder_in_the_checkpoints_place_is_refused_in_one_sentence(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.file.mkdir(parents=True)

    with pytest.raises(FlowerError, match=r"cannot be read \(.+\)\. Start without it\."):
        server.run(resume=True)


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"recipe": SizeClustered(4)}, "recipe"),
        ({"evaluate": 3}, "evaluate than 3"),
        ({"on_failure": "renormalise"}, "on_failure"),
    ],
    ids=str,
)
def test_a_checkpoint_of_other_settings_is_refused_and_changes_nothing(
    other: dict[str, Any], name: str, tmp_path: Path
) -> None:
    server = Server(tmp_path, evaluate=2)
    server.run(rounds=3)
    strategy = server.strategy(**other)

    with pytest.raises(FedcohortError, match=f"was written with another {name}"):
        strategy.start(failing(), model(), num_rounds=5, resume=True)
    assert strategy.rounds_done == 0
    assert strategy.directory.sizes == {}
    assert evaluation_round(strategy) == 0


def moments_of(strategy: CohortStrategy) -> list[Any]:
    """Return the first moments of FedAdam as lists; none before its first step."""
    found = strategy._inner.m_t  # type: ignore[attr-defined]
    return [] if found is None else [own.tolist() for own in found.values()]


@pytest.mark.parametrize(
    "damage",
    [
        lambda head, arrays: head["state"]["directory"].pop("sizes"),
        lambda head, arrays: head["state"]["directory"].update(claims=[[1]]),
        lambda head, arrays: head["parts"]["evaluation"].pop(0),
        lambda head, arrays: head["parts"]["selector"].pop(0),
    ],
)
def test_a_state_of_which_a_part_is_damaged_changes_nothing(
    damage: Callable[[dict[str, Any], dict[str, Any]], object], tmp_path: Path
) -> None:
    server = Server(tmp_path, inner="FedAdam", evaluate=2)
    server.run(rounds=3)
    used = CohortStrategy(INNERS["FedAdam"](), SizeClustered(3), seed=3, evaluate=2)
    used.start(failing(), model(), num_rounds=1)
    arrays = read_archive(server.file, KIND)
    head = json_value(arrays["head"])
    damage(head, arrays)
    write_archive(server.file, KIND, {**arrays, "head": json_array(head)})
    before = used.directory.state(), moments_of(used)

    with pytest.raises(FedcohortError):
        used.load(server.file)

    assert (used.rounds_done, evaluation_round(used)) == (1, 1)
    assert (used.directory.state(), moments_of(used)) == before


def test_a_used_strategy_takes_over_all_of_a_state_also_what_it_has_not(tmp_path: Path) -> None:
    """A state from before the first round has no moments."""
    strategy = CohortStrategy(INNERS["FedAdam"](), SizeClustered(3), seed=3)
    strategy.save(tmp_path / "state", model())
    strategy.start(failing(), model(), num_rounds=2)
    moved = moments_of(strategy)

    strategy.load(tmp_path / "state")

    assert moved
    assert moments_of(strategy) == []
    assert (strategy.rounds_done, strategy.directory.sizes) == (0, {})


def evaluation_round(strategy: CohortStrategy) -> int:
    selector = strategy._evaluation._selector
    assert selector is not None
    return selector.round_


def test_evaluation_can_be_switched_on_and_off_between_starts(tmp_path: Path) -> None:
    server = Server(tmp_path, evaluate=2)
    server.run(rounds=3)

    without = server.strategy(evaluate=None)
    without.start(failing(), model(), num_rounds=5, resume=True)
    again = server.strategy()
    result = again.start(failing(), model(), num_rounds=7, resume=True)

    assert again.rounds_done == 7
    assert list(result.evaluate_metrics_clientapp) == [6, 7]


def test_training_that_gives_up_leaves_a_checkpoint_of_its_last_round(tmp_path: Path) -> None:
    server = Server(tmp_path, every=10, limits=Limits(give_up_after=2))
    grid = grid_of(fails=lambda node, kind: kind == "train")

    with pytest.raises(FlowerError, match="2 rounds in a row"):
        server.strategy().start(grid, model(), num_rounds=9)

    again = server.strategy()
    assert (flat(again.load(server.file)) == 1.0).all()
    assert again.rounds_done == 2


def test_rounds_done_can_be_read_but_not_written() -> None:
    strategy = CohortStrategy(INNERS["FedAvg"](), SizeClustered(3), seed=3)
    seen: list[int] = []

    strategy.start(
        grid_of(), model(), num_rounds=3, evaluate_fn=lambda n, a: seen.append(strategy.rounds_done)
    )

    assert seen == [0, 1, 2, 3]
    with pytest.raises(AttributeError):
        strategy.rounds_done = 0  # type: ignore[misc]


def test_the_model_keeps_its_names_types_and_shapes(tmp_path: Path) -> None:
    arrays = ArrayRecord(
        {
            "z.weight": Array(np.full((3, 2), 1.0, np.float64)),
            "a/../b": Array(np.full((4,), 2.0, np.float16)),
            "empty": Array(np.zeros((0, 3), np.float32)),
            "steps": Array(np.array(7, np.int64)),
        }
    )
    strategy = CohortStrategy(INNERS["FedAvg"](), SizeClustered(3), seed=3)

    strategy.save(tmp_path / "state", arrays)
    again = strategy.load(tmp_path / "state")

    assert list(again) == list(arrays)
    for name, array in arrays.items():
        before, after = array.numpy(), again[name].numpy()
        assert (before.dtype, before.shape) == (after.dtype, after.shape)
        assert (before == after).all()


def test_a_checkpoint_needs_a_seed(tmp_path: Path) -> None:
    """A restarted server could not draw the same cohorts."""
    with pytest.raises(FlowerError, match=r"checkpoint needs a seed.*got None. Pass seed=0"):
        CohortStrategy(flwr.FedAvg(), SizeClustered(3), checkpoint=tmp_path)
