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
from fedcohort.flower import CohortStrategy
from fedcohort.flower.sent_model import SentModel
from flower.federation import client_app, grid_of, model, one_round


@pytest.fixture(params=[3, 2**20], ids="pieces of {}".format)
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    size: int = request.param
    monkeypatch.setattr("fedcohort.flower.sent_model.PIECE", size)
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
def test_updates_in_pieces_are_the_updates() -> None:
    before, after = arrays_of(1), arrays_of(2)
    sent = SentModel(record_of(before))
    steps = {name: after[name].astype(np.float64) - before[name] for name in before}

    update = sent.flat_update(record_of(after))

    floats = [steps[name].ravel() for name in before if name != "counter"]
    assert (update == np.concatenate(floats).astype(np.float32)).all()
    for name, step in steps.items():
        assert sent.norm_of_update(name, after[name]) == pytest.approx(np.linalg.norm(step))


@pytest.mark.usefixtures("piece")
def test_models_stretched_in_pieces_keep_shapes_and_types() -> None:
    before, after = arrays_of(1), arrays_of(2)
    sent = SentModel(record_of(before))
    for name, own in before.items():
        far = sent.stretched(name, Array(after[name]), 1.6)

        expected = own + 1.6 * (after[name].astype(np.float64) - own)
        whole = np.rint(expected) if name == "counter" else expected
        assert (far == whole.astype(own.dtype)).all()
        assert (far.shape, far.dtype) == (own.shape, own.dtype)


def test_the_model_that_was_sent_is_decoded_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of four draws fail, so that replies are stretched as well."""
    sent, grid = model(), grid_of()
    strategy = CohortStrategy(FedAvg(), SizeClustered(4), seed=0)
    own, decoded, original = {id(array) for array in sent.values()}, [], Array.numpy

    def numpy(array: Array) -> NDArray[Any]:
        decoded.extend([id(array)] if id(array) in own else [])
        return original(array)

    messages = list(strategy.configure_train(1, sent, ConfigRecord(), grid))
    replies = list(grid.send_and_receive(messages))[:2]
    monkeypatch.setattr(Array, "numpy", numpy)
    strategy.aggregate_train(1, replies)
    strategy.configure_train(2, sent, ConfigRecord(), grid)

    assert len(decoded) == len(sent)  # by the second round


def test_a_design_that_does_not_learn_keeps_no_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    flattened = []
    monkeypatch.setattr(SentModel, "flat_update", lambda *args: flattened.append(args))

    one_round(CohortStrategy(FedAvg(), SizeClustered(4), seed=0), grid_of())

    assert flattened == []


def test_where_updates_are_sketched_one_whole_update_lives_at_a_time() -> None:
    strategy = CohortStrategy(FedAvg(), SimilarityClustered(4), seed=0, sketch=3)
    assert strategy._memory is not None
    alive, original, most = list[Any](), strategy._memory.shortened, []

    def shortened(update: NDArray[np.float32]) -> NDArray[np.float32]:
        alive.append(weakref.ref(update))
        most.append(sum(each() is not None for each in alive))
        return original(update)

    strategy._memory.shortened = shortened  # type: ignore[method-assign]
    grid = grid_of()
    for number in range(1, 5):
        one_round(strategy, grid, number)

    assert max(most) == 1
    assert len(most) >= 8
    assert {len(kept) for kept in strategy._memory.state().values()} == {3}


def test_ten_tenths_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sum in floats is not; replies must go on as they came all the same."""
    stretched = []
    monkeypatch.setattr(SentModel, "stretched", lambda *args: stretched.append(args))

    moved = one_round(
        CohortStrategy(FedAvg(), SizeClustered(10), seed=0),
        grid_of(10, app=client_app([5] * 10)),
    )

    assert moved is not None
    assert stretched == []
