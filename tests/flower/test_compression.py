"""Compressed replies: the example's mod, and replies that cannot be decoded."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import ArrayRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from fedcohort import Multinomial
from fedcohort.flower import CohortStrategy
from flower.federation import client_app, flat, grid_of, one_round, update_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-mnist"


@pytest.fixture
def compression(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield import_module("flower_mnist.compression")
    for name in [name for name in sys.modules if name.startswith("flower_mnist")]:
        del sys.modules[name]


def test_updates_in_bytes_give_nearly_the_same_model(compression: Any) -> None:
    """Each entry is off by at most half a 127th of its array's largest one."""
    plain = one_round(CohortStrategy(FedAvg(), Multinomial(6), seed=0), grid_of())
    strategy = CohortStrategy(FedAvg(), Multinomial(6), seed=0, decode=compression.from_int8)
    grid = grid_of(app=client_app(mods=[compression.int8_mod]))
    sent: list[str] = []
    original = grid.send_and_receive

    def watch(messages: Any, *, timeout: float | None = None) -> Any:
        replies = list(original(messages, timeout=timeout))
        sent.extend(
            a.dtype
            for r in replies
            for rec in r.content.array_records.values()
            for a in rec.values()
        )
        return replies

    grid.send_and_receive = watch  # type: ignore[method-assign]

    small = one_round(strategy, grid)

    assert set(sent) == {"int8"}
    assert plain is not None
    assert small is not None
    largest = max(np.abs(update_of(client)).max() for client in range(6))
    assert np.abs(flat(small) - flat(plain)).max() <= largest / 254 + 1e-6
    assert np.abs(flat(small) - flat(plain)).max() > 0


def test_a_reply_that_cannot_be_decoded_is_a_failure() -> None:
    def decode(content: RecordDict, sent: ArrayRecord) -> RecordDict:
        raise KeyError("scales")

    strategy = CohortStrategy(FedAvg(), Multinomial(6), seed=0, decode=decode)

    assert one_round(strategy, grid_of()) is None
