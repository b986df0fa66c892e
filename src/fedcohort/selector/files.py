"""The files of a selector: its saved state, and a log of who was drawn and who failed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from logging import getLogger
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import Id
from fedcohort._updates import moved
from fedcohort._whole_file import read_arrays, reason_of
from fedcohort.cohort import Cohort
from fedcohort.designs import Design, Recipe, RowDesign
from fedcohort.errors import SelectorError, WriteError
from fedcohort.memory import Difference
from fedcohort.selector.open_round import FailureRule
from fedcohort.selector.roster import Roster
from fedcohort.streams import Stream, stream

log = getLogger("fedcohort")

FORMAT = "fedcohort selector 1"
#: Clients that the summary names.
LINES = 20

State = Mapping[str, NDArray[Any]]


@final
@dataclass(frozen=True, slots=True)
class Origin:
    """The arguments of the selector that a state belongs to, except clients and log."""

    recipe: Recipe
    difference: Difference | None
    rule: FailureRule
    seed: int
    sketch: int | None
    overlap: bool
    rebuild_every: int

    def head(self, round_: int) -> NDArray[np.uint8]:
        """Return the head of a state, as an array."""
        return np.frombuffer(json.dumps({**self._plain(), "round": round_}).encode(), np.uint8)

    def round_of(self, state: State) -> int:
        """Return the round of a state; refuse a state of another recipe or other settings."""
        head = head_of(state)
        for name, own in self._plain().items():
            if _compared(head.get(name)) != _compared(own):
                raise SelectorError(
                    f"Selector: the state was written with another {name}, "
                    f"{_shown(head.get(name))}; got {_shown(own)}. Use the same one."
                )
        return int(head["round"])

    def _plain(self) -> dict[str, Any]:
        """Return all arguments as JSON values; a recipe of the user's as text."""
        recipe, difference = self.recipe, self.difference
        is_ours = _catalogue().get(recipe.name) is type(recipe)
        values = {
            "recipe": {
                "name": recipe.name,
                "fields": asdict(recipe) if is_ours else None,
                "text": repr(recipe),
            },
            "seed": self.seed,
            "estimator": None if difference is None else asdict(difference),
            "sketch": self.sketch,
            "failures": asdict(self.rule),
            "overlap": self.overlap,
            "rebuild_every": self.rebuild_every,
        }
        plain: dict[str, Any] = json.loads(json.dumps(values, default=np.generic.item))
        return plain


def _compared(value: Any) -> Any:
    """Leave out the path of the estimator's file: a folder with its checkpoint may move."""
    return {**value, "file": None} if isinstance(value, dict) and "file" in value else value


def head_of(state: State) -> dict[str, Any]:
    """Return the head of a state; without a valid one, raise a ``ValueError``."""
    try:
        head: dict[str, Any] = json.loads(state["head"].tobytes())
        round_ = int(head["round"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ValueError("it has no head") from error
    if round_ < 0:
        raise ValueError(f"its round is {round_}")
    return {**head, "round": round_}


@contextmanager
def refusing_states(path: Path | None = None) -> Iterator[None]:
    """Turn the errors of an invalid state into one sentence; ``path`` is the file it is from."""
    try:
        yield
    except SelectorError:
        raise
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        why = _why(error)
        if path is None:
            message = f"this is not the state of a selector ({why}). Pass what state() gave."
        else:
            message = (
                f"{path} cannot be used ({why}). Load another checkpoint, or start a new selector."
            )
        raise SelectorError(f"Selector: {message}") from error


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return reason_of(error)
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return str(error).partition("\n")[0].rstrip(".")


def read_state(path: Path, recipe: Recipe | None) -> tuple[State, dict[str, Any]]:
    """Return the state in a file, and the arguments of the selector that wrote it.

    ``recipe`` replaces the file's. Any other or damaged file is refused.
    """
    with refusing_states(path):
        state = read_arrays(path, FORMAT)
        return state, _arguments(path, head_of(state), recipe)


def _arguments(path: Path, head: dict[str, Any], recipe: Recipe | None) -> dict[str, Any]:
    saved, difference = head["recipe"], head["estimator"]
    if recipe is None:
        recipes = _catalogue()
        if saved["fields"] is None or saved["name"] not in recipes:
            raise SelectorError(
                f"Selector: {path} was written with a recipe that is not the library's, "
                f"{saved['text']}. Pass it as recipe=."
            )
        recipe = recipes[saved["name"]](**saved["fields"])
    return {
        "recipe": recipe,
        "seed": head["seed"],
        "estimator": "plain" if difference is None else Difference(**difference),
        "sketch": head["sketch"],
        "overlap": head["overlap"],
        "rebuild_every": head["rebuild_every"],
        **head["failures"],
    }


def _catalogue() -> Mapping[str, type[Recipe]]:
    """Import all recipes; only files need them."""
    from fedcohort.designs import RECIPES

    return RECIPES


def _shown(value: object) -> object:
    return value["text"] if isinstance(value, dict) and "text" in value else value


@final
class SelectionLog:
    """Count every client's draws, and write a JSON line for every round.

    Each of these has shape (n_clients,): how often a client was ``drawn``, how often it was
    ``expected`` to be, and in how many rounds it ``failed``. ``expected`` is NaN once a design had
    no formula for it. Without a ``path`` it only counts.
    """

    drawn: NDArray[np.int64]
    failed: NDArray[np.int64]
    expected: NDArray[np.float64]

    def __init__(self, roster: Roster, path: Path | None = None) -> None:
        self._roster, self._path = roster, path
        self.check(roster.ids)
        self._append("")
        self.restore({}, roster.n_clients)

    def check(self, ids: Iterable[object]) -> None:
        """Refuse ids that are the same as text: JSON keys are text."""
        if self._path is None or isinstance(ids, range):
            return
        known: dict[str, object] = {}
        for each in ids:
            other = known.setdefault(str(each), each)
            if other is not each:
                raise SelectorError(
                    f"Selector: a log file needs ids that differ as text; got {other!r} and "
                    f"{each!r}. Rename one, or pass log=True, which only counts."
                )

    def write(
        self,
        drawn: Cohort,
        settled: Cohort,
        design: Design | None,
        failed: Mapping[Id, str],
        seed: int,
    ) -> None:
        """Log a round, and count it."""
        counts = dict(zip(drawn.ids, drawn.counts.tolist(), strict=True))
        if self._path is not None:
            line = {
                "round": drawn.round_,
                "drawn": counts,
                "rows": self._rows(design, drawn.round_, seed),
                "weights": dict(zip(settled.ids, settled.weights.tolist(), strict=True)),
                "failed": dict(failed),
            }
            self._append(json.dumps(line) + "\n")
        log.info("round %d: drawn %s, failed %s", drawn.round_, counts, list(failed) or "none")
        self.drawn[drawn.clients] += drawn.counts
        self.failed[self._roster.positions(failed)] += 1
        if design is not None:
            # An estimate would take a thousand draws: leave it unknown.
            self.expected += design.expected_counts() if design.exact_counts else np.nan

    def _append(self, text: str) -> None:
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise WriteError(f"{self._path}: cannot be written ({reason_of(error)})") from error

    def summary(self) -> dict[Id, tuple[int, float]]:
        """Return how often each client was drawn, and how often it was expected to be."""
        pairs = zip(self.drawn.tolist(), self.expected.tolist(), strict=True)
        return dict(zip(self._roster.ids, pairs, strict=True))

    def log_summary(self) -> None:
        """Log who was drawn how often, the most surprising first."""
        surprise = np.abs(self.drawn - self.expected) / np.sqrt(np.maximum(self.expected, 1.0))
        surprise = np.nan_to_num(surprise)  # NaN: nothing was expected
        for k in np.argsort(-surprise, kind="stable")[:LINES].tolist():
            failed = f", failed {self.failed[k]} times" if self.failed[k] else ""
            each, drawn, expected = self._roster.ids[k], self.drawn[k], self.expected[k]
            log.info("client %s: drawn %d times, %.1f expected%s", each, drawn, expected, failed)
        if len(surprise) > LINES:
            log.info("and %d more clients", len(surprise) - LINES)

    def rearrange(self, order: NDArray[np.int64]) -> None:
        """Move to other positions: ``order`` gives each client's old one, -1 for a new client."""
        self.drawn, self.failed = moved(self.drawn, order), moved(self.failed, order)
        self.expected = moved(self.expected, order)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything that is saved."""
        return {"drawn": self.drawn, "failed": self.failed, "expected": self.expected}

    def restore(self, state: Mapping[str, NDArray[Any]], n_clients: int) -> None:
        """Take over what :meth:`state` gave; without it, start counting now."""
        none = np.zeros(n_clients)
        self.drawn = state.get("drawn", none).astype(np.int64)
        self.failed = state.get("failed", none).astype(np.int64)
        self.expected = state.get("expected", none).astype(np.float64)
        counts = (self.drawn, self.failed, self.expected)
        if len(state) not in (0, 3) or any(each.shape != (n_clients,) for each in counts):
            raise ValueError(f"its log must be of its {n_clients} clients")
        if np.isinf(self.expected).any():
            raise ValueError("its log must not be infinite")

    def _rows(self, design: Design | None, round_: int, seed: int) -> list[Id] | None:
        """Return the client of each distribution: the same stream gives the same draw again."""
        if not isinstance(design, RowDesign):
            return None
        rng = stream(seed, round_=round_, use=Stream.COHORT)
        return self._roster.names(design.plan.draw_clients(1, rng)[0])
