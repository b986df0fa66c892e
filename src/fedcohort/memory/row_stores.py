"""Rows of numbers in slots: whole, quantised or as signs; in memory, on a GPU or in a file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._updates import Array, as_numpy, like
from fedcohort._whole_file import reason_of
from fedcohort.errors import MemoryOfUpdatesError

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
    number, and mean |x| as its scale. Floats are clipped to the range of their type.
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
            scale = _largest(rows) / 127
            return _cast((rows / _or_one(scale)[:, None]).round(), "int8"), scale
        if self.form == "sign":
            return _packed(rows < 0), abs(rows).mean(1)
        return self._rounded(rows), rows[:, 0] * 0

    def _rounded(self, rows: Array) -> Array:
        """Return floats in this encoding's type, clipped to its range."""
        if str(rows.dtype).endswith(self.dtype):
            return rows
        most = float(np.finfo(self.dtype).max)
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
        return array.astype(dtype)
    return array.to(getattr(sys.modules["torch"], dtype))


def _largest(rows: Array) -> Array:
    return abs(rows).max(1) if isinstance(rows, np.ndarray) else abs(rows).amax(1)


def _or_one(scale: Array) -> Array:
    """Replace 0, of a row of zeros, by 1."""
    return scale + like(scale == 0, scale)


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
        self._blocks: list[Array] = []
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
        parts = list(self._places(slots))
        if len(parts) == 1:
            block, _, inside = parts[0]
            return block[inside]
        found = self._new_rows(len(slots))
        for block, where, inside in parts:
            found[where] = block[inside]
        return found

    def write(self, before: Slots, values: Array) -> Slots:
        """Replace the rows in the slots ``before``, and return the slots of the new rows."""
        slots = self._writable(before)
        for block, where, inside in self._places(slots):
            block[inside] = values[where]
        return slots

    def drop(self, slots: Slots) -> None:
        """Erase the rows in these slots."""
        for block, _, inside in self._places(slots):
            block[inside] = 0
        self._free.extend(sorted(slots.tolist(), reverse=True))

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
        self._blocks.append(self._new_rows(more))
        return more

    def _new_rows(self, n: int) -> Array:
        shape = (n, self.encoding.width)
        if isinstance(self._zeros, np.ndarray):
            return np.zeros(shape, dtype=self.encoding.dtype)
        dtype = getattr(sys.modules["torch"], self.encoding.dtype)
        return self._zeros.new_zeros(shape, dtype=dtype)

    def _places(self, slots: Slots) -> Iterator[tuple[Array, NDArray[np.int64], Slots]]:
        """Yield blocks, which of ``slots`` are in each, and their positions inside it."""
        ends = np.cumsum([len(block) for block in self._blocks])
        numbers = np.searchsorted(ends, slots, side="right")
        for number in np.unique(numbers).tolist():
            where = np.flatnonzero(numbers == number)
            block = self._blocks[number]
            yield block, where, slots[where] - (int(ends[number]) - len(block))


def _reserve(descriptor: int, size: int) -> None:
    """Make a file this long; a full disk is an error now if the system can say so."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.truncate(descriptor, size)


#: The first line of a file of rows.
FORMAT = "fedcohort rows 1"
#: The bytes before the first row.
HEAD_BYTES = 4096
#: How many of the last states can be restored.
STATES = 2


@final
class FileStore(RowStore):
    """Rows in a memory-mapped file.

    A row that a state refers to is never overwritten: its client gets another slot. So the file
    serves as its own journal: a checkpoint has the slots of the clients, and finds its rows as
    they were. The last ``STATES`` states can be restored; slots that only older ones refer to are
    erased and used again. Every row has a version, so that a state whose rows are gone is refused.
    """

    def __init__(self, encoding: Encoding, zeros: Array, path: Path) -> None:
        super().__init__(encoding, zeros)
        self.path, self._id, self._version = path, "", 0
        #: Slots that no state refers to; and those that were left since, state by state.
        self._fresh: set[int] = set()
        self._left: list[list[int]] = [[]]
        self._mapped: NDArray[Any] | None = None

    @property
    def capacity(self) -> int:
        """The number of slots."""
        return 0 if self._mapped is None else len(self._mapped)

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use; the file's are not counted."""
        return 8 * (len(self._free) + len(self._fresh))

    def read(self, slots: Slots) -> Array:
        """Return the values in these slots, shape (n, width)."""
        if self._mapped is None:
            return self._new_rows(len(slots))
        values = self._mapped["values"][slots]
        if isinstance(self._zeros, np.ndarray):
            return values
        return sys.modules["torch"].from_numpy(values).to(self._zeros.device)

    def write(self, before: Slots, values: Array) -> Slots:
        """Replace the rows in the slots ``before``, and return the slots of the new rows."""
        slots = self._writable(before)
        if len(slots):
            assert self._mapped is not None  # for mypy: there are slots
            self._version += 1
            self._mapped["values"][slots] = as_numpy(values)
            self._mapped["version"][slots] = self._version
        return slots

    def drop(self, slots: Slots) -> None:
        """Leave these slots; they are erased when no state refers to them any more."""
        left = set(slots.tolist())
        self._erase(left & self._fresh)
        self._left[-1].extend(sorted(left - self._fresh))
        self._fresh -= left

    def state(self, slots: Slots) -> dict[str, NDArray[Any]]:
        """Return what finds the rows in these slots again; the file is on the disk then."""
        versions = np.zeros(len(slots), dtype=np.int64)
        if self._mapped is not None:
            self._flush()
            versions = self._mapped["version"][slots]
        self._fresh = set()
        self._left.append([])
        if len(self._left) > STATES:
            self._erase(set(self._left.pop(0)))
        own = np.frombuffer(self._id.encode(), dtype=np.uint8)
        return {"slots": slots.copy(), "versions": versions, "file": own}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Find the rows of a state again; refuse a file that does not have them any more."""
        slots, versions = state["slots"].astype(np.int64), state["versions"]
        if len(slots):
            self._open(state["file"].astype(np.uint8).tobytes().decode())
            assert self._mapped is not None  # for mypy: it is open
            inside = slots.min() >= 0 and slots.max() < len(self._mapped)
            if not inside or (self._mapped["version"][slots] != versions).any():
                raise self._refused("has other rows by now")
            self._version = int(self._mapped["version"].max())
        self._free = sorted(set(range(self.capacity)) - set(slots.tolist()), reverse=True)
        self._fresh, self._left = set(), [[]]

    def _writable(self, before: Slots) -> Slots:
        """Return a slot for every row: its own if no state refers to that, else another."""
        kept = np.array([slot in self._fresh for slot in before.tolist()], dtype=bool)
        self.drop(before[~kept & (before != NONE)])
        slots = before.copy()
        slots[~kept] = self._allocated(int((~kept).sum()))
        self._fresh.update(slots.tolist())
        return slots

    def _erase(self, slots: set[int]) -> None:
        places = sorted(slots, reverse=True)
        if places and self._mapped is not None:
            self._mapped[places] = np.zeros((), dtype=self._mapped.dtype)
        self._free.extend(places)

    @property
    def _row(self) -> np.dtype[Any]:
        """A row in the file: its version and its values, in a multiple of eight bytes."""
        values = np.dtype((self.encoding.dtype, (self.encoding.width,)))
        size = -(-(8 + values.itemsize) // 8) * 8
        padding = size - 8 - values.itemsize
        return np.dtype([("version", "<i8"), ("values", values), ("padding", f"V{padding}")])

    def _head(self) -> dict[str, object]:
        return {"id": self._id, "keep": self.encoding.form, "dimension": self.encoding.dimension}

    def _grow(self, least: int) -> int:
        more = self._more(least)
        try:
            if self._mapped is None:
                self._create()
            with self.path.open("r+b") as file:
                size = HEAD_BYTES + (self.capacity + more) * self._row.itemsize
                _reserve(file.fileno(), size)
            self._map()
        except OSError as error:
            raise self._refused(f"cannot be written ({reason_of(error)})") from error
        return more

    def _create(self) -> None:
        """Make an empty file; replace only a file of rows."""
        if self.path.exists() and self.path.stat().st_size and self._read_head() is None:
            raise self._refused("is not a file of rows")
        self._id = token_hex(8)
        temporary = self.path.with_name(f".{self.path.name}.part")
        head = f"{FORMAT}\n{json.dumps(self._head())}\n".encode()
        temporary.touch(mode=0o600)
        temporary.write_bytes(head.ljust(HEAD_BYTES, b"\0"))
        temporary.replace(self.path)

    def _open(self, own: str) -> None:
        """Map the file that has this id."""
        self._id = own
        if self._read_head() != self._head():
            raise self._refused("is missing, or belongs to another memory")
        self._map()

    def _read_head(self) -> dict[str, object] | None:
        try:
            with self.path.open("rb") as file:
                kind, _, rest = file.read(HEAD_BYTES).rstrip(b"\0").partition(b"\n")
            return json.loads(rest) if kind == FORMAT.encode() else None
        except (OSError, ValueError):
            return None

    def _map(self) -> None:
        n = (self.path.stat().st_size - HEAD_BYTES) // self._row.itemsize
        self._mapped = np.memmap(self.path, self._row, "r+", HEAD_BYTES, (n,))

    def _flush(self) -> None:
        assert isinstance(self._mapped, np.memmap)  # for mypy: it is open
        self._mapped.flush()

    def _refused(self, why: str) -> MemoryOfUpdatesError:
        return MemoryOfUpdatesError(
            f"Difference: {self.path} {why}. Name another file, or start without the checkpoint."
        )
