"""Addressed random streams."""

from itertools import product

import pytest

from fedcohort import Stream, stream


def numbers(seed: int, **address: object) -> tuple[int, ...]:
    return tuple(stream(seed, **address).integers(2**62, size=4).tolist())  # type: ignore[arg-type]


def test_an_address_gives_the_same_numbers_again() -> None:
    assert numbers(3, round_=400, use=Stream.COHORT, client=7) == numbers(
        3, round_=400, use=Stream.COHORT, client=7
    )


def test_every_part_of_the_address_matters() -> None:
    addresses = product((0, 1), (0, 1, 2), Stream, (None, 0, 1))

    streams = {
        numbers(seed, round_=round_, use=use, client=client)
        for seed, round_, use, client in addresses
    }

    assert len(streams) == 2 * 3 * len(Stream) * 3


def test_numbers_of_uses_never_change() -> None:
    assert {use.name: use.value for use in Stream} == {"TIES": 0, "COHORT": 1}


def test_a_use_is_required() -> None:
    with pytest.raises(TypeError):
        stream(0)  # type: ignore[call-arg]
