"""Read clients: sizes, ids and groups from CSV, JSON or Excel, updates from a .npy file."""

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from tokenize import TokenError
from typing import Any, NoReturn

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from fedcohort._arguments import as_name, brief
from fedcohort._whole_file import reason_of
from fedcohort.cli.client_numbers import check_thousands, is_number, whole_numbers
from fedcohort.cli.client_tables import EXAMPLE, Table, listed, read_table
from fedcohort.errors import DesignError, InputError, PopulationError
from fedcohort.population import UNLABELLED, Population
from fedcohort.similarity.measures import checked_updates

#: What a client's samples are called, and the client itself.
SAMPLES = ("sample", "example", "record", "row", "instance", "observation", "datapoint")
CLIENTS = (
    "client",
    "hospital",
    "site",
    "centre",
    "center",
    "institution",
    "node",
    "device",
    "user",
)
#: How a number of samples is written, with {} for the word.
NUMBERS_OF = ("n{}s", "num{}s", "no{}s", "nr{}s", "numberof{}s", "{}s", "{}count", "{}size")
#: The usual names of each column, the preferred first, in the form of ``_form``.
USUAL: dict[str, list[str]] = {
    "size": [
        *("size", "sizes"),
        *(form.format(word) for form in NUMBERS_OF for word in SAMPLES),
        *("datasetsize", "datasize", "count", "counts", "n"),
    ],
    "id": [
        *("id", "ids", "clientid", "clientids", "cid", "client", "clients", "clientname"),
        *("name", "names"),
        *(word + end for word in CLIENTS[1:] for end in ("id", "", "s", "name")),
    ],
    "group": [
        *("group", "groups", "groupid", "groupname", "stratum", "strata", "stratumid"),
        *(word + end for word in ("region", "cluster") for end in ("", "s", "id", "name")),
    ],
}
#: Names that need no note: those of the documentation.
OWN_NAMES = {role: names[:2] for role, names in USUAL.items()}
#: Number of cells that tell whether a column holds numbers.
LOOKED_AT = 50
#: Half of a character; it cannot be printed.
SURROGATE = re.compile("[\ud800-\udfff]")


def read_clients(
    path: str,
    *,
    size_column: str | None = None,
    id_column: str | None = None,
    group_column: str | None = None,
    thousands: str | None = None,
) -> Population:
    """Read sizes, and ids and groups if present, in the file's order. ``-`` is standard input.

    Columns that are not named are found by their usual names. A note on standard error says
    which were taken, unless they are called size, id and group and there are no others.
    """
    check_thousands(thousands)
    table = read_table(path, thousands)
    named = {"size": size_column, "id": id_column, "group": group_column}
    taken = _choose(table, named)
    cells, name = table.columns[taken["size"]], table.names[taken["size"]]
    if not len(cells):
        raise InputError(f"{table.source}: needs at least one client; got none. {EXAMPLE}")
    sizes = whole_numbers(cells, name, place=table.place, thousands=thousands)
    labels = {role: _labels(table, role, k) for role, k in taken.items() if role != "size"}
    ids, groups = labels.get("id"), labels.get("group")
    try:
        population = Population(sizes, ids=ids, groups=groups)
    except PopulationError as error:
        raise InputError(f"{table.source}: {error}") from error
    for note in _notes(table, taken, named, groups):
        print(note, file=sys.stderr)
    return population


def _choose(table: Table, named: Mapping[str, str | None]) -> dict[str, int]:
    """Return the position of each column that is there: as the user named it, or by usual names."""
    taken = {role: _named(table, role, name) for role, name in named.items() if name is not None}
    for role in [each for each in USUAL if each not in taken]:
        found = _usual(table, role, set(taken.values()))
        if found is not None:
            taken[role] = found
    if "size" not in taken:
        _refuse_without_sizes(table, set(taken.values()))
    return taken


def _named(table: Table, role: str, name: str) -> int:
    """Return the column that the user named; case, spaces, _ and - need not match."""
    found = [k for k, each in enumerate(table.names) if each == name]
    found = found or [k for k, each in enumerate(table.names) if _form(each) == _form(name)]
    if not found:
        by_form = {_form(each): each for each in table.names}
        near = [by_form[each] for each in get_close_matches(_form(name), by_form, n=1)]
        raise InputError(
            f"{table.source}: --{role}-column must be one of {listed(table.names)}; got "
            f"{brief(name)}. {f'Did you mean {near[0]!r}?' if near else 'Choose one of these.'}"
        )
    if len(found) > 1:
        _refuse_rivals(table, role, found)
    return found[0]


def _usual(table: Table, role: str, taken: set[int]) -> int | None:
    """Return the column whose name is first among the usual ones. Refuse to guess sizes."""
    usual = USUAL[role]
    forms = {k: _form(name) for k, name in enumerate(table.names) if k not in taken}
    found = sorted((k for k in forms if forms[k] in usual), key=lambda k: usual.index(forms[k]))
    if not found:
        return None
    first = forms[found[0]]
    is_guess = role == "size" and first not in OWN_NAMES[role]
    rivals = [k for k in found if is_guess or forms[k] == first]
    if len(rivals) > 1:
        _refuse_rivals(table, role, rivals)
    return found[0]


def _form(name: str) -> str:
    """Return a name in lower case, without spaces, underscores, hyphens, points and #."""
    return re.sub(r"[\s_.#-]+", "", name.casefold())


def _refuse_rivals(table: Table, role: str, rivals: Sequence[int]) -> NoReturn:
    names = [table.names[k] for k in rivals]
    way_out = f"Choose one: --{role}-column {shlex.quote(names[0])}."
    raise InputError(
        f"{table.source}: needs one column of {role}s; got {listed(names)}. "
        f"{way_out if len(set(names)) == len(names) else 'Rename or drop one.'}"
    )


def _refuse_without_sizes(table: Table, taken: set[int]) -> NoReturn:
    """Name the columns of numbers, one of which may be the sizes."""
    if any(is_number(name) for name in table.names):
        raise InputError(
            f"{table.source}: needs a first line that names the columns; got "
            f"{listed(table.names)}. {EXAMPLE} If these are names, choose with --size-column."
        )
    names = [
        shlex.quote(table.names[k])
        for k, cells in enumerate(table.columns)
        if k not in taken and len(cells) and all(map(is_number, cells[:LOOKED_AT]))
    ]
    way_out = f"Name it: --size-column {' or '.join(names[:3])}." if names else EXAMPLE
    raise InputError(
        f"{table.source}: needs a column of sizes, called size, n_samples, count or the like; got "
        f"{listed(table.names) or 'no columns'}. {way_out}"
    )


def _labels(table: Table, role: str, column: int) -> list[Any]:
    """Return the ids, or the groups with None for an empty cell."""
    cells, name = table.columns[column], table.names[column]
    labels = [cell.strip() if isinstance(cell, str) else cell for cell in cells]
    if role == "group":
        labels = [None if label == "" else label for label in labels]
        if all(label is None for label in labels):
            raise InputError(
                f"{table.source}: {name} must have a label; all are empty. Fill it in."
            )
    for k, label in enumerate(labels):
        if not _is_label(label) and (role == "id" or label is not None):
            raise InputError(
                f"{table.place(k)}: {name} must be a name or an integer; got {brief(label)}. "
                f"Correct it, or choose another column with --{role}-column."
            )
    if role == "id" and len(set(labels)) < len(labels):
        _refuse_twice(table, name, labels)
    return labels


def _is_label(label: object) -> bool:
    """Return whether a label is an integer or a name that can be printed."""
    if isinstance(label, str):
        return bool(label) and (label.isascii() or not SURROGATE.search(label))
    return as_name(label) is not None


def _refuse_twice(table: Table, name: str, ids: list[Any]) -> NoReturn:
    first: dict[object, int] = {}
    again = next(k for k, each in enumerate(ids) if first.setdefault(each, k) != k)
    raise InputError(
        f"{table.place(again)}: {name} must be distinct; {brief(ids[again])} is also on "
        f"{table.place_of(first[ids[again]])}. Rename one, or choose another "
        f"column with --id-column."
    )


def _notes(
    table: Table, taken: Mapping[str, int], named: Mapping[str, str | None], groups: Any
) -> Iterator[str]:
    """Say how the file was read, if that may surprise."""
    yield from table.notes
    own = {role for role, k in taken.items() if _form(table.names[k]) in OWN_NAMES[role]}
    ignored = [
        name or f"(column {k + 1})"
        for k, name in enumerate(table.names)
        if k not in taken.values() and (name or any(table.columns[k]))
    ]
    if ignored or any(named[role] is None for role in taken.keys() - own):
        names = {role: table.names[taken[role]] for role in USUAL if role in taken}
        read = (name if role in own else f"{name} as {role}" for role, name in names.items())
        rest = f"; ignored {listed(ignored)}" if ignored else ""
        yield f"{table.source}: read {', '.join(read)}{rest}."
    if groups is not None and None in groups:
        missing = groups.count(None)
        yield f"{table.source}: {missing} without a {table.names[taken['group']]}: {UNLABELLED}."


#: Number of characters of numpy's error message that are shown.
REASON = 70


def read_updates(path: Path, n_clients: int) -> NDArray[np.floating]:
    """Read one row per client, in the order of the file of sizes.

    Nothing is unpickled; float32 and float64 stay on disk.
    """
    array = _opened(path)
    if array.ndim == 2 and len(array) != n_clients:
        raise InputError(
            f"{path}: needs a row for each of the {n_clients} clients; got {len(array)} rows. Save "
            f"them in the order of the sizes, zeros for clients that have sent none."
        )
    try:
        with np.errstate(over="ignore"):  # overflow gives infinity, which is refused
            return checked_updates(str(path), array, n_clients)
    except DesignError as error:
        raise InputError(str(error)) from error


def _opened(path: Path) -> NDArray[np.generic]:
    """Map the array into memory. Unlike numpy.load, accept only the format .npy."""
    try:
        with np.errstate(over="ignore"):  # a damaged shape can overflow
            return np.asarray(open_memmap(path, mode="r"))
    except OSError as error:
        reason = reason_of(error)
        raise InputError(f"{path}: cannot be read ({reason}). Check the path.") from error
    except (ValueError, TypeError, OverflowError, SyntaxError, TokenError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")[:REASON]
        raise InputError(
            f"{path}: must be a .npy file of numbers; it is not, or not whole ({reason}). Write "
            f"it with numpy.save, without Python objects."
        ) from error
