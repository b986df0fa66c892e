"""The memories of last updates: every form beside its slow twin, forgetting, torch, restarts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from difference_twin import PlainLowRank, PlainRows
from fedcohort import Difference, Multinomial, Selector
from fedcohort.memory import Estimator, rows
from fedcohort.memory.rows import KeptRows, LowRankRows
from populations import rng

FORMS = ("float32", "float16", "int8")
N, SIZE = 12, 11
SHARES = rng(7).dirichlet(np.ones(N))


def zeros_of(kind: str, size: int = SIZE) -> Any:
    if kind == "numpy":
        return np.zeros(size)
    torch = pytest.importorskip("torch", reason="the extra 'sim' is not installed")
    return torch.zeros(size, dtype=torch.float64)


def like(zeros: Any, rows: np.ndarray) -> Any:
    return rows if isinstance(zeros, np.ndarray) else zeros.new_tensor(rows)


def cohort_of(round_: int, n: int = N, size: int = SIZE) -> tuple[np.ndarray, np.ndarray]:
    generator = rng(100 + round_)
    clients = np.sort(generator.choice(n, 3, replace=False))
    return clients, generator.standard_normal((3, size))


def played(memory: Estimator, rounds: range) -> None:
    for round_ in rounds:
        clients, updates = cohort_of(round_)
        memory.record(clients, like(memory.zeros, updates), round_=round_)


def h_of(memory: Estimator) -> np.ndarray:
    return np.asarray(memory.of(np.arange(memory.n_clients)))


@pytest.mark.parametrize("most", [None, 5, 2])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("keep", FORMS)
def test_rows_equal_their_slow_twin(keep: Any, kind: str, most: int | None) -> None:
    """Also the sum of p h, and after the least recently seen are forgotten."""
    memory = Difference(keep=keep, max_remembered=most).memory(SHARES, zeros_of(kind))
    twin = PlainRows(N, SIZE, keep, most)
    for round_ in range(20):
        played(memory, range(round_, round_ + 1))
        twin.record(*cohort_of(round_))

        # A scale is a quotient or a mean of 11 numbers below 4, and rounds a few times.
        assert np.abs(h_of(memory) - twin.h()).max() <= 64 * np.finfo(float).eps
        drift = np.abs(np.asarray(memory.expected()) - SHARES @ twin.h()).max()
        assert drift <= 20 * 64 * np.finfo(float).eps


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("rank", [1, 4, 32])
def test_low_rank_equals_its_slow_twin(rank: int, kind: str) -> None:
    """Singular vectors from a Gram matrix: their squares' rounding stays far below 1e-6."""
    memory = Difference(keep="rank", rank=rank).memory(SHARES, zeros_of(kind))
    twin = PlainLowRank(N, SIZE, rank)
    for round_ in range(15):
        played(memory, range(round_, round_ + 1))
        twin.record(*cohort_of(round_))

        assert np.abs(h_of(memory) - twin.h()).max() <= 1e-6
        assert np.abs(np.asarray(memory.expected()) - SHARES @ h_of(memory)).max() <= 1e-12


def test_a_rank_of_all_directions_keeps_updates_whole() -> None:
    memory = Difference(keep="rank", rank=SIZE).memory(SHARES, np.zeros(SIZE))
    clients, updates = cohort_of(0)

    memory.record(clients, updates)

    np.testing.assert_allclose(memory.of(clients), updates, rtol=0, atol=1e-9)


def test_updates_of_zero_and_of_one_number_are_kept() -> None:
    for keep in (*FORMS, "rank"):
        memory = Difference(keep=keep).memory([0.5, 0.5], np.zeros(1))  # type: ignore[arg-type]
        memory.record([0, 1], np.zeros((2, 1)))
        assert memory.of(np.arange(2)).tolist() == [[0.0], [0.0]]

        memory.record([1], [[4.0]])
        assert abs(memory.expected()[0] - 2.0) <= 1e-12


def test_updates_beyond_the_range_of_a_type_are_clipped() -> None:
    memory = Difference(keep="float16").memory([0.5, 0.5], np.zeros(2))

    memory.record([0], [[1e6, -1e6]])

    assert memory.of(np.array([0])).tolist() == [[65504.0, -65504.0]]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("keep", [*FORMS, "rank"])
@pytest.mark.parametrize("size", [1.4e-45, 128 * 1.4e-45, 1e-39, 1e-36, 1e30, 9.9e36])
def test_tiny_and_huge_updates_are_kept_as_finite_numbers(
    size: float, keep: Any, kind: str
) -> None:
    """From the smallest to the largest that count: h is no farther off than 0; H is its mean."""
    zeros = np.zeros(4, dtype=np.float32)
    if kind == "torch":
        zeros = pytest.importorskip("torch").from_numpy(zeros)
    memory = Difference(keep=keep).memory([0.5, 0.25, 0.25], zeros)
    update = np.float32(size) * np.array([1, -1, 1, 1], dtype=np.float32)
    for clients in ([0, 1], [1, 2]):
        memory.record(clients, like(zeros, np.stack([update, -update])))

    h = h_of(memory).astype(np.float64)
    assert np.isfinite(h).all()
    assert (np.abs(h - np.stack([update, update, -update])) <= abs(update)).all()
    expected = np.array([0.5, 0.25, 0.25]) @ h
    found = np.asarray(memory.expected()).astype(np.float64)
    # The smallest numbers round to multiples of 1.4e-45.
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=0.71e-45)
    again = Difference(keep=keep).memory([0.5, 0.25, 0.25], zeros)
    again.restore(memory.state())
    assert h_of(again).tobytes() == h_of(memory).tobytes()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("keep", [*FORMS, "rank"])
def test_a_restored_memory_goes_on_bit_for_bit(keep: Any, kind: str) -> None:
    settings = Difference(0.5, keep=keep, max_remembered=6)
    whole, before, other = (settings.memory(SHARES, zeros_of(kind)) for _ in range(3))
    played(whole, range(20))
    played(before, range(9))
    played(other, range(3))

    other.restore(before.state())
    played(other, range(9, 20))

    for name, array in whole.state().items():
        assert array.tobytes() == other.state()[name].tobytes(), name


@pytest.mark.parametrize("keep", [*FORMS, "rank"])
def test_clients_take_their_updates_to_other_places(keep: Any) -> None:
    memory = Difference(keep=keep).memory(SHARES, np.zeros(SIZE))
    played(memory, range(9))
    before, order = h_of(memory), np.array([3, -1, 0, 7, 5])

    memory.rearrange(order)
    memory.reweigh(np.full(5, 0.2))

    expected = np.where(order[:, None] >= 0, before[order], 0.0)
    np.testing.assert_allclose(h_of(memory), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(memory.expected(), expected.mean(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("away", [0, 1, 5, 11])
def test_the_sum_follows_clients_that_come_and_go(away: int) -> None:
    """Few come or go: the sum is scaled. Many: it is added up. Both agree with the formula."""
    memory = Difference().memory(SHARES, np.zeros(SIZE))
    sizes = rng(3).integers(1, 50, size=N)
    for round_ in range(30):
        played(memory, range(round_, round_ + 1))
        present = sizes * ~np.isin(np.arange(N), rng(round_).choice(N, away, replace=False))

        memory.reweigh(present / present.sum())

        expected = present / present.sum() @ h_of(memory)
        np.testing.assert_allclose(memory.expected(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("how", ["replaced", "erased", "away", "forgotten"])
@pytest.mark.parametrize("factor", [1e8, 1e12, 1e16, 1e20])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("keep", ["float32", "int8"])
def test_a_huge_update_leaves_no_error_in_the_sum(
    keep: Any, kind: str, factor: float, how: str
) -> None:
    """Float64 absorbs the digits of the others while the huge update is part of the sum."""
    most = N - 1 if how == "erased" else None
    memory = Difference(keep=keep, max_remembered=most).memory(np.full(N, 1 / N), zeros_of(kind))
    updates = rng(0).standard_normal((N, SIZE))
    updates[0] *= factor
    memory.record(np.arange(N - 1), like(memory.zeros, updates[:-1]))
    for round_ in (1, 2):
        memory.record(
            np.arange(1, 5),
            like(memory.zeros, rng(round_).standard_normal((4, SIZE))),
            round_=round_,
        )
    if how == "away":
        memory.reweigh(np.r_[0, np.full(N - 1, 1 / (N - 1))])
    elif how == "forgotten":
        memory.rearrange(np.arange(1, N))
    last = 0 if how == "replaced" else memory.n_clients - 1
    memory.record([last], like(memory.zeros, rng(9).standard_normal((1, SIZE))), round_=3)

    # Float64 has 16 digits; six of them may be lost.
    expected = memory.state()["importance"] @ h_of(memory)
    np.testing.assert_allclose(memory.expected(), expected, rtol=0, atol=1e-9)


def test_only_clients_that_were_seen_take_memory() -> None:
    memory = Difference(keep="int8").memory(np.full(10**5, 1e-5), np.zeros(1000, dtype=np.float32))
    empty = memory.nbytes

    memory.record(np.arange(0, 10**5, 100), np.ones((1000, 1000), dtype=np.float32))

    assert memory.nbytes - empty <= 1.3e6


def test_forgotten_rows_make_room_for_others() -> None:
    memory = Difference(max_remembered=4).memory(np.full(400, 1 / 400), np.zeros(50))
    for round_ in range(100):
        memory.record(np.arange(4 * round_, 4 * round_ + 4), np.ones((4, 50)), round_=round_)

    assert isinstance(memory, KeptRows)
    assert memory.n_remembered == 4
    assert len(memory._kept) == 4
    np.testing.assert_allclose(memory.expected(), np.full(50, 0.01), rtol=0, atol=1e-12)


def test_rows_that_do_not_fit_into_memory_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Difference().memory(SHARES, np.zeros(SIZE))
    memory.record([0, 1, 2], cohort_of(0)[1])
    before = memory.state()

    def full(array: Any, n: int) -> Any:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(rows, "zero_rows", full)
        with pytest.raises(MemoryError):
            memory.record([3, 4, 5], cohort_of(1)[1])

    for name, array in memory.state().items():
        assert array.tobytes() == before[name].tobytes(), name
    memory.record([2, 3, 4], cohort_of(1)[1])
    kept = np.concatenate([cohort_of(0)[1][:2], cohort_of(1)[1]]).astype(np.float32)
    assert (memory.of(np.arange(5)) == kept).all()


SERVER = """
import sys
from pathlib import Path
import numpy as np
from fedcohort import Difference, Multinomial, Selector
folder, rounds, dies_at = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
saved = folder / "selector"
settings = Difference(keep="int8")
selector = (
    Selector.load(saved) if saved.exists()
    else Selector(Multinomial(3), [3] * 12, seed=1, estimator=settings)
)
model = np.load(folder / "model.npy") if saved.exists() else np.zeros(11)
for round_ in range(selector.round_, rounds):
    cohort = selector.draw()
    model = model + selector.aggregate(
        {each: np.random.default_rng([round_, each]).standard_normal(11) for each in cohort.ids}
    )
    if selector.round_ == dies_at:
        import os
        os._exit(9)
    if selector.round_ % 5 == 0:
        np.save(folder / "model.npy", model)
        selector.save(saved)
print(model.tobytes().hex())
"""


def test_a_killed_server_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """Killed in rounds 7, 13 and 18, and resumed from rounds 5, 10 and 15."""

    def model_after(folder: Path, *deaths: int) -> str:
        folder.mkdir()
        for dies_at in (*deaths, 0):
            command = [sys.executable, "-c", SERVER, str(folder), "20", str(dies_at)]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            assert ended.returncode == (9 if dies_at else 0), ended.stderr
        return ended.stdout

    assert model_after(tmp_path / "killed", 7, 13, 18) == model_after(tmp_path / "whole")


@pytest.mark.parametrize("how", ["silent for too long", "left out"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_the_update_of_a_forgotten_client_is_erased(kind: str, how: str) -> None:
    zeros, most = zeros_of(kind), 2 if how == "silent for too long" else None
    memory = Difference(max_remembered=most).memory(SHARES, zeros)
    assert isinstance(memory, KeptRows)
    kept: dict[int, Any] = {}
    for client in range(3):
        kept |= memory._kept
        memory.record([client], like(zeros, np.full((1, SIZE), 5.0 + client)), round_=client)
    kept |= memory._kept
    if how == "left out":
        memory.rearrange(np.arange(1, N))

    assert sorted(float(row[0]) for row in memory._kept.values()) == [6.0, 7.0]
    assert not bool(kept[0].any())


@pytest.mark.parametrize(
    "settings",
    [
        *(Difference(), Difference(keep="float16"), Difference(keep="int8")),
        *(Difference(keep="rank", rank=2), Difference(max_remembered=2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_selector_goes_on_bit_for_bit_with_every_form(
    settings: Difference, kind: str, tmp_path: Path
) -> None:
    """Loaded in every round, also where clients are away, and through ``for_average``."""

    def played(path: Path | None) -> list[bytes]:
        selector = Selector(Multinomial(2), [2] * 6, seed=3, estimator=settings)
        found: list[Any] = []
        for round_ in range(12):
            if path is not None:
                selector.save(path)
                selector = Selector.load(path)
            cohort = selector.draw([0, 1, 2, 4] if round_ % 3 == 1 else None)
            rows = [np.random.default_rng([round_, each]).standard_normal(4) for each in cohort.ids]
            updates = {
                each: like(zeros_of(kind), own) for each, own in zip(cohort.ids, rows, strict=True)
            }
            found += [update for _, _, update in selector.for_average(updates)]
            found.append(selector.aggregate(updates))
        assert isinstance(selector.estimator, (KeptRows, LowRankRows))
        return [np.asarray(each).tobytes() for each in found]

    assert played(tmp_path / "saved") == played(None)
