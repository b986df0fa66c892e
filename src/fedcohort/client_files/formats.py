"""From a source to a table: text in several encodings and delimiters, JSON, Excel, data frames."""

import csv
import io
import json
import os
import re
import sys
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol, TypeGuard
from zipfile import BadZipFile

from fedcohort._arguments import as_whole, brief, name_of
from fedcohort._display import counted
from fedcohort._lazy import import_extra
from fedcohort._whole_file import reason_of
from fedcohort.client_files.table import (
    EXAMPLE,
    LeftOut,
    Reading,
    Record,
    Table,
    chosen_columns,
    form,
    has_mark,
    is_footnote,
    is_grouped,
    is_number,
    listed,
    names_sizes,
    text_in,
    texts_in,
    total_in,
)
from fedcohort.client_files.words import CLIENTS, RULE, UNIT, USUAL, YEAR
from fedcohort.errors import InputError, MissingExtraError

#: Delimiters of text files. If several fit equally well, the first is taken.
DELIMITERS = ";\t|,"
#: Means that there is no delimiter: text with this control character is refused before.
NO_DELIMITER = "\x1f"
#: Number of records that decide on the delimiter.
SNIFFED = 50
#: The first line in which Excel names the delimiter of a CSV file.
SEPARATOR_LINE = re.compile(rf'"?sep=([{DELIMITERS}])"?[ ]*[\r\n]', re.IGNORECASE)
EMPTY = re.compile(rf'[\s"{DELIMITERS}]*')
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f]")
BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
ZIP, OLE, PARQUET = b"PK\x03\x04", b"\xd0\xcf\x11\xe0", b"PAR1"
#: Errors of openpyxl for a file that is damaged or not a workbook.
NO_WORKBOOK = (
    BadZipFile, EOFError, LookupError, OSError, SyntaxError, TypeError, ValueError, zlib.error,
)  # fmt: skip
#: How a line begins that only divides others.
RULES = frozenset("-=_+:|")
#: A cell that Excel shall not change: ="001".
KEPT_AS_TEXT = re.compile(rf'(^|[{DELIMITERS}])="([^"\n]*)"(?=[{DELIMITERS}\r\n]|$)', re.MULTILINE)
#: What may stand between a name and its size if there is no delimiter. A number before a space may
#: be a part of the size.
GAPS = (re.compile(r"\s*[:=]\s*"), re.compile(r" {2,}"), re.compile(r"(?<=[^\d\s]) (?=\S+$)"))
#: Objects of JSON with these names hold the clients.
HOLDERS = frozenset(f"{word}s" for word in (*CLIENTS, "data", "record", "participant")) | {"data"}
#: Number of records among which the header is looked for.
HEAD = 30
#: Number of records that are kept as rows at a time. So few start no garbage collection: with 4096,
#: dividing a million lines into columns takes three times as long.
CHUNK = 256


class Frame(Protocol):
    """Named columns, such as a DataFrame of pandas or polars, or a Table of pyarrow."""

    @property
    def columns(self) -> Any:
        """The names of the columns; pyarrow calls these ``column_names``."""

    def __getitem__(self, name: Any) -> Any:
        """Return a column."""


#: A source of clients: a path (``-`` is standard input), or a data frame.
Source = str | os.PathLike[str] | Frame


def must_be_read(clients: object) -> TypeGuard[Source]:
    """Return whether clients are a file's path or a data frame, which must be read first."""
    is_frame = hasattr(clients, "columns") and hasattr(clients, "__getitem__")
    return is_frame or isinstance(clients, (str, os.PathLike))


@dataclass(frozen=True)
class File:
    """The name of a file, for messages, and its content."""

    name: str
    data: bytes

    @classmethod
    def at(cls, path: str) -> "File":
        """Read a file, or standard input if the path is ``-``."""
        name = "standard input" if path == "-" else name_of(path)
        try:
            if path != "-":
                return cls(name, Path(path).read_bytes())
            if sys.stdin is None:
                raise InputError("standard input: is closed. Give a file, or pipe the sizes in.")
            return cls(name, sys.stdin.buffer.read())
        except OSError as error:
            reason = reason_of(error)
            raise InputError(f"{name}: cannot be read ({reason}). Check the path.") from error
        except ValueError as error:  # a null character
            raise InputError(f"{name}: is not a path ({error}). Check it.") from error

    @property
    def text(self) -> str:
        """The content as text."""
        return self._decoded[0]

    @property
    def notes(self) -> tuple[str, ...]:
        """How the text was decoded, if that may surprise."""
        note = (
            f"{self.name}: read as Windows-1252 text, because it is not UTF-8. If "
            f"names look wrong, save it as UTF-8."
        )
        return (note,) if self._decoded[1] == "cp1252" else ()

    @cached_property
    def _decoded(self) -> tuple[str, str]:
        """The text and its encoding. Without a byte order mark: UTF-8, or else Windows-1252."""
        marked = [code for mark, code in BYTE_ORDER_MARKS.items() if self.data.startswith(mark)]
        for encoding in marked or ["utf-8", "cp1252"]:
            try:
                text = self.data.decode(encoding)
            except UnicodeDecodeError:
                continue
            if CONTROL.search(text):
                break
            return text, encoding
        raise InputError(
            f"{self.name}: must be text (UTF-8, UTF-16 with a byte order mark, or Windows-1252) or "
            f"an .xlsx file; it starts with {self.data[:8]!r}. Save it as CSV."
        )


def read_table(source: Source, reading: Reading) -> Table:
    """Read a data frame, a file, or standard input if the path is ``-``."""
    if not isinstance(source, (str, os.PathLike)):
        _refuse_settings(type(source).__name__, reading, "sheet", "header_row")
        return _from_frame(source)
    file = File.at(os.fsdecode(source))
    return next(each for each in FORMATS if each.fits(file)).read(file, reading)


def read_rows(source: Source) -> Table:
    """Read a data frame or a file of which each row is a sample; no row is left out.

    The first line of a text file, or the first row of an Excel file's first sheet, names the
    columns.
    """
    if not isinstance(source, (str, os.PathLike)):
        return _from_frame(source)
    file = File.at(os.fsdecode(source))
    return next(each for each in FORMATS if each.fits(file)).rows(file)


def _refuse_settings(source: str, reading: Reading, *names: str) -> None:
    """Refuse settings that mean nothing for this kind of source."""
    for name in names:
        if getattr(reading, name) is not None:
            kind = "an Excel file" if name == "sheet" else "an Excel or text file"
            raise InputError(
                f"{source}: {reading.name(name)} needs {kind}; this is none. Leave it out."
            )


def _from_old_excel(file: File, reading: Reading | None = None) -> NoReturn:
    raise InputError(
        f"{file.name}: needs an .xlsx file; it is an old Excel file (.xls), or one with a "
        f"password. Save it as .xlsx without a password, or as CSV."
    )


def _from_text(file: File, reading: Reading) -> Table:
    """Read lines that a delimiter divides into cells."""
    _refuse_settings(file.name, reading, "sheet")
    if EMPTY.fullmatch(file.text):
        _refuse_empty(file.name)
    text = KEPT_AS_TEXT.sub(r'\1"\2"', file.text) if '="' in file.text else file.text
    delimiter = _delimiter(text, reading)
    if delimiter == NO_DELIMITER and (divided := _divided(text)):
        text, delimiter = divided, "\t"
    records = _records(text, delimiter, file.name)
    table = _Lines(file.name, "line", reading).table(records, file.notes)
    return replace(table, has_semicolons=delimiter == ";")


def _text_rows(file: File) -> Table:
    if EMPTY.fullmatch(file.text):
        _refuse_empty(file.name, "sample", "Write a line that names the columns, and the samples.")
    delimiter = _delimiter(file.text, Reading())
    table = _whole(file.name, "line", list(_records(file.text, delimiter, file.name)))
    return replace(table, notes=file.notes, has_semicolons=delimiter == ";")


def _whole(source: str, unit: str, records: Sequence[Record]) -> Table:
    """Return all records below the first one, which names the columns."""
    (_, names), *rows = records
    for place, cells in rows:
        if len(cells) != len(names):
            raise InputError(
                f"{source}, {unit} {place}: needs {counted(len(names), 'value')} "
                f"({listed(map(text_in, names))}); got {len(cells)}. Add what is missing, or put "
                f"quotes around a value that contains the delimiter."
            )
    columns = [list(column) for column in zip(*(cells for _, cells in rows), strict=True)]
    places = [place for place, _ in rows]
    return Table(source, list(map(text_in, names)), columns or [[] for _ in names], places, unit)


def _records(text: str, delimiter: str, source: str = "") -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the last line of each record, and its cells. Skip blank records."""
    file = io.StringIO(text, newline="")
    reader = csv.reader(file, delimiter=delimiter, strict=True, skipinitialspace=True)
    line = 0
    try:
        for row in reader:
            line = reader.line_num
            content = "".join(row).strip()
            is_rule = content[:1] in RULES and all(map(RULE.fullmatch, row))
            if content and not is_rule and not (line == 1 and SEPARATOR_LINE.match(text)):
                yield line, row
    except csv.Error as error:
        raise InputError(
            f"{source}, line {line + 1}: is not valid CSV ({error}). Check the quotes."
        ) from error


def _divided(text: str) -> str | None:
    """Write tabs into lines such as ``St. Mary: 412``, ``St. Mary = 412``, and columns of spaces.

    Return None if not all lines but the first have a name and a size.
    """
    lines = list(map(str.strip, text.splitlines()))
    for gap in GAPS:
        rows = [gap.split(line) for line in lines if line]
        if len({len(row) for row in rows}) > 1 or len(rows[0]) < 2 or '"' in text:
            continue
        if not is_number(rows[0][0]) and all(is_number(row[-1]) for row in rows[1:]):
            return "\n".join(gap.sub("\t", line) for line in lines)
    return None


def _delimiter(text: str, reading: Reading) -> str:
    """Return the delimiter that divides the header, or below a title most records.

    With a thousands mark from the user, a first line such as 5,146 is one size, not two columns.
    """
    if separator := SEPARATOR_LINE.match(text):
        return separator[1]
    first = next(line for line in io.StringIO(text, newline="") if line.strip())
    if is_grouped(first, reading.thousands):
        return NO_DELIMITER
    lengths = {mark: [len(row) for _, row in _sniffed(text, mark)] or [0] for mark in DELIMITERS}
    # All records as long as the header, and then the most cells.
    usual = _best({mark: (len(set(each)) == 1, each[0]) for mark, each in lengths.items()})
    records = _sniffed(text, usual)[:HEAD]
    if is_bare(records) or header_among(records, reading) is not None:
        return usual
    # The most records of one length, and then the most cells.
    commonest = {mark: Counter(each).most_common(1)[0] for mark, each in lengths.items()}
    return _best({mark: (times, length) for mark, (length, times) in commonest.items()})


def _sniffed(text: str, delimiter: str) -> list[tuple[int, list[str]]]:
    """Return the first records, up to one that is not valid."""
    found = []
    with suppress(InputError):
        for record in islice(_records(text, delimiter), SNIFFED):
            found.append(record)
    return found


def _best(fits: dict[str, tuple[int, int]]) -> str:
    """Return the delimiter with the best fit, of those that divide a record."""
    several = {mark: fit for mark, fit in fits.items() if fit[1] > 1}
    return max(several, key=lambda mark: several[mark], default=NO_DELIMITER)


@dataclass(frozen=True)
class _Lines:
    """The numbered lines or rows of a file: titles, a header, clients and footnotes."""

    source: str
    unit: str
    reading: Reading

    def table(self, records: Iterator[Record], notes: tuple[str, ...]) -> Table:
        """Divide the records. A file with one column of numbers needs no header."""
        named, before = self.reading.header_row, []
        if named is not None:
            whole = list(records)
            before = [record for record in whole if record[0] < named]
            records = iter(whole[len(before) :])
        first = list(islice(records, HEAD))
        if not first and named is not None:
            raise InputError(
                f"{self.source}: {self.reading.name('header_row')} must be one of its "
                f"{len(before)} {self.unit}s; got {brief(named)}. Count them from 1."
            )
        if not first:
            _refuse_empty(self.source)
        header, above, start, lines = ["size"], [], 0, ""
        at = 0 if named is not None else header_among(first, self.reading)
        if at is None and _has_no_header(first):
            header = [f"column {k}" for k in range(1, len(first[0][1]) + 1)]
        elif named is not None or not is_bare(first):
            if at is None:  # take the most similar record: the message about sizes shows it
                at = next((k for k, (_, cells) in enumerate(first) if len(texts_in(cells)) > 1), 0)
            header = list(map(text_in, first[at][1]))
            above = [LeftOut.of(record, "title") for record in (*before, *first[:at])]
            self._refuse_clients_above(first[: at + 1])
            lines = self._lines_of_header(first, at)
            start = at + 1
            if start < len(first) and self._is_second_header(first[start]):
                above.append(LeftOut.of(first[start], "second header line"))
                start += 1
        columns, places, ragged = self._cells(chain(first[start:], records), header)
        left_out = (*above, *(LeftOut.of(record, kind_of(record[1])) for record in ragged))
        return Table(self.source, header, columns, places, self.unit, notes, left_out, lines)

    def _lines_of_header(self, first: Sequence[Record], at: int) -> str:
        """Write the line of the header; of two, if it may begin above or go on below."""
        lines = [first[at][0]]
        if at > 0 and len(texts_in(first[at - 1][1])) > 1:
            lines.insert(0, first[at - 1][0])
        elif at + 1 < len(first) and not any(map(is_number, first[at + 1][1])):
            lines.append(first[at + 1][0])
        return f"{self.unit}{'s' * (len(lines) > 1)} {' and '.join(map(str, lines))}"

    def _error(self, place: int, text: str) -> InputError:
        return InputError(f"{self.source}, {self.unit} {place}: {text}")

    def _refuse_clients_above(self, first: Sequence[Record]) -> None:
        """Refuse records above the header that have a size. A title may end with a year."""
        *above, (header, names) = first
        sizes = _size_column(names, self.reading)
        if sizes is None:
            return
        sized = [(k, cells) for k, cells in above if len(cells) > sizes and is_number(cells[sizes])]
        if not sized or (len(sized) == 1 and YEAR.fullmatch(text_in(sized[0][1][sizes]))):
            return
        place, cells = sized[0]
        raise self._error(
            place,
            f"stands above the header on {self.unit} {header}, but has a size "
            f"({', '.join(texts_in(cells))}). Put the header first, or drop the row.",
        )

    def _is_second_header(self, record: Record) -> bool:
        """Return whether a record has only units; refuse it if it is another part of the header."""
        place, cells = record
        texts = texts_in(cells)
        if any(map(is_number, texts)) or is_footnote(cells) or total_in(texts[0]):
            return False
        if all(map(UNIT.fullmatch, texts)):
            return True
        names_sizes = _size_column(cells, self.reading) is not None
        if len(cells) > 1 and (not text_in(cells[0]) or names_sizes):
            raise self._error(
                place,
                f"looks like a second line of the header ({', '.join(texts)}). Write the header in "
                f"one line, such as id,size.",
            )
        return False

    def _cells(
        self, records: Iterator[Record], header: list[str]
    ) -> tuple[list[list[Any]], list[int], list[Record]]:
        """Return the columns, the line of each record, and ragged records (totals, footnotes)."""
        columns: list[list[Any]] = [[] for _ in header]
        places: list[int] = []
        ragged: list[Record] = []
        while chunk := list(islice(records, CHUNK)):
            whole = [record for record in chunk if len(record[1]) == len(header)]
            if len(whole) < len(chunk):
                others = [record for record in chunk if len(record[1]) != len(header)]
                self._refuse_ragged((each for each in others if not kind_of(each[1])), header)
                ragged += others
            if whole:
                lines, rows = zip(*whole, strict=True)
                places += lines
                for column, cells in zip(columns, zip(*rows, strict=True), strict=True):
                    column += cells
        # If clients' names have such marks too, the mark is part of a name.
        marked = [record for record in ragged if has_mark(texts_in(record[1])[0])]
        if marked and any(has_mark(str(cell)) for cell in columns[0]):
            self._refuse_ragged(marked, header)
        return columns, places, ragged

    def _refuse_ragged(self, records: Iterable[Record], header: Sequence[str]) -> None:
        """Refuse the first of these records, whose length differs from the header's."""
        for place, row in records:
            way_out = "Put quotes around a value that contains the delimiter"
            if len(row) < len(header):
                way_out = "Add what is missing"
            raise self._error(
                place,
                f"needs {counted(len(header), 'value')} ({listed(header)}); got {len(row)} "
                f"({brief(', '.join(texts_in(row)))}). {way_out}, or drop the row if it is not a "
                f"client.",
            )


def header_among(first: Sequence[Record], reading: Reading) -> int | None:
    """Return which of a file's first records is the header: names, and numbers below them.

    One of the names is that of sizes. If there is none, it is the first record with several names
    and numbers below one of them. Return None without a header.
    """
    unusual: int | None = None
    for k, (_, cells) in enumerate(first):
        sizes, has_numbers = _size_column(cells, reading), any(map(is_number, cells))
        if k > 0 and has_numbers:
            continue
        below = [row for _, row in first[k + 1 : k + 4] if len(row) == len(cells)]
        if sizes is not None and any(is_number(row[sizes]) for row in below):
            return k
        is_first = k == 0 and sizes is not None
        if unusual is None and len(texts_in(cells)) > 1 and not has_numbers:
            named = [c for c, cell in enumerate(cells) if text_in(cell)]
            if is_first or any(is_number(row[c]) for row in below[:1] for c in named):
                unusual = k
    return unusual


def _size_column(cells: Iterable[Any], reading: Reading) -> int | None:
    """Return the first cell that may name the sizes: as the user does, or with a usual name."""
    if reading.size_column is None:
        return next((k for k, cell in enumerate(cells) if names_sizes(text_in(cell))), None)
    own = form(reading.size_column)
    return next((k for k, cell in enumerate(cells) if form(text_in(cell)) == own), None)


def is_bare(first: Sequence[Record]) -> bool:
    """Return whether a file has one column of numbers, without a header."""
    return bool(first) and len(first[0][1]) == 1 and is_number(first[0][1][0])


def _has_no_header(first: Sequence[Record]) -> bool:
    """Return whether the first record is a client: a name beside a number (not a year)."""
    texts = texts_in(first[0][1])
    numbers = [text for text in texts if is_number(text)]
    return 0 < len(numbers) < len(texts) and not any(map(YEAR.fullmatch, numbers))


def _refuse_empty(source: str, what: str = "size", way_out: str = EXAMPLE) -> NoReturn:
    """Refuse a file without values."""
    raise InputError(f"{source}: needs at least one {what}; the file is empty. {way_out}")


def kind_of(row: Iterable[Any]) -> str:
    """Return "footnote", "total" or "mean" if the row's text alone makes that sure, else ""."""
    texts = texts_in(row)
    if is_footnote(texts):
        return "footnote"
    total = total_in(texts[0]) if texts else None
    return total.kind if total is not None and total.is_sure else ""


def _from_json(file: File, reading: Reading) -> Table:
    """Read sizes, records, ``{id: size}``, or columns such as ``{"sizes": [5, 3]}``."""
    source, notes = file.name, file.notes
    _refuse_settings(source, reading, "sheet", "header_row")
    try:
        content = _parsed(file.text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: is not valid JSON ({error}). Check the file.") from error
    content = _unpacked(content)
    if content and isinstance(content, list) and all(isinstance(each, list) for each in content):
        return _Lines(source, "row", reading).table(enumerate(content, start=1), notes)
    if isinstance(content, dict):
        lists = [each for each in content.values() if _are_records(each)]
        if len(lists) == 1:  # {"hospitals": [{"name": ...}, ...]}
            [content] = lists
        elif _are_records([*content.values()]) and not any(map(_names_column, content)):
            content = [{"id": each, **values} for each, values in content.items()]
    if isinstance(content, list):
        if _are_records(content):
            names = list(dict.fromkeys(name for each in content for name in each))
            cells = [[each.get(name) for each in content] for name in names]
            return Table(source, names, cells, notes=notes)
        return Table(source, ["size"], [content], notes=notes)
    other = [name for name, value in content.items() if not isinstance(value, (list, dict))]
    if len(other) < len(content):
        notes += (f"{source}: ignored {listed(other)}: no list.",) if other else ()
        return Table(source, *_columns_of(content, source), notes=notes)
    if sizes := [name for name in content if name.lower() in ("size", "sizes")]:
        raise InputError(
            f"{source}: {sizes[0]} must be a list, or an object of ids and sizes; got "
            f'{brief(content[sizes[0]])}. Write {{"sizes": [5, 3]}}.'
        )
    return Table(source, ["id", "size"], [list(content), list(content.values())], notes=notes)


def _parsed(text: str) -> Any:
    """Parse JSON, or JSON lines: an object on each line."""
    text = text.lstrip("\ufeff")
    try:
        return json.loads(text, object_pairs_hook=_distinct)
    except json.JSONDecodeError:
        lines = [line for line in text.split("\n") if line.strip()]
        if len(lines) < 2 or not all(line.lstrip().startswith("{") for line in lines):
            raise
        return [json.loads(line, object_pairs_hook=_distinct) for line in lines]


def _unpacked(content: Any) -> Any:
    """Return what holds the clients: ``{"year": 2024, "sites": {...}}``, pandas' ``split``."""
    while isinstance(content, dict) and not any(map(names_sizes, content)):
        if isinstance(columns := content.get("columns"), list) and "data" in content:
            return [columns, *content["data"]]
        held = [
            each
            for name, each in content.items()
            if form(name) in HOLDERS and (isinstance(each, dict) or _are_records(each))
        ]
        # Objects with the same keys are columns.
        objects = [each.keys() for each in content.values() if isinstance(each, dict)]
        if len(held) != 1 or (isinstance(held[0], dict) and objects.count(held[0].keys()) > 1):
            break
        [content] = held
    return content


def _are_records(content: Any) -> bool:
    """Return whether this is a list of objects."""
    is_list = isinstance(content, list) and len(content) > 0
    return is_list and all(isinstance(each, dict) for each in content)


def _names_column(name: str) -> bool:
    return names_sizes(name) or any(form(name) in usual for usual in USUAL.values())


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object that has a key twice: Python would keep the last one only."""
    content = dict(pairs)
    if len(content) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {brief(twice)} appears twice in an object")
    return content


def _columns_of(content: dict[str, Any], source: str) -> tuple[list[str], list[list[Any]]]:
    """Return the lists of an object. If there are objects, their keys are the ids.

    A list of these ids says the order of the other lists.
    """
    columns = {name: value for name, value in content.items() if isinstance(value, list)}
    objects = {name: value for name, value in content.items() if isinstance(value, dict)}
    if not objects:
        return list(columns), list(columns.values())
    first, ids = next((name, list(value)) for name, value in objects.items())
    for name, value in objects.items():
        if value.keys() != set(ids):
            raise InputError(
                f"{source}: {first} and {name} must have the same ids; they differ in "
                f"{brief(sorted(value.keys() ^ set(ids))[0])}. Correct one of them."
            )
    if columns:
        orders = [each for each in columns.values() if sorted(map(str, each)) == sorted(ids)]
        if not orders:
            raise InputError(
                f"{source}: {next(iter(columns))} is a list and {first} an object; their order may "
                f"differ. Give both by id, or both as lists."
            )
        ids = list(map(str, orders[0]))
        columns = {name: each for name, each in columns.items() if each is not orders[0]}
    columns |= {name: [value[each] for each in ids] for name, value in objects.items()}
    # pandas numbers the rows; a column has their names, if another one has sizes.
    is_id = {name: form(name) in USUAL["id"] for name in columns}
    has_sizes = any(all(map(is_number, columns[name])) for name in columns if not is_id[name])
    unnamed = "index" if has_sizes and any(is_id.values()) else "id"
    return [unnamed, *columns], [ids, *columns.values()]


def _from_excel(file: File, reading: Reading) -> Table:
    """Read a sheet of a workbook: a header and a row for each client.

    By default it is the only sheet with sizes of a usual name, or else with sizes.
    """
    source = file.name
    sheets, hidden = _sheets(file)
    titles = list(sheets)

    def read_sheet(title: str, name: str) -> Table:
        table = _from_sheet(sheets[title], name, reading)
        unseen = sorted(hidden[title] & {*(table.places or ())})
        if not unseen:
            return table
        rows = f"{'row' if len(unseen) == 1 else 'rows'} {listed(unseen)}"
        return table.noted(
            f"{rows} {'is' if len(unseen) == 1 else 'are'} hidden in Excel, but counted."
        )

    if reading.sheet is not None:
        return read_sheet(_named_sheet(titles, source, reading), source)
    usual: dict[str, Table] = {}
    others: dict[str, Table] = {}
    for title in titles:
        with suppress(InputError):
            table = read_sheet(title, source)
            size = chosen_columns(table, reading)["size"]
            (usual if names_sizes(table.names[size]) else others)[title] = table
    fits = usual or others
    if not fits:
        return read_sheet(titles[0], f"{source}, sheet {titles[0]!r}")
    if len(fits) > 1:
        raise InputError(
            f"{source}: needs one sheet of clients; {listed(fits)} have sizes. Choose one: "
            f"{reading.way('sheet', *list(fits)[:3])}; or copy all clients into one sheet."
        )
    [(title, table)] = fits.items()
    return table.noted(f"read sheet {title!r} of {listed(titles)}.") if len(titles) > 1 else table


def _sheets(file: File) -> tuple[dict[str, list[Record]], dict[str, set[int]]]:
    """Return the rows of each sheet of a workbook, and the numbers of those that it hides."""
    try:
        openpyxl = import_module("openpyxl")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{file.name}: needs openpyxl, which is not installed, to read an Excel file. Run: pip "
            f"install openpyxl, or save the file as CSV."
        ) from error
    try:
        with warnings.catch_warnings(action="ignore"):  # on styles and the like
            book = openpyxl.load_workbook(io.BytesIO(file.data), data_only=True)
            sheets = {each.title: _rows_of(each) for each in book.worksheets}
            hidden = {
                each.title: {k for k, row in each.row_dimensions.items() if row.hidden}
                for each in book.worksheets
            }
    except NO_WORKBOOK as error:
        raise InputError(
            f"{file.name}: must be an .xlsx file or text; it is not, or not whole "
            f"({brief(str(error))}). Save it again, or as CSV."
        ) from error
    return sheets, hidden


def _excel_rows(file: File) -> Table:
    rows = next(iter(_sheets(file)[0].values()))
    if not rows:
        _refuse_empty(file.name, "sample", "Write a row that names the columns, and the samples.")
    return _whole(file.name, "row", rows)


def _from_parquet(file: File, reading: Reading) -> Table:
    _refuse_settings(file.name, reading, "sheet", "header_row")
    return _parquet_rows(file)


def _parquet_rows(file: File) -> Table:
    parquet = import_extra("pyarrow.parquet", extra="sim", owner=f"{file.name}, to read Parquet,")
    try:
        frame = parquet.read_table(io.BytesIO(file.data))
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise InputError(
            f"{file.name}: is a damaged Parquet file ({brief(str(error))}). Write it again."
        ) from error
    return replace(_from_frame(frame), source=file.name)


def _named_sheet(titles: Sequence[str], source: str, reading: Reading) -> str:
    """Return the title of the sheet that the user named, or gave the number of."""
    named, number = reading.sheet, as_whole(reading.sheet)
    if isinstance(named, str):
        if named in titles:
            return named
        number = int(named) if named.isdecimal() and len(named) < 5 else None
    if number is not None and 0 < number <= len(titles):
        return titles[number - 1]
    found = [title for title in titles if form(title) == form(str(named))] if number is None else []
    if len(found) != 1:
        raise InputError(
            f"{source}: {reading.name('sheet')} must be one of {listed(titles)}, or a number from "
            f"1; got {brief(reading.sheet)}. Choose one of these."
        )
    return found[0]


def _from_sheet(rows: list[Record], source: str, reading: Reading) -> Table:
    if not rows:
        _refuse_empty(source)
    return _Lines(source, "row", reading).table(iter(rows), ())


def _rows_of(sheet: Any) -> list[Record]:
    """Return the rows of a sheet that are not empty. Text in merged cells stands in each row."""
    rows = [list(row) for row in sheet.iter_rows(values_only=True)]
    for cells in sheet.merged_cells.ranges:
        column, first = cells.min_col - 1, cells.min_row - 1
        text = rows[first][column]
        for row in rows[first + 1 : cells.max_row] if isinstance(text, str) else ():
            if any(cell not in (None, "") for cell in row):
                row[column] = text
    return [
        (place, row)
        for place, row in enumerate(rows, start=1)
        if any(cell not in (None, "") for cell in row)
    ]


def _from_frame(frame: Frame) -> Table:
    """Read the columns of a data frame, and its index if that has a name or names of clients."""
    kind = type(frame).__name__
    try:
        keys = list(getattr(frame, "column_names", frame.columns))
        columns = [_listed(frame[key]) for key in keys]
        index = getattr(frame, "index", ())
        labels = [] if callable(index) else _listed(index)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"{kind}: needs named columns; they cannot be read ({brief(str(error))}). Pass sizes "
            f"as a list, or by id."
        ) from error
    names = [str(key).strip() for key in keys]
    if len(set(names)) < len(names):
        [(twice, _)] = Counter(names).most_common(1)
        raise InputError(
            f"{kind}: needs distinct names of columns; {twice!r} appears twice. Rename one."
        )
    levels = list(getattr(index, "names", [None]))
    if len(levels) > 1:  # of a MultiIndex
        names = [*(str(level) for level in levels), *names]
        columns = [*map(list, zip(*labels, strict=True)), *columns]
    elif levels[0] is not None or any(isinstance(label, str) for label in labels):
        has_ids = any(form(name) in USUAL["id"] for name in names)
        unnamed = "index" if has_ids else "id"
        names = [unnamed if levels[0] is None else str(levels[0]), *names]
        columns = [labels, *columns]
    return Table(kind, names, columns, unit="row")


def _listed(column: Any) -> list[Any]:
    """Return the cells of a column as Python's own values; None where one is missing."""
    for method in ("tolist", "to_list", "to_pylist"):
        if hasattr(column, method):
            column = getattr(column, method)()
            break
    return [None if _is_missing(cell) else cell for cell in column]


def _is_missing(cell: Any) -> bool:
    """Return whether a cell is NaN, or what pandas has for it."""
    is_nan = isinstance(cell, float) and cell != cell
    return is_nan or type(cell).__name__ in ("NAType", "NaTType")


class Format(NamedTuple):
    """A kind of file: whether a file is of this kind, and how it becomes a table.

    ``read`` makes a table of clients, and ``rows`` one of samples.
    """

    fits: Callable[[File], bool]
    read: Callable[[File, Reading], Table]
    rows: Callable[[File], Table]


#: The formats. The first that fits reads the file.
FORMATS = (
    Format(lambda file: file.data.startswith(OLE), _from_old_excel, _from_old_excel),
    Format(lambda file: file.data.startswith(ZIP), _from_excel, _excel_rows),
    Format(lambda file: file.data.startswith(PARQUET), _from_parquet, _parquet_rows),
    Format(
        lambda file: file.text.lstrip().startswith(("[", "{")),
        _from_json,
        lambda file: _from_json(file, Reading()),
    ),
    Format(lambda file: True, _from_text, _text_rows),
)
