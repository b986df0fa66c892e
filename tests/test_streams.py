"""Addressed random streams."""

from itertools import product

import numpy as np
import pytest

from fedcohort.errors import StreamError
from fedcohort.streams import Stream, stream


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
    names = [
        "TIES",
        "COHORT",
        "SKETCH",
        "PARTITION",
        "MODEL",
        "BATCHES",
        "DROPOUT",
        "NUMBERING",
        "REDRAW",
        "SYNTHETIC",
        "CANDIDATES",
        "DEVICES",
        "FAILURES",
        "EVALUATION",
        "FEATURES",
        "FLOOR",
        "PRESENCE",
        "CHANCES",
    ]

    assert {use.name: use.value for use in Stream} == dict(zip(names, range(18), strict=True))


def test_addresses_never_change() -> None:
    """What numpy's PCG64 gives for SeedSequence(3, spawn_key=(use, round, client + 1))."""
    address = np.random.SeedSequence(3, spawn_key=(1, 400, 8))

    expected = np.random.Generator(np.random.PCG64(address)).integers(2**62, size=4)

    assert numbers(3, round_=400, use=Stream.COHORT, client=7) == tuple(expected.tolist())


@pytest.mark.parametrize("address", [{"seed": -1}, {"round_": -1}, {"client": -1}])
def test_negative_addresses_are_refused(address: dict[str, int]) -> None:
    with pytest.raises(StreamError, match="seed, round_ and client must be 0 or more; got"):
        stream(**{"seed": 0, "use": Stream.COHORT, **address})  # type: ignore[arg-type]


def test_a_use_is_required() -> None:
    with pytest.raises(TypeError):
        stream(0)  # type: ignore[call-arg]
