"""Shared checks of values: each returns the valid value, or raises one sentence.

A :class:`Need` says what a value must be. Records declare their fields by needs (``_fields``);
functions check an argument by a need, or by the ``checked_*`` function of the same kind.
"""

import inspect
import math
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from functools import wraps
from numbers import Real
from operator import index
from pathlib import Path
from types import FunctionType
from typing import (
    Any,
    ClassVar,
    TypedDict,
    TypeGuard,
    TypeVar,
    Unpack,
    cast,
    get_args,
    get_type_hints,
)

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import (
    ArgumentError,
    DesignError,
    FedcohortError,
    PopulationError,
    SelectorError,
)

#: Units are 64-bit signed integers: a whole line of ``m * M`` units must stay below this.
UNIT_LIMIT = 2**63
#: A generator, an integer that seeds one, or None for a random one.
Rng = np.random.Generator | int | None
#: The device to compute on; "auto" takes a GPU if there is one.
COMPUTE_DEVICES = ("auto", "cpu", "cuda")
#: A client's id.
Id = str | int
#: A cohort stores an entry for every draw; more would not fit into memory.
LARGEST_COHORT = 10**7
#: The most clients, samples, steps or rounds: no machine can do more.
MOST = 10**9
#: The longest path of the usual systems.
LONGEST_PATH = 4096
#: Our names for arguments that are called otherwise elsewhere; the first that a function has is
#: suggested, and never a name that only looks similar.
OTHER_NAMES = {
    "batch": "batch_size",
    "beta": "momentum beta1 shrink",
    "clients_per_round": "cohort_size",
    "data": "dataset clients",
    "design": "recipe designs",
    "eps": "tau",
    "epsilon": "tau",
    "eta": "lr",
    "eta_l": "lr",
    "eta_s": "server_lr",
    "generator": "rng seed",
    "global_lr": "server_lr",
    "k": "cohort_size",
    "labels": "y groups",
    "learning_rate": "lr",
    "local_epochs": "epochs",
    "local_steps": "steps",
    "m": "cohort_size",
    "max_rounds": "rounds",
    "n": "n_clients cohort_size",
    "n_clients": "cohort_size",
    "n_rounds": "rounds",
    "n_samples": "sizes clients",
    "num_clients": "n_clients cohort_size",
    "num_rounds": "rounds",
    "online": "available",
    "p": "importance",
    "proximal_mu": "mu",
    "random_state": "seed rng",
    "rng": "seed",
    "rounds": "round_",
    "sample_size": "cohort_size",
    "sampler": "recipe",
    "scheme": "recipe designs",
    "seed": "rng",
    "server_learning_rate": "server_lr",
    "sizes": "clients",
    "strategy": "recipe",
    "weights": "importance",
    "width": "hidden",
}
#: What to do with an argument that only another object takes.
OTHER_OWNERS = {
    "cohort_size": " The recipe has it: pass for example SizeClustered(2).",
    "max_norm": " Selectors, runs and plug-ins have it: pass max_norm= to these.",
    "rounds": " The run of a simulation has it: pass for example simulation.run(3).",
}

Kind = TypeVar("Kind")


def sentence(owner: str, name: str, need: str, value: object, way_out: str) -> str:
    """Write the message of an invalid value; in files, ``owner`` is empty and ``name`` a key."""
    who = f"{owner}: {name}" if owner else name
    return f"{who} must be {need}; got {brief(value)}. {way_out}".rstrip()


def power_of_ten(whole: int) -> str:
    """Write large powers of ten short: ``10^9``."""
    zeros = len(str(whole)) - 1
    return f"10^{zeros}" if zeros > 5 and whole == 10**zeros else str(whole)


def short_number(number: float) -> str:
    """Write a number short: ``0.5``, ``1e-9``, ``3.4e38``."""
    return re.sub(r"e\+?(-?)0*", r"e\1", f"{number:.3g}")


def as_whole(value: object) -> int | None:
    """Return an integer of any type as Python's own; None for anything else, True and False too."""
    try:
        return None if isinstance(value, (bool, np.bool_)) else index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _float(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (OverflowError, TypeError, ValueError):
        return math.inf


@dataclass(frozen=True, kw_only=True)
class Need(ABC):
    """The requirement of a value, in words and as a check. ``optional``: or None.

    A subclass defines ``words``, and ``_found`` or ``check``.
    """

    optional: bool = False
    way_out: str = ""

    def checked(
        self, owner: str, name: str, value: object, *, error: type[FedcohortError] = DesignError
    ) -> Any:
        """Return the valid value in Python's own type, or raise. ``owner`` may be empty."""
        if value is None and self.optional:
            return None
        return self.check(owner, name, value, error)

    @property
    @abstractmethod
    def words(self) -> str:
        """Say what the value must be: ``a number above 0``."""

    def check(self, owner: str, name: str, value: object, error: type[FedcohortError]) -> Any:
        """Return the valid value, which is not None, or raise."""
        found = self._found(value)
        if found is None:
            raise error(sentence(owner, name, self.words, value, self.way_out))
        return found

    def _found(self, value: object) -> Any:
        """Return the valid value in Python's own type; None for an invalid one."""
        return value


@dataclass(frozen=True, kw_only=True)
class WholeNeed(Need):
    """A whole number from ``least`` to ``most``; None: no limit but 64 bits."""

    least: int | None = 0
    most: int | None = None
    way_out: str = "Pass an integer."

    @property
    def words(self) -> str:
        """Say what the value must be."""
        if self.most is not None and self.least is not None:
            return f"a whole number from {self.least} to {power_of_ten(self.most)}"
        return self._from_least

    @property
    def _from_least(self) -> str:
        return "a whole number" + ("" if self.least is None else f" of at least {self.least}")

    def check(self, owner: str, name: str, value: object, error: type[FedcohortError]) -> int:
        """Return the valid value, or raise; a number that is too large gets its own sentence."""
        whole = as_whole(value)
        if whole is None or (self.least is not None and whole < self.least):
            raise error(sentence(owner, name, self._from_least, value, self.way_out))
        if abs(whole) >= UNIT_LIMIT or (self.most is not None and whole > self.most):
            limit = "a 64-bit integer, below 2^63"
            limit = limit if self.most is None else f"at most {power_of_ten(self.most)}"
            raise error(sentence(owner, name, limit, value, "Lower it."))
        return whole


@dataclass(frozen=True, kw_only=True)
class NumberNeed(Need):
    """A number from ``least`` to ``most``, or between ``above`` and ``below``, without these.

    True, False and NaN are refused, and infinity too if ``finite``.
    """

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    finite: bool = True
    way_out: str = "Pass one in these limits."

    @property
    def words(self) -> str:
        """Say what the value must be."""
        lower, upper = self.above > -math.inf, self.below < math.inf  # without the limit itself
        if not (lower or upper) and math.isfinite(self.least) and math.isfinite(self.most):
            return f"a number from {short_number(self.least)} to {short_number(self.most)}"
        limits = {
            "of at least": self.least,
            "above": self.above,
            "at most": self.most,
            "below": self.below,
        }
        parts = [
            f"{w} {short_number(limit)}" for w, limit in limits.items() if math.isfinite(limit)
        ]
        if not parts:
            return "a finite number" if self.finite else "a number"
        return f"a number {' and '.join(parts)}"

    def _found(self, value: object) -> float | None:
        if not isinstance(value, Real) or isinstance(value, (bool, np.bool_)):
            return None
        number = _float(value)
        is_inside = self.least <= number <= self.most and self.above < number
        is_inside &= number < self.below or self.below == math.inf
        return number if is_inside and (math.isfinite(number) or not self.finite) else None


@dataclass(frozen=True, kw_only=True)
class NumberOrNeed(NumberNeed):
    """A number within limits, or a word."""

    word: str

    @property
    def words(self) -> str:
        """Say what the value must be."""
        return f"{super().words}, or {self.word!r}"

    def check(self, owner: str, name: str, value: object, error: type[FedcohortError]) -> Any:
        """Return the valid value, or raise."""
        is_word = isinstance(value, str) and value == self.word
        return value if is_word else super().check(owner, name, value, error)


@dataclass(frozen=True, kw_only=True)
class ChoiceNeed(Need):
    """One of several words; without a ``way_out``, the one that is meant is suggested."""

    choices: tuple[str, ...]

    @property
    def words(self) -> str:
        """Say what the value must be."""
        return f"one of {', '.join(self.choices)}"

    def check(self, owner: str, name: str, value: object, error: type[FedcohortError]) -> str:
        """Return the valid value, or raise."""
        if not isinstance(value, str) or value not in self.choices:
            way_out = self.way_out or did_you_mean(value, self.choices).strip()
            raise error(sentence(owner, name, self.words, value, way_out))
        return str(value)


@dataclass(frozen=True, kw_only=True)
class TextNeed(Need):
    """A text of limited length; blanks at its ends do not count for ``least``."""

    least: int = 0
    most: int = MOST

    @property
    def words(self) -> str:
        """Say what the value must be."""
        return f"a text of {self.least} to {self.most} characters" if self.least else "a text"

    def _found(self, value: object) -> str | None:
        if not isinstance(value, str) or len(value.strip()) < self.least or len(value) > self.most:
            return None
        return str(value)


@dataclass(frozen=True, kw_only=True)
class FlagNeed(Need):
    """True or False; the string "False" is neither."""

    words: ClassVar[str] = "True or False"
    way_out: str = "Pass a bool."

    def _found(self, value: object) -> bool | None:
        return bool(value) if isinstance(value, (bool, np.bool_)) else None


@dataclass(frozen=True, kw_only=True)
class KindNeed(Need):
    """An object of a class, for example another record."""

    kind: type

    @property
    def words(self) -> str:
        """Say what the value must be."""
        return f"{'an' if self.kind.__name__[0] in 'AEIOU' else 'a'} {self.kind.__name__}"

    def _found(self, value: object) -> Any:
        return value if isinstance(value, self.kind) else None


@dataclass(frozen=True, kw_only=True)
class ListNeed(Need):
    """A list of values that each have a need; ``least`` and ``most`` are its length."""

    item: Need
    least: int = 1
    most: int = LARGEST_COHORT

    @property
    def words(self) -> str:
        """Say what the value must be."""
        return f"a list of {self.item.words.removeprefix('a ')}"

    def check(self, owner: str, name: str, value: object, error: type[FedcohortError]) -> list[Any]:
        """Return the valid list, or raise."""
        values = list(value) if is_list(value) else None
        if values is None or not self.least <= len(values) <= self.most:
            raise error(sentence(owner, name, self._length, value, self.way_out))
        return [
            self.item.checked(owner, f"{name}.{place}", each, error=error)
            for place, each in enumerate(values)
        ]

    @property
    def _length(self) -> str:
        if self.least == self.most:
            return f"a list of {self.least} values"
        return "a list" + ("" if self.least == 0 else f" of at least {_counted(self.least)}")


def _counted(values: int) -> str:
    return "one value" if values == 1 else f"{values} values"


@dataclass(frozen=True, kw_only=True)
class OneOrListNeed(Need):
    """One value, or a list of them."""

    item: Need

    @property
    def words(self) -> str:
        """Say what the value must be."""
        return f"{self.item.words}; or a list of these"

    def check(self, owner: str, name: str, value: object, error: type[FedcohortError]) -> Any:
        """Return the valid value or list, or raise."""
        need = ListNeed(item=self.item) if is_list(value) else self.item
        return need.checked(owner, name, value, error=error)


class WholeLimits(TypedDict, total=False):
    """The keywords of a :class:`WholeNeed`."""

    least: int | None
    most: int | None
    way_out: str


class NumberLimits(TypedDict, total=False):
    """The keywords of a :class:`NumberNeed`."""

    least: float
    most: float
    above: float
    below: float
    finite: bool
    way_out: str


def checked_whole(
    owner: str,
    name: str,
    value: object,
    *,
    error: type[FedcohortError] = DesignError,
    **limits: Unpack[WholeLimits],
) -> int:
    """Validate a 64-bit integer, at least 0 unless ``least`` is another number or None."""
    return WholeNeed(**limits).check(owner, name, value, error)


def checked_number(
    owner: str,
    name: str,
    value: object,
    *,
    error: type[FedcohortError] = DesignError,
    **limits: Unpack[NumberLimits],
) -> float:
    """Validate a finite number within limits; True and False are rejected."""
    number: float = NumberNeed(**limits).check(owner, name, value, error)
    return number


def checked_choice(
    owner: str,
    name: str,
    value: object,
    choices: Iterable[str],
    *,
    way_out: str = "",
    error: type[FedcohortError] = DesignError,
) -> None:
    """Validate one of ``choices``."""
    ChoiceNeed(choices=tuple(choices), way_out=way_out).check(owner, name, value, error)


def checked_flag(
    owner: str, name: str, value: object, *, error: type[FedcohortError] = DesignError
) -> bool:
    """Validate True or False; the string "False" is neither."""
    flag: bool = FlagNeed().check(owner, name, value, error)
    return flag


def checked_kind(
    owner: str,
    name: str,
    value: object,
    kind: type[Kind],
    *,
    way_out: str,
    error: type[FedcohortError] = DesignError,
) -> Kind:
    """Validate an object of a class."""
    found: Kind = KindNeed(kind=kind, way_out=way_out).check(owner, name, value, error)
    return found


#: The number of draws in a round.
COHORT_SIZE = WholeNeed(
    least=1, most=LARGEST_COHORT, way_out="Pass the number of draws in a round."
)


def checked_cohort_size(owner: str, cohort_size: object) -> int:
    """Validate a positive integer."""
    return COHORT_SIZE.check(owner, "cohort_size", cohort_size, DesignError)


def checked_rounds(owner: str, rounds: object) -> int:
    """Validate a non-negative integer."""
    way_out = "Pass how many cohorts to draw."
    return checked_whole(owner, "rounds", rounds, most=MOST, way_out=way_out)


def checked_path(
    owner: str, name: str, value: object, *, error: type[FedcohortError] = SelectorError
) -> Path:
    """Validate a path: a string or a Path, not empty and in one line."""
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or len(text) > LONGEST_PATH or not _is_line(text):
        raise error(sentence(owner, name, "a path", value, "Pass text or a Path."))
    return Path(text)


def _is_line(text: str) -> bool:
    """Return whether the system can name a file so, in one line."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:  # half of a pair of surrogates
        return False
    return len(text.splitlines()) == 1 and "\0" not in text


def checked_numbers(
    owner: str,
    name: str,
    values: object,
    *shape: int | str,
    whole: bool = False,
    error: type[FedcohortError] = DesignError,
) -> NDArray[Any]:
    """Validate an array of real numbers; in its ``shape``, a name stands for any length."""
    array = as_array(values)
    lengths = (isinstance(n, str) or n == own for n, own in zip(shape, array.shape, strict=False))
    is_number = array.dtype.kind in ("iu" if whole else "iuf") or not array.size
    if len(array.shape) != len(shape) or not all(lengths) or not is_number:
        written = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
        raise error(
            f"{owner}: {name} must be {'whole ' if whole else ''}numbers of shape ({written}); got "
            f"{array.dtype} of shape {array.shape}. Pass an array."
        )
    return array


def as_array(values: object) -> NDArray[Any]:
    """Return an array; rows of different lengths give an empty matrix of objects."""
    try:
        return np.asarray(values)
    except (
        ValueError,
        TypeError,
        RuntimeError,
    ):  # torch refuses tensors on a GPU or with gradients
        return np.empty((0, 0), dtype=object)


def brief(value: object) -> str:
    """Write a value in one short line, for messages."""
    try:
        text = repr(value) if isinstance(value, str) else " ".join(repr(value).split())
    except ValueError:  # integers of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} characters)"


def listed(parts: Sequence[str]) -> str:
    """Join words as a sentence does.

    Examples
    --------
    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def name_of(path: str | os.PathLike[str]) -> str:
    """Return a path for a message; quoted and shortened if it is long or not printable."""
    text = os.fsdecode(path)
    return text if text.isprintable() and 0 < len(text) <= 300 else brief(text)


def checked_rng(owner: str, rng: Rng) -> np.random.Generator:
    """Return the generator that ``rng`` stands for: itself, one seeded by an integer, a new one."""
    if isinstance(rng, np.random.Generator):
        return rng
    if rng is None:
        return np.random.default_rng()
    seed = as_whole(rng)
    if seed is None or seed < 0:
        raise DesignError(
            f"{owner}: rng must be an integer of at least 0, a numpy.random.Generator or None; "
            f"got {brief(rng)}. Pass a seed, or numpy.random.default_rng(seed)."
        )
    return np.random.default_rng(seed)


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the known word that is meant, or nothing.

    Examples
    --------
    >>> did_you_mean("learning_rate", ["lr", "mu"]), did_you_mean("stepz", ["steps", "mu"])
    (" Did you mean 'lr'?", " Did you mean 'steps'?")
    """
    if not isinstance(word, str):
        return ""
    names, usual = list(known), OTHER_NAMES.get(word.lower())
    if usual is None:
        nearest = get_close_matches(word, names, n=1)
    else:
        nearest = [name for name in usual.split() if name in names]
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def _other_owner(word: str) -> str:
    """Say which other object takes an argument of this name, ours or a usual one, or nothing."""
    names = [word, *OTHER_NAMES.get(word.lower(), "").split()]
    return next((OTHER_OWNERS[name] for name in names if name in OTHER_OWNERS), "")


def as_name(value: object) -> Id | None:
    """Return a string or an integer of any type as Python's own; None for anything else."""
    return str(value) if isinstance(value, str) else as_whole(value)


def checked_id(value: object) -> Id:
    """Validate a client's id: a string or an integer."""
    found = as_name(value)
    if found is None:
        raise SelectorError(
            f"Selector: ids must be strings or integers; got {brief(value)}. Name clients by these."
        )
    return found


def checked_ids(values: Iterable[object]) -> list[Id]:
    """Validate clients' ids."""
    ids: list[Any] = list(values)
    # Fast for a million ids; numpy's numbers and subclasses of str are checked one by one.
    return ids if set(map(type, ids)) <= {str, int} else [checked_id(each) for each in ids]


def ordered_ids(ids: list[Id]) -> list[Id]:
    """Sort ids: numbers by value, also those written as text, then names."""
    kinds, plain = set(map(type, ids)), cast(list[str], ids)
    if kinds == {int} or (kinds == {str} and not any(map(str.isdecimal, plain))):
        return [*sorted(plain)]
    return sorted(ids, key=_rank)


def _rank(each: Id) -> tuple[int, int, str]:
    if isinstance(each, int):
        return 0, each, ""
    is_number = each.isdecimal() and each.isascii() and len(each) < 20
    return (0, int(each), each) if is_number else (1, 0, each)


def as_range(ids: list[Id]) -> Sequence[Id]:
    """Return a range if the ids are 0 ... n - 1."""
    return range(len(ids)) if ids == list(range(len(ids))) else ids


def checked_list(ids: object) -> list[Any]:
    """Validate a list of ids, or anything that can be turned into one."""
    if not is_list(ids):
        raise SelectorError(
            f"Selector: needs a list of ids; got {brief(ids)}. Put a single id into a list."
        )
    return list(ids)


def named_values(values: object, *, rows: bool = False) -> Any:
    """Return a pandas Series as values by name, and anything else as it is.

    ``rows``: also a DataFrame, as rows by name. An index 0 ... n - 1 has no names.
    """
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(values, (pandas.Series, pandas.DataFrame)[: 1 + rows]):
        return values
    index = values.index
    if index.tolist() == list(range(len(index))):
        return values
    if not index.is_unique:
        twice = index[index.duplicated()].tolist()[0]
        raise PopulationError(
            f"Population: ids must be distinct; {twice!r} appears more than once in the index of "
            f"the {type(values).__name__}. Rename one of the clients."
        )
    each = values.tolist() if values.ndim == 1 else list(values.to_numpy())
    return dict(zip(index.tolist(), each, strict=True))


def is_list(values: object) -> TypeGuard[Iterable[object]]:
    """Return whether a value is list-like; a string is not."""
    is_point = getattr(values, "ndim", 1) == 0  # a numpy or torch scalar cannot be iterated over
    return isinstance(values, Iterable) and not isinstance(values, (str, bytes)) and not is_point


def group_numbers(owner: str, groups: Iterable[Hashable], n_clients: int) -> NDArray[np.int64]:
    """Replace labels, one per client, by numbers from 0 in order of appearance."""
    known: dict[Hashable, int] = {}
    try:
        numbers = [known.setdefault(label, len(known)) for label in groups]
    except TypeError:
        numbers = []
    if len(numbers) != n_clients:
        raise DesignError(
            f"{owner}: groups must be one label per client, {n_clients}; got {len(numbers)} that "
            f"can be used. Label every client with a number or a name."
        )
    return np.array(numbers)


def suggest_names(module: str, names: Iterable[str]) -> None:
    """Let public functions and classes of a module suggest names for unknown arguments."""
    own = sys.modules[module]
    for name in names:
        setattr(own, name, suggesting_names(getattr(own, name)))


def suggesting_names(value: Kind) -> Kind:
    """Let a public function or class suggest a name if a call has an unknown argument.

    A class stays the same object; its constructor and its public methods are wrapped. A function
    is replaced in its module too, so that it can be pickled.
    """
    if isinstance(value, FunctionType):
        function: FunctionType = value
        wrapped: Any = _suggesting(function)
        home = sys.modules[function.__module__]
        if getattr(home, function.__name__, None) is function:
            setattr(home, function.__name__, wrapped)
        return wrapped  # type: ignore[no-any-return]
    if isinstance(value, type) and not issubclass(value, (BaseException, Enum)):
        for kind in value.__mro__:
            if kind.__module__.startswith("fedcohort."):
                _wrap_methods(kind)
    return value


def _wrap_methods(kind: type) -> None:
    """Wrap what the class itself defines: its constructor and its public methods."""
    for name, found in list(vars(kind).items()):
        method = getattr(found, "__func__", found)  # of a classmethod or staticmethod
        is_own = getattr(method, "__qualname__", "") == f"{kind.__qualname__}.{name}"
        if isinstance(method, FunctionType) and is_own and (name[0] != "_" or name == "__init__"):
            wrapped = _suggesting(method, is_method=not isinstance(found, staticmethod))
            setattr(kind, name, wrapped if found is method else type(found)(wrapped))


def _suggesting(function: FunctionType, *, is_method: bool = False) -> Callable[..., Any]:
    """Wrap a function; do nothing if it is wrapped already."""
    if hasattr(function, "__suggests__"):
        return function

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except TypeError:
            known = _keywords(function)
            unknown = [name for name in options if known is not None and name not in known]
            if known is None or not unknown:
                raise
            owner = function.__qualname__
            if is_method and args:
                kind = args[0] if isinstance(args[0], type) else type(args[0])
                owner = f"{kind.__name__}.{function.__name__}".removesuffix(".__init__")
            known_names = f"known are {', '.join(known)}" if known else "it has none"
            raise ArgumentError(
                f"{owner}: unknown argument {unknown[0]!r}; {known_names}."
                f"{did_you_mean(unknown[0], known) or _other_owner(unknown[0])}"
            ) from None

    call.__suggests__ = True  # type: ignore[attr-defined]
    return call


def _keywords(function: FunctionType) -> list[str] | None:
    """Return the names that a call may use; None if it may use any."""
    names = []
    for each in list(inspect.signature(function).parameters.values()):
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            names.append(each.name)
        elif each.kind is each.VAR_KEYWORD:
            options = get_args(get_type_hints(function).get(each.name))  # Unpack[TypedDict]
            if not options:
                return None
            names += get_type_hints(options[0])
    return [name for name in names if name not in ("self", "cls")]
