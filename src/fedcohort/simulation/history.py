"""The history of a run, round by round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import TextNeed, as_array, checked_flag
from fedcohort._display import html_table, short_repr
from fedcohort._figures import check_axes, checked_figure_path, new_figure, save_figure
from fedcohort._lazy import frame_of
from fedcohort.errors import SimulationError
from fedcohort.simulation.devices.cost import Cost
from fedcohort.simulation.engine.evaluation import Quality, Yardstick


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one run.

    Attributes
    ----------
    round_
        From 0.
    clients, counts, weights, residual
        The cohort.
    distinct_classes
        Classes that the cohort's clients have samples of.
    draw_seconds, train_seconds, measure_seconds
        Time to build the design, or to wait for it, and to draw; to train and aggregate (all runs
        that train together); to measure, the yardstick included.
    quality
        Of the model after the round, where it was measured.
    yardstick
        Against full participation, where it was asked for.
    rows
        For every client the distribution that holds most of it (-1: none); None if not asked for,
        or if the design has no distributions.
    cost
        Bytes, client work and simulated time; None in rounds that an older version recorded.
    failed
        Clients without an update: they failed, or their training was not finite.
    scaled
        Clients whose updates were scaled down to ``max_norm``.
    diverged
        Whether training broke down in this round or before: the model's step or loss was not
        finite, or no client of a round had a finite update. One client's is not enough: it counts
        as failed.
    """

    round_: int
    clients: list[int]
    counts: list[int]
    weights: list[float]
    residual: float
    distinct_classes: int
    draw_seconds: float = 0.0
    train_seconds: float = 0.0
    measure_seconds: float = 0.0
    quality: Quality | None = None
    yardstick: Yardstick | None = None
    rows: list[int] | None = None
    cost: Cost | None = None
    failed: list[int] = field(default_factory=list)
    scaled: list[int] = field(default_factory=list)
    diverged: bool = False

    @property
    def distinct_clients(self) -> int:
        """How many clients trained."""
        return len(self.clients)

    @property
    def failed_clients(self) -> int:
        """How many updates are missing."""
        return len(self.failed)

    @property
    def scaled_clients(self) -> int:
        """How many updates were scaled down."""
        return len(self.scaled)

    def __repr__(self) -> str:
        return short_repr(
            self, round_=self.round_, distinct_clients=len(self.clients), **_measures(self.quality)
        )


#: Columns that depend on the machine, not on the seed.
TIMES = ("draw_seconds", "train_seconds", "measure_seconds")


def _columns(part: str, record: type) -> dict[str, tuple[str | None, type]]:
    """Return the columns of a part of a round: the fields of its record."""
    return {each.name: (part, int if each.type == "int" else float) for each in fields(record)}


#: A round in one line: the columns, which part of a round each comes from, and its type.
COLUMNS: dict[str, tuple[str | None, type]] = {
    "round": (None, int),
    **_columns("quality", Quality),
    "distinct_clients": (None, int),
    "distinct_classes": (None, int),
    "residual": (None, float),
    **_columns("yardstick", Yardstick),
    **dict.fromkeys(TIMES, (None, float)),
    **_columns("cost", Cost),
    "failed_clients": (None, int),
    "scaled_clients": (None, int),
    "diverged": (None, bool),
}


@dataclass(slots=True)
class History:
    """All rounds of a run, one :class:`Round` for each, in order.

    Attributes
    ----------
    rounds
        The rounds.
    label, seed
        Those of the run; the label is also the name in a legend.

    Examples
    --------
    >>> made = [Round(0, [3], [1], [1.0], 0.0, 1, quality=Quality(0.31, 0.91, 0.1))]
    >>> History(made)
    History(rounds=1, loss=0.31, accuracy=0.91)
    >>> float(History(made).to_frame()["accuracy"][0])
    0.91
    """

    rounds: list[Round] = field(default_factory=list)
    label: str = ""
    seed: int | None = None

    def __repr__(self) -> str:
        diverged = {} if self.diverged_at is None else {"diverged_at": self.diverged_at}
        run = {} if self.seed is None else {"label": self.label, "seed": self.seed}
        return short_repr(
            self, **run, rounds=len(self.rounds), **_measures(self.last_quality), **diverged
        )

    def _repr_html_(self) -> str:
        names = ["round", "loss", "accuracy", "distinct_clients", "failed_clients"]
        names += ["scaled_clients"] * any(each.scaled for each in self.rounds)
        ends = self.rounds if len(self.rounds) <= 6 else [*self.rounds[:3], *self.rounds[-3:]]
        cells = columns_of(ends)
        columns = [["" if v is None else v for v in cells[name]] for name in names]
        rows = [list(row) for row in zip(*columns, strict=True)]
        if len(self.rounds) > len(ends):
            rows.insert(3, ["..."] * len(names))
        return html_table(repr(self), names, rows)

    @property
    def measured(self) -> list[Round]:
        """The rounds whose model was measured."""
        return [each for each in self.rounds if each.quality is not None]

    @property
    def last_quality(self) -> Quality | None:
        """Quality of the model that was measured last; None before the first."""
        return next((each.quality for each in reversed(self.rounds) if each.quality), None)

    @property
    def diverged_at(self) -> int | None:
        """The first round in which training broke down; None if there is none."""
        return next((each.round_ for each in self.rounds if each.diverged), None)

    def to_frame(self) -> Any:
        """Return a data frame with one row per round, NaN where nothing was measured.

        Without pandas it is a dict of numpy arrays. The columns are ``round``; the
        :class:`Quality` of the model after the round; the cohort (``distinct_clients``,
        ``distinct_classes``, ``residual``); the :class:`Yardstick`; the seconds that the round took
        here; the :class:`Cost`; ``failed_clients``, ``scaled_clients`` and ``diverged``.
        """
        found = columns_of(self.rounds)
        return frame_of({name: _array(found[name], COLUMNS[name][1]) for name in COLUMNS})

    def plot(
        self, path: str | Path | None = None, ax: Any = None, *, label: str | None = None
    ) -> NDArray[Any]:
        """Draw the loss, and where it was measured the accuracy, against the rounds done.

        Parameters
        ----------
        path
            Also write the figure to this file: .png, .svg or .pdf.
        ax
            The axes to draw on: what another history's ``plot`` returned, or matplotlib axes; by
            default those of a new figure.
        label
            The name of this history in a legend; by default its own.

        Returns
        -------
        numpy.ndarray
            The axes of the loss and, where there is one, of the accuracy.
        """
        owner = "History.plot"
        need = TextNeed(optional=True, way_out="Pass a name.")
        need.checked(owner, "label", label, error=SimulationError)
        label = self.label if label is None else label
        file = checked_figure_path(path, owner, "path")
        measured = [(each.round_ + 1, each.quality) for each in self.rounds if each.quality]
        if not measured:
            raise SimulationError(
                f"{owner}: needs a measured round; got {len(self.rounds)} rounds, none of "
                f"them measured. Call Simulation.run first."
            )
        has_accuracy = any(not math.isnan(quality.accuracy) for _, quality in measured)
        names = ("loss", "accuracy") if has_accuracy else ("loss",)
        if ax is None:
            size = (5 * len(names), 3.5)
            ax = new_figure(owner, size, shown=path is None).subplots(1, len(names))
        places = np.atleast_1d(as_array(ax)).ravel()
        check_axes(owner, *(places.tolist() or [ax]))
        for place, name in zip(places, names, strict=False):
            values = [getattr(quality, name) for _, quality in measured]
            place.plot([done for done, _ in measured], values, label=label or None)
            place.set(xlabel="rounds", ylabel=name)
            if label:
                place.legend()
        if file is not None:
            save_figure(places[0].figure.figure, file)  # of a subfigure, the whole one
        return places

    def as_dicts(self, *, times: bool = True) -> list[dict[str, Any]]:
        """Return every round as plain numbers; without ``times``, only those that a seed fixes."""
        checked_flag("History", "times", times, error=SimulationError)
        left_out = () if times else TIMES
        rows = [asdict(each) for each in self.rounds]
        return [{key: row[key] for key in row if key not in left_out} for row in rows]

    @classmethod
    def of_dicts(cls, rows: list[dict[str, Any]]) -> History:
        """Invert :meth:`as_dicts`."""
        try:
            return cls([_round(row) for row in rows])
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise SimulationError(
                f"History: these are not the rounds of a history ({str(error)[:80]}). Pass what "
                f"as_dicts() gave."
            ) from error


def columns_of(rounds: Sequence[Round]) -> dict[str, list[Any]]:
    """Return rounds as :data:`COLUMNS`; None where nothing was measured, or has no formula."""
    found: dict[str, list[Any]] = {}
    for name, (part, _) in COLUMNS.items():
        attribute = "round_" if name == "round" else name
        whole = rounds if part is None else [getattr(each, part) for each in rounds]
        found[name] = [None if each is None else getattr(each, attribute) for each in whole]
        if part == "yardstick":
            # NaN: the design has no formula, or a client's training was not finite.
            found[name] = [None if v is None or math.isnan(v) else v for v in found[name]]
    return found


def _array(values: list[Any], kind: type) -> NDArray[Any]:
    """Return a column; integers become floats if a value is missing."""
    if any(value is None for value in values):
        return np.array([math.nan if value is None else value for value in values], np.float64)
    return np.array(values, dtype=np.int64 if kind is int else kind)


def _measures(quality: Quality | None) -> dict[str, float]:
    """Return the measures for a ``repr``; accuracy only if there are test samples."""
    if quality is None:
        return {}
    accuracy = {} if math.isnan(quality.accuracy) else {"accuracy": quality.accuracy}
    return {"loss": quality.loss, **accuracy}


def _round(row: dict[str, Any]) -> Round:
    kinds = {"quality": Quality, "yardstick": Yardstick, "cost": Cost}
    parts = {name: kind(**row[name]) for name, kind in kinds.items() if row.get(name) is not None}
    return Round(**{**row, **parts})
