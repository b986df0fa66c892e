"""Rows of numbers in slots, whole, quantised or as signs; in memory or on a GPU."""

from __future__ import annotations

import sys
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._updates import Array, like

#: How the numbers of a row are kept.
RowForm = Literal["float64", "float32", "float16", "int8", "sign"]
Slots = NDArray[np.int64]
#: The slot of a client without a row.
NONE = -1
#: A new block of rows has at most this many bytes.
BLOCK_BYTES = 2**25


@final
@dataclass(frozen=True, slots=True)
class Encoding:
    """How a row of ``dimension`` numbers is kept: as values, and a scale if it is quantised.

    ``int8`` keeps x as rint(x / scale) with scale = max |x| / 127. ``sign`` keeps a bit for each
    number, and mean |x| as its scale. Numbers beyond the range of a form are clipped.
    """

    form: RowForm
    dimension: int

    @property
    def width(self) -> int:
        """How many values a row has."""
        return (self.dimension + 7) // 8 if self.form == "sign" else self.dimension

    @property
    def dtype(self) -> str:
        """The type of the values."""
        return "uint8" if self.form == "sign" else self.form

    @property
    def nbytes(self) -> int:
        """Bytes of the values of a row."""
        return self.width * np.dtype(self.dtype).itemsize

    def encode(self, rows: Array) -> tuple[Array, Array]:
        """Return the values, shape (n, width), and the scales, shape (n,)."""
        if self.form == "int8":
            kind = float_type(rows)
            # Smaller scales round coarsely; 127 times a larger one could be infinite.
            scale = (_largest(rows) / 127).clip(float(kind.tiny), float(kind.max) / 127.001)
            return _cast((rows / scale[:, None]).round(), "int8"), scale
        if self.form == "sign":
            return _packed(rows < 0), _means(abs(rows))
        return self._rounded(rows), rows[:, 0] * 0

    def _rounded(self, rows: Array) -> Array:
        """Return floats in this encoding's type, clipped to its range."""
        most = float(np.finfo(self.dtype).max)
        if most >= float(float_type(rows).max):
            return _cast(rows, self.dtype)
        within = rows.clip(-most, most)
        if self.form == "float16":  # by float32, as torch does: numpy rounds the same then
            within = _cast(within, "float32")
        return _cast(within, self.dtype)

    def decode(self, values: Array, scale: Array, zeros: Array) -> Array:
        """Return the rows, in the kind and type of ``zeros``."""
        if self.form == "sign":
            rows = 1 - 2 * like(_unpacked(values, self.dimension), zeros)
        else:
            rows = values if values.dtype == zeros.dtype else like(values, zeros)
        return rows if self.form.startswith("float") else rows * scale[:, None]


def _cast(array: Array, dtype: str) -> Array:
    if isinstance(array, np.ndarray):
        return array.astype(dtype, copy=False)
    return array.to(getattr(sys.modules["torch"], dtype))


def float_type(array: Array) -> np.finfo[Any]:
    """Return the limits of an array's type."""
    return np.finfo(str(array.dtype).removeprefix("torch."))


def _means(rows: Array) -> Array:
    """Return the mean of every row; add in float64, since large float32 numbers overflow."""
    if isinstance(rows, np.ndarray):
        return rows.mean(1, dtype=np.float64).astype(rows.dtype)
    return rows.mean(1, dtype=sys.modules["torch"].float64).to(rows.dtype)


def _largest(rows: Array) -> Array:
    return abs(rows).max(1) if isinstance(rows, np.ndarray) else abs(rows).amax(1)


def _packed(bits: Array) -> Array:
    """Put eight bits into a byte, the first into its highest bit."""
    if isinstance(bits, np.ndarray):
        return np.packbits(bits, axis=1)
    torch = sys.modules["torch"]
    padded = torch.nn.functional.pad(bits.to(torch.uint8), (0, -bits.shape[1] % 8))
    powers = 2 ** torch.arange(7, -1, -1, device=bits.device, dtype=torch.uint8)
    return (padded.view(len(bits), padded.shape[1] // 8, 8) * powers).sum(2, dtype=torch.uint8)


def _unpacked(packed: Array, n: int) -> Array:
    """Return the first ``n`` bits of every row."""
    if isinstance(packed, np.ndarray):
        return np.unpackbits(packed, axis=1, count=n)
    torch = sys.modules["torch"]
    shifts = torch.arange(7, -1, -1, device=packed.device, dtype=torch.uint8)
    bits = (packed[:, :, None] >> shifts) & 1
    return bits.view(len(packed), 8 * packed.shape[1])[:, :n]


class RowStore:
    """Rows in slots, in blocks of memory that are added as they are needed.

    Blocks have the array kind and the device of ``zeros``.
    """

    def __init__(self, encoding: Encoding, zeros: Array) -> None:
        self.encoding, self._zeros = encoding, zeros
        #: Blocks of rows, and the first slot of each.
        self._blocks: list[Array] = []
        self._starts: list[int] = []
        #: Slots that hold nothing; the last one is used next.
        self._free: list[int] = []

    @property
    def capacity(self) -> int:
        """The number of slots."""
        return sum(map(len, self._blocks))

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        return sum(int(block.nbytes) for block in self._blocks)

    def read(self, slots: Slots) -> Array:
        """Return the values in these slots, shape (n, width)."""
        if not len(slots):
            return self._new_rows(0)
        # One kernel on a GPU; an array of positions would be sent there for each block.
        rows = [self._row(slot) for slot in slots.tolist()]
        stack = np.stack if isinstance(rows[0], np.ndarray) else sys.modules["torch"].stack
        return stack(rows)

    def write(self, before: Slots, values: Array) -> Slots:
        """Replace the rows in the slots ``before``, and return the slots of the new rows."""
        slots = self._writable(before)
        for slot, row in zip(slots.tolist(), values, strict=True):
            self._row(slot)[...] = row
        return slots

    def drop(self, slots: Slots) -> None:
        """Erase the rows in these slots."""
        for slot in slots.tolist():
            self._row(slot)[...] = 0
        self._free.extend(sorted(slots.tolist(), reverse=True))

    def _row(self, slot: int) -> Array:
        """Return the row in a slot, not a copy."""
        number = bisect_right(self._starts, slot) - 1
        return self._blocks[number][slot - self._starts[number]]

    def _writable(self, before: Slots) -> Slots:
        """Return a slot for every row; a row that has one keeps it."""
        slots, is_new = before.copy(), before == NONE
        slots[is_new] = self._allocated(int(is_new.sum()))
        return slots

    def _allocated(self, n: int) -> list[int]:
        if n > len(self._free):
            first, more = self.capacity, self._grow(n - len(self._free))
            self._free[:0] = range(first + more - 1, first - 1, -1)
        return [self._free.pop() for _ in range(n)]

    def _more(self, least: int) -> int:
        """Return how many slots to add: a quarter of what there is, but not too many."""
        return max(least, min(self.capacity // 4, BLOCK_BYTES // self.encoding.nbytes))

    def _grow(self, least: int) -> int:
        """Add slots, and return how many."""
        more = self._more(least)
        self._starts.append(self.capacity)
        self._blocks.append(self._new_rows(more))
        return more

    def _new_rows(self, n: int) -> Array:
        shape = (n, self.encoding.width)
        if isinstance(self._zeros, np.ndarray):
            return np.zeros(shape, dtype=self.encoding.dtype)
        dtype = getattr(sys.modules["torch"], self.encoding.dtype)
        return self._zeros.new_zeros(shape, dtype=dtype)
