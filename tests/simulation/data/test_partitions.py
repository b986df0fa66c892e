"""Partitions: exact counts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort import Multinomial
from fedcohort.errors import DataError, FedcohortError
from fedcohort.simulation import (
    Dataset,
    FederatedData,
    LocalTraining,
    Run,
    Simulation,
    dirichlet_clients,
    dirichlet_disjoint,
    dirichlet_parts,
    dirichlet_unbalanced,
    iid,
    mlp,
    natural,
    one_class_shards,
)
from fedcohort.simulation.data import partitions
from fedcohort.simulation.data.partitions import Indices
from fedcohort.streams import Stream, stream
from populations import CIFAR_SIZES, rng


def labelled(n: int = 2000, n_test: int = 500) -> Dataset:
    """Samples that hold their own position."""
    y, test_y = np.arange(n) % 10, np.arange(n_test) % 10
    return Dataset(np.arange(n)[:, None], y, np.arange(n_test)[:, None], test_y, n_classes=10)


DATA = labelled()


def disjoint(parts: Indices) -> bool:
    everything = np.concatenate(parts)
    return len(np.unique(everything)) == len(everything)


def test_one_class_shards_have_one_class_and_exact_sizes_and_share_nothing() -> None:
    data = one_class_shards(DATA, seed=0, clients_per_class=4, train_size=50, test_size=12)

    assert [len(part) for part in data.train] == [50] * 40
    assert [len(part) for part in data.test] == [12] * 40
    assert disjoint(data.train)
    assert disjoint(data.test)
    for client in range(40):
        assert (
            set(DATA.y[data.train[client]]) == set(DATA.test_y[data.test[client]]) == {client // 4}
        )
    assert data.main_class().tolist() == [client // 4 for client in range(40)]


def test_too_few_samples_of_a_class_are_refused() -> None:
    with pytest.raises(DataError, match=r"needs 204 samples of class 0 for 4 clients; got 200"):
        one_class_shards(DATA, seed=0, clients_per_class=4, train_size=51)


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_one_class_shards_can_have_listed_sizes(kind: Any) -> None:
    data = one_class_shards(
        DATA, seed=0, clients_per_class=3, train_size=kind([7, 1, 90]), test_size=5
    )

    assert [len(part) for part in data.train] == [7, 1, 90] * 10
    assert [len(part) for part in data.test] == [5] * 30
    assert disjoint(data.train)
    for client in range(30):
        assert set(DATA.y[data.train[client]]) == {client // 3}


def test_equal_sizes_can_be_listed_too() -> None:
    """The same samples, whole numbers of numpy's included."""
    chosen: list[Any] = [20, [20, 20], np.int64(20)]
    found = [
        one_class_shards(DATA, seed=3, clients_per_class=2, train_size=sizes, test_size=0)
        for sizes in chosen
    ]

    for data in found[1:]:
        for one, other in zip(found[0].train, data.train, strict=True):
            assert one.tolist() == other.tolist()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([7, 8], r"needs one for each of a class's 3 clients; got 2\. Add or drop some, or give"),
        ([], r"train_size must be a list of at least one value; got \[\]"),
        ([7, 0, 8], r"train_size\.1 must be a whole number of at least 1; got 0"),
        ([7.0, 1.0, 8.0], r"train_size\.0 must be a whole number of at least 1; got 7\.0"),
        ([100, 100, 1], r"needs 201 samples of class 0 for 3 clients; got 200"),
    ],
)
def test_other_listed_sizes_are_refused(sizes: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        one_class_shards(DATA, seed=0, clients_per_class=3, train_size=sizes, test_size=5)


def test_the_papers_dirichlet_has_the_papers_sizes_and_shares() -> None:
    data = dirichlet_unbalanced(DATA, alpha=0.1, seed=0)

    assert data.population.sizes.tolist() == CIFAR_SIZES
    assert [len(part) for part in data.test] == [size // 5 for size in CIFAR_SIZES]
    for client in range(100):
        train = np.bincount(DATA.y[data.train[client]], minlength=10) / CIFAR_SIZES[client]
        test = np.bincount(DATA.test_y[data.test[client]], minlength=10) / (
            CIFAR_SIZES[client] // 5
        )
        # int(share * size) of every class but the last: shares agree to one sample each.
        assert (np.abs(train - test)[:-1] < 5 / CIFAR_SIZES[client] + 1e-9).all()


@pytest.mark.parametrize(("alpha", "low", "high"), [(0.001, 0.97, 1.0), (10.0, 0.1, 0.3)])
def test_a_small_alpha_gives_clients_one_class_and_a_large_one_all(
    alpha: float, low: float, high: float
) -> None:
    data = dirichlet_unbalanced(DATA, alpha=alpha, seed=1)

    shares = data.class_counts() / data.population.sizes[:, None]
    assert np.isfinite(shares).all()
    assert low <= shares.max(axis=1).mean() <= high


def test_iid_deals_every_sample_once_and_sizes_differ_by_one() -> None:
    data = iid(DATA, n_clients=30, seed=0)

    sizes = [len(part) for part in data.train]
    assert sorted(np.concatenate(data.train)) == list(range(2000))
    assert sorted(np.concatenate(data.test)) == list(range(500))
    assert max(sizes) - min(sizes) == 1


@pytest.mark.parametrize("alpha", [0.05, 1.0, 100.0])
def test_disjoint_dirichlet_uses_every_sample_once(alpha: float) -> None:
    data = dirichlet_disjoint(DATA, alpha=alpha, n_clients=25, seed=0)

    assert sorted(np.concatenate(data.train)) == list(range(2000))
    assert sorted(np.concatenate(data.test)) == list(range(500))
    counts = data.class_counts()
    assert counts.sum(axis=0).tolist() == [200] * 10
    test = np.array([np.bincount(DATA.test_y[part], minlength=10) for part in data.test])
    # 200 training and 50 test samples of a class are cut at the same shares, each rounded.
    assert (np.abs(counts / 4 - test) <= 1.25 + 1e-9).all()


def test_class_shares_of_clients_divide_each_class_in_the_order_of_the_data_set() -> None:
    """The rule of FedAU's code, played client by client."""
    data = dirichlet_clients(DATA, alpha=0.3, n_clients=25, seed=4)
    shares = stream(4, use=Stream.PARTITION).dirichlet([0.3] * 10, size=25)

    for label in range(10):
        members, begin = np.flatnonzero(DATA.y == label), 0
        for client in range(25):
            part = shares[: client + 1, label].sum() / shares[:, label].sum()
            end = round(200 * part)
            own = [k for k in data.train[client] if DATA.y[k] == label]
            assert own == members[begin:end].tolist()
            begin = end
    assert sorted(np.concatenate(data.test)) == list(range(500))


@pytest.mark.parametrize("alphas", [[0.001], [0.5, 0.002], [100.0, 0.01, 1.0]])
def test_parts_are_equal_disjoint_and_in_balance(alphas: list[float]) -> None:
    """Each class is cut by position; a client has at least a fifth of its even share."""
    data = dirichlet_parts(DATA, alphas=alphas, clients_per_part=5, seed=1)

    assert sorted(np.concatenate(data.train)) == list(range(2000))
    assert sorted(np.concatenate(data.test)) == list(range(500))
    for k in range(len(alphas)):
        own = slice(5 * k, 5 * k + 5)
        for label in range(10):
            cut = np.array_split(np.flatnonzero(DATA.y == label), len(alphas))[k]
            held = np.concatenate(data.train[own])
            assert sorted(held[DATA.y[held] == label]) == cut.tolist()
        for parts in (data.train[own], data.test[own]):
            sizes = [len(part) for part in parts]
            assert min(sizes) >= int(0.2 * sum(sizes) / 5)
            # Who has an even share gets no other class: two classes of a part more at most.
            assert max(sizes) < sum(sizes) / 5 + 200 / len(alphas) + 1


def test_parts_with_small_alphas_have_clients_of_few_classes() -> None:
    data = dirichlet_parts(DATA, alphas=[0.001, 100.0], clients_per_part=10, seed=0)

    n_classes = (data.class_counts() > 0).sum(axis=1)
    assert n_classes[:10].mean() < 2
    assert (n_classes[10:] == 10).all()


def test_parts_that_cannot_be_in_balance_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "DIVISIONS", 20)
    with pytest.raises(DataError, match=r"dirichlet_parts: found no division with alpha 0\.001"):
        dirichlet_parts(DATA, alphas=[0.001], clients_per_part=15, least=0.9, seed=0)
    with pytest.raises(DataError, match=r"alphas\.1 must be a number above 0; got 0"):
        dirichlet_parts(DATA, alphas=[1.0, 0], seed=0)
    with pytest.raises(DataError, match="n_clients must be at most the 2000 samples; got 5000"):
        dirichlet_parts(DATA, clients_per_part=1000, seed=0)


def test_a_natural_partition_follows_the_given_clients() -> None:
    writers = np.array(["b", "a", "b", "c"] * 500)
    test_writers = np.array(["a", "c"] * 250)

    data = natural(DATA, writers, test_writers)

    assert [len(part) for part in data.train] == [500, 1000, 500]
    assert [len(part) for part in data.test] == [250, 0, 250]
    assert set(writers[data.train[1]]) == {"b"}


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: one_class_shards(
            DATA, seed=seed, clients_per_class=2, train_size=20, test_size=5
        ),
        lambda seed: dirichlet_unbalanced(DATA, alpha=0.1, seed=seed),
        lambda seed: iid(DATA, n_clients=7, seed=seed),
        lambda seed: dirichlet_disjoint(DATA, alpha=0.5, n_clients=7, seed=seed),
        lambda seed: dirichlet_clients(DATA, alpha=0.5, n_clients=7, seed=seed),
        lambda seed: dirichlet_parts(DATA, alphas=[0.5, 5], clients_per_part=3, seed=seed),
    ],
)
def test_a_seed_gives_the_same_partition_again_and_another_seed_another(make: object) -> None:
    first, again, other = (make(seed) for seed in (3, 3, 4))  # type: ignore[operator]

    def same(left: FederatedData, right: FederatedData) -> bool:
        pairs = zip(left.train + left.test, right.train + right.test, strict=True)
        return all(np.array_equal(a, b) for a, b in pairs)

    assert same(first, again)
    assert not same(first, other)


def test_renumbering_keeps_every_clients_samples_together() -> None:
    data = one_class_shards(DATA, seed=0, clients_per_class=2, train_size=20, test_size=5)

    shuffled = data.renumbered(rng())

    assert sorted(map(tuple, shuffled.train)) == sorted(map(tuple, data.train))
    assert shuffled.main_class().tolist() != data.main_class().tolist()
    for train, test in zip(shuffled.train, shuffled.test, strict=True):
        assert set(DATA.y[train]) == set(DATA.test_y[test])


def test_a_users_arrays_come_with_a_client_per_sample_or_a_list_of_positions() -> None:
    x, y = rng().standard_normal((6, 3)), [0, 1, 2, 0, 1, 2]

    by_label = FederatedData.from_arrays(x, y, ["u", "v", "u", "v", "u", "v"])
    by_list = FederatedData.from_arrays(x, y, [np.array([0, 2, 4]), np.array([1, 3, 5])])

    for data in (by_label, by_list):
        assert [part.tolist() for part in data.train] == [[0, 2, 4], [1, 3, 5]]
        assert [part.tolist() for part in data.test] == [[], []]
        assert data.dataset.n_classes == 3
        assert data.dataset.x.dtype == np.float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1.0]], [0, 1], [0]), "one whole-number label per sample"),
        (([[1.0]], [0.5], [0]), "one whole-number label per sample"),
        (([[1.0]], [-1], [0]), "labels must be 0 or more; got -1"),
        (
            ([[1.0], [2.0]], [0, 1], [[0, 5]]),
            "client 0's train positions must be 0 to 1; got 0 to 5",
        ),
        (([[1.0]], [0], 5), r"one label for each of 1 samples.*; got 5\."),
        (([[1.0]], [0], "abc"), r"one label for each of 1 samples.*; got 'abc'\."),
        (([[1.0]], [0], []), r"one label for each of 1 samples.*; got \[\]\."),
        (([[1.0]], [0], ["a", "b"]), "one label for each of 1 samples.*; got 2 labels"),
        (([[1.0]], [0], [[0], 0]), r"one label for each of 1 samples.*; got \[\[0\], 0\]\."),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        FederatedData.from_arrays(*arguments)  # type: ignore[arg-type]


def test_labels_and_positions_are_not_mixed() -> None:
    with pytest.raises(DataError, match="must come the same way for training and testing"):
        FederatedData.from_arrays([[1.0]], [0], [[0]], test=([[1.0]], [0], ["u"]))


def test_clients_of_test_samples_that_are_no_list_are_named_in_the_error() -> None:
    with pytest.raises(DataError, match=r"one label for each of 1 samples.*; got 'abc'\."):
        FederatedData.from_arrays([[1.0]], [0], ["u"], test=([[1.0]], [0], "abc"))


def test_all_clients_can_share_a_test_set() -> None:
    test = (np.arange(6.0).reshape(3, 2), [2, 0, 1])

    data = FederatedData.from_arrays(np.ones((4, 2)), [0, 1, 0, 1], ["u", "v", "u", "v"], test=test)

    assert [part.tolist() for part in data.test] == [[0, 1, 2], [0, 1, 2]]
    assert data.dataset.test_x.tolist() == test[0].tolist()
    assert data.dataset.n_classes == 3


def test_a_shared_test_set_gives_its_accuracy_to_every_client() -> None:
    """The same as if each client had its own copy of the test set."""
    x, y = rng().standard_normal((40, 3)), rng().integers(3, size=40)
    owners, test = np.arange(40) % 4, (x[:9] + 1, y[:9])
    shared = FederatedData.from_arrays(x, y, owners, test=test)
    copies = FederatedData(shared.dataset, shared.train, tuple(np.arange(9) for _ in range(4)))

    found, twin = (
        Simulation([Run(Multinomial(2), data)], lambda: mlp(3, 4, 3), LocalTraining(steps=2))
        for data in (shared, copies)
    )
    (history,), (other,) = found.run(2), twin.run(2)

    assert history.last_quality == other.last_quality
    assert history.last_quality is not None
    assert history.last_quality.accuracy_spread == 0
    assert found.client_quality()[0].accuracy.tolist() == 4 * [history.last_quality.accuracy]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.floats(0.01, 0.99))
def test_a_share_of_every_clients_samples_is_held_out(sizes: list[int], share: float) -> None:
    assume(any(min(round(share * size), size - 1) for size in sizes))
    n = sum(sizes)
    owners = np.repeat(np.arange(len(sizes)), sizes)

    data = FederatedData.from_arrays(np.arange(n)[:, None], np.zeros(n, int), owners, test=share)

    train, test = data.dataset.x[:, 0], data.dataset.test_x[:, 0]
    assert sorted([*train, *test]) == list(range(n))
    for client, size in enumerate(sizes):
        assert len(data.test[client]) == min(round(share * size), size - 1)
        kept = [*train[data.train[client]], *test[data.test[client]]]
        assert sorted(kept) == np.flatnonzero(owners == client).tolist()


def test_a_sample_of_several_clients_is_held_out_for_all_of_them() -> None:
    everyone = [np.arange(10), np.arange(5, 15)]

    data = FederatedData.from_arrays(
        np.arange(15)[:, None], np.zeros(15, int), everyone, test=0.3, seed=1
    )

    train, test = data.dataset.x[:, 0], data.dataset.test_x[:, 0]
    assert not set(train) & set(test)
    for own, client in zip(everyone, range(2), strict=True):
        assert sorted([*train[data.train[client]], *test[data.test[client]]]) == own.tolist()


def test_a_share_that_holds_out_no_sample_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"0\.001 of the largest client's 50 rounds to none. Pass a"
    ):
        FederatedData.from_arrays(
            np.ones((60, 1)), np.zeros(60, int), [0] * 50 + [1] * 10, test=0.001
        )


def test_the_seed_decides_what_is_held_out() -> None:
    def held(**seed: int) -> list[int]:
        data = FederatedData.from_arrays(
            np.arange(50)[:, None], np.zeros(50, int), np.zeros(50), test=0.2, **seed
        )
        return [int(value) for value in data.dataset.test_x[:, 0]]

    assert held() == held() == held(seed=0) != held(seed=1)


@pytest.mark.parametrize(
    "test", [1.0, 0.0, -0.2, 2, True, np.nan, "0.2", ([[1.0]],), {}, np.ones((3, 2))]
)
def test_what_is_no_test_set_is_refused(test: Any) -> None:
    message = r"test must be three arrays .*, two that all clients share, or a share between 0 and"
    with pytest.raises(DataError, match=message):
        FederatedData.from_arrays([[1.0], [2.0]], [0, 1], [0, 0], test=test)


def test_natural_partitions_of_one_data_set_train_together() -> None:
    writers, test_writers = np.arange(2000) % 4, np.arange(500) % 4

    first, second = (natural(DATA, writers + k, test_writers + k) for k in range(2))

    assert first.dataset is second.dataset is DATA


def test_big_endian_integers_are_read() -> None:
    data = FederatedData.from_arrays(np.arange(4, dtype=">i4")[:, None], [0, 1, 0, 1], [0, 0, 1, 1])

    assert data.dataset.x.dtype.isnative
    assert data.dataset.x.ravel().tolist() == [0, 1, 2, 3]


def test_a_test_client_that_has_no_training_samples_is_refused() -> None:
    with pytest.raises(DataError, match="must be among the training samples'; 'w' is not"):
        FederatedData.from_arrays([[1.0]], [0], ["u"], test=([[1.0]], [0], ["w"]))


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(
        DataError, match="dirichlet_unbalanced: alpha must be a number above 0; got 0"
    ):
        dirichlet_unbalanced(DATA, alpha=0.0, seed=0)
    with pytest.raises(
        DataError, match="iid: n_clients must be a whole number of at least 1; got 0"
    ):
        iid(DATA, n_clients=0, seed=0)
    with pytest.raises(DataError, match="n_clients must be at most the 2000 samples; got 2001"):
        iid(DATA, n_clients=2001, seed=0)


def test_partitions_of_what_is_not_there_are_refused() -> None:
    no_test = Dataset(DATA.x, DATA.y, DATA.x[:0], DATA.y[:0], n_classes=10)

    with pytest.raises(DataError, match=r"the data set has none\. Use test_share=0"):
        dirichlet_unbalanced(no_test, alpha=0.1, seed=0)
    assert dirichlet_unbalanced(no_test, alpha=0.1, seed=0, test_share=0).n_clients == 100
    with pytest.raises(DataError, match="clients_per_class must be a whole number of at least 1"):
        one_class_shards(DATA, seed=0, clients_per_class=0)
    with pytest.raises(
        DataError, match=r"n_clients must be a whole number of at least 1; got 2\.5"
    ):
        iid(DATA, n_clients=2.5, seed=0)  # type: ignore[arg-type]


def test_lists_of_positions_are_taken_and_labels_are_checked() -> None:
    data = FederatedData(DATA, ([0, 1], [2]), ([], []))  # type: ignore[arg-type]

    assert [part.tolist() for part in data.train] == [[0, 1], [2]]
    with pytest.raises(DataError, match="train labels must be 0 to 4; got 0 to 9"):
        FederatedData(
            Dataset(DATA.x, DATA.y, DATA.test_x, DATA.test_y, n_classes=5), data.train, data.test
        )


PARTITIONS: list[Callable[[Any], FederatedData]] = [
    lambda seed: iid(DATA, n_clients=20, seed=seed),
    lambda seed: one_class_shards(DATA, seed=seed, clients_per_class=2, train_size=9, test_size=2),
    lambda seed: dirichlet_disjoint(DATA, alpha=1.0, n_clients=20, seed=seed),
    lambda seed: dirichlet_clients(DATA, alpha=1.0, n_clients=20, seed=seed),
    lambda seed: dirichlet_parts(DATA, alphas=[1.0], clients_per_part=8, seed=seed),
    lambda seed: dirichlet_unbalanced(DATA, alpha=1.0, sizes=[(20, 10)], seed=seed),
    lambda seed: iid(DATA, n_clients=20, seed=0).renumbered(seed),
]


def are_equal(one: FederatedData, other: FederatedData) -> bool:
    return all(map(np.array_equal, one.train, other.train))


@pytest.mark.parametrize("divide", PARTITIONS)
def test_a_partition_takes_a_seed_a_generator_or_none(
    divide: Callable[[Any], FederatedData],
) -> None:
    assert are_equal(divide(3), divide(np.int64(3)))
    assert are_equal(divide(np.random.default_rng(3)), divide(np.random.default_rng(3)))
    # Two random divisions agree by chance in less than 1 of 20! cases.
    assert not are_equal(divide(None), divide(None))


@pytest.mark.parametrize("divide", PARTITIONS)
@pytest.mark.parametrize("seed", [-1, 1.5, "0", True])
def test_a_partition_refuses_what_is_no_seed(
    divide: Callable[[Any], FederatedData], seed: object
) -> None:
    with pytest.raises(FedcohortError, match=r"(seed|rng) must be .* of at least 0, .* or None"):
        divide(seed)
