"""The memory of updates."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcohort import Population, Tournament
from fedcohort.designs import TournamentDesign
from fedcohort.errors import MemoryOfUpdatesError
from fedcohort.memory import CountSketch, UpdateMemory
from fedcohort.memory import update_memory as memory_module
from fedcohort.similarity.measures import inner_products
from populations import CIFAR_SIZES, rng


def test_it_is_zero_before_the_first_update_and_keeps_the_last() -> None:
    memory = UpdateMemory(4, 3)
    assert not memory.updates.any()
    assert not memory.seen.any()

    memory.record([1, 3], np.array([[1.0, 2, 3], [4, 5, 6]]), round_=0)
    memory.record(np.array([3]), [[7.0, 8, 9]], round_=5)

    assert memory.updates.tolist() == [[0, 0, 0], [1, 2, 3], [0, 0, 0], [7, 8, 9]]
    assert memory.updates.dtype == np.float32
    assert memory.last_seen.tolist() == [-1, 0, -1, 5]
    assert memory.seen.tolist() == [False, True, False, True]


def test_layers_are_laid_end_to_end() -> None:
    memory = UpdateMemory(2, 5)

    memory.record([0], [[np.array([[1.0, 2], [3, 4]]), np.array([5.0])]], round_=0)

    memory.record([1], [[np.array([[1, 2], [3, 4]]), np.array([0.5])]], round_=0)

    assert memory.updates.tolist() == [[1, 2, 3, 4, 5], [1, 2, 3, 4, 0.5]]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_given_updates_keep_their_type(dtype: str) -> None:
    """Designs then see differences that only float64 holds."""
    updates = np.array([[1.0, 2.0], [1.0 + 1e-12, 3.0]], dtype=dtype)

    memory = UpdateMemory.of(updates)

    assert memory.updates.dtype == dtype
    assert (memory.updates == updates).all()
    assert memory.last_seen.tolist() == [0, 0]
    assert (memory.products() == inner_products(updates)).all()


def test_recording_leaves_the_array_of_given_updates() -> None:
    updates = np.zeros((2, 2))
    memory = UpdateMemory.of(updates)

    memory.record([1], [[3.0, 4.0]])

    assert not updates.any()
    assert memory.updates.tolist() == [[0, 0], [3, 4]]
    assert memory.products().tolist() == [[0, 0], [0, 25]]


@pytest.mark.parametrize("updates", [[1.0, 2.0], np.zeros((2, 2, 2)), [["a"]], [[1.0], [1.0, 2.0]]])
def test_given_updates_must_have_a_row_per_client(updates: Any) -> None:
    with pytest.raises(
        MemoryOfUpdatesError, match=r"^UpdateMemory: updates must be numbers of shape .*got .*\.$"
    ):
        UpdateMemory.of(updates)


def test_what_is_remembered_cannot_be_changed_from_outside() -> None:
    with pytest.raises(ValueError, match="read-only"):
        UpdateMemory(2, 2).updates[0] = 1


@pytest.mark.parametrize(
    ("clients", "updates", "message"),
    [
        (
            [0],
            [[1.0, np.nan]],
            "updates must be finite float32 numbers below .*; client 0's is not",
        ),
        ([1], np.array([[1e39, 0.0]]), "client 1's is not"),
        ([0], [[1.0]], r"for updates of shape \(1, 2\), one row per client; got \(1, 1\)"),
        (
            [0, 1],
            [[1.0, 2.0]],
            "updates must be 2, one per client and all of the same arrays; got 1 updates",
        ),
        ([2], [[1.0, 2.0]], r"clients must be distinct numbers from 0 to 1; got \[2\]"),
        ([0, 0], [[1.0, 2.0], [3.0, 4.0]], "clients must be distinct numbers from 0 to 1"),
        ([0.5], [[1.0, 2.0]], "clients must be distinct numbers from 0 to 1"),
        ([0], [["a", "b"]], "an update must be real numbers"),
        ([0], [[1j, 2j]], "an update must be real numbers"),
        ([0], None, "updates must be 1, one per client"),
        ([-1], [[1.0, 2.0]], "clients must be distinct numbers from 0 to 1"),
    ],
)
def test_what_cannot_be_used_is_refused_and_nothing_is_recorded(
    clients: list[int], updates: object, message: str
) -> None:
    memory = UpdateMemory(2, 2)

    with pytest.raises(MemoryOfUpdatesError, match=message):
        memory.record(clients, updates, round_=0)
    assert not memory.updates.any()
    assert not memory.seen.any()


def test_nobodys_updates_change_nothing() -> None:
    memory = UpdateMemory(2, 2)

    memory.record([], [], round_=3)

    assert not memory.seen.any()


def test_a_sketch_that_overflows_and_a_negative_round_are_refused() -> None:
    memory = UpdateMemory(2, 50, sketch=1)

    with pytest.raises(MemoryOfUpdatesError, match="client 0's is not"):
        memory.record([0], np.full((1, 50), 3e38), round_=0)
    with pytest.raises(MemoryOfUpdatesError, match="round_ must be a whole number of at least 0"):
        memory.record([0], np.ones((1, 50)), round_=-1)
    assert not memory.seen.any()


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    """Any flipped bit: the file carries its checksum."""
    path = tmp_path / "memory.state"
    memory = UpdateMemory(np.int64(5), np.int64(20))  # type: ignore[arg-type]
    memory.save(path)
    content = path.read_bytes()
    for place in range(0, len(content), 97):
        damaged = bytearray(content)
        damaged[place] ^= 4
        path.write_bytes(bytes(damaged))

        with pytest.raises(MemoryOfUpdatesError, match="is not a memory of updates"):
            UpdateMemory.load(path)


def test_a_sketch_is_linear_seeded_and_the_plain_formula() -> None:
    x, y = rng(0).standard_normal((2, 500)).astype(np.float32)
    sketch = CountSketch(500, 16, seed=3)

    np.testing.assert_allclose(
        sketch((2 * x - y)[None])[0], 2 * sketch(x[None])[0] - sketch(y[None])[0], atol=1e-5
    )
    assert (CountSketch(500, 16, seed=3)(x[None]) == sketch(x[None])).all()
    assert (CountSketch(500, 16, seed=4)(x[None]) != sketch(x[None])).any()
    unit = np.eye(500, dtype=np.float32)
    columns = sketch(unit)
    assert (np.abs(columns).sum(axis=1) == 1).all()
    np.testing.assert_allclose(sketch(x[None])[0], x @ columns, atol=1e-5)


def test_sketches_keep_inner_products() -> None:
    """Mean over 400 seeds; each has deviation below sqrt(2/64) |x||y|; false alarms 1e-6."""
    x, y = rng(1).random((2, 300))  # all positive: without random signs the sum would be off
    bound = np.linalg.norm(x) * np.linalg.norm(y)

    pairs = [CountSketch(300, 64, seed=seed)(np.stack([x, y])) for seed in range(400)]

    mean = np.mean([float(a @ b) for a, b in pairs])
    assert abs(mean - x @ y) < 4.9 * np.sqrt(2 / 64 / 400) * bound


def test_a_sketched_memory_is_small_and_remembers_sketches() -> None:
    memory = UpdateMemory(10, 10_000, sketch=64, seed=1)
    update = rng().standard_normal(10_000)

    memory.record([4], [update], round_=2)

    assert memory.updates.shape == (10, 64)
    expected = CountSketch(10_000, 64, seed=1)(update.astype(np.float32)[None])
    assert (memory.updates[4] == expected[0]).all()


@pytest.mark.parametrize("sketch", [None, 8])
def test_it_saves_and_loads(sketch: int | None, tmp_path: Path) -> None:
    memory = UpdateMemory(5, 20, sketch=sketch, seed=9)
    memory.record([2, 4], rng().standard_normal((2, 20)), round_=3)
    memory.save(tmp_path / "memory.state")

    loaded = UpdateMemory.load(tmp_path / "memory.state")
    for each in (memory, loaded):
        each.record([0], rng(1).standard_normal((1, 20)), round_=4)

    assert (loaded.updates == memory.updates).all()
    assert (loaded.last_seen == memory.last_seen).all()


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 truncated"])
def test_a_file_that_is_no_memory_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "memory.state"
    path.write_bytes(content)

    with pytest.raises(MemoryOfUpdatesError, match="is not a memory of updates"):
        UpdateMemory.load(path)


def test_a_foreign_archive_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", x=np.ones(3))

    with pytest.raises(MemoryOfUpdatesError, match="is not a memory of updates"):
        UpdateMemory.load(tmp_path / "other.npz")


def seen_memory() -> UpdateMemory:
    """Return a memory that has seen two of three clients, its products kept."""
    memory = UpdateMemory(3, 2)
    memory.record([0, 2], [[1.0, 2.0], [3.0, 4.0]], round_=5)
    memory.products()
    return memory


def with_nan(array: np.ndarray) -> np.ndarray:
    """Return a copy whose first entry is NaN."""
    copied = array.astype(np.float64)
    copied.flat[0] = np.nan
    return copied


@pytest.mark.parametrize(
    "bad",
    [
        {"updates": None},
        {"updates": np.array(1.0)},
        {"updates": np.ones((1, 2))},
        {"updates": np.full((3, 2), np.nan)},
        {"updates": np.full((3, 2), "a")},
        {"last_seen": None},
        {"last_seen": np.array(7)},
        {"last_seen": np.array([0.5, 1.0, 2.0])},
        {"last_seen": np.array([-2, 0, 0])},
        {"head": None},
        {"head": np.array("no JSON")},
        {"head": np.array("[]")},
        {"head": np.array('{"dimension": 2, "sketch": null, "seed": 0, "shrink": 1.0, "more": 1}')},
        {"head": np.array('{"dimension": "2", "sketch": null, "seed": 0, "shrink": 1}')},
        {"head": np.array('{"dimension": 2, "sketch": null, "seed": null, "shrink": 1}')},
        {"products": np.ones(3)},
        {"products": np.full((3, 3), np.inf)},
        {"changed": None},
        {"changed": np.array(True)},
    ],
)
def test_what_is_no_state_of_a_memory_is_refused(bad: dict[str, np.ndarray | None]) -> None:
    state = {**seen_memory().state(), **bad}

    message = r"is not the state of a memory|memory's state must|must be a whole number"
    with pytest.raises(MemoryOfUpdatesError, match=message):
        UpdateMemory.of_state({name: each for name, each in state.items() if each is not None})


def test_a_state_with_nan_says_where() -> None:
    state = seen_memory().state()
    state["updates"] = with_nan(state["updates"])

    with pytest.raises(MemoryOfUpdatesError, match="updates of the memory's state must be finite"):
        UpdateMemory.of_state(state)


@pytest.mark.parametrize(
    "arguments", [(2**62, 2**62), (10**9, 10**9), (3, 10**15, 8), (True, 3), (3, "3"), (2**64, 1)]
)
def test_a_memory_that_cannot_be_is_refused(arguments: tuple[int, ...]) -> None:
    n_clients, dimension, *sketch = arguments
    with pytest.raises(
        MemoryOfUpdatesError, match=r"do not fit into memory|must be a (whole number|64-bit)"
    ):
        UpdateMemory(n_clients, dimension, sketch=sketch[0] if sketch else None)


@pytest.mark.parametrize("arguments", [(0, 3), (3, 0), (3, 3, 0)])
def test_sizes_must_be_positive(arguments: tuple[int, ...]) -> None:
    n_clients, dimension, *sketch = arguments
    with pytest.raises(MemoryOfUpdatesError, match="at least"):
        UpdateMemory(n_clients, dimension, sketch=sketch[0] if sketch else None)


def test_only_what_changed_is_multiplied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small integers: products are exact, so that kept and new ones must be equal."""
    generator = rng(3)
    asked: list[int] = []

    def noted(updates: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        asked.append(len(updates) if rows is None else len(rows))
        return inner_products(updates, rows)

    monkeypatch.setattr(memory_module, "inner_products", noted)
    memory = UpdateMemory(n_clients=20, dimension=30)
    for round_ in range(5):
        clients = generator.choice(20, size=4, replace=False)
        memory.record(clients, generator.integers(-9, 10, size=(4, 30)), round_=round_)
        updates = memory.updates.astype(np.float64)

        assert (memory.products() == updates @ updates.T).all()
        assert (memory.products() == memory.products().T).all()

    assert asked == [20, 4, 4, 4, 4]
    memory.record(np.arange(11), generator.integers(-9, 10, size=(11, 30)), round_=5)
    memory.products()
    assert asked[-1] == 20  # more than half: all at once is less work


def test_kept_products_survive_a_restart_bit_for_bit(tmp_path: Path) -> None:
    generator = rng(4)
    memory = UpdateMemory(n_clients=9, dimension=50)
    memory.record(np.arange(9), generator.standard_normal((9, 50)), round_=0)
    memory.products()
    memory.record([3, 7], generator.standard_normal((2, 50)), round_=1)
    memory.save(tmp_path / "memory")

    again = UpdateMemory.load(tmp_path / "memory")

    assert (again.products() == memory.products()).all()
    with pytest.raises(ValueError, match="read-only"):
        again.products()[0, 0] = 1.0


def test_designs_are_the_same_with_products_that_were_kept() -> None:
    generator, population = rng(5), Population(CIFAR_SIZES)
    memory = UpdateMemory(n_clients=100, dimension=40)
    memory.record(np.arange(60), generator.standard_normal((60, 40)), round_=0)
    memory.products()
    memory.record([5, 80], generator.standard_normal((2, 40)), round_=1)

    kept = Tournament(10).build(population, memory=memory, round_=2, rng=rng(6))
    plain = TournamentDesign(population, 10, memory.updates, rng=rng(6))

    assert isinstance(kept, TournamentDesign)
    assert (kept.tree.groups == plain.tree.groups).all()
    assert (kept.tree.merges == plain.tree.merges).all()


def test_clients_move_to_other_places_with_their_updates_and_products() -> None:
    """Order 2, new, 0: client 1 is forgotten. Small integers: products are exact."""
    memory = UpdateMemory(n_clients=3, dimension=2)
    memory.record([0, 1, 2], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], round_=4)
    memory.products()
    memory.record([0], [[7.0, 8.0]], round_=5)

    memory.rearrange(np.array([2, -1, 0]))

    assert memory.n_clients == 3
    assert memory.updates.tolist() == [[5, 6], [0, 0], [7, 8]]
    assert memory.last_seen.tolist() == [4, -1, 5]
    assert memory.products().tolist() == [[61, 0, 83], [0, 0, 0], [83, 0, 113]]


def test_a_state_keeps_updates_and_products() -> None:
    memory = UpdateMemory(2, 3)
    memory.record([1], [[1.0, 2.0, 1 / 3]], round_=5)
    memory.products()

    again = UpdateMemory.of_state(memory.state())

    assert (again.updates == memory.updates).all()
    assert (again.products() == memory.products()).all()


@pytest.mark.parametrize("order", [[0, 2], [0, 0], [-2, 1], [0.5, 1.0], "x", [[0], [1]], None])
def test_an_order_that_is_none_is_refused_and_changes_nothing(order: Any) -> None:
    memory = UpdateMemory(2, 1)
    memory.record([1], [[3.0]])

    with pytest.raises(MemoryOfUpdatesError, match=r"order must be distinct numbers from 0 to 1"):
        memory.rearrange(order)

    assert memory.updates.tolist() == [[0.0], [3.0]]


@pytest.mark.parametrize("state", [None, 3, "x", []])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(MemoryOfUpdatesError, match="state must have numbers of shapes"):
        UpdateMemory(2, 1).restore(state)


def test_everybody_may_be_forgotten() -> None:
    memory = UpdateMemory(2, 1)
    memory.record([0], [[3.0]])

    memory.rearrange(np.array([], dtype=np.int64))

    assert (memory.n_clients, memory.updates.shape) == (0, (0, 1))


def test_integers_given_at_once_become_floats_that_later_updates_do_not_lose(
    tmp_path: Path,
) -> None:
    memory = UpdateMemory.of([[1, 2], [3, 4]])

    memory.record([0], [[0.5, 0.75]], round_=1)

    assert memory.updates.tolist() == [[0.5, 0.75], [3, 4]]
    memory.save(tmp_path / "memory")
    assert UpdateMemory.load(tmp_path / "memory").updates.tolist() == memory.updates.tolist()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_saved_memory_keeps_the_type_of_its_updates(kind: Any) -> None:
    rows = rng(0).random((5, 3)).astype(kind)

    again = UpdateMemory.of_state(UpdateMemory.of(rows).state()).updates

    assert again.dtype == kind
    assert (again == rows).all()
