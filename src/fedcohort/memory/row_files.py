"""Rows of numbers in slots of a memory-mapped file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from secrets import token_hex
from typing import Any, final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fedcohort._updates import Array, as_numpy
from fedcohort._whole_file import reason_of, replace_whole
from fedcohort.errors import MemoryOfUpdatesError
from fedcohort.memory.row_stores import BLOCK_BYTES, NONE, Encoding, RowStore, Slots

#: The first line of a file of rows.
FORMAT = "fedcohort rows 1"
#: The bytes before the first row.
HEAD_BYTES = 4096
#: How many of the last states can be restored.
STATES = 2
NO_SLOTS = np.zeros(0, dtype=np.int64)


@final
class FileStore(RowStore):
    """Rows in a memory-mapped file.

    A row that a state refers to is never overwritten: its client gets another slot. So the file
    serves as its own journal: a checkpoint has the slots of the clients, and finds its rows as
    they were. The last ``STATES`` states can be restored; slots that only older ones refer to are
    erased and used again. A state has the checksums of its rows, and is refused if they are gone or
    damaged.
    """

    def __init__(self, encoding: Encoding, zeros: Array, path: Path) -> None:
        super().__init__(encoding, zeros)
        self.path, self._id = path, ""
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
            rows = as_numpy(values)
            self._mapped["values"][slots] = rows
            self._mapped["checksum"][slots] = _checksums(rows)
        return slots

    def drop(self, slots: Slots) -> None:
        """Leave these slots; they are erased when no state refers to them any more."""
        left = set(slots.tolist())
        self._erase(left & self._fresh)
        self._left[-1].extend(sorted(left - self._fresh))
        self._fresh -= left

    def state(self, slots: Slots) -> dict[str, NDArray[Any]]:
        """Return what finds the rows in these slots again; the file is on the disk then."""
        checksums = np.zeros(len(slots), dtype=np.int64)
        if self._mapped is not None:
            self._check_id()
            self._flush()
            checksums = self._mapped["checksum"][slots]
        self._fresh = set()
        self._left.append([])
        if len(self._left) > STATES:
            self._erase(set(self._left.pop(0)))
        own = np.frombuffer(self._id.encode(), dtype=np.uint8)
        return {"slots": slots.copy(), "checksums": checksums, "file": own}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Find the rows of a state again; refuse a file that does not have them any more."""
        slots, left = state["slots"].astype(np.int64), NO_SLOTS
        if len(slots):
            self._open(state["file"].astype(np.uint8).tobytes().decode(errors="replace"))
            assert self._mapped is not None  # for mypy: it is open
            if not self._has(slots, state["checksums"]):
                raise self._refused("has other rows by now, or is damaged")
            # Other states may refer to them: they stay as long as if they had been left now.
            left = np.setdiff1d(np.flatnonzero(self._mapped["checksum"]), slots)
        taken = np.concatenate([slots, left])
        self._free = np.setdiff1d(np.arange(self.capacity), taken)[::-1].tolist()
        self._fresh, self._left = set(), [left.tolist()]

    def _has(self, slots: Slots, checksums: NDArray[np.int64]) -> bool:
        """Whether the rows in these slots are whole and have these checksums."""
        if slots.min() < 0 or slots.max() >= self.capacity:
            return False
        at_once = max(1, BLOCK_BYTES // self.encoding.nbytes)
        return all(
            np.array_equal(
                _checksums(as_numpy(self.read(slots[start : start + at_once]))),
                checksums[start : start + at_once],
            )
            for start in range(0, len(slots), at_once)
        )

    def _writable(self, before: Slots) -> Slots:
        """Return a slot for every row: its own if no state refers to that, else another."""
        kept = np.array([slot in self._fresh for slot in before.tolist()], dtype=bool)
        slots = before.copy()
        slots[~kept] = self._allocated(int((~kept).sum()))  # first: the disk may be full
        self.drop(before[~kept & (before != NONE)])
        self._fresh.update(slots.tolist())
        return slots

    def _erase(self, slots: set[int]) -> None:
        places = sorted(slots, reverse=True)
        if places and self._mapped is not None:
            self._mapped[places] = np.zeros((), dtype=self._mapped.dtype)
        self._free.extend(places)

    @property
    def _kind(self) -> np.dtype[Any]:
        """A row in the file: its checksum and its values, in a multiple of eight bytes."""
        values = np.dtype((self.encoding.dtype, (self.encoding.width,)))
        size = -(-(8 + values.itemsize) // 8) * 8
        padding = size - 8 - values.itemsize
        return np.dtype([("checksum", "<i8"), ("values", values), ("padding", f"V{padding}")])

    def _head(self) -> dict[str, object]:
        return {"id": self._id, "keep": self.encoding.form, "dimension": self.encoding.dimension}

    def _grow(self, least: int) -> int:
        more = self._more(least)
        try:
            if self._mapped is None:
                self._create()
            self._check_id()
            with self.path.open("r+b") as file:
                size = HEAD_BYTES + (self.capacity + more) * self._kind.itemsize
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
        head = f"{FORMAT}\n{json.dumps(self._head())}\n".encode().ljust(HEAD_BYTES, b"\0")

        def write(temporary: Path) -> None:
            temporary.touch(mode=0o600)
            temporary.write_bytes(head)

        replace_whole(self.path, write)

    def _open(self, own: str) -> None:
        """Map the file that has this id."""
        self._id = own
        self._check_id()
        try:
            self._map()
        except (OSError, ValueError, OverflowError) as error:
            raise self._refused("is damaged") from error

    def _check_id(self) -> None:
        """Refuse a file that another memory has made in the place of this one's."""
        if self._read_head() != self._head():
            raise self._refused("is missing, or belongs to another memory")

    def _read_head(self) -> dict[str, object] | None:
        try:
            with self.path.open("rb") as file:
                kind, _, rest = file.read(HEAD_BYTES).rstrip(b"\0").partition(b"\n")
            return json.loads(rest) if kind == FORMAT.encode() else None
        except (OSError, ValueError):
            return None

    def _map(self) -> None:
        n = (self.path.stat().st_size - HEAD_BYTES) // self._kind.itemsize
        self._mapped = np.memmap(self.path, self._kind, "r+", HEAD_BYTES, (n,))

    def _flush(self) -> None:
        assert isinstance(self._mapped, np.memmap)  # for mypy: it is open
        self._mapped.flush()

    def _refused(self, why: str) -> MemoryOfUpdatesError:
        return MemoryOfUpdatesError(
            f"Difference: {self.path} {why}. Name another file, or start without the checkpoint."
        )


def _checksums(rows: NDArray[Any]) -> NDArray[np.int64]:
    """Return a positive number for every row, by which to recognise it."""
    return np.array([crc32(row) + 1 for row in np.ascontiguousarray(rows)], dtype=np.int64)


def _reserve(descriptor: int, size: int) -> None:
    """Make a file this long; a full disk is an error now if the system can say so."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.truncate(descriptor, size)
