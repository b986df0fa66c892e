"""fedcohort compare --updates."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from command_line import DESIGNS, SIZES, Result, refused, run
from fedcohort import diagnostics, read_clients
from fedcohort.comparison.rows import Row
from fedcohort.designs import BalancedDesign, TournamentDesign
from fedcohort.streams import Stream, stream
from fedcohort.synthetic import clustered_updates

DEFAULT = [*DESIGNS, "similarity", "tournament", "auto", "balanced"]


def saved(folder: Path, updates: object) -> Path:
    path = folder / "updates.npy"
    np.save(path, np.asarray(updates))
    return path


def rows(result: Result) -> dict[str, dict[str, object]]:
    return {row["design"]: row for row in json.loads(result.out)["designs"]}


@pytest.fixture
def updates() -> NDArray[np.float32]:
    return clustered_updates(100, seed=0)


def test_json_has_the_exact_variance_of_every_design(
    updates: NDArray[np.float32], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(
        capsys, "compare", SIZES, "-m", 10, "--updates", saved(tmp_path, updates), "--json"
    )

    found = rows(result)
    assert (list(found), result.err) == (DEFAULT, "")
    assert json.loads(result.out)["dimension"] == 64
    population = read_clients(str(SIZES))
    rng = stream(0, use=Stream.TIES)
    tournament = TournamentDesign(population, 10, updates, rng=rng).aggregate_variance(updates)
    assert found["tournament"]["aggregate_variance"] == tournament
    spread = updates - population.importance @ updates
    multinomial = population.importance @ (spread**2).sum(axis=1) / 10
    # Written out in other orders: sums of at most 6400 products, each rounded by 2^-53.
    assert found["multinomial"]["aggregate_variance"] == pytest.approx(multinomial, rel=1e-12)
    assert found["tournament"]["aggregate_variance_ratio"] == pytest.approx(
        tournament / multinomial, rel=1e-12
    )
    exact = [row["aggregate_variance_exact"] for row in found.values()]
    assert [name for name, sure in zip(found, exact, strict=True) if not sure] == [
        "cohort-mean",
        "balanced",
    ]


def test_what_has_no_formula_is_estimated_with_its_standard_error(
    updates: NDArray[np.float32], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, updates)

    result = run(capsys, "compare", SIZES, "-m", 10, "--updates", path, "-d", "balanced", "--json")

    population = read_clients(str(SIZES))
    design = BalancedDesign(population, 10, updates, rng=stream(0, use=Stream.TIES))
    again = diagnostics.estimated_aggregate_variance(
        design, updates, rng=np.random.default_rng(1), rounds=Row.MEASURED_COHORTS
    )
    row = rows(result)["balanced"]
    value, error = row["aggregate_variance"], row["aggregate_variance_standard_error"]
    assert isinstance(value, float)
    assert isinstance(error, float)
    # Two independent estimates of one number; beyond 5 standard errors once in two million.
    assert abs(value - again.value) < 5 * float(np.hypot(error, again.standard_error))
    assert 0 < error < 0.05 * value


def test_rows_belong_to_the_clients_in_the_order_of_the_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One draw, one client's update is 1 and the others' 0: V is p (1 - p) of that client."""

    def variance(odd: int) -> object:
        path = saved(tmp_path, np.eye(3)[odd][:, None])
        options = ("-m", 1, "--updates", path, "-d", "multinomial", "--json")
        result = run(capsys, "compare", "-", *options, stdin="[5, 1, 2]")
        return rows(result)["multinomial"]["aggregate_variance"]

    # Eighths are exact in floats.
    assert [variance(odd) for odd in range(3)] == [15 / 64, 7 / 64, 12 / 64]


def test_rows_follow_the_file_of_sizes_where_its_ids_have_another_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first row is b's, of importance 5/8: V of one draw is p (1 - p)."""
    path = saved(tmp_path, [[1.0], [0.0], [0.0]])
    options = ("-m", 1, "--updates", path, "-d", "multinomial", "--json")

    result = run(capsys, "compare", "-", *options, stdin="id,size\nb,5\na,1\n7,2\n")

    assert rows(result)["multinomial"]["aggregate_variance"] == 15 / 64


def test_designs_see_differences_that_only_float64_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two kinds of equal clients, 1e-12 apart: a tournament draws one of each, and V is 0."""
    path = saved(tmp_path, [[1.0], [1.0 + 1e-12], [1.0], [1.0 + 1e-12]])
    options = ("-m", 2, "--updates", path, "-d", "tournament:measure=l2", "--json")

    result = run(capsys, "compare", "-", *options, stdin="[1, 1, 1, 1]")

    assert rows(result)["tournament:measure=l2"]["aggregate_variance"] == 0.0


def test_the_table_has_v_at_80_columns_and_says_what_was_estimated(
    updates: NDArray[np.float32], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--updates", saved(tmp_path, updates), "--all", "--explain")
    result = run(capsys, "compare", SIZES, "-m", 10, *options)

    lines = result.out.partition("\nIn your server loop:")[0].splitlines()
    assert max(map(len, lines)) <= 80
    words = {line.split()[0]: line.split() for line in lines if line.strip()}
    assert words["tournament"][:4] == ["tournament", "0.0366", "0.324", "none"]
    assert [words["balanced"][k][0] for k in (1, 2)] == ["~", "~"]
    assert "balanced: V from 200 drawn cohorts, ± 0.0" in " ".join(result.out.split())
    assert "size:whole_rows_first" in words


def test_auto_says_what_it_picked_and_what_it_predicted(
    updates: NDArray[np.float32], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, updates)
    options = ("-m", 10, "--updates", path, "-d", "tournament, auto")

    table = run(capsys, "compare", SIZES, *options).out
    found = rows(run(capsys, "compare", SIZES, *options, "--json"))

    assert "auto draws from tournament; predicted V: tournament 0.0366, similarity 0.046" in table
    assert "~" not in table
    assert found["auto"]["choice"] == "tournament"
    predicted = found["auto"]["predicted"]
    assert isinstance(predicted, dict)
    assert list(predicted) == ["tournament", "similarity", "size", "multinomial"]
    # Predicted from inner products, V from the updates: sums of 6400 products in other orders.
    variance = pytest.approx(found["auto"]["aggregate_variance"], rel=1e-12)
    assert min(predicted.values()) == variance


@pytest.mark.parametrize(
    ("sizes", "cohort_size", "scale"),
    [([10**9] + [1] * 50, 10, 1e140), ([1] * 60 + [10**15], 3, 1e-140), ([5], 1, 1.0)],
)
def test_no_number_is_cut_off_the_table(
    sizes: list[int],
    cohort_size: int,
    scale: float,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = saved(tmp_path, scale * np.random.default_rng(0).normal(size=(len(sizes), 3)))

    options = ("-m", cohort_size, "--updates", path, "--all")
    result = run(capsys, "compare", "-", *options, stdin=json.dumps(sizes))

    table = result.out.split("\n\n")[1].splitlines()
    assert max(map(len, table)) <= 80
    named = [line for line in table if line.startswith(tuple(DEFAULT))]
    found = [line.split() for line in named if "left out" not in line]
    assert len(found) >= 7
    for row in found:
        # Name, V, its ratio, bias, two numbers, a random size's deviation, a time with its unit.
        assert len(row) == (10 if "±" in row else 8)
        assert row[-1] in ("us", "ms", "s")


@pytest.mark.parametrize("value", [0.0, 0.1])
def test_equal_updates_have_no_variance_to_compare(
    value: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, np.full((4, 5), value, dtype=np.float32))

    result = run(
        capsys, "compare", "-", "-m", 2, "--updates", path, "--json", stdin="[250, 100, 33, 7]"
    )

    assert {row["aggregate_variance_ratio"] for row in rows(result).values()} == {None}


def test_small_but_real_differences_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, 1.0 + 1e-9 * np.arange(4.0)[:, None])

    result = run(
        capsys, "compare", "-", "-m", 2, "--updates", path, "--json", stdin="[250, 100, 33, 7]"
    )

    assert rows(result)["multinomial"]["aggregate_variance_ratio"] == 1.0


@pytest.mark.parametrize(("n", "m", "dimension"), [(60, 51, 1), (3, 1, 100_001)])
def test_balanced_is_left_out_with_a_reason_where_it_takes_long(
    n: int, m: int, dimension: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, np.ones((n, dimension), dtype=np.float32))

    result = run(
        capsys, "compare", "-", "-m", m, "--updates", path, "--json", stdin=json.dumps([1] * n)
    )

    assert result.code == 0
    assert list(rows(result)) == DEFAULT[:-1]
    (missing,) = json.loads(result.out)["left_out"]
    assert missing["design"] == "balanced"
    assert missing["reason"].startswith("has no formula for V")
    assert result.err == ""


@pytest.mark.parametrize("kind", ["<f4", ">f8", "<f2", "<i8", "|u1"])
def test_numbers_of_any_kind_are_read(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, np.array([[0], [1], [1]], dtype=kind))

    result = run(
        capsys, "compare", "-", "-m", 1, "--updates", path, "-d", "multinomial", "--json",
        stdin="[5, 1, 2]",
    )  # fmt: skip

    assert rows(result)["multinomial"]["aggregate_variance"] == 15 / 64


@pytest.mark.parametrize(
    ("updates", "parts"),
    [
        (np.zeros((2, 5)), ("a row for each of the 3 clients; got 2 rows",)),
        (np.zeros(3), ("shape (3, dimension), one row per client; got float64 of shape (3,)",)),
        (np.zeros((3, 0)), ("got float64 of shape (3, 0)",)),
        (np.zeros((3, 2, 2)), ("got float64 of shape (3, 2, 2)", "Flatten")),
        (np.array([[1.0], [np.nan], [2.0]]), ("must be finite", "client 1 sent 1 other values")),
        (np.array([[1.0], [2.0], [np.inf]]), ("must be finite", "client 2 sent 1 other values")),
        (np.zeros((3, 2), dtype=complex), ("must be real numbers", "got complex128")),
        (np.zeros((3, 2), dtype=bool), ("must be real numbers", "got bool")),
        (np.array([["a"], ["b"], ["c"]]), ("must be real numbers",)),
        (np.zeros((3, 2), dtype=[("x", "<f8")]), ("must be real numbers",)),
        (np.array([[1], [None], [2]]), ("a .npy file of numbers", "Python objects")),
    ],
)
def test_arrays_that_are_no_updates_are_one_sentence(
    updates: NDArray[np.generic],
    parts: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = saved(tmp_path, updates)

    result = run(capsys, "compare", "-", "-m", 1, "--updates", path, stdin="[5, 3, 1]")

    assert refused(result, "updates.npy", *parts)


class Opened:
    """Unpickled, it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


def test_nothing_is_unpickled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, path = tmp_path / "trace", tmp_path / "updates.npy"
    objects = np.empty((3, 1), dtype=object)
    objects[:] = Opened(trace)
    np.save(path, objects)
    refusals = [run(capsys, "compare", "-", "-m", 1, "--updates", path, stdin="[5, 3, 1]")]
    path.write_bytes(pickle.dumps(Opened(trace)))
    refusals += [run(capsys, "compare", "-", "-m", 1, "--updates", path, stdin="[5, 3, 1]")]

    assert all(refused(refusal, "must be a .npy file of numbers") for refusal in refusals)
    assert not trace.exists()


def test_other_files_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refusal(path: Path) -> Result:
        return run(capsys, "compare", "-", "-m", 1, "--updates", path, stdin="[5, 3, 1]")

    whole = saved(tmp_path, np.ones((3, 50))).read_bytes()
    other = tmp_path / "other"

    assert refused(refusal(tmp_path / "none.npy"), "cannot be read (no such file or directory)")
    assert refused(refusal(tmp_path), "cannot be read (is a directory)")
    np.savez(tmp_path / "updates.npz", np.ones((3, 2)))
    assert refused(refusal(tmp_path / "updates.npz"), "must be a .npy file of numbers")
    for content in (b"", b"1,2\n3,4\n5,6\n", whole[:64], whole[:-1], whole[:130]):
        other.write_bytes(content)
        assert refused(refusal(other), "must be a .npy file of numbers; it is not, or not whole")
    for shape in (b"(3, 10000000000000000000000)", b"(3, 4611686018427387904)", b"(-3, 5)", b"(3"):
        damaged = whole.replace(b"(3, 50), }".ljust(len(shape) + 3), shape + b", }")
        assert damaged != whole
        other.write_bytes(damaged)
        assert refused(refusal(other), "must be a .npy file of numbers")


def test_without_updates_there_is_no_v(capsys: pytest.CaptureFixture[str]) -> None:
    table = run(capsys, "compare", SIZES, "-m", 10, "-d", "auto,size").out
    found = rows(run(capsys, "compare", SIZES, "-m", 10, "-d", "auto,size", "--json"))

    assert "predicted" not in table
    assert " V " not in table
    for row in found.values():
        assert not {key for key in row if "aggregate" in key or key in ("choice", "predicted")}
