"""Big models: decoded once, measured in pieces, and no update kept that nobody needs."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from fedcohort import SimilarityClustered, SizeClustered
from fedcohort.deployment.arrays import ClientUpdate
from fedcohort.flower import CohortStrategy
from fedcohort.flower.replies import SentModel, decoded
from fedcohort.memory import UpdateMemory
from flower.federation import client_app, grid_of, model, one_round, remembered


@pytest.fixture(params=[3, 2**20], ids="pieces of {}".format)
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    size: int = request.param
    monkeypatch.setattr("fedcohort.deployment.arrays.PIECE", size)
    return size


def arrays_of(seed: int) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    return {
        "weights": rng.normal(size=(4, 5)).astype(np.float32),
        "columns": np.asfortranarray(rng.normal(size=(3, 2))),
        "half": rng.normal(size=7).astype(np.float16),
        "one": np.array(rng.normal()),
        "none": np.zeros((0, 3)),
        "counter": np.array([seed, 10 * seed]),
    }


def record_of(arrays: dict[str, NDArray[Any]]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


@pytest.mark.usefixtures("piece")
def test_norms_in_pieces_are_the_norms() -> None:
    before, after = arrays_of(1), arrays_of(2)
    sent = SentModel(record_of(before))
    for name, own in before.items():
        step = 0.0 if name == "counter" else after[name].astype(np.float64) - own

        assert sent.norm_of_update(name, after[name]) == pytest.approx(np.linalg.norm(step))


def test_an_update_is_the_difference_in_the_models_type_or_float32() -> None:
    before, after = arrays_of(1), arrays_of(2)
    update = ClientUpdate(SentModel(record_of(before)), decoded(record_of(after)))
    types = [np.float32, np.float64, np.float32, np.float64, np.float64, np.int64]

    assert list(update) == list(before)
    for (name, step), kind in zip(update.items(), types, strict=True):
        assert (step.shape, step.dtype) == (before[name].shape, np.dtype(kind))
        assert (step == after[name].astype(kind) - before[name].astype(kind)).all()


def test_a_moved_model_keeps_shapes_and_types() -> None:
    before, after = arrays_of(1), arrays_of(2)
    sent = SentModel(record_of(before))
    steps = {name: 1.6 * (after[name].astype(np.float64) - own) for name, own in before.items()}

    moved = sent.plus(steps)

    assert moved is not None
    for name, own in before.items():
        expected = np.rint(own + steps[name]) if name == "counter" else own + steps[name]
        far = moved[name]
        assert (far == expected.astype(own.dtype)).all()
        assert (far.shape, far.dtype) == (own.shape, own.dtype)


def test_a_model_that_its_types_cannot_hold_is_none() -> None:
    sent = SentModel(record_of({"half": np.full(3, 6e4, dtype=np.float16)}))

    assert sent.plus({"half": np.array([0.0, 5e3, 0.0])}) is not None
    assert sent.plus({"half": np.array([0.0, 6e4, 0.0])}) is None


def test_the_model_that_was_sent_is_decoded_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of four draws fail: their weight rests on the model, which Flower's average reads too."""
    sent, grid = model(), grid_of()
    strategy = CohortStrategy(FedAvg(), SizeClustered(4), seed=0)
    own, read, original = {id(array) for array in sent.values()}, [], Array.numpy

    def numpy(array: Array) -> NDArray[Any]:
        read.extend([id(array)] if id(array) in own else [])
        return original(array)

    messages = list(strategy.configure_train(1, sent, ConfigRecord(), grid))
    replies = list(grid.send_and_receive(messages))[:2]
    monkeypatch.setattr(Array, "numpy", numpy)
    strategy.aggregate_train(1, replies)
    strategy.configure_train(2, sent, ConfigRecord(), grid)

    assert len(read) == 2 * len(sent)  # by the second round


def test_a_design_that_does_not_learn_computes_no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []
    monkeypatch.setattr(SentModel, "step", lambda *args: computed.append(args))

    moved = one_round(CohortStrategy(FedAvg(), SizeClustered(4), seed=0), grid_of())

    assert moved is not None
    assert computed == []


def test_where_updates_are_sketched_one_whole_update_lives_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also of its arrays no more than one lives beside it."""
    parts, whole, most = list[Any](), list[Any](), list[tuple[int, int]]()
    step, shortened = SentModel.step, UpdateMemory.shortened

    def watched_step(*args: Any) -> NDArray[Any]:
        made = step(*args)
        parts.append(weakref.ref(made))
        most.append((alive(parts), alive(whole)))
        return made

    def watched_shortened(memory: UpdateMemory, updates: NDArray[Any]) -> NDArray[np.float32]:
        whole.append(weakref.ref(updates if updates.base is None else updates.base))
        most.append((alive(parts), alive(whole)))
        return shortened(memory, updates)

    monkeypatch.setattr(SentModel, "step", watched_step)
    monkeypatch.setattr(UpdateMemory, "shortened", watched_shortened)
    strategy, grid = CohortStrategy(FedAvg(), SimilarityClustered(4), seed=0, sketch=3), grid_of()
    for number in range(1, 5):
        one_round(strategy, grid, number)

    assert max(n for n, _ in most) <= 2
    assert max(n for _, n in most) == 1
    assert len(whole) >= 8
    assert {len(kept) for kept in remembered(strategy).values()} == {3}


def alive(references: list[Any]) -> int:
    return sum(each() is not None for each in references)


def test_ten_tenths_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sum in floats is not; replies must go on as they came all the same."""
    computed = []
    monkeypatch.setattr(SentModel, "step", lambda *args: computed.append(args))

    moved = one_round(
        CohortStrategy(FedAvg(), SizeClustered(10), seed=0),
        grid_of(10, app=client_app([5] * 10)),
    )

    assert moved is not None
    assert computed == []
