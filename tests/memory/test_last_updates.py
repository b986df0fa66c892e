"""The memories of last updates: every form beside its slow twin, files, forgetting, torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from difference_twin import PlainLowRank, PlainRows
from fedcohort import Difference, Multinomial, Selector
from fedcohort.errors import MemoryOfUpdatesError, SelectorError
from fedcohort.memory import LastUpdates, LowRankUpdates, Variates
from fedcohort.memory.row_files import FileStore
from populations import rng

FORMS = ("float64", "float32", "float16", "int8", "sign")
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


def played(memory: Variates, rounds: range) -> None:
    for round_ in rounds:
        clients, updates = cohort_of(round_)
        memory.record(clients, like(memory.zeros, updates), round_=round_)


def h_of(memory: Variates) -> np.ndarray:
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


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_zero_counts_as_positive_among_signs(kind: str) -> None:
    memory = Difference(keep="sign").memory([0.5, 0.5], zeros_of(kind, 3))

    memory.record([0], like(memory.zeros, np.array([[0.0, -3.0, 6.0]])))

    assert np.asarray(memory.of(np.array([0]))).tolist() == [[3.0, -3.0, 3.0]]


def test_updates_beyond_the_range_of_a_type_are_clipped() -> None:
    memory = Difference(keep="float16").memory([0.5, 0.5], np.zeros(2))

    memory.record([0], [[1e6, -1e6]])

    assert memory.of(np.array([0])).tolist() == [[65504.0, -65504.0]]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("keep", [*FORMS, "rank"])
@pytest.mark.parametrize("size", [1.4e-45, 128 * 1.4e-45, 1e-39, 1e-36, 1e30, 3.4e38])
def test_tiny_and_huge_updates_are_kept_as_finite_numbers(
    size: float, keep: Any, kind: str
) -> None:
    """From the smallest float32 to the largest: h is no farther off than 0, and H is its mean."""
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
    memory = Difference(keep="float64").memory(SHARES, np.zeros(SIZE))
    sizes = rng(3).integers(1, 50, size=N)
    for round_ in range(30):
        played(memory, range(round_, round_ + 1))
        present = sizes * ~np.isin(np.arange(N), rng(round_).choice(N, away, replace=False))

        memory.reweigh(present / present.sum())

        expected = present / present.sum() @ h_of(memory)
        np.testing.assert_allclose(memory.expected(), expected, rtol=0, atol=1e-12)


def test_only_clients_that_were_seen_take_memory() -> None:
    memory = Difference(keep="int8").memory(np.full(10**5, 1e-5), np.zeros(1000, dtype=np.float32))
    empty = memory.nbytes

    memory.record(np.arange(0, 10**5, 100), np.ones((1000, 1000), dtype=np.float32))

    assert memory.nbytes - empty <= 1.3e6


def test_forgotten_rows_make_room_for_others() -> None:
    memory = Difference(max_remembered=4).memory(np.full(400, 1 / 400), np.zeros(50))
    for round_ in range(100):
        memory.record(np.arange(4 * round_, 4 * round_ + 4), np.ones((4, 50)), round_=round_)

    assert isinstance(memory, LastUpdates)
    assert memory.n_remembered == 4
    assert memory._store.capacity <= 8
    np.testing.assert_allclose(memory.expected(), np.full(50, 0.01), rtol=0, atol=1e-12)


# Files


@pytest.fixture
def in_file(tmp_path: Path) -> Callable[[str], Variates]:
    def made(keep: Any) -> Variates:
        return Difference(keep=keep, file=str(tmp_path / "rows")).memory(SHARES, np.zeros(SIZE))

    return made


@pytest.mark.parametrize("keep", FORMS)
def test_a_file_keeps_what_memory_keeps(keep: Any, in_file: Callable[[str], Variates]) -> None:
    one, other = in_file(keep), Difference(keep=keep).memory(SHARES, np.zeros(SIZE))
    for round_ in range(20):
        played(one, range(round_, round_ + 1))
        played(other, range(round_, round_ + 1))
        if round_ % 3 == 0:
            one.state()

        assert h_of(one).tobytes() == h_of(other).tobytes()
        assert one.expected().tobytes() == other.expected().tobytes()


@pytest.mark.parametrize("keep", FORMS)
def test_a_checkpoint_rolls_the_file_back(keep: Any, in_file: Callable[[str], Variates]) -> None:
    """The last two states find their rows; the rounds after them are as if they had not been."""
    memory, plain = in_file(keep), Difference(keep=keep).memory(SHARES, np.zeros(SIZE))
    states, expected = [], []
    for start in (0, 4, 8):
        played(memory, range(start, start + 4))
        played(plain, range(start, start + 4))
        states.append(memory.state())
        expected.append(h_of(plain))
    played(memory, range(50, 60))

    for state, found in ((states[2], expected[2]), (states[1], expected[1])):
        again = in_file(keep)
        again.restore(state)
        assert h_of(again).tobytes() == found.tobytes()
    with pytest.raises(
        MemoryOfUpdatesError, match=r"rows has other rows by now, or is damaged\. Name"
    ):
        in_file(keep).restore(states[0])


def test_a_restored_state_leaves_the_rows_of_others(in_file: Callable[[str], Variates]) -> None:
    """A checkpoint on the disk stays valid if the server goes back to a later state."""
    memory = in_file("int8")
    played(memory, range(4))
    saved, expected = memory.state(), h_of(memory)
    played(memory, range(4, 8))

    memory.restore(memory.state())
    played(memory, range(8, 12))

    again = in_file("int8")
    again.restore(saved)
    assert h_of(again).tobytes() == expected.tobytes()


def test_a_row_in_the_slot_of_an_old_one_is_not_taken_for_it(
    in_file: Callable[[str], Variates],
) -> None:
    memory, ones = in_file("float32"), np.ones((1, SIZE))
    memory.record([0], ones)
    memory.record([1], 2 * ones)
    old = memory.state()
    memory.rearrange(np.array([0, -1, *range(2, N)]))
    for _ in range(3):
        state = memory.state()
    again = in_file("float32")
    again.restore(state)
    again.record([5], 7 * ones)

    with pytest.raises(MemoryOfUpdatesError, match="has other rows by now, or is damaged"):
        in_file("float32").restore(old)


@pytest.mark.parametrize("place", [4096 + 8, 4096 + 8 + SIZE - 1])
def test_a_damaged_row_is_refused(
    place: int, tmp_path: Path, in_file: Callable[[str], Variates]
) -> None:
    memory = in_file("int8")
    played(memory, range(9))
    state, content = memory.state(), bytearray((tmp_path / "rows").read_bytes())
    content[place] ^= 1
    (tmp_path / "rows").write_bytes(content)

    with pytest.raises(MemoryOfUpdatesError, match="has other rows by now, or is damaged"):
        in_file("int8").restore(state)


@pytest.mark.parametrize("length", [100, 4096, 4096 + 30])
def test_a_shortened_file_is_refused(
    length: int, tmp_path: Path, in_file: Callable[[str], Variates]
) -> None:
    memory = in_file("int8")
    played(memory, range(9))
    state, content = memory.state(), (tmp_path / "rows").read_bytes()
    (tmp_path / "rows").write_bytes(content[:length])

    with pytest.raises(MemoryOfUpdatesError, match=r"rows .*is damaged\. Name another file"):
        in_file("int8").restore(state)


def test_two_memories_cannot_share_a_file(in_file: Callable[[str], Variates]) -> None:
    one, other = in_file("int8"), in_file("int8")
    played(one, range(1))
    played(other, range(1))

    with pytest.raises(MemoryOfUpdatesError, match="is missing, or belongs to another memory"):
        one.state()
    with pytest.raises(MemoryOfUpdatesError, match="is missing, or belongs to another memory"):
        played(one, range(1, 20))


def test_a_row_that_was_left_before_a_restart_is_erased_later(tmp_path: Path) -> None:
    """It stays for two more states, since a checkpoint may refer to it."""
    settings, zeros = Difference(keep="float64", file=str(tmp_path / "rows")), np.zeros(3)
    secret = np.array([[np.pi, np.e, -np.pi]])
    before = settings.memory([1.0], zeros)
    before.record([0], secret)
    before.state()
    before.record([0], np.ones((1, 3)))
    state = before.state()

    after = settings.memory([1.0], zeros)
    after.restore(state)
    is_there = []
    for _ in range(3):
        is_there.append(secret.tobytes() in (tmp_path / "rows").read_bytes())
        after.record([0], np.ones((1, 3)))
        after.state()

    assert is_there == [True, True, False]


def test_a_full_disk_changes_nothing(
    in_file: Callable[[str], Variates], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = in_file("float64")
    played(memory, range(3))
    memory.state()

    def full(descriptor: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("fedcohort.memory.row_files._reserve", full)
        with pytest.raises(MemoryOfUpdatesError, match=r"cannot be written \(no space left"):
            played(memory, range(3, 30))
    before = h_of(memory)

    np.testing.assert_allclose(memory.expected(), SHARES @ before, rtol=0, atol=1e-12)
    for _ in range(3):
        memory.state()
    assert h_of(memory).tobytes() == before.tobytes()


def test_the_file_does_not_grow_without_bound(
    tmp_path: Path, in_file: Callable[[str], Variates]
) -> None:
    """Rows that changed since the last two states, and a quarter in reserve."""
    memory = in_file("float32")
    for round_ in range(300):
        played(memory, range(round_, round_ + 1))
        if round_ % 2:
            memory.state()

    assert isinstance(memory, LastUpdates)
    assert memory._store.capacity <= 1.25 * (N + 3 * 6) + 1


@pytest.mark.parametrize("content", [b"a thesis", b"fedcohort rows 1\nnot json"])
def test_a_foreign_file_is_never_overwritten(
    content: bytes, tmp_path: Path, in_file: Callable[[str], Variates]
) -> None:
    (tmp_path / "rows").write_bytes(content)

    with pytest.raises(MemoryOfUpdatesError, match=r"rows is not a file of rows\. Name another"):
        played(in_file("int8"), range(1))

    assert (tmp_path / "rows").read_bytes() == content


def test_a_state_needs_its_own_file(tmp_path: Path, in_file: Callable[[str], Variates]) -> None:
    memory = in_file("int8")
    played(memory, range(3))
    state = memory.state()

    played(in_file("int8"), range(2))  # a new memory makes the file anew

    with pytest.raises(MemoryOfUpdatesError, match="is missing, or belongs to another memory"):
        in_file("int8").restore(state)
    (tmp_path / "rows").unlink()
    with pytest.raises(MemoryOfUpdatesError, match="is missing, or belongs to another memory"):
        in_file("int8").restore(state)


def test_a_forgotten_client_leaves_the_file_two_states_later(tmp_path: Path) -> None:
    path, secret = tmp_path / "rows", np.array([1234.5678, -8765.4321], dtype=np.float32)
    memory = Difference(file=str(path)).memory([0.5, 0.5], np.zeros(2))
    memory.record([0, 1], np.stack([secret, 0 * secret]))
    memory.state()
    assert secret.tobytes() in path.read_bytes()

    memory.rearrange(np.array([1]))
    memory.state()
    memory.state()

    assert secret.tobytes() not in path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600


SERVER = """
import sys
from pathlib import Path
import numpy as np
from fedcohort import Difference, Multinomial, Selector
folder, rounds, dies_at = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
saved = folder / "selector"
settings = Difference(keep="int8", file=str(folder / "rows"))
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


def test_a_killed_server_goes_on_bit_for_bit_from_its_file(tmp_path: Path) -> None:
    """Killed in rounds 7, 13 and 18, and resumed from rounds 5, 10 and 15."""

    def model_after(folder: Path, *deaths: int) -> str:
        folder.mkdir()
        for dies_at in (*deaths, 0):
            command = [sys.executable, "-c", SERVER, str(folder), "20", str(dies_at)]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            assert ended.returncode == (9 if dies_at else 0), ended.stderr
        return ended.stdout

    assert model_after(tmp_path / "killed", 7, 13, 18) == model_after(tmp_path / "whole")


def test_a_selector_with_a_lost_file_is_refused(tmp_path: Path) -> None:
    settings = Difference(file=str(tmp_path / "rows"))
    selector = Selector(Multinomial(2), [1] * 5, seed=0, estimator=settings)
    selector.aggregate({each: np.ones(3) for each in selector.draw().ids})
    selector.save(tmp_path / "saved")
    (tmp_path / "rows").unlink()

    with pytest.raises(
        SelectorError, match=r"saved cannot be used \(Difference: .*rows is missing"
    ):
        Selector.load(tmp_path / "saved")


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_the_update_of_a_forgotten_client_is_erased(kind: str) -> None:
    zeros = zeros_of(kind)
    memory = Difference(keep="float64", max_remembered=2).memory(SHARES, zeros)
    assert isinstance(memory, LastUpdates)
    for client in range(3):
        memory.record([client], like(zeros, np.full((1, SIZE), 5.0 + client)), round_=client)

    kept = {float(value) for block in memory._store._blocks for value in block.reshape(-1)}
    assert kept - {0.0} == {6.0, 7.0}


def test_a_file_takes_rows_of_a_gpu_or_a_tensor(tmp_path: Path) -> None:
    zeros = zeros_of("torch")
    memory = Difference(keep="sign", file=str(tmp_path / "rows")).memory(SHARES, zeros)
    plain = Difference(keep="sign").memory(SHARES, zeros)
    played(memory, range(5))
    played(plain, range(5))

    assert isinstance(memory, LastUpdates)
    assert isinstance(memory._store, FileStore)
    assert (memory.of(np.arange(N)) == plain.of(np.arange(N))).all()


@pytest.mark.parametrize(
    "settings",
    [
        *(Difference(keep="float16"), Difference(keep="int8"), Difference(keep="sign")),
        *(Difference(keep="rank", rank=2), Difference(max_remembered=2)),
    ],
    ids=str,
)
def test_a_selector_goes_on_bit_for_bit_with_every_form(
    settings: Difference, tmp_path: Path
) -> None:
    def going_on(selector: Selector, model: np.ndarray, rounds: int) -> np.ndarray:
        for _ in range(rounds):
            cohort = selector.draw()
            seeds = {each: [selector.round_, each] for each in cohort.ids}
            model = model + selector.aggregate(
                {each: np.random.default_rng(seeds[each]).standard_normal(4) for each in seeds}
            )
        return model

    whole = Selector(Multinomial(2), [2] * 6, seed=3, estimator=settings)
    expected = going_on(whole, np.zeros(4), 12)

    first = Selector(Multinomial(2), [2] * 6, seed=3, estimator=settings)
    model = going_on(first, np.zeros(4), 5)
    first.save(tmp_path / "saved")
    second = Selector.load(tmp_path / "saved")

    assert going_on(second, model, 7).tobytes() == expected.tobytes()
    assert isinstance(second.variates, (LastUpdates, LowRankUpdates))
