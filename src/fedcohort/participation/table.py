"""The table that an audit reads (rounds, clients, answers and weights), and its readers."""

from __future__ import annotations

import hmac
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, cast, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import brief, did_you_mean, is_list, name_of, ordered_ids
from fedcohort._display import counted, short_repr
from fedcohort._whole_file import reason_of
from fedcohort.client_files.clients import read
from fedcohort.client_files.formats import Source, must_be_read, read_table
from fedcohort.client_files.table import Reading, form
from fedcohort.client_files.words import USUAL
from fedcohort.designs import Recipe
from fedcohort.designs.catalogue import named_recipe
from fedcohort.errors import FedcohortError, InputError
from fedcohort.population import UNLABELLED, Population
from fedcohort.selector import read_selections

#: The usual names of a table's columns, in the form of :func:`fedcohort.client_files.table.form`.
COLUMNS: dict[str, list[str]] = {
    "round": ["round", "rounds", "serverround", "currentround", "flround", "roundnumber", "r"],
    "client": [*USUAL["id"], "participant", "party", "worker", "nodename", "partitionid"],
    "weight": ["weight", "weights", "w", "aggregationweight", "share"],
    "size": ["numexamples", "nexamples", "examples", *USUAL["size"]],
    "status": ["status", "state", "outcome", "result", "answered", "success", "succeeded"],
    "seconds": ["seconds", "duration", "time", "trainseconds", "elapsed", "runtime"],
    "group": USUAL["group"],
    "draws": ["draws", "timesdrawn", "drawn"],
    "reason": ["reason", "error", "message", "failure"],
    "when": ["when", "timestamp", "date", "datetime"],
}
NEEDED = ("round", "client")
#: The meaning of words in a column of statuses.
STATUSES = {
    "asked": "asked drawn selected sampled sent assigned chosen pending",
    "answered": "answered ok success succeeded successful completed complete done finished trained "
    "received reported aggregated accepted true yes y 1 1.0",
    "failed": "failed fail failure error timeout timedout dropped droppedout dropout lost "
    "missing crashed noanswer noreply aborted rejected late false no n 0 0.0",
    "present": "available online idle present connected notdrawn notselected",
    "absent": "absent offline unavailable away disconnected",
}
STATUS = {word: status for status, words in STATUSES.items() for word in words.split()}
#: A record of a whole round lists all that were asked under one of these names.
COHORTS = [*USUAL["id"], "participants", "cohort"]
#: Weights of a round may sum to this much more than 1 by rounding.
ROUNDING = 1e-6


class Entry(NamedTuple):
    """A client that was asked in a round. NaN: unknown."""

    round_: int
    client: str
    answered: bool
    draws: int = 1
    weight: float = math.nan
    size: float = math.nan
    seconds: float = math.nan


class FailureCounts(NamedTuple):
    """What a log says that names only the clients that fail: numbers by round."""

    connected: NDArray[np.int64]
    asked: NDArray[np.int64]
    answered: NDArray[np.int64]


@final
@dataclass(frozen=True, eq=False, repr=False)
class Participation:
    """Who was asked in which round, who answered, and with what weight.

    The arrays ``row``, ``client``, ``count``, ``answered``, ``weight`` and ``seconds`` have one
    entry for each client that was asked in a round.

    Attributes
    ----------
    source, kind
        The name of the file, and what wrote it.
    ids, rounds
        The clients, and the numbers of the rounds.
    row, client
        Positions in ``rounds`` and ``ids``.
    count
        How often it was drawn; 0 for a client that was asked in place of another.
    answered, weight, seconds
        Whether its update came; its weight in the aggregate and how long it took, NaN if unknown.
    sizes
        Samples by client, NaN where unknown; None if all are.
    groups
        A label for each client; None without labels.
    available
        Who could be asked, shape (n_rounds, n_clients); None if that is unknown.
    hours
        The hour of the day of each round, NaN if unknown; None without times.
    reasons
        How often each reason of a failure was logged.
    recipe
        The design that the log claims; None if it claims none.
    counts
        For logs that name only failing clients; None for all others.
    notes
        How the file was read, where that may surprise.
    presence
        What weights do about clients that are away, as the log says; see
        :class:`fedcohort.Selector`.
    """

    source: str
    kind: str
    ids: tuple[str, ...]
    rounds: NDArray[np.int64]
    row: NDArray[np.int64]
    client: NDArray[np.int64]
    count: NDArray[np.int64]
    answered: NDArray[np.bool_]
    weight: NDArray[np.float64]
    seconds: NDArray[np.float64]
    sizes: NDArray[np.float64] | None = None
    groups: tuple[str, ...] | None = None
    available: NDArray[np.bool_] | None = None
    hours: NDArray[np.float64] | None = None
    reasons: Counter[str] = field(default_factory=Counter)
    recipe: Recipe | None = None
    counts: FailureCounts | None = None
    notes: tuple[str, ...] = ()
    presence: str = "ignore"

    @property
    def n_clients(self) -> int:
        """How many clients there are, those that were never asked included."""
        return len(self.ids)

    @property
    def n_rounds(self) -> int:
        """How many rounds there are."""
        return len(self.rounds)

    def __repr__(self) -> str:
        return short_repr(self, kind=self.kind, rounds=self.n_rounds, clients=self.n_clients)

    def known_sizes(self) -> NDArray[np.float64]:
        """Return the sizes; the mean of the others where one is unknown, 1 if all are."""
        if self.sizes is None or not np.isfinite(self.sizes).any():
            return np.ones(self.n_clients)
        mean = max(1.0, round(float(np.nanmean(self.sizes))))
        return np.where(np.isfinite(self.sizes), self.sizes, mean)

    def per_client(self, values: NDArray[Any] | None = None) -> NDArray[Any]:
        """Sum a number of each entry, or count the entries, by client."""
        return np.bincount(self.client, values, self.n_clients)

    def per_round(self, values: NDArray[Any] | None = None) -> NDArray[Any]:
        """Sum a number of each entry, or count the entries, by round."""
        return np.bincount(self.row, values, self.n_rounds)

    def known_available(self) -> NDArray[np.bool_]:
        """Return who could be asked, shape (n_rounds, n_clients); everyone if that is unknown."""
        if self.available is None:
            return np.ones((self.n_rounds, self.n_clients), dtype=bool)
        return self.available

    def dense(self, values: NDArray[Any], fill: Any) -> NDArray[Any]:
        """Return a number of each entry as an array of shape (n_rounds, n_clients)."""
        found = np.full((self.n_rounds, self.n_clients), fill, dtype=np.asarray(values).dtype)
        found[self.row, self.client] = values
        return found

    def until(self, n_rounds: int) -> Participation:
        """Return the first rounds."""
        kept = self.row < n_rounds
        names = ("row", "client", "count", "answered", "weight", "seconds")
        parts: dict[str, Any] = {name: getattr(self, name)[kept] for name in names}
        for name in ("rounds", "available", "hours"):
            own = getattr(self, name)
            parts[name] = None if own is None else own[:n_rounds]
        if self.counts is not None:
            parts["counts"] = FailureCounts(*(each[:n_rounds] for each in self.counts))
        return replace(self, **parts)

    def with_clients(self, sizes: Any, groups: Any = None) -> Participation:
        """Add sizes and groups: a file, a mapping by id, a list in the order of ids."""
        population = _population_of(sizes, groups, self.ids)
        if population is None:
            return self
        by_id = dict(zip(map(str, population.ids), population.sizes.tolist(), strict=True))
        unknown = [each for each in self.ids if each not in by_id]
        if len(unknown) == len(self.ids) and self.ids:
            raise InputError(
                f"audit: sizes must be of the clients of {self.source}; none of "
                f"{brief(unknown[0])} and {len(unknown) - 1} others is among "
                f"{brief(list(by_id)[:3])}. Give the ids that the log uses."
            )
        new = [each for each in by_id if each not in set(self.ids)]
        grown = self._with_ids(new)
        own = np.full(grown.n_clients, np.nan) if grown.sizes is None else grown.sizes.copy()
        for k, each in enumerate(grown.ids):
            own[k] = by_id.get(each, own[k])
        labels = grown.groups
        if population.groups is not None:
            found = dict(zip(map(str, population.ids), map(str, population.groups), strict=True))
            labels = tuple(found.get(each, UNLABELLED) for each in grown.ids)
        notes = self.notes
        if unknown:
            missing = f"{counted(len(unknown), 'client')} of the log without a size"
            notes += (f"{missing}: {', '.join(unknown[:3])}.",)
        return replace(grown, sizes=own, groups=labels, notes=notes)

    def _with_ids(self, new: Sequence[str]) -> Participation:
        """Add clients that were never asked."""
        if not new:
            return self
        ids = tuple(ordered_texts([*self.ids, *new]))
        place = {each: k for k, each in enumerate(ids)}
        to = np.array([place[each] for each in self.ids], dtype=np.int64)

        def moved(old: NDArray[Any] | None, fill: Any) -> NDArray[Any] | None:
            if old is None:
                return None
            made = np.full((*old.shape[:-1], len(ids)), fill, dtype=old.dtype)
            made[..., to] = old
            return made

        groups = None
        if self.groups is not None:
            known = dict(zip(self.ids, self.groups, strict=True))
            groups = tuple(known.get(each, UNLABELLED) for each in ids)
        return replace(
            self,
            ids=ids,
            client=to[self.client] if len(self.client) else self.client,
            sizes=moved(self.sizes, np.nan),
            groups=groups,
            available=moved(self.available, True),
        )

    def with_pseudonyms(self, key: bytes) -> Participation:
        """Replace ids and groups by keyed hashes; leave out what may name a client."""
        if not isinstance(key, bytes) or len(key) < 16:
            raise InputError("audit: a key of pseudonyms needs at least 16 bytes. Make a new one.")
        ids = tuple(pseudonym(each, key) for each in self.ids)
        if len(set(ids)) < len(ids):
            raise InputError("audit: two clients have one pseudonym. Take another key.")
        groups = None
        if self.groups is not None:
            groups = tuple(g if g == UNLABELLED else pseudonym(g, key) for g in self.groups)
        # A reason is the framework's free text: it may hold names, addresses and paths.
        reasons = Counter({"(left out)": self.reasons.total()}) if self.reasons else Counter()
        return replace(self, source="the log", ids=ids, groups=groups, reasons=reasons, notes=())


def pseudonym(name: str, key: bytes) -> str:
    """Return a keyed hash of a name: equal for equal names, and not to be undone without the key.

    Examples
    --------
    >>> pseudonym("Nice", b"sixteen bytes...") == pseudonym("Nice", b"sixteen bytes...")
    True
    """
    return f"c-{hmac.new(key, name.encode(), 'sha256').hexdigest()[:12]}"


def ordered_texts(ids: Iterable[str]) -> list[str]:
    """Order ids: numbers by value, then names."""
    numbers = {
        each: int(each) if each.isdecimal() and each == str(int(each)) else each for each in ids
    }
    text = {value: each for each, value in numbers.items()}
    return [text[each] for each in ordered_ids(list(numbers.values()))]


def made(
    source: str, kind: str, entries: Iterable[Entry], *, rounds: Iterable[int] = (), **more: Any
) -> Participation:
    """Make a participation of entries; of two of one client in one round, the last counts.

    Sizes of clients are the largest of their entries, unless ``more`` has ``sizes``. Weights of a
    round that sum to more than 1 are divided by their sum, as servers do.
    """
    found = {(each.round_, each.client): each for each in entries}
    listed = sorted({*rounds, *(round_ for round_, _ in found)})
    ids = tuple(more.pop("ids", None) or ordered_texts({client for _, client in found}))
    rows, places = {r: k for k, r in enumerate(listed)}, {c: k for k, c in enumerate(ids)}
    columns: list[Any] = list(zip(*found.values(), strict=True)) or [()] * len(Entry._fields)
    row = np.array([rows[each] for each in columns[0]], dtype=np.int64)
    client = np.array([places[each] for each in columns[1]], dtype=np.int64)
    order = np.lexsort((client, row))
    size = np.array(columns[5], dtype=np.float64)
    if "sizes" not in more and np.isfinite(size).any():
        sizes = np.full(len(ids), -np.inf)
        np.maximum.at(sizes, client[np.isfinite(size)], size[np.isfinite(size)])
        more["sizes"] = np.where(np.isfinite(sizes), sizes, np.nan)
    weight = np.array(columns[4], dtype=np.float64)
    sums = np.bincount(row, np.nan_to_num(weight), len(listed))
    if (sums > 1 + ROUNDING).any():
        weight = weight / np.where(sums > 0, sums, 1.0)[row]
    return Participation(
        source,
        kind,
        ids,
        np.array(listed, dtype=np.int64),
        row[order],
        client[order],
        np.array(columns[3], dtype=np.int64)[order],
        np.array(columns[2], dtype=bool)[order],
        weight[order],
        np.array(columns[6], dtype=np.float64)[order],
        **more,
    )


def read_participation(
    source: Source | Participation | Iterable[Mapping[str, Any]],
    sizes: Any = None,
    groups: Any = None,
) -> Participation:
    """Read who took part.

    Parameters
    ----------
    source
        A log of a selector or a plug-in; a table of rounds and clients (CSV, Excel, JSON,
        JSON lines, a data frame, or a list of mappings); the log of a FLARE server or the workspace
        of its job; the log of a Fed-BioMed researcher or of a Flower server.
    sizes, groups
        Samples of each client: a file, a mapping by id, or a list in the order of ids. Groups by
        id, or in that order.

    Raises
    ------
    InputError
        If the source cannot be read.
    """
    if isinstance(source, Participation):
        return source.with_clients(sizes, groups)
    if isinstance(source, (list, tuple)) and all(isinstance(each, Mapping) for each in source):
        return _of_rows("the records", list(source)).with_clients(sizes, groups)
    if not must_be_read(source):
        raise InputError(
            f"audit: participation must be a log, a table or a data frame; got {brief(source)}. "
            f"Pass for example 'selections.jsonl'."
        )
    if isinstance(source, (str, Path)) and str(source) != "-":
        found = _from_path(Path(source))
    else:
        found = _of_table(source)
    return found.with_clients(sizes, groups)


def _from_path(path: Path) -> Participation:
    """Read a file or a folder by what is in it."""
    from fedcohort.participation.framework_logs import from_framework, server_log

    try:
        log = server_log(path) if path.is_dir() else path
        if log.suffix.lower() in (".xlsx", ".xls"):
            return _of_table(log)
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(
            f"{name_of(path)}: cannot be read ({reason_of(error)}). Check the path."
        ) from error
    if text.lstrip().startswith("{"):
        lines = list(_json_lines(text))
        if lines and any({"run", "attempt", "round"} <= line.keys() for line in lines):
            return of_selections(read_selections(log), name_of(log))
        if (
            lines
            and len(lines[0]) > 1
            and not isinstance(next(iter(lines[0].values())), (list, dict))
        ):
            known = {form(key) for key in lines[0]}
            if known & set(COLUMNS["round"]):
                return _of_rows(name_of(log), lines)
    return from_framework(name_of(log), text) or _of_table(log)


def _json_lines(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


def of_selections(lines: Sequence[Mapping[str, Any]], source: str) -> Participation:
    """Make a participation of the lines of a selector's log."""
    known: dict[str, int | None] = {}
    joined: dict[str, int] = {}
    left: dict[str, list[tuple[int, bool]]] = {}
    entries: list[Entry] = []
    reasons: Counter[str] = Counter()
    notes: list[str] = []
    recipe, presence = None, "ignore"
    for k, line in enumerate(lines):
        for each, size in line.get("sizes", {}).items():
            left.setdefault(each, []).append((k, size is not None))
            known[each] = known.get(each) if size is None else size
            joined.setdefault(each, k)
        recipe = _claimed(line, notes) or recipe
        if isinstance(claim := line.get("recipe"), Mapping):
            presence = str(claim.get("presence", "ignore"))
        failed, weights, seconds = line["failed"], line["weights"], line["durations"]
        for each in {**line["drawn"], **weights, **failed}:
            entries.append(
                Entry(
                    line["round"],
                    each,
                    each not in failed,
                    line["drawn"].get(each, 0),
                    weights.get(each, 0.0),
                    math.nan,
                    seconds.get(each, math.nan),
                )
            )
        reasons.update(map(str, failed.values()))
    ids = ordered_texts({*known, *(entry.client for entry in entries)})
    found = made(
        source,
        "the log of a selector",
        entries,
        rounds=[line["round"] for line in lines],
        ids=ids,
        sizes=np.array([known.get(each) or 0 for each in ids], dtype=np.float64),
        hours=hours_of([line.get("time") for line in lines]),
        reasons=reasons,
        recipe=recipe,
    )
    available, unknown = _available(lines, found, left)
    if unknown:
        notes.append(
            f"{counted(unknown, 'round')} list only how many clients were available: taken as all."
        )
    if presence != "ignore":
        notes.append(
            f"weights make up for clients that are away (presence={presence!r}): no law says what "
            f"they should be, so the bias is not split."
        )
    return replace(found, available=available, notes=tuple(notes), presence=presence)


def _claimed(line: Mapping[str, Any], notes: list[str]) -> Recipe | None:
    """Return the recipe that a line names; None if it names none, or one that is not ours."""
    claim = line.get("recipe")
    if not isinstance(claim, Mapping):
        return None
    try:
        return named_recipe(str(claim["design"]), int(claim["cohort_size"]))
    except (FedcohortError, KeyError, TypeError, ValueError):
        notes.append(f"the log names the design {brief(claim)}, which is not one of the library's.")
        return None


def _available(
    lines: Sequence[Mapping[str, Any]],
    found: Participation,
    changes: Mapping[str, Sequence[tuple[int, bool]]],
) -> tuple[NDArray[np.bool_] | None, int]:
    """Return who could be asked, None for everyone in all rounds; and rounds with a digest only."""
    there = np.ones((len(lines), found.n_clients), dtype=bool)
    place = {each: k for k, each in enumerate(found.ids)}
    for each, steps in changes.items():
        there[: steps[0][0], place[each]] = False
        for at, is_member in steps:
            there[at:, place[each]] = is_member
    unknown = 0
    for k, line in enumerate(lines):
        listed = line.get("available")
        if isinstance(listed, list):
            mask = np.zeros(found.n_clients, dtype=bool)
            mask[[place[str(each)] for each in listed if str(each) in place]] = True
            there[k] &= mask
        elif isinstance(listed, Mapping):
            unknown += 1
    return (None if there.all() else there), unknown


def hours_of(times: Sequence[Any]) -> NDArray[np.float64] | None:
    """Return the hour of the day of each time, NaN without one; None if there is none."""
    found = np.full(len(times), np.nan)
    for k, each in enumerate(times):
        try:
            at = datetime.fromisoformat(str(each))
        except ValueError:
            continue
        found[k] = at.hour + at.minute / 60
    return found if np.isfinite(found).any() else None


def _of_table(source: Any) -> Participation:
    """Read a table with a row for each client of a round."""
    table = read_table(source, Reading())
    rows = [
        dict(zip(table.names, cells, strict=True)) for cells in zip(*table.columns, strict=True)
    ]
    found = _of_rows(table.source, rows)
    return replace(found, notes=(*table.notes, *table.left_out_notes(), *found.notes))


def _of_rows(source: str, rows: Sequence[Mapping[str, Any]]) -> Participation:
    """Read records with a round and a client each."""
    rows = [each for k, row in enumerate(rows) for each in _one_each(source, k, row)]
    if not rows:
        raise InputError(f"{source}: needs at least one row; it has none. Check the file.")
    names = list(dict.fromkeys(name for row in rows for name in row))
    taken = _columns(source, names)
    cells = {role: [row.get(name) for row in rows] for role, name in taken.items()}
    n = len(rows)
    nothing: list[Any] = [None] * n
    rounds = [_whole(source, k, "round", each) for k, each in enumerate(cells["round"])]
    clients = [_name(source, k, each) for k, each in enumerate(cells["client"])]
    numbers = {
        role: [_number(source, k, role, each) for k, each in enumerate(cells.get(role, nothing))]
        for role in ("weight", "size", "seconds", "draws")
    }
    has_weights = "weight" in taken
    status = [
        _status(source, k, each, numbers["weight"][k], has_weights=has_weights)
        for k, each in enumerate(cells.get("status", nothing))
    ]
    best: dict[tuple[int, str], Entry] = {}
    listed: list[tuple[int, str, bool]] = []
    for k, key in enumerate(zip(rounds, clients, strict=True)):
        if status[k] in ("present", "absent"):
            listed.append((*key, status[k] == "present"))
            continue
        count = numbers["draws"][k]
        size, seconds, weight = (numbers[r][k] for r in ("size", "seconds", "weight"))
        is_answer = status[k] == "answered"
        if not is_answer and has_weights:
            weight = 0.0
        entry = Entry(
            *key, is_answer, 1 if math.isnan(count) else int(count), weight, size, seconds
        )
        if key not in best or is_answer:  # asked, and later answered
            best[key] = entry
    found = made(
        source,
        "a table",
        best.values(),
        rounds=rounds,
        ids=ordered_texts(set(clients)),
        reasons=Counter(
            str(each)
            for each, own in zip(cells.get("reason", nothing), status, strict=True)
            if own == "failed" and each not in (None, "")
        ),
    )
    found = replace(found, available=_listed_presence(found, listed))
    times = dict(zip(rounds, cells.get("when", nothing), strict=True))
    found = replace(found, hours=hours_of([times.get(each) for each in found.rounds.tolist()]))
    if "group" in taken:
        labels = {
            c: str(g) for c, g in zip(clients, cells["group"], strict=True) if g not in (None, "")
        }
        found = replace(found, groups=tuple(labels.get(each, UNLABELLED) for each in found.ids))
    if "status" not in taken and not has_weights:
        found = replace(
            found,
            notes=(f"{source}: no column of statuses or weights: every row counts as an answer.",),
        )
    return found


def _one_each(source: str, k: int, row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Divide a record of a whole round, ``{"round": 3, "clients": ["a", "b"], "failed": ["b"]}``.

    Its lists are of clients: all that were asked, and those of a status. Other lists go with that
    of all; mappings are by client.
    """
    lists = {str(name): each for name, each in row.items() if isinstance(each, (list, tuple, dict))}
    scalars = {name: each for name, each in row.items() if name not in lists}
    asked: dict[Any, None] = {}
    status: dict[Any, str] = {}
    others: dict[str, Any] = {}
    for name, each in lists.items():
        word = form(name)
        kind = "asked" if word in COHORTS else STATUS.get(word, STATUS.get(word.removesuffix("s")))
        records = each if isinstance(each, dict) and kind == "asked" else {}
        if records and all(isinstance(one, Mapping) for one in records.values()):
            yield from ({**scalars, "client": client, **one} for client, one in records.items())
        elif kind is None or word in USUAL["size"]:
            others[name] = each
        elif all(isinstance(one, Mapping) for one in each) and len(each):
            said = {} if kind == "asked" else {"status": kind}
            yield from ({**scalars, **said, **one} for one in each)
        elif strange := [one for one in each if not isinstance(one, (str, int))]:
            raise InputError(
                f"{_place(source, k)}: {name} must list names of clients; got {brief(strange[0])}. "
                f"Correct it."
            )
        elif kind == "asked":
            asked |= dict.fromkeys(map(str, each))
        else:
            named = map(str, each)
            status |= {one: kind for one in named if kind != "present" or one not in status}
    # Clients that were there may have been asked too.
    status = {each: kind for each, kind in status.items() if kind != "present" or each not in asked}
    # Without a list of answers, those without another status have answered.
    rest = "failed" if "answered" in status.values() else "answered"
    places = {client: k for k, client in enumerate(asked)}
    for client in asked | dict.fromkeys(status):
        own = {name: each.get(client) for name, each in others.items() if isinstance(each, dict)}
        for name, each in others.items():
            if isinstance(each, (list, tuple)) and client in places and len(each) == len(asked):
                own[name] = each[places[client]]
        yield {**scalars, **own, "client": client, "status": status.get(client, rest)}
    if len(others) == len(lists):
        yield row


def _listed_presence(
    found: Participation, listed: Sequence[tuple[int, str, bool]]
) -> NDArray[np.bool_] | None:
    """Return who could be asked, if rows say so: those that were asked, and those listed so."""
    if not listed:
        return None
    says_present = any(is_present for *_, is_present in listed)
    there = np.full((found.n_rounds, found.n_clients), not says_present)
    there[found.row, found.client] = True
    rows = {r: k for k, r in enumerate(found.rounds.tolist())}
    places = {c: k for k, c in enumerate(found.ids)}
    for round_, client, is_present in listed:
        there[rows[round_], places[client]] = is_present
    return there


def _columns(source: str, names: Sequence[str]) -> dict[str, str]:
    """Return the name of each column that is there, by its role."""
    forms = {form(str(name)): name for name in reversed(names)}
    taken: dict[str, str] = {}
    for role, usual in COLUMNS.items():
        fitting = [
            forms[each] for each in usual if each in forms and forms[each] not in taken.values()
        ]
        if fitting:
            taken[role] = fitting[0]
    missing = [role for role in NEEDED if role not in taken]
    if missing:
        raise InputError(
            f"{source}: needs columns of rounds and clients, called round and client or similar; "
            f"got {', '.join(map(str, names[:8]))}. Rename them, "
            f"or give the log of a selector, FLARE, Fed-BioMed or Flower."
        )
    return taken


def _place(source: str, k: int) -> str:
    return f"{source}, row {k + 1}"


def _whole(source: str, k: int, name: str, cell: Any) -> int:
    number = _number(source, k, name, cell)
    if math.isnan(number) or number != int(number):
        raise InputError(
            f"{_place(source, k)}: {name} must be a whole number; got {brief(cell)}. Correct it."
        )
    return int(number)


def _number(source: str, k: int, name: str, cell: Any) -> float:
    """Return a number, NaN for an empty cell."""
    if cell is None or (isinstance(cell, str) and cell.strip().lower() in ("", "nan", "none")):
        return math.nan
    try:
        number = float(cell)
    except (TypeError, ValueError):
        number = math.inf
    if math.isinf(number) or number < 0:
        raise InputError(
            f"{_place(source, k)}: {name} must be a number of at least 0; got {brief(cell)}. "
            f"Correct it, or leave it empty."
        )
    return number


def _name(source: str, k: int, cell: Any) -> str:
    name = str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()
    if cell is None or not name:
        raise InputError(f"{_place(source, k)}: client must be a name; it is empty. Fill it in.")
    return name


def _status(source: str, k: int, cell: Any, weight: float, *, has_weights: bool) -> str:
    """Say what happened to a client: by its status, or else by its weight."""
    word = form(str(cell)) if cell is not None else ""
    if not word:
        return "answered" if not has_weights or weight > 0 else "failed"
    if word not in STATUS:
        raise InputError(
            f"{_place(source, k)}: status must be drawn, answered, failed, available or absent; "
            f"got {brief(cell)}.{did_you_mean(word, STATUS)} Correct it."
        )
    return STATUS[word]


def _population_of(sizes: Any, groups: Any, ids: Sequence[str]) -> Population | None:
    """Return the clients that sizes and groups describe; None without any."""
    if sizes is None and groups is None:
        return None
    labels: Callable[[Sequence[str]], list[str] | None] = lambda order: None  # noqa: E731
    if isinstance(groups, Mapping):
        by_id = {str(each): label for each, label in groups.items()}
        labels = lambda order: [by_id.get(each, UNLABELLED) for each in order]  # noqa: E731
    elif groups is not None:
        if not is_list(groups):
            raise InputError(
                f"audit: groups must be labels by id or in a list; got {brief(groups)}. Pass for "
                f"example {{'Nice': 'south'}}."
            )
        given = list(cast("Iterable[str]", groups))
        labels = lambda order: given  # noqa: E731
    if sizes is None:
        return Population([1] * len(ids), ids=ids, groups=labels(ids))
    if isinstance(sizes, Population):
        return sizes
    if must_be_read(sizes):
        return read(sizes, Reading()).population
    if isinstance(sizes, Mapping):
        names = list(map(str, sizes))
        return Population(list(sizes.values()), ids=names, groups=labels(names))
    if not is_list(sizes):
        raise InputError(
            f"audit: sizes must be numbers by id or in a list, or a file; got {brief(sizes)}. Pass "
            f"for example {{'Nice': 500}}."
        )
    if not hasattr(sizes, "__len__"):
        sizes = list(sizes)
    if len(sizes) != len(ids):
        raise InputError(
            f"audit: sizes in a list must be one for each of the {len(ids)} clients of the log; "
            f"got {len(sizes)}. Give sizes by id."
        )
    return Population(sizes, ids=ids, groups=labels(ids))
