"""Read clients: sizes, ids and groups. Totals and footnotes are left out, doubtful rows are noted.

A row is left out if its whole name is that of a total, such as *Sum of all sites*. If a client may
have the name too (*Total North*, *Somme*, or none), the row is left out only if its size is the
expected sum. If only the size looks like a sum, the row stays, with a note.
"""

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from logging import getLogger
from typing import Any

from fedcohort._arguments import as_name, brief
from fedcohort._display import counted
from fedcohort.client_files.formats import Source, must_be_read, read_table
from fedcohort.client_files.table import (
    ENOUGH_NAMES,
    EXAMPLE,
    Reading,
    Table,
    Total,
    chosen_columns,
    cites_source,
    form,
    has_mark,
    is_footnote,
    is_number,
    is_own,
    label_form,
    listed,
    look_alikes,
    names_sizes,
    text_in,
    total_in,
    totals_in,
)
from fedcohort.client_files.words import (
    CODES_OF_MISSING,
    MEDIAN,
    OWN_NAMES,
    STATISTICS,
    UNCLEAR,
    USUAL,
)
from fedcohort.errors import InputError, PopulationError
from fedcohort.population import UNLABELLED, Population

log = getLogger(__name__)

#: A lone surrogate: half of a character, which cannot be printed.
SURROGATE = re.compile("[\ud800-\udfff]")
#: Number of notes of one kind; the others are counted.
MOST_NOTES = 3
#: What more clients do than those that are noted.
ALIKE = "have names that are nearly the same"
#: The kinds of rows that sum up others.
KINDS = ("total", "statistic")


@dataclass(frozen=True)
class ReadClients:
    """The clients of a file, and notes on how it was read.

    Attributes
    ----------
    population
        The clients in the order of the file.
    notes
        Which columns were read, and other choices that may surprise.
    row_notes
        Rows that were left out because they are not clients, and rows that are doubtful.
    """

    population: Population
    notes: tuple[str, ...]
    row_notes: tuple[str, ...]

    def logged(self) -> "ReadClients":
        """Log how the clients were read; warn of rows."""
        for note in self.notes:
            log.info(note)
        for note in self.row_notes:
            log.warning(note)
        return self


def read_clients(
    source: Source,
    *,
    size_column: str | None = None,
    id_column: str | None = None,
    group_column: str | None = None,
    thousands: str | None = None,
    sheet: str | int | None = None,
    header_row: int | None = None,
) -> Population:
    """Read clients from a CSV, JSON, Excel or Parquet file or a data frame, as ``compare`` does.

    Titles, footnotes and totals are left out. A warning in the log names them, and rows that are
    doubtful: a size that is the sum of all others, or two names that differ only in case.

    Parameters
    ----------
    source
        The path of a file (``"-"`` is standard input), or a data frame of pandas, polars or
        pyarrow.
    size_column, id_column, group_column
        Names of columns. By default they are found by their usual names: see the table in the
        reference of the command line.
    thousands
        The thousands mark of the sizes: a point, a comma, an apostrophe or a space. By default all
        of them, but the point only if it cannot be a decimal mark.
    sheet
        The name of a sheet of an Excel file, or its number from 1. By default the only one with
        sizes.
    header_row
        The line or row with the names of the columns, from 1. By default it is found by looking.

    Returns
    -------
    Population
        The clients, in the order of the file.

    Raises
    ------
    InputError
        If the file cannot be read, or a size or an id is missing.
    """
    reading = Reading(size_column, id_column, group_column, thousands, sheet, header_row)
    return read(source, reading).logged().population


def read(source: Source, reading: Reading) -> ReadClients:
    """Read sizes, and ids and groups if present, in the file's order."""
    if not must_be_read(source):
        raise InputError(
            f"read_clients: needs the path of a file or a data frame; got {brief(source)}. Pass "
            f"for example 'hospitals.csv'."
        )
    table = _counted(read_table(source, reading), reading)
    taken = chosen_columns(table, reading)
    size = taken["size"]
    _refuse_nobody(table, size)
    if reading.thousands is None and table.points_group(size):
        table = table.noted(_note_on_points(table.columns[size]))
        reading = replace(reading, thousands=".")
    table = _filled_down(table, taken)
    unit = None if (shares := table.shares(size)) is None else shares[1]
    table, sizes, doubts = _clients_in(table, taken, reading)
    _refuse_nobody(table, size)
    names = taken.get("id", size)
    is_found = names != size and not is_own(table, "id", names, reading)
    if is_found and len({*map(text_in, table.columns[names])} - {""}) < len(sizes):
        del taken["id"]  # not all clients have such a name
    labels = {role: _labels(table, role, k, reading) for role, k in taken.items() if role != "size"}
    ids, groups = labels.get("id"), labels.get("group")
    try:
        if unit is None:
            population = Population(sizes, ids=ids, groups=groups)
        else:
            importance = table.importance(size, sizes, unit, reading)
            population = Population(importance=importance, ids=ids, groups=groups)
    except PopulationError as error:
        raise InputError(f"{table.source}: {error}") from error
    notes = tuple(_notes(table, taken, reading, groups, is_share=unit is not None))
    return ReadClients(population, notes, (*table.left_out_notes(), *doubts))


def _counted(table: Table, reading: Reading) -> Table:
    """Count the rows of each client if each row is a sample: clients repeat, and have no sizes."""
    if reading.size_column is not None or any(map(names_sizes, table.names)):
        return table
    named = range(len(table.names))
    ids = [k for k in named if is_own(table, "id", k, replace(reading, id_column=None))]
    if reading.id_column is not None:
        ids = [k for k in named if form(table.names[k]) == form(reading.id_column)]
    texts = {k: list(map(text_in, table.columns[k])) for k in ids}
    has_numbers = any(table.is_count(k) or table.shares(k) is not None for k in named)
    if has_numbers and any("" not in each and len({*each}) == len(each) for each in texts.values()):
        return table  # each row is a client
    # With numbers that may be sizes, few rows of a client may be years or classes.
    least = 10 if has_numbers else 2
    found = [k for k in ids if "" not in texts[k] and least * len({*texts[k]}) <= len(texts[k])]
    if len(found) != 1:
        return table
    [k] = found
    rows, name = Counter(texts[k]), table.names[k]
    columns: dict[str, list[Any]] = {name: list(rows), "size": list(rows.values())}
    for c in named:
        labels = dict(zip(texts[k], table.columns[c], strict=True))
        is_same = [labels[text] for text in texts[k]] == [*table.columns[c]]
        if c != k and is_own(table, "group", c, reading) and is_same:
            columns[table.names[c]] = [labels[each] for each in rows]
    note = f"no column has sizes: counted {len(texts[k]):,} rows of {counted(len(rows), name)}."
    counts = Table(table.source, [*columns], [*columns.values()], notes=table.notes)
    return counts.noted(note)


def _note_on_points(cells: Iterable[Any]) -> str:
    shown = next(text for cell in cells if UNCLEAR.fullmatch(text := text_in(cell)))
    whole = shown.partition(",")[0].replace(".", "")
    return f"read {shown} as {whole}, since points separate thousands here."


def _filled_down(table: Table, taken: Mapping[str, int]) -> Table:
    """Fill the groups down if each stands once above empty cells, left of ids and sizes."""
    group = taken.get("group")
    if group is None or group > min(taken.values()):
        return table
    cells = list(map(text_in, table.columns[group]))
    labels = [label for label in cells if label]
    if not cells[0] or len(labels) == len(cells) or len(set(labels)) < len(labels):
        return table
    filled: list[Any] = []
    for cell in cells:
        filled.append(cell or filled[-1])
    columns = [filled if k == group else column for k, column in enumerate(table.columns)]
    note = f"filled {table.names[group]} down, since each of them stands once above empty cells."
    return replace(table, columns=columns).noted(note)


def _refuse_nobody(table: Table, size: int) -> None:
    if not len(table.columns[size]):
        kinds = listed(dict.fromkeys(f"{each.kind}s" for each in table.left_out))
        raise InputError(
            f"{table.source}: needs at least one client; got {f'only {kinds}' if kinds else 'none'}"
            f". {EXAMPLE}"
        )


def _labels(table: Table, role: str, column: int, reading: Reading) -> list[Any]:
    """Return the ids, or the groups with None for an empty cell."""
    cells, name = table.columns[column], table.names[column]
    labels = [cell.strip() if isinstance(cell, str) else cell for cell in cells]
    if role == "group":
        labels = [None if label == "" else label for label in labels]
        if all(label is None for label in labels):
            raise InputError(
                f"{table.source}: {name} must have a label; all are empty. Fill it in."
            )
    other = f"choose another column with {reading.way(f'{role}_column')}."
    for k, label in enumerate(labels):
        if not _is_label(label) and (role == "id" or label is not None):
            raise InputError(
                f"{table.place(k)}: {name} must be a name or an integer; got {brief(label)}. "
                f"Correct it, drop the row if it is not a client, or {other}"
            )
    if role == "id" and len(set(labels)) < len(labels):
        first: dict[object, int] = {}
        again = next(k for k, each in enumerate(labels) if first.setdefault(each, k) != k)
        raise InputError(
            f"{table.place(again)}: {name} must be distinct; {brief(labels[again])} is also on "
            f"{table.place_of(first[labels[again]])}. Rename one, add up its rows, or {other}"
        )
    return labels


def _is_label(label: object) -> bool:
    """Return whether a label is an integer or a name that can be printed."""
    if isinstance(label, str):
        return bool(label) and (label.isascii() or not SURROGATE.search(label))
    return as_name(label) is not None


def _notes(
    table: Table, taken: Mapping[str, int], reading: Reading, groups: Any, *, is_share: bool
) -> Iterator[str]:
    """Say how the file was read, if that may surprise."""
    yield from table.notes
    own = {role for role, k in taken.items() if form(table.names[k]) in OWN_NAMES[role]}
    ignored = [
        name or f"(column {k + 1})"
        for k, name in enumerate(table.names)
        if k not in taken.values() and (name or any(table.columns[k]))
    ]
    if ignored or any(reading.column(role) is None for role in taken.keys() - own):
        names = {role: table.names[taken[role]] for role in USUAL if role in taken}
        roles = {role: "importance" if role == "size" and is_share else role for role in names}
        read = (n if role in own else f"{n} as {roles[role]}" for role, n in names.items())
        rest = f"; ignored {listed(ignored)}" if ignored else ""
        yield f"{table.source}: read {', '.join(read)}{rest}."
    size = table.names[taken["size"]]
    if not (reading.size_column or is_share or names_sizes(size)):
        yield (
            f"{table.source}: {size} is the only column of whole numbers that may be sizes. Choose "
            f"another with {reading.way('size_column')}."
        )
    if groups is not None and None in groups:
        missing = groups.count(None)
        yield f"{table.source}: {missing} without a {table.names[taken['group']]}: {UNLABELLED}."


def _clients_in(
    table: Table, taken: Mapping[str, int], reading: Reading
) -> tuple[Table, list[int], list[str]]:
    """Leave out totals and footnotes; return the clients, their sizes, and notes on doubts."""
    size = taken["size"]
    if len({len(column) for column in table.columns}) > 1:  # lists of JSON; refused later
        return table, table.sizes(size, reading), []
    name_column, has_ids = taken.get("id"), is_own(table, "id", taken.get("id"), reading)
    names = _names(table, name_column, size)
    named = totals_in(names)
    are_names = has_ids or len(set(names)) > ENOUGH_NAMES
    sure = {k: each.kind for k, each in named.items() if each.is_sure and are_names}
    sure |= _footnotes(table, size, names)
    statistics = _statistics(names, sure)
    sizes = _sizes(table, size, reading, sure | statistics)
    if not _is_total_of(statistics, sure, sizes):
        sure |= statistics
    possible = _possible_totals(table, taken, has_ids) | named
    possible = {k: each for k, each in possible.items() if k not in sure}
    rows = _Rows(table, taken, names, sizes, [k for k in range(len(names)) if k not in sure])
    totals, doubts = _totals_by_size(rows, possible)
    gone = sure | {k: possible[k].kind for k in totals}
    clients = rows.only(k for k in rows.clients if k not in gone)
    has_sizes = table.shares(size) is None  # shares sum to 100 %: none of them is a total
    wrong = (clients.wrong_total(k) for k, kind in sure.items() if kind == "total" and has_sizes)
    equal = [*clients.subtotals(), *clients.equal_to_others(skip=doubts)] if has_sizes else []
    coded = clients.codes_of_missing() if has_sizes else ()
    alike = _alike(table, clients.clients, names) if has_ids else ()
    found: dict[str, Iterable[str]] = {
        "may be totals": doubts.values(),
        "are totals of another number than their clients have": filter(None, wrong),
        "have as many samples as their group's others": equal,
        "may stand for missing sizes": coded,
        ALIKE: alike,
    }
    notes = [note for what, each in found.items() for note in _first_of(each, table, what)]
    return table.without(gone), [sizes[k] for k in clients.clients], notes


def _first_of(notes: Iterable[str], table: Table, what: str) -> Iterator[str]:
    """Yield the first notes, and the number of the others."""
    first = iter(notes)
    yield from islice(first, MOST_NOTES)
    if more := sum(1 for _ in first):
        yield f"{table.source}: {more} more {what}."


def _sizes(table: Table, size: int, reading: Reading, sure: Mapping[int, str]) -> list[int]:
    """Return the size of each row; 0 if one that is left out has none."""
    if (shares := table.shares(size)) is not None:
        return shares[0]
    if sure:
        with suppress(InputError):
            return table.sizes(size, reading)
    found = iter(table.without(sure).sizes(size, reading))
    return [0 if k in sure else next(found) for k in range(len(table.columns[0]))]


def _names(table: Table, name_column: int | None, size: int) -> list[str]:
    """Return the name of each row: its id, or its first other text; nothing without names."""
    if name_column is None:
        return [""] * len(table.columns[0])
    names = list(map(text_in, table.columns[name_column]))
    others = [column for k, column in enumerate(table.columns) if k not in (name_column, size)]
    for k in [k for k, name in enumerate(names) if not name]:
        texts = (text_in(column[k]) for column in others)
        names[k] = next((text for text in texts if text and not is_number(text)), "")
    return names


def _footnotes(table: Table, size: int, names: Sequence[str]) -> dict[int, str]:
    """Return the rows that are footnotes. A mark that clients have too is part of a name."""
    found = {k for k, name in enumerate(names) if cites_source(name)}
    # Checking digits first is fast: most cells are.
    cells = enumerate(table.columns[size])
    unsized = [
        k
        for k, cell in cells
        if not ((isinstance(cell, str) and cell.isdecimal()) or is_number(cell))
    ]
    marked = {k for k in unsized if is_footnote(table.row(k))} - found
    if marked and not any(has_mark(name) for k, name in enumerate(names) if k not in marked):
        found |= marked
    return dict.fromkeys(found, "footnote")


def _statistics(names: Sequence[str], sure: Mapping[int, str]) -> dict[int, str]:
    """Return rows such as Min and Max below the clients, each beside a total, a mean or a median.

    A client may be called Max: without such a row it stays.
    """
    below: dict[int, str] = {}
    for k in range(len(names) - 1, -1, -1):
        below[k] = form(names[k]).strip(":*")
        if k not in sure and below[k] not in STATISTICS:
            break
    summaries = {k for k, name in below.items() if sure.get(k) in KINDS or name in MEDIAN}
    found = [k for k, name in below.items() if name in STATISTICS and k not in sure]
    return {k: "statistic" for k in found if summaries - {k}}


def _is_total_of(
    statistics: Mapping[int, str], sure: Mapping[int, str], sizes: Sequence[int]
) -> bool:
    """Return whether a total counts the rows that look like statistics: they are clients."""
    whole = sum(size for k, size in enumerate(sizes) if k not in sure)
    totals = {sizes[k] for k, kind in sure.items() if kind == "total"}
    return whole in totals and all(sizes[k] for k in statistics)


def _possible_totals(table: Table, taken: Mapping[str, int], has_ids: bool) -> dict[int, Total]:
    """Return the rows without an id, and those with a word for a total in another column."""
    found: dict[int, Total] = {}
    if has_ids:
        unnamed = [k for k, cell in enumerate(table.columns[taken["id"]]) if not text_in(cell)]
        found |= dict.fromkeys(unnamed, Total(is_sure=True))
    for c, column in enumerate(table.columns):
        if c in (taken["size"], taken.get("id")):
            continue
        texts = list({cell for cell in column if isinstance(cell, str)})
        words = {texts[k]: each for k, each in totals_in(texts).items() if not each.rest}
        cells = enumerate(column) if words else ()
        rows = {k: words[cell] for k, cell in cells if isinstance(cell, str) and cell in words}
        if 2 * len(rows) <= len(column):  # else it is a property that clients have
            found |= rows
    return found


@dataclass(frozen=True)
class _Rows:
    """The rows of a table, and the sums of clients' sizes that a total may equal.

    ``names`` and ``sizes`` are those of all rows, a size 0 if unknown. ``clients`` are the rows
    whose sizes are added up.
    """

    table: Table
    taken: Mapping[str, int]
    names: Sequence[str]
    sizes: Sequence[int]
    clients: Sequence[int]

    def only(self, clients: Iterable[int]) -> "_Rows":
        """Return the rows with only these clients."""
        return replace(self, clients=list(clients))

    def sum_of(self, rows: Iterable[int]) -> int:
        """Return the sum of some rows."""
        return sum(map(self.sizes.__getitem__, rows))

    @cached_property
    def whole(self) -> int:
        """The sum of all clients."""
        return self.sum_of(self.clients)

    @cached_property
    def _left_out(self) -> int:
        """The sum of the rows that are not clients."""
        return sum(self.sizes) - self.whole

    @cached_property
    def _is_client(self) -> set[int]:
        return set(self.clients)

    @cached_property
    def _n_positive(self) -> int:
        return sum(self.sizes[k] > 0 for k in self.clients)

    def is_sum(self, row: int, total: Total) -> bool:
        """Return whether a row is the sum of all clients, of its group, or of its neighbours.

        The row itself is not counted. A name with a rest may also be the sum of a label's clients,
        and of a single neighbour.
        """
        size = self.sizes[row]
        own = size if row in self._is_client else 0
        if size == self.whole - own and self._n_positive - bool(own) > 1:
            return True
        found = {self.group_sum(row) - own} | self.neighbour_sums(row, 1 if total.rest else 2)
        return size in (found | self.label_sums.get(total.rest, set()) if total.rest else found)

    @cached_property
    def _ordered_sizes(self) -> list[int]:
        return sorted(map(self.sizes.__getitem__, self.clients))

    def is_median(self, row: int) -> bool:
        """Return whether a row is the median of two or more other clients."""
        sizes, size = self._ordered_sizes, self.sizes[row]
        n, place = len(sizes), len(sizes)
        if row in self._is_client:
            n, place = n - 1, bisect_left(sizes, size)
        # The row's own place is skipped.
        middle = [sizes[k + (k >= place)] for k in ((n - 1) // 2, n // 2)] if n > 1 else ()
        return bool(middle) and 2 * size == sum(middle)

    @cached_property
    def groups(self) -> dict[str, list[int]]:
        """The clients of each group."""
        found: dict[str, list[int]] = defaultdict(list)
        if "group" in self.taken:
            column = self.table.columns[self.taken["group"]]
            for k in self.clients:
                found[text_in(column[k])].append(k)
        found.pop("", None)
        return found

    @cached_property
    def _group_sums(self) -> dict[str, int]:
        return {label: self.sum_of(rows) for label, rows in self.groups.items()}

    def group_sum(self, row: int) -> int:
        """Return the sum of the clients in the row's group; 0 without one."""
        if not self.groups:
            return 0
        return self._group_sums.get(text_in(self.table.columns[self.taken["group"]][row]), 0)

    @cached_property
    def label_sums(self) -> dict[str, set[int]]:
        """The sums of the clients that share a label, in any column but sizes and names."""
        found: dict[str, set[int]] = defaultdict(set)
        for c, column in enumerate(self.table.columns):
            texts = {k: text_in(column[k]) for k in self.clients}
            if c == self.taken["size"] or all(texts[k] == self.names[k] for k in texts):
                continue
            sums: dict[str, int] = defaultdict(int)
            for k, text in texts.items():
                sums[label_form(text)] += self.sizes[k]
            for label, size in sums.items():
                found[label].add(size)
        return found

    @cached_property
    def _neighbours(self) -> dict[int, list[tuple[int, int]]]:
        """For each other row, the clients directly above and below: how many, and their sum."""
        n = len(self.sizes)
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for rows in (range(n), range(n - 1, -1, -1)):
            number, total = 0, 0
            for k in rows:
                if k in self._is_client:
                    number, total = number + (self.sizes[k] > 0), total + self.sizes[k]
                else:
                    found[k].append((number, total))
                    number, total = 0, 0
        return found

    def neighbour_sums(self, row: int, least: int = 1) -> set[int]:
        """Return the sums of the clients directly above a row and below it, if they are enough."""
        return {total for number, total in self._neighbours[row] if number >= least}

    def equal_to_others(self, skip: Collection[int]) -> Iterator[str]:
        """Yield a note on each client whose size is the sum of all others, or of its group's."""
        found: dict[int, str] = {}
        groups = {f" of {brief(group)}": rows for group, rows in self.groups.items()}
        for which, rows in {"": self.clients, **groups}.items():
            for k, exception in self._sums_among(rows).items():
                found.setdefault(k, f"all others{exception}{which}")
        for k in sorted(found.keys() - skip):
            yield self.equal_note(k, found[k])

    def _sums_among(self, rows: Sequence[int]) -> dict[int, str]:
        """Return the rows that are as large as all others together, if these are several.

        Two rows of one size may be totals of the same clients. Then the text is the exception that
        each makes for the other.
        """
        times, total = Counter(size for k in rows if (size := self.sizes[k])), self.sum_of(rows)
        n_rows = times.total()
        sums = {
            size: " but one" if n == 2 else ""
            for size, n in times.items()
            if n <= 2 <= n_rows - n and size * (n + 1) == total
        }
        return {k: sums[self.sizes[k]] for k in rows if self.sizes[k] in sums} if sums else {}

    def block_totals(self, among: Collection[int]) -> Iterator[list[int]]:
        """Yield the rows that each equal the sum of the two or more clients above; then below.

        The clients are those since the last such row, or since a row that is not a client.
        """
        n = len(self.sizes)
        for rows in (range(n), range(n - 1, -1, -1)):
            found, number, total = [], 0, 0
            for k in rows:
                is_total = number > 1 and total == self.sizes[k] and k in among
                if is_total:
                    found.append(k)
                if k in self._is_client and not is_total:
                    number, total = number + (self.sizes[k] > 0), total + self.sizes[k]
                else:
                    number, total = 0, 0
            yield found

    def subtotals(self) -> Iterator[str]:
        """Yield a note if several clients each equal the sum of those directly above or below.

        A few small ones are chance: together they must hold a tenth of all samples.
        """
        for found, where in zip(
            self.block_totals(self._is_client), ("above", "below"), strict=True
        ):
            if len(found) > 1 and 10 * self.sum_of(found) >= self.whole:
                yield (
                    f"{self._who(found[0])} and {len(found) - 1} more each have as many samples as "
                    f"the clients directly {where} together. They count as clients; drop them if "
                    f"they are subtotals."
                )
                return

    def equal_note(self, row: int, others: str) -> str:
        """Say that a client may be a total, since its size is a sum."""
        return (
            f"{self._who(row)} has as many samples as {others} together ({self.sizes[row]:,}). It "
            f"counts as a client; drop it if it is a total."
        )

    def unequal_note(self, row: int) -> str:
        """Say that a client may be a total, since its name is that of one."""
        return (
            f"{self._who(row)} may be a total, but {self.sizes[row]:,} is not the sum of its "
            f"clients. It counts as a client; drop it if it is a total."
        )

    def codes_of_missing(self) -> Iterator[str]:
        """Yield a note if the largest size is 9999 or similar, and stands apart or repeats."""
        sizes = self._ordered_sizes
        if len(sizes) < 2 or sizes[-1] not in CODES_OF_MISSING:
            return
        n = len(sizes) - bisect_left(sizes, sizes[-1])
        if n > 1 or sizes[-1] > 5 * sizes[-2]:
            row = next(k for k in self.clients if self.sizes[k] == sizes[-1])
            more = f" and {n - 1} more have" if n > 1 else " has"
            yield (
                f"{self._who(row)}{more} {sizes[-1]} samples, which often stands for a missing "
                f"number. It counts as a size; correct it if it is none."
            )

    def wrong_total(self, row: int) -> str:
        """Return a note if a total that was left out differs from its clients' sum."""
        size = self.sizes[row]
        known = {self.whole, self.group_sum(row)} | self.neighbour_sums(row)
        if not size or size in known or self._left_out in (self.whole, 2 * self.whole):
            return ""
        check = "is missing" if size > self.whole else "is a subtotal or appears twice"
        return (
            f"{self._who(row)} is {size:,}, but the clients have {self.whole:,}. Check that none "
            f"{check}."
        )

    def _who(self, row: int) -> str:
        name = brief(self.names[row]) if self.names[row] else "this client"
        return f"{self.table.place(row)}: {name}"


def _totals_by_size(rows: _Rows, possible: Mapping[int, Total]) -> tuple[set[int], dict[int, str]]:
    """Decide by size which of the possible totals are totals; also return notes on the others.

    A likely total is not counted in the sums of others; a row that is more likely a client is.
    """
    if not possible:
        return set(), {}
    others = rows.only(k for k in rows.clients if k not in possible)
    known = {k: total for k, total in possible.items() if rows.sizes[k]}
    with_rest = {k: total for k, total in known.items() if total.rest}
    # The rest of the name is a label of clients, or the word for a total says that it is a part.
    parts = {k for k, each in with_rest.items() if each.is_part or each.rest in others.label_sums}
    likely = parts | {k for k, each in known.items() if not each.rest and each.is_sure}
    unclear = {k for k, each in with_rest.items() if not each.rest.isdecimal()} - parts
    sums = rows.only(k for k in rows.clients if k not in likely)
    totals, doubts = _block_totals(sums, unclear)
    sums = sums.only(k for k in sums.clients if k not in totals)
    are_all = bool(parts) and sums.sum_of(parts) == sums.whole  # wherever they stand
    for k in sorted(known.keys() - unclear):
        size, total = rows.sizes[k], known[k]
        if total.is_statistic:
            is_total = sums.is_median(k)
        else:
            is_total = sums.is_sum(k, total) or (are_all and k in parts)
        is_large = not (total.rest or total.is_statistic) and 2 * size > sums.whole
        if is_total:
            totals.add(k)
        elif (k in likely or is_large) and total_in(rows.names[k]) is not None:
            doubts[k] = rows.unequal_note(k)
    return totals, doubts


def _block_totals(sums: _Rows, unclear: Collection[int]) -> tuple[set[int], dict[int, str]]:
    """Find at least two rows of unclear names that each equal the sum of those above or below.

    A single one may be a client: it stays, with a note.
    """
    doubts: dict[int, str] = {}
    for found in sums.block_totals(unclear) if unclear else ():
        if len(found) > 1:
            return set(found), {}
        # Half of all samples: equal_to_others has a note on it.
        single = [k for k in found if 2 * sums.sizes[k] != sums.whole]
        doubts |= {k: sums.equal_note(k, "the clients beside it") for k in single}
    return set(), doubts


def doubtful_names(clients: Mapping[Any, Any]) -> list[str]:
    """Return notes on the names of given clients: those of totals, and those that look alike."""
    names = list(map(text_in, clients))
    table = Table("clients", ["id"], [names])
    totals = (
        f"{table.place(k)}: {brief(names[k])} is the name of a {each.kind}. It counts as a client; "
        f"drop it if it is none."
        for k, each in totals_in(names).items()
        if each.is_sure
    )
    alike = _alike(table, range(len(names)), names)
    found = {"have names of totals": totals, ALIKE: alike}
    return [note for what, each in found.items() for note in _first_of(each, table, what)]


def _alike(table: Table, rows: Sequence[int], names: Sequence[str]) -> Iterator[str]:
    """Yield a note on each pair of ids that may be two spellings of one."""
    for first, second in look_alikes([names[k] for k in rows]):
        one, other = rows[first], rows[second]
        yield (
            f"{table.place(other)}: {brief(names[other])} and {brief(names[one])} on "
            f"{table.place_of(one)} differ only in case, accents, spaces or punctuation. If they "
            f"are one client, add up their sizes."
        )
