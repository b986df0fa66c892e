"""Updates in any structure: flat arrays, lists of arrays, mappings of arrays; numpy or torch.

Integer arrays beside float ones are *counters*, such as the number of batches in a normalisation
layer. They are not part of the flat vector: they are aggregated separately and rounded.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import AggregationError

#: A numpy array or a torch tensor.
Array = Any
#: The bound on entries of updates: the square of a sum of thousands of them is finite.
LARGEST = 1e150


def zero_rows(array: Array, n: int) -> Array:
    """Return n rows of zeros, each like a row of ``array``."""
    if isinstance(array, np.ndarray):
        return np.zeros((n, *array.shape[1:]), dtype=array.dtype)
    return array.new_zeros((n, *array.shape[1:]))


def moved(values: Array, order: NDArray[np.int64], *, fill: float = 0) -> Array:
    """Return each client's row at its new position; ``fill`` for new clients.

    ``order`` has each client's old position, -1 for a new client.

    Examples
    --------
    >>> moved(np.array([5, 6, 7]), np.array([2, -1, 0])).tolist()
    [7, 0, 5]
    """
    found = zero_rows(values, len(order))
    if fill:  # else leave large arrays to the system, which hands out zeros when they are read
        found[...] = fill
    found[np.flatnonzero(order >= 0)] = values[order[order >= 0]]
    return found


def like(values: Array, array: Array) -> Array:
    """Return a copy of the values with the kind (numpy or torch), type and device of ``array``."""
    if isinstance(array, np.ndarray):
        return np.array(as_numpy(values), dtype=array.dtype)
    if isinstance(values, np.ndarray):
        return array.new_tensor(values)
    return values.to(array)


def double(array: Array) -> Array:
    """Return the array in float64."""
    return array.astype(np.float64) if isinstance(array, np.ndarray) else array.double()


def as_numpy(array: Array) -> NDArray[Any]:
    """Return a numpy array as it is, and a tensor as a numpy array."""
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()


def is_tensor(value: object) -> bool:
    """Return whether a value is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def finite_rows(rows: Array) -> NDArray[np.bool_]:
    """Return whether all entries are finite, for every row."""
    if isinstance(rows, np.ndarray):
        return np.asarray(np.isfinite(rows).all(axis=1))
    return np.asarray(as_numpy((rows - rows == 0).all(dim=1)), dtype=bool)  # isfinite is slower


def usable_rows(rows: Array) -> NDArray[np.bool_]:
    """Return whether each row can be remembered: differences and squares are finite too."""
    good = finite_rows(rows)
    if str(rows.dtype).endswith("float64"):  # squares of shorter floats always fit into float64
        good &= np.asarray(as_numpy((abs(rows) < LARGEST).all(1)), dtype=bool)
    return good


def row_norms(rows: Array) -> NDArray[np.float64]:
    """Return the Euclidean norm of every row, computed in float64."""
    if isinstance(rows, np.ndarray):
        return np.asarray(np.linalg.norm(double(rows), axis=1))
    return np.asarray(as_numpy(double(rows).norm(dim=1)))


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


class Part(NamedTuple):
    """One array of an update."""

    shape: tuple[int, ...]
    #: Its slice of the vector; None for a counter.
    place: slice | None
    #: An empty array of its kind, type and device.
    kind: Array


@final
@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The places of an update's arrays in one flat vector.

    The keys of ``parts`` are those of a mapping, positions in a list, or None for a single array.
    ``owner`` is the caller's name, for errors.
    """

    owner: str
    form: Literal["list", "mapping"] | None
    parts: dict[Hashable, Part]
    #: The length of the flat vector.
    size: int

    @classmethod
    def of(cls, owner: str, update: Update, *, counters: bool = True) -> Layout:
        """Return the layout of an update or a model; without ``counters`` all is in the vector."""
        form: Literal["list", "mapping"] | None = None
        keys: Iterable[Hashable] = (None,)
        if isinstance(update, Mapping):
            form, keys = "mapping", list(update)
        elif isinstance(update, (list, tuple)) and any(
            isinstance(part, (list, tuple)) or np.ndim(part) > 0 for part in update
        ):
            form, keys = "list", range(len(update))
        # One array at a time: a mapping may compute its arrays on access.
        leaves = ((key, _leaf(owner, update, key)) for key in keys)
        read = [(key, tuple(leaf.shape), _kind(leaf)) for key, leaf in leaves]
        # If all arrays are integers, none is a counter.
        counters = counters and not all(_is_whole(kind) for _, _, kind in read)
        parts: dict[Hashable, Part] = {}
        end = 0
        for key, shape, kind in read:
            if _is_whole(kind) and counters:
                parts[key] = Part(shape, None, kind)
                continue
            start, end = end, end + math.prod(shape)
            parts[key] = Part(shape, slice(start, end), floats(kind) if _is_whole(kind) else kind)
        if not end:
            raise AggregationError(
                f"{owner}: an update must have at least one number; got arrays of shapes "
                f"{[shape for _, shape, _ in read]}. Send the client's model minus the model that "
                f"it was sent."
            )
        return cls(owner, form, parts, end)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of every array."""
        return tuple(part.shape for part in self.parts.values())

    def matches(self, other: Layout) -> bool:
        """Return whether updates of both layouts can be added; the order of names may differ."""
        return self.form == other.form and self._named_shapes() == other._named_shapes()

    def fits(self, model: Layout) -> bool:
        """Return whether updates of this layout can be added to a model of that layout.

        Arrays are matched by name or position if both have them, else by their order in the flat
        vector. Updates may leave out counters.
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

    def leaves(self, update: Update) -> Iterator[tuple[Array, slice | None]]:
        """Yield the arrays of an update, each with its slice of the vector."""
        for key, part in self.parts.items():
            yield _leaf(self.owner, update, key), part.place

    def flat(self, update: Update) -> Array:
        """Return the update as one vector of floats; half precision becomes float32."""
        kinds = [part.kind for part in self.parts.values() if part.place is not None]
        if len(kinds) > 1 and isinstance(kinds[0], np.ndarray):
            # Fill array by array: a concatenation would need memory for two updates.
            vector = np.empty(self.size, dtype=np.result_type(np.float32, *kinds))
            for leaf, place in self.leaves(update):
                if place is not None:
                    vector[place] = leaf.reshape(-1)
            return vector
        return joined([floats(leaf) for leaf, place in self.leaves(update) if place is not None])

    def counters(self, update: Update) -> list[Array]:
        """Return the counters, in order."""
        return [leaf for leaf, place in self.leaves(update) if place is None]

    def structured(self, make: Callable[[Hashable, Part], Array]) -> Update:
        """Make an update of this layout; ``make(key, part)`` returns each array."""
        made = {
            key: _typed(make(key, part), part.kind).reshape(part.shape)
            for key, part in self.parts.items()
        }
        return made if self.form == "mapping" else [*made.values()] if self.form else made[None]

    def unflat(self, vector: Array, counters: Sequence[Array] = ()) -> Update:
        """Return the update with this flat vector and these counters; missing counters are 0."""
        left = iter(counters)

        def make(key: Hashable, part: Part) -> Array:
            if part.place is not None:
                return vector[part.place]
            return next(left, np.zeros(part.shape))

        return self.structured(make)

    def moved(self, model: Update, vector: Array, counters: Sequence[Array]) -> Update:
        """Return a model plus an update of this layout, in the model's own structure."""
        own = Layout.of(self.owner, model)
        if not self.fits(own):
            raise AggregationError(
                f"{self.owner}: updates must have the arrays of the model, {own.size} numbers of "
                f"shapes {own.shapes}; got {self.size} of shapes {self.shapes}. Send the client's "
                f"model minus the model that it was sent."
            )
        left, matched = iter(counters), self if self.shares_keys(own) else own
        steps = {
            key: next(left, None) if part.place is None else vector[part.place]
            for key, part in matched.parts.items()
        }

        def make(key: Hashable, part: Part) -> Array:
            leaf, step = _leaf(self.owner, model, key), steps.get(key)
            if step is None:
                return leaf
            base = double(leaf).reshape(-1) if part.place is None else floats(leaf)
            # Numpy's wider type counts; tensors meet in the model's.
            same = isinstance(base, np.ndarray) and isinstance(step, np.ndarray)
            return base + (step if same else like(step, base)).reshape(-1)

        return own.structured(make)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Updates of several clients of one layout: one flat row each, and each client's counters."""

    layout: Layout
    flat: Array
    counters: Sequence[Sequence[Array]]

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
        layout = Layout.of(owner, each[0], counters=counters)
        for update in each[1:]:
            if not layout.matches(other := Layout.of(owner, update, counters=counters)):
                raise _other_shapes(owner, n, f"shapes {layout.shapes} and {other.shapes}")
        flat = joined([layout.flat(update) for update in each], stacked=True)
        return cls(layout, flat, [layout.counters(update) for update in each])

    @classmethod
    def _of_array(cls, owner: str, updates: Array, n: int) -> Rows:
        if updates.ndim < 1 or len(updates) != n:
            raise _other_shapes(owner, n, f"shape {tuple(updates.shape)}")
        whole = _leaf(owner, updates, None)
        shape = tuple(whole.shape[1:])
        size = math.prod(shape)
        flat = floats(whole).reshape(n, size)
        kind = _kind(flat if _is_whole(whole) else whole)
        layout = Layout(owner, None, {None: Part(shape, slice(0, size), kind)}, size)
        return cls(layout, flat, [[] for _ in range(n)])

    def __len__(self) -> int:
        return len(self.flat)

    def zero(self) -> Update:
        """Return an update of zeros."""
        return self.layout.unflat(self.flat[:0].sum(0))

    def taken(self, order: NDArray[np.int64]) -> Rows:
        """Return the rows at these positions, in this order."""
        if np.array_equal(order, np.arange(len(self))):
            return self
        return Rows(self.layout, self.flat[order], [self.counters[k] for k in order])

    def counted(self, weights: NDArray[np.float64]) -> list[Array]:
        """Return the weighted sums of the counters, flat."""
        # Flatten: numpy would turn a product of 0-dimensional arrays into a scalar.
        return [
            sum(w * double(each).reshape(-1) for w, each in zip(weights.tolist(), own, strict=True))
            for own in zip(*self.counters, strict=True)
        ]


def stretched(
    owner: str, update: Update, total: float, around: tuple[Array, Array] | None
) -> Update:
    """Return total * (update - h) + H, with ``around`` = (h, H); counters are only scaled."""

    def make(key: Hashable, part: Part) -> Array:
        leaf = _leaf(owner, update, key).reshape(-1)
        if around is None or part.place is None:
            return total * leaf
        own = floats(leaf)
        h, mean = (like(each[part.place], own) for each in around)
        return total * (own - h) + mean

    return Layout.of(owner, update).structured(make)


def _other_shapes(owner: str, n: int, came: str) -> AggregationError:
    return AggregationError(
        f"{owner}: updates must be {n}, one per client and all of one shape; got {came}. A client "
        f"that was drawn twice sends one update."
    )


def _leaf(owner: str, update: Update, key: Hashable | None) -> Array:
    """Return one array of an update; raise unless it has real numbers."""
    value = update if key is None else update[key]
    if is_tensor(value) and not value.is_complex():
        return value.detach()
    try:
        array = value if is_tensor(value) else np.asarray(value)
    except (ValueError, TypeError):  # rows of different lengths
        array = np.empty(0, dtype=object)
    if is_tensor(array) or array.dtype.kind not in "iufb":
        where = "" if key is None else f" under {key!r}"
        raise AggregationError(
            f"{owner}: an update must be real numbers: an array, or a list or mapping of arrays; "
            f"got {array.dtype}{where}. Send the client's model minus the model that it was sent."
        )
    return array


def _kind(leaf: Array) -> Array:
    return zero_rows(leaf.reshape(-1), 0)


def _is_whole(leaf: Array) -> bool:
    return "float" not in str(leaf.dtype)


def floats(leaf: Array) -> Array:
    """Return the array as a flat vector in float32 or float64."""
    flat = leaf.reshape(-1)
    if isinstance(flat, np.ndarray):
        wide = np.float64 if _is_whole(flat) else np.result_type(flat.dtype, np.float32)
        return flat.astype(wide, copy=False)
    if _is_whole(flat):
        return flat.double()
    return flat.float() if flat.element_size() < 4 else flat


def _typed(values: Array, kind: Array) -> Array:
    """Return values with the kind and type of an array; round them if it has integers."""
    if _is_whole(kind) and not _is_whole(values):
        values = np.rint(values) if isinstance(values, np.ndarray) else values.round()
    with np.errstate(over="ignore"):  # an overflow becomes infinite
        return like(values, kind)
