"""A table of clients: settings for reading it, what its cells say, its columns and its sizes."""

import re
import shlex
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, NamedTuple, NoReturn

from fedcohort._arguments import as_whole, brief
from fedcohort._arguments import listed as sentence
from fedcohort._display import counted, shortened
from fedcohort.client_files import words
from fedcohort.errors import InputError

EXAMPLE = "Give one size per line, or a header such as id,size."
#: Number of bad sizes that one message names.
MOST_BAD = 20
#: A column with this many different texts holds names, whatever it is called.
ENOUGH_NAMES = 5
#: Separates names that are translated together.
SEPARATOR = "\x1f"
#: Marks in ASCII: all of them become spaces, or are left out.
MARKS = "".join(mark for mark in map(chr, range(128)) if not (mark.isalnum() or mark == SEPARATOR))
TO_SPACES, TO_NOTHING = str.maketrans(MARKS, " " * len(MARKS)), str.maketrans("", "", MARKS)
BRACKETS = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
ACCENTS = re.compile("[\u0300-\u036f]")
WORD = re.compile(r"[^\W_]+")
#: Ignored when names are compared, except between two digits: 1-1 is not 11.
BETWEEN_DIGITS = re.compile(r"(?<=\d)[\W_]+(?=\d)")
NO_LETTERS = re.compile(r"[^\w\0]+|_+")

#: A line or row of a file: its number, and its cells.
Record = tuple[int, Sequence[Any]]


@dataclass(frozen=True)
class Reading:
    """The settings of :func:`fedcohort.read_clients`, also the options of the command line.

    ``size_column``, ``id_column`` and ``group_column`` are names of columns; None finds a column by
    its usual names. ``thousands`` is the thousands mark of the sizes; None accepts every mark but
    the point. ``sheet`` is the name of a sheet of an Excel file, or its number from 1;
    ``header_row`` the line or row that names the columns, from 1. None finds both by looking. With
    ``on_command_line``, messages name options (``--size-column beds``).
    """

    size_column: str | None = None
    id_column: str | None = None
    group_column: str | None = None
    thousands: str | None = None
    sheet: str | int | None = None
    header_row: int | None = None
    on_command_line: bool = False

    def __post_init__(self) -> None:
        for role in words.USUAL:
            name = self.column(role)
            if not (name is None or isinstance(name, str)):
                raise InputError(
                    f"read_clients: {role}_column must be the name of a column; got {brief(name)}. "
                    f"Pass a string."
                )
        owner = "" if self.on_command_line else "read_clients: "
        row, sheet = self.header_row, self.sheet
        if row is not None and (as_whole(row) or 0) < 1:
            raise InputError(
                f"{owner}{self.name('header_row')} must be a line's number, from 1; got "
                f"{brief(row)}. Count the lines of the file."
            )
        if not (sheet is None or isinstance(sheet, str) or (as_whole(sheet) or 0) > 0):
            raise InputError(
                f"{owner}{self.name('sheet')} must be a sheet's name, or its number from 1; got "
                f"{brief(sheet)}. Pass a string."
            )
        mark = self.thousands
        if not (mark is None or (isinstance(mark, str) and mark in words.THOUSANDS)):
            ways = f"{self.way('thousands', '.')} or {self.way('thousands', ' ')}"
            raise InputError(
                f"{owner}{self.name('thousands')} must be a point, a comma, an apostrophe or a "
                f"space; got {brief(mark)}. Write {ways}."
            )

    def column(self, role: str) -> str | None:
        """Return the name of the column of sizes, ids or groups; None if it is not named."""
        return {"size": self.size_column, "id": self.id_column, "group": self.group_column}[role]

    def name(self, setting: str) -> str:
        """Write the name of a setting: ``--size-column``, or ``size_column``."""
        return f"--{setting.replace('_', '-')}" if self.on_command_line else setting

    def way(self, setting: str, *values: str) -> str:
        """Write how to give a setting one of these values, or any value."""
        if self.on_command_line:
            return " ".join([self.name(setting), " or ".join(map(shlex.quote, values))]).rstrip()
        return f"read_clients(..., {setting}={' or '.join(map(repr, values)) or '...'})"


def text_in(cell: Any) -> str:
    """Return a cell as text, without spaces around it; nothing if it is empty."""
    return "" if cell is None else str(cell).strip()


def texts_in(cells: Iterable[Any]) -> list[str]:
    """Return the cells of a row that are not empty, as text."""
    return [text for text in map(text_in, cells) if text]


def is_missing(cell: Any) -> bool:
    """Return whether a cell is empty, or says that its value is missing."""
    return text_in(cell).lower() in ("", *words.MISSING)


def is_number(cell: Any) -> bool:
    """Return whether a cell looks like a number, also one that cannot be a size."""
    if not isinstance(cell, str):
        return isinstance(cell, (int, float))
    text = cell.strip()
    return bool(words.NUMBER_LIKE.fullmatch(text)) or text.lower() in words.NOT_FINITE


def _pattern(thousands: str, decimal: str) -> re.Pattern[str]:
    """Match a whole number; its digits are group 1. Only zeros may follow the decimal mark."""
    grouped = rf"[0-9]{{1,3}}([{thousands}])[0-9]{{3}}(?:\2[0-9]{{3}})*"
    return re.compile(rf"\+?({grouped}|[0-9]+)(?:[{decimal}]0*)?{words.PER_CENT}?")


#: Without a thousands mark from the user, a column is read in the first of these ways that fits
#: all its cells. In the second, the comma is a decimal mark: 5,0 is 5.
PATTERNS = (_pattern(",'\u2019" + words.SPACES, "."), _pattern("'\u2019" + words.SPACES, ","))


def _patterns(thousands: str | None) -> tuple[re.Pattern[str], ...]:
    if thousands is None:
        return PATTERNS
    return (_pattern(words.THOUSANDS[thousands], ".,".replace(thousands, "")),)


def is_grouped(text: str, thousands: str | None) -> bool:
    """Return whether a text is one number with the thousands mark that the user named."""
    return thousands is not None and _number(text, _patterns(thousands)[0]) is not None


def digits_only(cells: Sequence[Any]) -> list[int] | None:
    """Return the numbers of cells that are ASCII digits only, fast; None if some are not."""
    try:
        text = "".join(cells)
        return list(map(int, cells)) if text.isascii() and text.isdecimal() else None
    except (TypeError, ValueError):  # numbers; an empty cell; thousands of digits
        return None


def whole_numbers(cells: Sequence[Any], thousands: str | None) -> list[int | None]:
    """Return the whole numbers of a column, None for a cell that is none.

    Reads 5146, 5,146, 5 146, 5'146 and 5146.0, and numbers from JSON, Excel or a data frame.
    """
    found = [[_number(cell, each) for cell in cells] for each in _patterns(thousands)]
    return next((numbers for numbers in found if None not in numbers), found[0])


def _number(cell: Any, pattern: re.Pattern[str]) -> int | None:
    """Return a size, or None for anything else."""
    if isinstance(cell, str):
        text = cell.strip()
        if match := pattern.fullmatch(text):
            try:
                return int(re.sub("[^0-9]", "", match[1]))
            except ValueError:  # Python refuses thousands of digits
                return None
        cell = float(text) if words.SCIENTIFIC.fullmatch(text) else None
    if isinstance(cell, float):
        cell = int(cell) if cell.is_integer() else None
    is_size = isinstance(cell, int) and not isinstance(cell, bool) and cell >= 0
    return cell if is_size else None


class Total(NamedTuple):
    """The name of a total, or of what may be one.

    ``is_sure`` means that no client has such a name. ``rest`` are its other words, joined: a group
    or a year. ``is_part`` is a subtotal; ``is_statistic`` a mean, median, minimum or maximum.
    """

    is_sure: bool
    rest: str = ""
    is_part: bool = False
    is_statistic: bool = False

    @property
    def kind(self) -> str:
        """The word for it in notes."""
        return "statistic" if self.is_statistic else "total"


def plain(name: str) -> str:
    """Return a name in lower case without accents."""
    lower = name.casefold()
    if lower.isascii():
        return lower
    return unicodedata.normalize("NFC", ACCENTS.sub("", unicodedata.normalize("NFKD", lower)))


def look_alikes(names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the positions of names that differ only in case, accents, spaces and punctuation."""
    plain_names = [name if name.isascii() else similar_form(name) for name in names]
    rough = _translated(plain_names, TO_NOTHING)
    times = Counter(rough)
    first: dict[str, int] = {}
    for k in [k for k, form in enumerate(rough) if times[form] > 1]:
        form = similar_form(names[k])
        if form and first.setdefault(form, k) != k and names[k] != names[first[form]]:
            yield first[form], k


def _translated(names: Sequence[str], table: Mapping[int, int | None]) -> list[str]:
    """Translate ASCII names into lower case, all at once: ten times as fast."""
    joined = SEPARATOR.join(names)
    if joined.count(SEPARATOR) == len(names) - 1:
        return joined.translate(table).lower().split(SEPARATOR)
    return [name.translate(table).lower() for name in names]


def similar_form(name: str) -> str:
    """Return a name without case, accents, spaces and punctuation, for comparisons.

    Examples
    --------
    >>> similar_form("ST. MARY 1") == similar_form("St Mary-1")
    True
    >>> similar_form("Site 1-1") == similar_form("Site 11")
    False
    """
    return NO_LETTERS.sub("", BETWEEN_DIGITS.sub("\0", plain(name)))


def totals_in(names: Sequence[str]) -> dict[int, Total]:
    """Return the names that are or may be totals, by position; see :func:`total_in`.

    Filter ASCII names by their first and last word: fast, for a million names.
    """
    split = map(str.split, _translated([n if n.isascii() else "all" for n in names], TO_SPACES))
    first, last = words.BEGINNINGS, words.TRIGGERS
    likely = [k for k, w in enumerate(split) if w and (w[0] in first or w[-1] in last)]
    return {k: total for k in likely if (total := total_in(names[k])) is not None}


def total_in(name: str) -> Total | None:
    """Classify a name as that of a total; return None for a client's name.

    The name is sure if all its words are words for totals, or words that go with them.

    Examples
    --------
    >>> total_in("Sum of all sites")
    Total(is_sure=True, rest='', is_part=False, is_statistic=False)
    >>> total_in("Subtotal North")
    Total(is_sure=False, rest='north', is_part=True, is_statistic=False)
    >>> total_in("St. Mary")
    """
    found = WORD.findall(_joined(name))
    if not _has(words.TRIGGERS, found):
        return None
    rest = [word for word in found if word not in words.KNOWN]
    if rest and not _has(words.TRIGGERS, (found[0], found[-1])):
        return None
    is_total = _has(words.TOTALS | words.SUBTOTALS, found)
    if rest:
        return Total(False, "".join(rest), _has(words.SUBTOTALS, found)) if is_total else None
    is_statistic = not is_total and _has(words.MEANS | words.MEDIAN, found)
    is_sure = (
        is_total or _has(words.MEANS, found) or (_has(words.PLURALS, found) and not is_statistic)
    )
    return Total(is_sure, is_part=_has(words.SUBTOTALS, found), is_statistic=is_statistic)


def _has(known: frozenset[str], found: Iterable[str]) -> bool:
    return not known.isdisjoint(found)


def label_form(label: str) -> str:
    """Return a group's name as :attr:`Total.rest` has it."""
    return "".join(word for word in WORD.findall(_joined(label)) if word not in words.KNOWN)


def _joined(name: str) -> str:
    """Join compounds (sub-total), and drop brackets that hold no word for a total."""
    text = words.COMPOUND.sub(r"\1", plain(name).replace("∑", " total "))
    return BRACKETS.sub(
        lambda found: found[0] if _has(words.TRIGGERS, WORD.findall(found[0])) else " ", text
    )


def cites_source(name: str) -> bool:
    """Return whether a name begins with ``Source:`` or a similar word, as footnotes do."""
    return ":" in name and words.SOURCE.match(name) is not None


def has_mark(name: str) -> bool:
    """Return whether a name begins like a footnote, as ``* estimated`` does."""
    return words.MARK.match(name) is not None


def is_footnote(cells: Iterable[Any]) -> bool:
    """Return whether a row is a footnote: one text with a mark, or a source."""
    texts = texts_in(cells)
    if not texts or cites_source(texts[0]):
        return bool(texts)
    if len(texts) == 1 and words.ROWS.fullmatch(texts[0]):
        return True
    mark = words.MARK.match(texts[0])
    if mark is None or any(map(is_number, texts)):
        return False
    return len(texts) == 1 or bool(mark[1])


class LeftOut(NamedTuple):
    """A line or row that is not a client: its number, its text, and its kind."""

    place: int
    text: str
    kind: str

    @classmethod
    def of(cls, record: Record, kind: str) -> "LeftOut":
        """Describe a record."""
        return cls(record[0], ", ".join(texts_in(record[1])), kind)


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
        The line or row of each client. None numbers the clients from 0, for JSON and data frames.
    unit
        What ``places`` count: line, row or client.
    notes
        How the file was read, where that may surprise.
    left_out
        The lines that are not clients, in the order of the file.
    header
        The line or lines of the header, for messages; nothing if there is none.
    has_semicolons
        Whether semicolons divide the cells, as where the comma is the decimal mark.
    """

    source: str
    names: Sequence[str]
    columns: Sequence[Sequence[Any]]
    places: Sequence[int] | None = None
    unit: str = "client"
    notes: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    header: str = ""
    has_semicolons: bool = False

    @property
    def head(self) -> str:
        """The file and the line of the header, for messages."""
        return f"{self.source}, {self.header}" if self.header else self.source

    def place(self, client: int) -> str:
        """Return the file and the line of a client, for messages."""
        return f"{self.source}, {self.place_of(client)}"

    def place_of(self, client: int) -> str:
        """Return the line of a client, for messages."""
        return f"{self.unit} {self._number(client)}"

    def _number(self, client: int) -> int:
        return client if self.places is None else self.places[client]

    def row(self, client: int) -> list[Any]:
        """Return the cells of a row."""
        return [column[client] for column in self.columns]

    def without(self, rows: Mapping[int, str]) -> "Table":
        """Return the table without these rows; the values are their kinds."""
        if not rows:
            return self
        more = [LeftOut.of((self._number(k), self.row(k)), rows[k]) for k in sorted(rows)]
        kept = [k for k in range(len(self.columns[0])) if k not in rows]
        return replace(
            self,
            columns=[[column[k] for k in kept] for column in self.columns],
            places=[self._number(k) for k in kept],
            left_out=(*self.left_out, *more),
        )

    def noted(self, note: str) -> "Table":
        """Return the table with one more note."""
        return replace(self, notes=(*self.notes, f"{self.source}: {note}"))

    def left_out_notes(self) -> Iterator[str]:
        """Yield one sentence for each kind of lines that were left out."""
        kinds: dict[str, list[str]] = defaultdict(list)
        for place, text, kind in sorted(self.left_out):
            kinds[kind].append(f"{brief(text)} ({self.unit} {place})")
        for kind, each in kinds.items():
            yield f"{self.source}: left out {counted(len(each), kind)}: {named(each, most=5)}."

    def sizes(self, column: int, reading: Reading) -> list[int]:
        """Return the whole numbers of a column; name all cells that are none."""
        cells, name = self.columns[column], self.names[column]
        numbers = digits_only(cells)
        if numbers is not None:
            return numbers
        if reading.thousands is None:
            self._refuse_unclear(cells, name, reading)
        found = whole_numbers(cells, reading.thousands)
        numbers = [number for number in found if number is not None]
        if len(numbers) == len(found):
            return numbers
        bad = [k for k, number in enumerate(found) if number is None]
        if len(bad) == 1:
            raise InputError(f"{self.place(bad[0])}: {_complaint(name, cells[bad[0]], reading)}")
        raise self._bad_cells(bad, column, "whole numbers, at least 0", reading)

    def _bad_cells(
        self, bad: Sequence[int], column: int, need: str, reading: Reading
    ) -> InputError:
        """Return the error that names all bad cells of a column."""
        cells = self.columns[column]
        each = [
            f"{self.place_of(k)} {f'has {brief(cells[k])}' if text_in(cells[k]) else 'is empty'}"
            for k in bad
        ]
        return InputError(
            f"{self.source}: {self.names[column]} must be {need}; {len(bad)} "
            f"{'is' if len(bad) == 1 else 'are'} not: {named(each, most=MOST_BAD)}. Give 0 if a "
            f"client has no samples, correct the others, drop rows that are not clients, or name "
            f"the column of sizes with {reading.way('size_column')}."
        )

    def shares(self, column: int) -> tuple[list[int], int] | None:
        """Return a column of percentages or shares as integers, and the units of 1 of them.

        An empty cell is 0. None if neither the column's name nor its cells say that it has shares.
        """
        name, cells = self.names[column], self.columns[column]
        found = words_in(name)
        is_weight = _has(words.WEIGHTS, found) and not self.are_relative(column)
        is_named = is_weight or "%" in name or _has(words.SHARES, found)
        if not is_named and not all(text_in(cell).endswith("%") for cell in cells):
            return None
        each = [Decimal(0) if is_missing(cell) else _share(cell) for cell in cells]
        shares = [share for share in each if share is not None]
        if not any(shares) or len(shares) < len(cells):
            return None
        unit = 10 ** max(max(-int(share.as_tuple().exponent) for share in shares), 0)
        return [int(share * unit) for share in shares], unit

    def are_relative(self, column: int) -> bool:
        """Return whether a column has whole numbers whose sum rules out percentages."""
        numbers = whole_numbers(self.columns[column], None)
        known = [number for number in numbers if number is not None]
        return len(known) == len(numbers) and sum(known) not in (1, 100)

    def importance(self, column: int, shares: Sequence[int], unit: int, reading: Reading) -> Any:
        """Return the shares of the clients; they must sum to 100 or 1, up to rounding."""
        if bad := [k for k, cell in enumerate(self.columns[column]) if is_missing(cell)]:
            raise self._bad_cells(bad, column, "shares", reading)
        total = sum(shares)
        for whole in (unit, 100 * unit):
            if 2 * abs(total - whole) <= len(shares) and 50 * abs(total - whole) <= whole:
                return [share / total for share in shares]
        raise InputError(
            f"{self.source}: {self.names[column]} must sum to 100 % or 1, as shares of all "
            f"samples; got {total / unit:g}. Add the clients that are missing, or name the column "
            f"of sizes with {reading.way('size_column')}."
        )

    def points_group(self, column: int) -> bool:
        """Return whether points in these sizes must separate thousands, as in 1.234.567."""
        cells = self.columns[column]
        if digits_only(cells) is not None:
            return False
        texts = [cell.strip() for cell in cells if isinstance(cell, str)]
        if not any(map(words.UNCLEAR.fullmatch, texts)):
            return False
        is_sure = self.has_semicolons or any(map(words.POINTS_GROUP.fullmatch, texts))
        pattern = _patterns(".")[0]
        return is_sure and all(_number(each, pattern) is not None for each in texts if each)

    def is_count(self, column: int) -> bool:
        """Return whether a column may hold sizes: named whole numbers, no dates, no codes."""
        name, cells = self.names[column], self.columns[column]
        known = [cell for cell in cells if not is_missing(cell)]
        found = words_in(words.PER_CLIENT.sub(" ", name))
        if not name or not known or is_measure(name) or _has(words.NO_COUNTS, found):
            return False
        if all(map(is_date, known)):
            return False
        numbers = digits_only(known) or whole_numbers(
            known, "." if self.points_group(column) else None
        )
        is_running = [*numbers] in ([*range(len(numbers))], [*range(1, len(numbers) + 1)])
        is_flag = {*numbers} == {0, 1}
        return None not in numbers and not ((is_running and len(numbers) > 1) or is_flag)

    def _refuse_unclear(self, cells: Sequence[Any], name: str, reading: Reading) -> None:
        """Refuse 5.146, which is a number of samples only if the point separates thousands."""
        texts = ((k, cell) for k, cell in enumerate(cells) if isinstance(cell, str))
        unclear = [k for k, text in texts if words.UNCLEAR.fullmatch(text.strip())]
        if unclear:
            more = f" (and {len(unclear) - 1} more)" if len(unclear) > 1 else ""
            raise InputError(
                f"{self.place(unclear[0])}: {name} must be a whole number; got "
                f"{cells[unclear[0]]!r}{more}, which may be thousands or a fraction. Use "
                f"{reading.way('thousands', '.')} for thousands, or write the numbers without a "
                f"point."
            )


def _complaint(name: str, cell: Any, reading: Reading) -> str:
    """Say why a cell cannot be a size, and what to do."""
    way_out = "Give 0 if the client has no samples, or drop the row."
    text = text_in(cell)
    if not text:
        return f"{name} must be a whole number; it is empty. {way_out}"
    if text.lower() in words.MISSING:
        return f"{name} must be a whole number; got {brief(cell)}. {way_out}"
    if text.startswith("-") and is_number(cell):
        return f"{name} must not be negative; got {brief(cell)}. {way_out}"
    mark = reading.thousands
    marked = "" if mark is None else f" with the thousands mark {mark!r}"
    fix = "Round it" if is_number(cell) and re.search("[.,]", text) else "Correct it"
    return (
        f"{name} must be a whole number{marked}; got {brief(cell)}. {fix}, drop the row if it is "
        f"not a client, or name the column of sizes with {reading.way('size_column')}."
    )


def listed(names: Iterable[object]) -> str:
    """Write the names of columns."""
    return named([str(name)[:40] or "(no name)" for name in names], most=8)


def named(names: Sequence[str], most: int) -> str:
    """Write names with commas between them, and how many more there are."""
    first = shortened(names, most)
    return ", ".join(first) if len(first) == len(names) else sentence(first)


def form(name: str) -> str:
    """Return a name in lower case, without spaces, underscores, hyphens, points and #."""
    return re.sub(r"[\s_.#-]+", "", plain(name))


def words_in(name: str) -> list[str]:
    """Return the words of a column's name, without brackets and numbers."""
    found = WORD.findall(BRACKETS.sub(" ", plain(name)))
    return [word for word in found if not word.isdecimal()]


def is_own(table: Table, role: str, column: int | None, reading: Reading) -> bool:
    """Return whether the user named this column, or its name is a usual one for its role."""
    if column is None:
        return False
    return reading.column(role) is not None or form(table.names[column]) in words.USUAL[role]


def is_measure(name: str) -> bool:
    """Return whether a column's name has a unit, as ``size_mb`` and ``Size (GB)``."""
    return _has(words.UNITS, WORD.findall(plain(name).replace("_", " ")))


def names_sizes(name: str) -> bool:
    """Return whether a column has a usual name of sizes, or one such as ``No. of patients``."""
    if is_measure(name):
        return False
    if {form(name), form(BRACKETS.sub(" ", plain(name)))} & {*words.USUAL["size"]}:
        return True
    found = set(words_in(name)) - words.NUMBER_WORDS
    return bool(found) and found <= words.PEOPLE and not name[0].isdecimal()


def chosen_columns(table: Table, reading: Reading) -> dict[str, int]:
    """Return the position of each column that is there: as the user named it, or by usual names."""
    named = {role: reading.column(role) for role in words.USUAL}
    taken = {
        role: _named(table, role, name, reading) for role, name in named.items() if name is not None
    }
    for role in [each for each in words.USUAL if each not in taken]:
        found = _usual(table, role, set(taken.values()), reading)
        if found is not None:
            taken[role] = found
    if "size" not in taken:
        taken["size"] = _only_numbers(table, set(taken.values()), reading)
    if "id" not in taken and (names := _name_column(table, taken.values())) is not None:
        taken["id"] = names
    return taken


def _only_numbers(table: Table, taken: Collection[int], reading: Reading) -> int:
    """Return the only column of whole numbers, or else of shares; refuse several, and none."""
    if any(map(is_number, table.names)):
        _refuse_without_sizes(table, (), reading)
    free = [k for k in range(len(table.names)) if k not in taken]
    counts = [k for k in free if table.is_count(k) and table.shares(k) is None]
    found = counts or [k for k in free if table.shares(k) is not None]
    if len(found) != 1:
        _refuse_without_sizes(table, found, reading)
    return found[0]


def _name_column(table: Table, taken: Collection[int]) -> int | None:
    """Return the first column with a different text for each client."""
    for k, column in enumerate(table.columns):
        name = table.names[k]
        if k in taken or not name or form(name) in words.USUAL["group"]:
            continue
        texts = [text for cell in column if isinstance(cell, str) and (text := cell.strip())]
        totals = totals_in(texts)
        names = [text for j, text in enumerate(texts) if j not in totals and not is_number(text)]
        is_list = len(names) >= ENOUGH_NAMES or len(set(texts)) == len(texts)
        if is_list and names and len(set(names)) == len(names) and not any(map(is_date, names)):
            return k
    return None


def is_date(cell: Any) -> bool:
    """Return whether a cell may be a date or a year."""
    return isinstance(cell, date) or bool(words.DATE.fullmatch(text_in(cell)))


def _share(cell: Any) -> Decimal | None:
    """Return a share; None if a cell is none."""
    if isinstance(cell, str):
        match = words.SHARE.fullmatch(cell.strip())
        return Decimal(match[1].replace(",", ".")) if match else None
    is_number = isinstance(cell, (int, float)) and not isinstance(cell, bool)
    return Decimal(str(cell)) if is_number and 0 <= cell <= 100 else None


def _named(table: Table, role: str, name: str, reading: Reading) -> int:
    """Return the column that the user named; case, spaces, _ and - need not match."""
    found = [k for k, each in enumerate(table.names) if each == name]
    found = found or [k for k, each in enumerate(table.names) if form(each) == form(name)]
    if not found:
        by_form = {form(each): each for each in table.names}
        near = [by_form[each] for each in get_close_matches(form(name), by_form, n=1)]
        raise InputError(
            f"{table.source}: {reading.name(f'{role}_column')} must be one of "
            f"{listed(table.names)}; got {brief(name)}. "
            f"{f'Did you mean {near[0]!r}?' if near else 'Choose one of these.'}"
        )
    return _only(found, table, role, reading)


def _usual(table: Table, role: str, taken: set[int], reading: Reading) -> int | None:
    """Return the column whose name is first among the usual ones. Refuse to guess sizes."""
    usual = words.USUAL[role]
    forms = {k: form(name) for k, name in enumerate(table.names) if k not in taken}
    found = sorted((k for k in forms if forms[k] in usual), key=lambda k: usual.index(forms[k]))
    if not found and role == "size":
        found = [k for k in forms if names_sizes(table.names[k])]
    found = [k for k in found if forms[k] not in words.LAST_NAMES] or found
    if not found:
        return None
    first = forms[found[0]]
    is_guess = role == "size" and first not in words.OWN_NAMES[role]
    return _only([k for k in found if is_guess or forms[k] == first], table, role, reading)


def _only(found: Sequence[int], table: Table, role: str, reading: Reading) -> int:
    """Return the only column; refuse several."""
    if len(found) > 1:
        names = [table.names[k] for k in found]
        way_out = f"Choose one: {reading.way(f'{role}_column', names[0])}."
        raise InputError(
            f"{table.head}: needs one column of {role}s; got {listed(names)}. "
            f"{way_out if len(set(names)) == len(names) else 'Rename or drop one.'}"
        )
    return found[0]


def _refuse_without_sizes(table: Table, found: Sequence[int], reading: Reading) -> NoReturn:
    """Name the columns that may hold the sizes."""
    if any(is_number(name) for name in table.names):
        is_file = table.places is not None
        need = "a first line that names the columns" if is_file else "names of columns"
        raise InputError(
            f"{table.source}: needs {need}; got {listed(table.names)}. {EXAMPLE} If these are "
            f"names, choose with {reading.way('size_column')}."
        )
    names = [table.names[k] for k in found]
    way_out = f"{EXAMPLE[:-1]}; or name the column with {reading.way('size_column')}."
    if names:
        way_out = f"Name it: {reading.way('size_column', *names[:3])}."
    raise InputError(
        f"{table.head}: needs a column of sizes, called size, n_samples, patients or similar; got "
        f"{listed(table.names) or 'no columns'}. {way_out}"
    )
