"""Read a table of clients: text of several encodings and delimiters, JSON, or Excel."""

import csv
import io
import json
import re
import sys
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn
from zipfile import BadZipFile

from fedcohort._arguments import brief
from fedcohort._whole_file import reason_of
from fedcohort.cli.client_numbers import is_grouped, is_number
from fedcohort.errors import InputError, MissingExtraError

EXAMPLE = "Give one size per line, or a header such as id,size."
#: Delimiters of text files. Where several fit equally well, the first is taken.
DELIMITERS = ";\t|,"
#: Stands for "no delimiter": text with this control character is refused before.
NO_DELIMITER = "\x1f"
#: Number of records that decide on the delimiter.
SNIFFED = 50
#: Number of records that are kept as rows at a time. Few enough for no garbage collection to start:
#: with 4096, dividing a million lines into columns takes three times as long.
CHUNK = 256
#: Line with which Excel names the delimiter of a CSV file.
SEPARATOR_LINE = re.compile(rf'"?sep=([{DELIMITERS}])"?[ ]*[\r\n]', re.IGNORECASE)
EMPTY = re.compile(rf'[\s"{DELIMITERS}]*')
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f]")
MARKS_OF_ORDER = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
ZIP, OLE = b"PK\x03\x04", b"\xd0\xcf\x11\xe0"
#: What openpyxl raises for files that are damaged or no workbooks.
NO_WORKBOOK = (BadZipFile, EOFError, KeyError, OSError, SyntaxError, TypeError, ValueError)


@dataclass(frozen=True)
class Table:
    """Columns of cells, and where they stand in the file.

    Attributes
    ----------
    source
        The file's name.
    names
        The names of the columns, as they are written.
    columns
        The cells of each column. In JSON, the columns may differ in length.
    places
        The line or row of each client. None numbers the clients from 0, for JSON.
    unit
        What ``places`` count: line, row or client.
    notes
        What the user should know about how the file was read.
    """

    source: str
    names: Sequence[str]
    columns: Sequence[Sequence[Any]]
    places: Sequence[int] | None = None
    unit: str = "client"
    notes: tuple[str, ...] = ()

    def place(self, client: int) -> str:
        """Return where a client stands, for messages."""
        return f"{self.source}, {self.place_of(client)}"

    def place_of(self, client: int) -> str:
        """Return where a client stands in the file."""
        return f"{self.unit} {client if self.places is None else self.places[client]}"


def read_table(path: str, thousands: str | None = None) -> Table:
    """Read a file, or standard input if the path is ``-``.

    With ``thousands``, a first line such as 5,146 is one size and not two columns.
    """
    source = "standard input" if path == "-" else path
    data = _bytes_of(path, source)
    if data.startswith(OLE):
        raise InputError(
            f"{source}: needs an .xlsx file; it is an old Excel file (.xls), or one with a "
            f"password. Save it as .xlsx without a password, or as CSV."
        )
    if data.startswith(ZIP):
        return _from_excel(data, source)
    text, notes = _decoded(data, source)
    if EMPTY.fullmatch(text):
        refuse_empty(source)
    if text.lstrip()[0] in "[{":
        return _from_json(text, source, notes)
    return _from_csv(text, source, notes, thousands)


def refuse_empty(source: str) -> NoReturn:
    """Refuse a file without values."""
    raise InputError(f"{source}: needs at least one size; the file is empty. {EXAMPLE}")


def _bytes_of(path: str, source: str) -> bytes:
    try:
        if path != "-":
            return Path(path).read_bytes()
        if sys.stdin is None:
            raise InputError("standard input: is closed. Give a file, or pipe the sizes in.")
        return sys.stdin.buffer.read()
    except OSError as error:
        reason = reason_of(error)
        raise InputError(f"{source}: cannot be read ({reason}). Check the path.") from error


def _decoded(data: bytes, source: str) -> tuple[str, tuple[str, ...]]:
    """Return the text and notes on it. Without a byte order mark: UTF-8, or else Windows-1252."""
    marked = [code for mark, code in MARKS_OF_ORDER.items() if data.startswith(mark)]
    for encoding in marked or ["utf-8", "cp1252"]:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if CONTROL.search(text):
            break
        note = f"{source}: read as Windows-1252 text, because it is not UTF-8."
        return text, (note,) if encoding == "cp1252" else ()
    raise InputError(
        f"{source}: must be text (UTF-8, UTF-16 with a byte order mark, or Windows-1252) or an "
        f".xlsx file; it starts with {data[:8]!r}. Save it as CSV."
    )


def _from_csv(text: str, source: str, notes: tuple[str, ...], thousands: str | None) -> Table:
    """Read one size per line, or columns below a header."""
    separator = SEPARATOR_LINE.match(text)
    delimiter = separator[1] if separator else _delimiter(text, thousands)
    records = _records(text, delimiter, source)
    if separator:
        next(records)
    first = next(records, None)
    if first is None:
        refuse_empty(source)
    header = [name.strip() for name in first[1]]
    if len(header) == 1 and is_number(header[0]):
        header, records = ["size"], chain([first], records)
    return Table(source, header, *_cells(records, header, source), "line", notes)


def _cells(
    records: Iterator[tuple[int, list[str]]], header: list[str], source: str
) -> tuple[list[list[str]], list[int]]:
    """Return the columns, and the line of each record."""
    columns: list[list[str]] = [[] for _ in header]
    places: list[int] = []
    while chunk := list(islice(records, CHUNK)):
        for line, row in chunk:
            if len(row) != len(header):
                _refuse_length(row, header, f"{source}, line {line}")
        lines, rows = zip(*chunk, strict=True)
        places += lines
        for column, cells in zip(columns, zip(*rows, strict=True), strict=True):
            column += cells
    return columns, places


def _records(text: str, delimiter: str, source: str = "") -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the last line of each record, and its cells. Skip blank records."""
    reader = _reader(text, delimiter)
    line = 0
    try:
        for row in reader:
            line = reader.line_num
            if "".join(row).strip():
                yield line, row
    except csv.Error as error:
        raise InputError(
            f"{source}, line {line + 1}: is not valid CSV ({error}). Check the quotes."
        ) from error


def _reader(text: str, delimiter: str) -> Any:
    file = io.StringIO(text, newline="")
    return csv.reader(file, delimiter=delimiter, strict=True, skipinitialspace=True)


def _delimiter(text: str, thousands: str | None) -> str:
    """Return the delimiter that divides the first records most evenly, then most often."""
    first = next(line for line in io.StringIO(text, newline="") if line.strip())
    if is_grouped(first, thousands):
        return NO_DELIMITER
    fits = {mark: fit for mark in DELIMITERS if (fit := _fit(text, mark))[1] > 1}
    return max(fits, key=lambda mark: fits[mark], default=NO_DELIMITER)


def _fit(text: str, delimiter: str) -> tuple[bool, int]:
    """Return whether the first records have as many cells as the header, and how many it has."""
    lengths = []
    with suppress(InputError):
        for _, row in islice(_records(text, delimiter), SNIFFED):
            lengths.append(len(row))
    return len(set(lengths)) == 1, lengths[0] if lengths else 0


def _refuse_length(row: list[str], header: list[str], place: str) -> NoReturn:
    width = len(header)
    raise InputError(
        f"{place}: needs {width} value{'s' * (width > 1)} ({listed(header)}); got {len(row)}. Put "
        f"quotes around a value that contains the delimiter."
    )


def listed(names: Iterable[object], most: int = 8) -> str:
    """Write names with commas between them, and how many more there are."""
    each = [str(name)[:40] or "(no name)" for name in names]
    more = len(each) - most
    return ", ".join(each[:most]) + (f" and {more} more" if more > 0 else "")


def _from_json(text: str, source: str, notes: tuple[str, ...]) -> Table:
    """Read sizes, records, ``{id: size}``, or columns such as ``{"sizes": [5, 3]}``."""
    try:
        content = json.loads(text, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: is not valid JSON ({error}). Check the file.") from error
    if isinstance(content, list):
        if content and all(isinstance(each, dict) for each in content):
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


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object that has a key twice: Python would keep the last one only."""
    content = dict(pairs)
    if len(content) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {brief(twice)} appears twice in an object")
    return content


def _columns_of(content: dict[str, Any], source: str) -> tuple[list[str], list[list[Any]]]:
    """Return the lists of an object. If there are objects, their keys are the ids."""
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
        columns[name] = [value[each] for each in ids]
    return ["id", *columns], [ids, *columns.values()]


def _from_excel(data: bytes, source: str) -> Table:
    """Read the first sheet of a workbook, a header and a row for each client."""
    try:
        openpyxl = import_module("openpyxl")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{source}: needs openpyxl, which is not installed, to read an Excel file. Run: pip "
            f"install openpyxl, or save the file as CSV."
        ) from error
    try:
        with warnings.catch_warnings(action="ignore"):  # on styles and the like
            book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
            sheet = book.worksheets[0]
            sheet.reset_dimensions()  # some programs write wrong ones
            rows = list(enumerate(sheet.iter_rows(values_only=True), start=1))
    except (*NO_WORKBOOK, IndexError, zlib.error) as error:
        raise InputError(
            f"{source}: must be an .xlsx file or text; it is not, or not whole "
            f"({brief(str(error))}). Save it again, or as CSV."
        ) from error
    rows = [(place, row) for place, row in rows if any(cell not in (None, "") for cell in row)]
    if not rows:
        refuse_empty(f"{source}, sheet {sheet.title!r}")
    several = f"{source}: read sheet {sheet.title!r}, the first of {len(book.worksheets)}."
    return _sheet(rows, source, (several,) if len(book.worksheets) > 1 else ())


def _sheet(rows: list[tuple[int, tuple[Any, ...]]], source: str, notes: tuple[str, ...]) -> Table:
    """Fill the rows up to one length, and divide header and clients."""
    width = max(len(row) for _, row in rows)
    filled = [(*row, *[None] * (width - len(row))) for _, row in rows]
    places = [place for place, _ in rows]
    header = ["size"]
    if width > 1 or not is_number(filled[0][0]):
        header = ["" if name is None else str(name).strip() for name in filled.pop(0)]
        del places[0]
    columns = list(zip(*filled, strict=True)) or [()] * width
    return Table(source, header, columns, places, "row", notes)
