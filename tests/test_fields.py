"""Records and functions check what they declare, in one sentence of one form."""

import inspect
import math
import pickle
from dataclasses import MISSING, dataclass, replace
from typing import Literal

import numpy as np
import pytest

from fedcohort._arguments import NumberNeed, WholeNeed
from fedcohort._fields import (
    Record,
    checks,
    choice,
    flag,
    number,
    of_kind,
    settings_of,
    whole,
)
from fedcohort.errors import DataError, DesignError, SimulationError


@dataclass(frozen=True, slots=True)
class Inner:
    """Another record."""


@dataclass(frozen=True, slots=True)
class Settings(Record):
    """One field of every kind."""

    _error = SimulationError

    count: int = whole(3, least=1, most=10**9)
    most: int | None = whole(None, least=0, way_out="None is no limit.")
    share: float = number(0.5, least=0, most=1)
    factor: float = number(0.5, least=0, below=1, way_out="Try 0.9.")
    speed: float | None = number(None, above=0)
    mode: Literal["slow", "fast"] = choice("slow", ("slow", "fast"))
    quiet: bool = flag(False)
    inner: Inner | None = of_kind(None, Inner, way_out="Pass Inner().")


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("count", 0, "a whole number of at least 1; got 0. Pass an integer."),
        ("count", True, "a whole number of at least 1; got True. Pass an integer."),
        ("count", None, "a whole number of at least 1; got None. Pass an integer."),
        ("count", 10**9 + 1, "at most 10^9; got 1000000001. Lower it."),
        ("most", -1, "a whole number of at least 0; got -1. None is no limit."),
        ("share", 1.5, "a number from 0 to 1; got 1.5. Pass one in these limits."),
        ("share", math.nan, "a number from 0 to 1; got nan. Pass one in these limits."),
        ("factor", 1.0, "a number of at least 0 and below 1; got 1.0. Try 0.9."),
        ("speed", 0, "a number above 0; got 0. Pass one in these limits."),
        ("speed", math.inf, "a number above 0; got inf. Pass one in these limits."),
        ("mode", "fats", "one of slow, fast; got 'fats'. Did you mean 'fast'?"),
        ("quiet", "False", "True or False; got 'False'. Pass a bool."),
        ("inner", 3, "an Inner; got 3. Pass Inner()."),
    ],
)
def test_an_invalid_field_is_refused_in_one_sentence(
    name: str, value: object, sentence: str
) -> None:
    with pytest.raises(SimulationError) as caught:
        Settings(**{name: value})  # type: ignore[arg-type]

    assert str(caught.value) == f"Settings: {name} must be {sentence}"


def test_valid_fields_become_pythons_own_types() -> None:
    made = Settings(count=np.int64(4), share=np.float32(0.25), quiet=np.bool_(True))  # type: ignore[arg-type]

    assert repr(made) == (
        "Settings(count=4, most=None, share=0.25, factor=0.5, speed=None, mode='slow', quiet=True, "
        "inner=None)"
    )


def test_a_record_stays_an_ordinary_dataclass() -> None:
    made = Settings(4, speed=2.0)

    assert pickle.loads(pickle.dumps(made)) == made
    assert replace(made, count=5) == Settings(5, speed=2.0)
    assert str(inspect.signature(Settings)).startswith("(count: int = 3, most: int | None = None,")
    with pytest.raises(SimulationError, match="count must be"):
        replace(made, count=0)


@dataclass(frozen=True, slots=True)
class Pair(Record):
    """Two fields that concern each other."""

    _owner = "Selector"

    low: int = whole(0)
    high: int = whole(1)

    def _check(self) -> None:
        if self.low > self.high:
            raise DesignError(f"Selector: low must be at most high; got {self.low}.")
        self._put(high=self.high - self.low)


def test_a_record_checks_several_fields_after_each_of_them() -> None:
    with pytest.raises(DesignError, match=r"^Selector: high must be a whole number of at least 0"):
        Pair(2, -1)
    with pytest.raises(DesignError, match=r"^Selector: low must be at most high; got 2\.$"):
        Pair(2, 1)

    assert Pair(2, 5).high == 3


@checks(DataError, alpha=NumberNeed(above=0), n_clients=WholeNeed(least=1))
def divide(samples: list[int], *, alpha: float, n_clients: int = 10) -> tuple[float, int]:
    """Return what the function got."""
    return alpha, n_clients


def test_a_function_checks_its_arguments() -> None:
    with pytest.raises(DataError, match=r"^divide: alpha must be a number above 0; got 0\. Pass"):
        divide([], alpha=0)
    assert divide([], alpha=np.float32(0.5), n_clients=np.int8(2)) == (0.5, 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'alpha'"):
        divide([])  # type: ignore[call-arg]


def test_settings_of_records_and_functions_can_be_read() -> None:
    of_record, of_function = settings_of(Settings), settings_of(divide)

    assert [of_record[name].need.words for name in ("count", "most", "factor", "mode")] == [
        "a whole number from 1 to 10^9",
        "a whole number of at least 0",
        "a number of at least 0 and below 1",
        "one of slow, fast",
    ]
    assert of_record["count"].default == 3
    assert of_function["alpha"].default is MISSING
    assert of_function["n_clients"].default == 10
