"""Updates in any structure: flat arrays, lists of arrays, mappings of arrays; numpy or torch.

Integer arrays of an update that also has float arrays are *counters*, such as the number of batches
in a normalisation layer. The flat vector leaves them out: they are summed separately and rounded.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Literal, NamedTuple, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import AggregationError

#: A numpy array or a torch tensor.
Array = Any
#: The name of an array: a mapping's key, a position in a list, or None for a single array.
Key = TypeVar("Key", bound=Hashable)
#: An update with an entry of this size counts as lost: float32 must hold sums of entries.
LARGEST_ENTRY = 1e37
#: How the names of arrays end that normalisation layers measure, and do not train.
UNTRAINED = ("running_mean", "running_var")
#: The bound on the entries of counters: float64 must hold sums of them without rounding.
LARGEST_COUNT = 2**52


def zero_rows(array: Array, n: int) -> Array:
    """Return n rows of zeros, each like a row of ``array``."""
    if isinstance(array, np.ndarray):
        return np.zeros((n, *array.shape[1:]), dtype=array.dtype)
    return array.new_zeros((n, *array.shape[1:]))


def reordered(values: Array, order: NDArray[np.int64], *, fill: float = 0) -> Array:
    """Return each client's row at its new position; ``fill`` for new clients.

    ``order`` has each client's old position, -1 for a new client.

    Examples
    --------
    >>> reordered(np.array([5, 6, 7]), np.array([2, -1, 0])).tolist()
    [7, 0, 5]
    """
    found = zero_rows(values, len(order))
    if fill:  # else large arrays stay lazily allocated zeros
        found[...] = fill
    found[np.flatnonzero(order >= 0)] = values[order[order >= 0]]
    return found


def like(values: Array, array: Array, *, copy: bool = True) -> Array:
    """Return the values in the kind (numpy or torch), type and device of ``array``.

    Values that become integers are rounded. Without ``copy``, numpy values that have the type
    already are returned as they are.
    """
    if _is_whole(array) and not _is_whole(values):
        values = values.round() if is_tensor(values) else np.rint(values)
    if is_tensor(array):
        return values.to(array) if is_tensor(values) else array.new_tensor(values)
    return as_numpy(values).astype(array.dtype, copy=copy or is_tensor(values))


def in_type(values: Array, array: Array, *, copy: bool = False) -> Array | None:
    """Return the values :func:`like` an array; None if its type cannot hold them."""
    if _is_whole(array):
        name = _type_name(array)
        least, most = (0, 1) if name == "bool" else (np.iinfo(name).min, np.iinfo(name).max)
        rounded = as_numpy(values)
        rounded = np.rint(rounded) if rounded.dtype.kind == "f" else rounded
        # "< most + 1": as a float, the largest 64-bit integer is rounded up.
        fits = bool(((rounded >= least) & (rounded < most + 1)).all())
        return like(rounded.astype(name, copy=copy), array, copy=False) if fits else None
    with np.errstate(over="ignore"):
        found = like(values, array, copy=copy)
    return found if is_finite(found) else None


def double(array: Array) -> Array:
    """Return the array in float64."""
    return array.astype(np.float64) if isinstance(array, np.ndarray) else array.double()


def as_numpy(values: Array) -> NDArray[Any]:
    """Return an array or a tensor as a numpy array; numpy has no bfloat16: it becomes float32."""
    if not is_tensor(values):
        return np.asarray(values)
    tensor = values.detach().cpu()
    array: NDArray[Any] = (tensor.float() if "bfloat16" in str(tensor.dtype) else tensor).numpy()
    return array


def is_tensor(value: object) -> bool:
    """Return whether a value is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def largest_entries(rows: Array) -> Array:
    """Return the largest magnitude in every row; NaN if an entry is NaN."""
    if isinstance(rows, np.ndarray):
        largest = np.maximum(rows.max(1, initial=0), -rows.min(1, initial=0))
        return largest.astype(np.float64)
    if rows.device.type == "cpu":  # 20 times as fast there as the norm
        return rows.amax(1).maximum(-rows.amin(1))
    return rows.norm(math.inf, dim=1)  # one kernel, no copy


def usable_rows(rows: Array) -> NDArray[np.bool_]:
    """Return whether all entries of each row are finite and below ``LARGEST_ENTRY``."""
    return np.asarray(as_numpy(largest_entries(rows)) < LARGEST_ENTRY)


def row_norms(rows: Array) -> NDArray[np.float64]:
    """Return the Euclidean norm of every row, computed in float64."""
    if isinstance(rows, np.ndarray):
        return np.asarray(np.linalg.norm(double(rows), axis=1))
    return np.asarray(as_numpy(rows.norm(dim=1, dtype=sys.modules["torch"].float64)))


def joined(arrays: Sequence[Array], *, stacked: bool = False) -> Array:
    """Concatenate flat arrays, or stack them as rows; the result has the kind of the first."""
    first = arrays[0]
    if len(arrays) == 1:
        return first[None] if stacked else first
    arrays = [each if same_place(first, each) else like(each, first) for each in arrays]
    if isinstance(arrays[0], np.ndarray):
        return np.stack(arrays) if stacked else np.concatenate(arrays)
    torch = sys.modules["torch"]
    return torch.stack(list(arrays)) if stacked else torch.cat(list(arrays))


def same_place(first: Array, second: Array) -> bool:
    """Return whether two arrays are both numpy, or both tensors on the same device."""
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return isinstance(first, np.ndarray) and isinstance(second, np.ndarray)
    return bool(first.device == second.device)


#: An array, a list of arrays, or a mapping of arrays.
Update = Any
Form = Literal["list", "mapping"] | None
#: The integer arrays of an update that also has floating-point arrays, by key.
Counters = Mapping[Hashable, Array]


class Part(NamedTuple):
    """One array of an update."""

    shape: tuple[int, ...]
    #: Its slice of the vector; None for a counter.
    place: slice | None
    #: An empty array of its kind, type and device.
    kind: Array


class OtherArrays(Exception):  # noqa: N818  # callers turn it into an error of their own
    """An update does not have the arrays of a layout; the message says how it differs."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The places of an update's arrays in one flat vector.

    The keys of ``parts`` are those of a mapping, in its order, positions in a list, or None for a
    single array. In the vector the arrays of a mapping are sorted by name: updates with the same
    names have the same vector, whatever their order. ``owner`` is the caller's name, for errors.
    """

    owner: str
    form: Form
    parts: dict[Hashable, Part]
    #: The length of the flat vector.
    size: int

    @classmethod
    def of(cls, owner: str, update: Update, *, counters: bool = True) -> Layout:
        """Return the layout of an update or a model; without ``counters`` all is in the vector."""
        form, keys = _form_of(update)
        # One array at a time: a mapping may compute its arrays on access.
        read = ((key, _leaf(owner, update, key)) for key in keys)
        return cls._of(
            owner, form, {k: (tuple(own.shape), _kind(own)) for k, own in read}, counters
        )

    @classmethod
    def read(
        cls, owner: str, update: Update, *, counters: bool = True
    ) -> tuple[Layout, Array, Counters]:
        """Return an update's layout, its vector and its counters; each array is read once."""
        form, keys = _form_of(update)
        leaves = {key: _leaf(owner, update, key) for key in keys}
        kinds = {key: (tuple(own.shape), _kind(own)) for key, own in leaves.items()}
        layout = cls._of(owner, form, kinds, counters)
        return layout, *layout._taken(leaves.__getitem__)

    @classmethod
    def _of(
        cls,
        owner: str,
        form: Form,
        kinds: Mapping[Hashable, tuple[tuple[int, ...], Array]],
        counters: bool,
    ) -> Layout:
        places: dict[Hashable, slice | None] = {}
        if counters:
            places = dict.fromkeys(counters_of({key: kind for key, (_, kind) in kinds.items()}))
        end = 0
        for key in sorted(kinds, key=_rank) if form == "mapping" else kinds:
            if key not in places:
                start, end = end, end + math.prod(kinds[key][0])
                places[key] = slice(start, end)
        if not end:
            raise _no_numbers(owner, [shape for shape, _ in kinds.values()])
        parts = {
            key: Part(shape, places[key], kind if places[key] is None else _floating(kind))
            for key, (shape, kind) in kinds.items()
        }
        return cls(owner, form, parts, end)

    def take(self, update: Update) -> tuple[Array, Counters]:
        """Return an update's vector and counters; raise ``OtherArrays`` if it has others."""
        form, keys = _form_of(update)
        if form != self.form or set(keys) != set(self.parts):
            raise OtherArrays(f"{_shown(self.form, [*self.parts])} and {_shown(form, keys)}")
        return self._taken(lambda key: _leaf(self.owner, update, key))

    def _taken(self, leaf_of: Callable[[Hashable], Array]) -> tuple[Array, Counters]:
        """Read each array once, and put it in its place."""
        kinds = [part.kind for part in self.parts.values() if part.place is not None]
        # Fill array by array: a concatenation would need memory for two updates.
        vector = None
        if len(kinds) > 1 and isinstance(kinds[0], np.ndarray):
            vector = np.empty(self.size, dtype=np.result_type(np.float32, *kinds))
        pieces: dict[int, Array] = {}
        counters: dict[Hashable, Array] = {}
        for key, part in self.parts.items():
            leaf = leaf_of(key)
            shape, is_counter = tuple(leaf.shape), part.place is None
            if shape != part.shape or (is_counter and not _is_whole(leaf)):
                name = "" if key is None else f"{key!r} of "
                types = f", {part.kind.dtype} and {leaf.dtype}" if shape == part.shape else ""
                raise OtherArrays(f"{name}shapes {part.shape} and {shape}{types}")
            if part.place is None:
                counters[key] = leaf
            elif vector is None:
                pieces[part.place.start] = floats(leaf)
            else:
                with np.errstate(over="ignore"):  # an overflow becomes infinite
                    vector[part.place] = as_numpy(leaf).reshape(-1)
        if vector is None:
            vector = joined([pieces[start] for start in sorted(pieces)])
        return vector, counters

    def output(self, name: str | int | None = None) -> slice | None:
        """Return the place of the output layer's bias; None if there is no such array.

        ``name`` is its name, or position in a list. By default it is the last one-dimensional array
        that is trained, of two arrays or more.
        """
        parts = {key: own for key, own in self.parts.items() if own.place is not None}
        flat = [
            key
            for key, own in parts.items()
            if len(own.shape) == 1 and own.shape[0] and not str(key).endswith(UNTRAINED)
        ]
        last = flat[-1] if flat and len(parts) > 1 else None
        key = last if name is None else name
        if self.form == "list" and type(key) is int and 0 <= key < len(self.parts):
            key = list(self.parts)[key]  # a list may have names beside its positions
        return parts[key].place if key is not None and key in parts else None

    @property
    def signature(self) -> dict[str, Any]:
        """The form, and each array's key, shape and type, for JSON; only counters are integers."""
        if not all(isinstance(key, (str, int, type(None))) for key in self.parts):
            raise AggregationError(
                f"{self.owner}: names of arrays must be strings or integers; got "
                f"{_shown(self.form, [*self.parts])}. Rename the arrays."
            )
        parts = [[key, list(own.shape), str(own.kind.dtype)] for key, own in self.parts.items()]
        return {"form": self.form, "parts": parts}

    @classmethod
    def of_shapes(cls, owner: str, shapes: Mapping[str, tuple[int, ...]], kind: Array) -> Layout:
        """Return the layout of a list of float arrays with these names and shapes, in order."""
        return cls._of(owner, "list", {k: (own, _kind(kind)) for k, own in shapes.items()}, True)

    @classmethod
    def of_signature(cls, owner: str, signature: Mapping[str, Any]) -> Layout:
        """Return the layout of a signature, on the CPU; tensors become numpy without torch."""
        kinds = {key: (tuple(shape), _empty(name)) for key, shape, name in signature["parts"]}
        return cls._of(owner, signature["form"], kinds, True)

    def in_kind(self, vector: NDArray[Any]) -> Array:
        """Return a vector as a tensor if the layout's arrays are tensors, in its own type."""
        is_torch = any(is_tensor(part.kind) for part in self.parts.values())
        return sys.modules["torch"].tensor(vector) if is_torch else vector

    @property
    def shapes(self) -> str:
        """The arrays' names and shapes, for errors."""
        return _shown(self.form, {key: part.shape for key, part in self.parts.items()})

    def matches(self, other: Layout) -> bool:
        """Return whether updates of both layouts can be added; the order of names may differ."""
        return self.form == other.form and self._named_shapes() == other._named_shapes()

    def in_order_of(self, other: Layout) -> Layout:
        """Return the layout with its arrays in the order of one that it matches."""
        return replace(self, parts={key: self.parts[key] for key in other.parts})

    def ordered(self, update: Update) -> Update:
        """Return an update of these arrays with the names of a mapping in the layout's order."""
        if self.form != "mapping" or list(update) == list(self.parts):
            return update
        return {key: update[key] for key in self.parts}

    def fits(self, model: Layout) -> bool:
        """Return whether updates of this layout can be added to a model of that layout.

        Arrays are matched by name or position if both have them, else by their order. Updates may
        leave out counters.
        """
        if not self.shares_keys(model):
            return self.size == model.size
        own, needed = self._named_shapes(), model._named_shapes()
        floats = {key for key, (_, is_counter) in needed.items() if not is_counter}
        return floats <= own.keys() and own.items() <= needed.items()

    def shares_keys(self, other: Layout) -> bool:
        """Return whether arrays of both layouts are matched by their keys."""
        return self.form is not None and self.form == other.form

    def _named_shapes(self) -> dict[Hashable, tuple[tuple[int, ...], bool]]:
        """Return every array's shape, and whether it is a counter."""
        return {key: (part.shape, part.place is None) for key, part in self.parts.items()}

    def unflat(self, vector: Array, counters: Counters | None = None) -> Update:
        """Return the update with this vector and these counters; missing counters are 0."""
        known = counters or {}
        kinds = [part.kind for part in self.parts.values() if part.place is not None]
        is_typed = all(same_place(vector, each) and vector.dtype == each.dtype for each in kinds)
        if is_typed:  # One check for all arrays: on a GPU each check waits for the device.
            vector = _typed(self.owner, None, vector, vector)

        def make(key: Hashable, part: Part) -> Array:
            if part.place is None:
                values = known[key] if key in known else np.zeros(part.shape)
            else:
                values = vector[part.place]
                if is_typed:
                    return values
            return _typed(self.owner, key, values, part.kind)

        return self._made(make)

    def _made(self, make: Callable[[Hashable, Part], Array]) -> Update:
        """Return an update in the form of this layout; ``make(key, part)`` returns each array."""
        made = {key: make(key, part).reshape(part.shape) for key, part in self.parts.items()}
        return made if self.form == "mapping" else [*made.values()] if self.form else made[None]

    def moved(self, model: Update, vector: Array, counters: Counters) -> Update:
        """Return a model plus an update of this layout, in the model's own structure."""
        own = Layout.of(self.owner, model)
        if not self.fits(own):
            raise AggregationError(
                f"{self.owner}: updates must have the arrays of the model, {own.shapes}; got "
                f"{self.shapes}. Send the client's model minus the model that it was sent."
            )
        steps = dict(counters)
        if self.shares_keys(own):
            steps |= {k: vector[part.place] for k, part in self.parts.items() if part.place}
        else:
            ordered, end = self._in_order(vector), 0
            for key, part in own.parts.items():
                if part.place is not None:
                    start, end = end, end + math.prod(part.shape)
                    steps[key] = ordered[start:end]

        def make(key: Hashable, part: Part) -> Array:
            values, step = _leaf(self.owner, model, key), steps.get(key)
            if step is not None:
                values = counted(values, step) if part.place is None else _sum(values, step)
            return _typed(self.owner, key, values, part.kind)

        return own._made(make)

    def _in_order(self, vector: Array) -> Array:
        """Return the vector with its arrays in the order of ``parts``."""
        places = [part.place for part in self.parts.values() if part.place is not None]
        if places == sorted(places, key=lambda place: place.start):
            return vector
        return joined([vector[place] for place in places])


@final
@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Updates of several clients of one layout: one flat row each, and each client's counters.

    ``one_order``: all of them had their names in one order.
    """

    layout: Layout
    flat: Array
    counters: Sequence[Counters]
    one_order: bool = True

    @classmethod
    def of(cls, owner: str, updates: Any, n: int, *, counters: bool = True) -> Rows:
        """Make rows from n updates: one array, or a sequence of updates of one layout."""
        if isinstance(updates, Rows):
            return updates
        if is_tensor(updates) or isinstance(updates, np.ndarray):
            return cls._of_array(owner, updates, n)
        if isinstance(updates, (str, bytes, Mapping)) or not isinstance(updates, Iterable):
            raise _other_shapes(owner, n, type(updates).__name__)
        each = list(updates)
        if len(each) != n or not each:
            raise _other_shapes(owner, n, f"{len(each)} updates")
        layout, *first = Layout.read(owner, each[0], counters=counters)
        try:
            read = [first, *(layout.take(update) for update in each[1:])]
        except OtherArrays as error:
            raise _other_shapes(owner, n, str(error)) from error
        flat, counts = zip(*read, strict=True)
        return cls(layout, joined(flat, stacked=True), counts, len(set(map(order_of, each))) == 1)

    @classmethod
    def _of_array(cls, owner: str, updates: Array, n: int) -> Rows:
        if updates.ndim < 1 or len(updates) != n:
            raise _other_shapes(owner, n, f"shape {tuple(updates.shape)}")
        whole = _leaf(owner, updates, None)
        shape = tuple(whole.shape[1:])
        size = math.prod(shape)
        if not size:
            raise _no_numbers(owner, [shape])
        flat = floats(whole).reshape(n, size)
        kind = _kind(flat if _is_whole(whole) else whole)
        layout = Layout(owner, None, {None: Part(shape, slice(0, size), kind)}, size)
        return cls(layout, flat, [{} for _ in range(n)])

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Join rows of layouts that match, in this order; they get the layout of the first."""
        one_order = all(own.one_order for own in parts)
        one_order &= len({tuple(own.layout.parts) for own in parts}) == 1
        counters = [each for own in parts for each in own.counters]
        return cls(parts[0].layout, joined([own.flat for own in parts]), counters, one_order)

    def __len__(self) -> int:
        return len(self.flat)

    def zero(self) -> Update:
        """Return an update of zeros."""
        return self.layout.unflat(self.flat[:0].sum(0))

    def taken(self, order: NDArray[np.int64]) -> Rows:
        """Return the rows at these positions, in this order."""
        if np.array_equal(order, np.arange(len(self))):
            return self
        counters = [self.counters[k] for k in order]
        return replace(self, flat=self.flat[order], counters=counters)

    def scaled(self, factors: NDArray[np.float64]) -> Rows:
        """Return each row times its factor, counters included: only their sum is rounded."""
        # Flatten: numpy would turn a product of 0-dimensional arrays into a scalar.
        counters = [
            own if f == 1 else {key: f * double(each).reshape(-1) for key, each in own.items()}
            for f, own in zip(factors.tolist(), self.counters, strict=True)
        ]
        with np.errstate(invalid="ignore"):  # unusable rows are left out later
            flat = self.flat * like(factors, self.flat)[:, None]
        return replace(self, flat=flat, counters=counters)

    def added_to(self, model: Update, step: Array, counters: Counters) -> Update:
        """Return a model plus a step of these updates, in the model's own structure."""
        if not self.one_order and not isinstance(model, Mapping):
            raise AggregationError(
                f"{self.layout.owner}: updates by name must all have the same order of names if "
                f"the model has no names; got several orders. Pass the model by name too."
            )
        return self.layout.moved(model, step, counters)

    def usable(self, norms: NDArray[np.float64] | None = None) -> NDArray[np.bool_]:
        """Return whether each update can be used: its entries are finite and within bounds.

        Rows whose norms are known are not scanned: no entry is larger than the norm.
        """
        small = [all(_is_small_count(own) for own in each.values()) for each in self.counters]
        within = usable_rows(self.flat) if norms is None else norms < LARGEST_ENTRY
        return np.logical_and(within, small)

    def counted(self, weights: NDArray[np.float64]) -> dict[Hashable, Array]:
        """Return the weighted sums of the counters, flat."""
        # Flatten: numpy would turn a product of 0-dimensional arrays into a scalar.
        keys = [key for key, part in self.layout.parts.items() if part.place is None]
        pairs = list(zip(weights.tolist(), self.counters, strict=True))
        return {key: sum(w * double(own[key]).reshape(-1) for w, own in pairs) for key in keys}


def order_of(update: Update) -> tuple[Hashable, ...] | None:
    """Return the names of a mapping, in its order."""
    return tuple(update) if isinstance(update, Mapping) else None


def _other_shapes(owner: str, n: int, came: str) -> AggregationError:
    return AggregationError(
        f"{owner}: updates must be {n}, one per client and all of the same arrays; got {came}. A "
        f"client that was drawn twice sends one update."
    )


def _no_numbers(owner: str, shapes: Sequence[tuple[int, ...]]) -> AggregationError:
    return AggregationError(
        f"{owner}: an update must have at least one number; got arrays of shapes {shapes}. Send "
        f"the client's model minus the model that it was sent."
    )


def _form_of(update: Update) -> tuple[Form, Sequence[Hashable]]:
    """Return the form of an update, and the keys of its arrays."""
    if isinstance(update, Mapping):
        return "mapping", list(update)
    if isinstance(update, (list, tuple)) and any(
        isinstance(part, (list, tuple)) or np.ndim(part) > 0 for part in update
    ):
        return "list", range(len(update))
    return None, (None,)


def _rank(key: Hashable) -> tuple[str, str]:
    return str(key), type(key).__name__


def _shown(form: Form, parts: Iterable[Hashable] | Mapping[Hashable, object]) -> str:
    """Describe the arrays of an update: by name if it is a mapping."""
    if form == "mapping":
        return str(dict(parts) if isinstance(parts, Mapping) else list(parts))[:300]
    if isinstance(parts, Mapping):
        return str([*parts.values()] if form else parts[None])[:300]
    return f"a list of {len(list(parts))} arrays" if form else "one array"


def _leaf(owner: str, update: Update, key: Hashable | None) -> Array:
    """Return one array of an update; raise unless it has real numbers."""
    value = update if key is None else update[key]
    is_strided = is_tensor(value) and str(value.layout) == "torch.strided"
    if is_strided and not value.is_complex():
        return value.detach()
    try:
        array = value if is_tensor(value) else np.asarray(value)
    except (ValueError, TypeError):  # rows of different lengths
        array = np.empty(0, dtype=object)
    if is_tensor(array) or array.dtype.kind not in "iufb":
        where = "" if key is None else f" under {key!r}"
        came = value.layout if is_tensor(value) and not is_strided else array.dtype
        raise AggregationError(
            f"{owner}: an update must be real numbers: an array, or a list or mapping of arrays; "
            f"got {came}{where}. Send the client's model minus the model that it was sent."
        )
    return array


def _kind(leaf: Array) -> Array:
    return zero_rows(leaf.reshape(-1), 0)


def _empty(name: str) -> Array:
    """Return an empty array of a type, such as ``float32`` or ``torch.float32``."""
    kind = name.removeprefix("torch.")
    if kind != name:
        try:
            torch = import_module("torch")
        except ImportError:  # numpy has no bfloat16
            return np.empty(0, dtype="float32" if kind == "bfloat16" else kind)
        return torch.empty(0, dtype=getattr(torch, kind))
    return np.empty(0, dtype=kind)


def _is_whole(leaf: Array) -> bool:
    # numpy turns a sum of 0-dimensional arrays into a scalar, which has a type too.
    return not leaf.is_floating_point() if is_tensor(leaf) else bool(leaf.dtype.kind != "f")


def _type_name(leaf: Array) -> str:
    return str(leaf.dtype).removeprefix("torch.")


def counters_of(arrays: Mapping[Key, Array]) -> list[Key]:
    """Return the names of the counters: the integer arrays, if others are floating-point."""
    whole = [name for name, own in arrays.items() if _is_whole(own)]
    return whole if len(whole) < len(arrays) else []


def floats(leaf: Array) -> Array:
    """Return the array as a flat vector in float32 or float64."""
    flat = leaf.reshape(-1)
    if isinstance(flat, np.ndarray):
        wide = np.float64 if _is_whole(flat) else np.result_type(flat.dtype, np.float32)
        return flat.astype(wide, copy=False)
    if _is_whole(flat):
        return flat.double()
    return flat.float() if flat.element_size() < 4 else flat


def _floating(kind: Array) -> Array:
    return floats(kind) if _is_whole(kind) else kind


def _sum(leaf: Array, step: Array) -> Array:
    """Return the sum of floats: in numpy's wider type, or the model's if one is a tensor."""
    own = floats(leaf)
    same = isinstance(own, np.ndarray) and isinstance(step, np.ndarray)
    return own + (step if same else like(step, own)).reshape(-1)


def counted(leaf: Array, step: Array) -> NDArray[Any]:
    """Return a counter plus its rounded step, flat, as Python integers, which cannot overflow."""
    steps = np.array([int(each) for each in np.rint(as_numpy(step)).ravel().tolist()], dtype=object)
    return np.asarray(as_numpy(leaf).reshape(-1).astype(object) + steps)


def _is_small_count(counter: Array) -> bool:
    found = as_numpy(counter)
    return not found.size or -LARGEST_COUNT < int(found.min()) <= int(found.max()) < LARGEST_COUNT


def is_finite(array: Array) -> bool:
    """Return whether every entry is finite."""
    if isinstance(array, np.ndarray):
        return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())
    return bool((array - array == 0).all())  # isfinite is slower


def _typed(owner: str, key: Hashable, values: Array, kind: Array) -> Array:
    """Return a copy of values in the kind and type of an array; raise if it cannot hold them."""
    found = in_type(values, kind, copy=True)
    if found is None:
        array = "the result" if key is None else f"the array {key!r}"
        raise AggregationError(
            f"{owner}: {array} must be finite in its type, {_type_name(kind)}; its largest entry "
            f"would be {float(abs(values).max()):g}. Use a wider type, or a smaller step."
        )
    return found
