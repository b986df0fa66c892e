"""The rows of a comparison, one per design, and the table of all rows."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.baselines.chosen import ChosenDesign
from fedcohort.designs import AutoDesign, Design, MultinomialDesign, Recipe
from fedcohort.designs.recipe import GivenUpdates
from fedcohort.designs.signals import ASKED
from fedcohort.diagnostics import Estimate, Summary, estimated_aggregate_variance, summary
from fedcohort.population import Population
from fedcohort.similarity.measures import largest_entries
from fedcohort.streams import Stream, stream

#: The number of draws that are timed; the result is their median.
TIMED_DRAWS = 15
#: The number of cohorts to estimate V without a formula, to about 2 %.
MEASURED_COHORTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Summary):
    """One design of a comparison; :class:`~fedcohort.Comparison` describes the attributes."""

    label: str
    recipe: Recipe
    design: Design
    weight_variance_ratio: float | None
    weights_exact: bool
    aggregate_variance: float | None = None
    aggregate_variance_exact: bool | None = None
    aggregate_variance_standard_error: float | None = None
    aggregate_variance_ratio: float | None = None
    build_seconds: float
    draw_seconds: float

    def __repr__(self) -> str:
        return f"Row({self.label!r}, {self.recipe!r})"

    def values(self) -> dict[str, object]:
        """Return the label (as ``design``) and all numbers by name; V only if there are updates."""
        names = [
            each.name for each in fields(self) if each.name not in ("label", "recipe", "design")
        ]
        if self.aggregate_variance is None:
            names = [name for name in names if not name.startswith("aggregate")]
        return {"design": self.label, **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True)
class Task:
    """What the designs are compared on; clients and updates are in the order of ids."""

    population: Population
    cohort_size: int
    seed: int
    updates: NDArray[np.floating] | None

    def row(self, label: str, recipe: Recipe) -> Row:
        """Build, evaluate and time one design."""
        if recipe.learns:
            import_module("scipy.cluster.hierarchy")  # load it now: not part of build time
        start = time.perf_counter()
        design = first_design(recipe, self.population, seed=self.seed, updates=self.updates)
        build_seconds = time.perf_counter() - start
        found = summary(design)
        return Row(
            **asdict(found),
            label=label,
            recipe=recipe,
            design=design,
            weight_variance_ratio=_ratio(found.weight_variance, self._baselines[0]),
            weights_exact=design.exact_weights,
            **self._aggregate(design),
            build_seconds=build_seconds,
            draw_seconds=self._draw_seconds(design),
        )

    @cached_property
    def _baselines(self) -> tuple[float, float]:
        """Multinomial sampling's weight variance, and its V; 0 without updates."""
        design = MultinomialDesign(self.population, self.cohort_size)
        weights, updates = summary(design).weight_variance, self.updates
        if updates is None:
            return weights, 0.0
        variance = design.aggregate_variance(updates)
        # For equal updates V is only the rounding of their mean, at most n eps per entry.
        rounding = len(updates) * np.finfo(np.float64).eps * largest_entries(updates).max()
        is_rounding = variance <= updates.shape[1] * rounding**2 / self.cohort_size
        return weights, 0.0 if is_rounding else variance

    def _aggregate(self, design: Design) -> dict[str, Any]:
        """Return V and what belongs to it; nothing without updates."""
        if self.updates is None:
            return {}
        if design.exact_moments:
            found = Estimate(design.aggregate_variance(self.updates), 0.0)
        else:
            rng = stream(self.seed, round_=TIMED_DRAWS, use=Stream.COHORT)
            found = estimated_aggregate_variance(
                design, self.updates, rng=rng, rounds=MEASURED_COHORTS
            )
        return {
            "aggregate_variance": found.value,
            "aggregate_variance_exact": design.exact_moments,
            "aggregate_variance_standard_error": found.standard_error,
            "aggregate_variance_ratio": _ratio(found.value, self._baselines[1]),
        }

    def _draw_seconds(self, design: Design) -> float:
        times = []
        for round_ in range(TIMED_DRAWS):
            rng = stream(self.seed, round_=round_, use=Stream.COHORT)
            before = time.perf_counter()
            design.draw(rng)
            times.append(time.perf_counter() - before)
        return float(np.median(times))


def first_design(
    recipe: Recipe,
    population: Population,
    *,
    seed: int,
    updates: NDArray[np.floating] | None = None,
) -> Design:
    """Build the design of a selector with this seed in round 0, as if it knew these updates.

    ``population`` is in the order of ids. There are no past signals; of those that clients are
    asked for, only the norms of their updates are known.
    """
    nothing = np.full(population.n_clients, np.nan)
    signals = {name: nothing.copy() for name in recipe.signals if name not in ASKED}
    request = recipe.ask(population, 0, stream(seed, use=Stream.CANDIDATES))
    if updates is not None and request is not None and request.signal == "update_norm":
        rows = updates[request.clients].astype(np.float64)
        signals["update_norm"] = nothing.copy()
        signals["update_norm"][request.clients] = np.linalg.norm(rows, axis=1)
    memory = None if updates is None else GivenUpdates(updates)
    rng = stream(seed, use=Stream.TIES)
    return recipe.build(population, memory=memory, signals=signals, rng=rng)


def note_on(label: str, design: Design) -> str | None:
    """Return a sentence if a design's numbers are valid for one round only, else None."""
    if not isinstance(design, ChosenDesign):
        return None
    return (
        f"{label} chooses new clients in every round; these numbers describe one such cohort. To "
        f"measure many rounds, call fedcohort.diagnostics.estimated_bias."
    )


def _ratio(value: float, divisor: float) -> float | None:
    return value / divisor if divisor else None


#: The longest line, and the default and the smallest width of the column of names.
COLUMNS, NAMES, FEWEST = 80, 16, 12

Cell = Callable[[Row], str]

#: Heading and content of every column after the design's label.
SIZES_COLUMNS: dict[str, Cell] = {
    "\nbias": lambda row: (
        "none" if row.unbiased else f"{'' if row.weights_exact else '~'}{row.bias:.3f}"
    ),
    "weight\nvar.": lambda row: cell_text(row.weight_variance, exact=row.weights_exact),
    "vs\nMD": lambda row: cell_text(row.weight_variance_ratio, exact=row.weights_exact),
    "min.\nincl.": lambda row: cell_text(row.smallest_inclusion),
    "mean\nincl.": lambda row: cell_text(row.mean_inclusion),
    "distinct\nclients": lambda row: cell_text(row.expected_distinct, digits=4),
    "max\ndraws": lambda row: cell_text(row.max_count, digits=4),
    "\nbuild": lambda row: in_seconds(row.build_seconds),
    "\ndraw": lambda row: in_seconds(row.draw_seconds),
}
UPDATES_COLUMNS: dict[str, Cell] = {
    "\nV": lambda row: cell_text(row.aggregate_variance, exact=row.aggregate_variance_exact),
    "V vs\nMD": lambda row: cell_text(
        row.aggregate_variance_ratio, exact=row.aggregate_variance_exact
    ),
}
#: Columns that are left out if V is shown.
LEFT_OUT = ("min.\nincl.", "mean\nincl.", "max\ndraws")

WEIGHTS_TEXT = """\
bias         sum over clients of |E[w] - p|: w aggregation weight, p importance
weight var.  sum over clients of Var[w]; vs MD: divided by multinomial's"""
SIZES_TEXT = f"""{WEIGHTS_TEXT}
incl.        chance to be in the cohort: smallest, and importance-weighted mean
max draws    how often one client can be drawn in one round"""
UPDATES_TEXT = f"""\
V            E|sum w u - sum p u|^2, u the updates: how far a cohort's aggregate
             is from everyone's, bias included; vs MD: divided by multinomial's
{WEIGHTS_TEXT}"""
MEASURED_TEXT = f"""
~            no formula: estimated by Monte Carlo on {MEASURED_COHORTS} drawn cohorts;
             to_frame() and --json have the standard error"""
ESTIMATED_TEXT = """
~            no formula: the design's numbers are estimated on drawn cohorts"""


def cells_of(rows: Iterable[Row], *, has_updates: bool) -> tuple[list[str], list[list[str]]]:
    """Return the two-line headings, and a line of cells for every design."""
    columns = SIZES_COLUMNS
    if has_updates:
        kept = {name: cell for name, cell in SIZES_COLUMNS.items() if name not in LEFT_OUT}
        columns = UPDATES_COLUMNS | kept
    lines = [[row.label, *(cell(row) for cell in columns.values())] for row in rows]
    return ["\ndesign", *columns], lines


def text_table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    r"""Write a table: the first column left-aligned and wrapped, the others right-aligned.

    Examples
    --------
    >>> print(text_table(["\ndesign", "weight\nvar."], [["size:whole_rows_first", "0.1"]]))
                     weight
    design             var.
    ───────────────────────
    size:               0.1
    whole_rows_first
    """
    lines = list(lines)
    heads = [heading.split("\n") for heading in headings]
    widths = [max(map(len, [*head, *(line[k] for line in lines)])) for k, head in enumerate(heads)]
    names = [line[0].replace(":", ":\n").split("\n") for line in lines]
    longest = max([NAMES, *(len(part) for parts in names for part in parts)])
    widths[0] = max(FEWEST, min(longest, COLUMNS - sum(widths[1:]) - len(widths[1:])))
    text = [_line([head[k] for head in heads], widths) for k in range(2)]
    text.append("─" * (sum(widths) + len(widths) - 1))
    for parts, line in zip(names, lines, strict=True):
        first, *more = [piece for part in parts for piece in _folded(part, widths[0])]
        text += [_line([first, *line[1:]], widths), *more]
    return "\n".join(text)


def legend(rows: Sequence[Row], *, has_updates: bool) -> str:
    """Return the meaning of the columns, and what ``auto`` has chosen."""
    text = UPDATES_TEXT if has_updates else SIZES_TEXT
    if has_updates and not all(row.design.exact_moments for row in rows):
        text += MEASURED_TEXT
    elif not all(row.weights_exact for row in rows):
        text += ESTIMATED_TEXT
    chosen = []
    for row in rows if has_updates else ():
        if isinstance(row.design, AutoDesign):
            predicted = ", ".join(
                f"{name} {cell_text(v)}" for name, v in row.design.predicted.items()
            )
            choice = f"{row.label} draws from {row.design.choice}; predicted V: {predicted}"
            chosen.append(wrapped(choice))
    return "\n\n".join([text, *chosen])


def wrapped(text: str) -> str:
    """Break a sentence into lines that fit."""
    return textwrap.fill(text, COLUMNS)


def cell_text(value: float | None, digits: int = 3, *, exact: bool | None = True) -> str:
    """Write a number in at most six characters, with ``~`` before an estimate."""
    if value is None:
        return "-"
    mark = "~" if exact is False else ""
    if value == 0 or 1e-2 <= abs(value) < 10 ** (digits + 1):
        return f"{mark}{value:.{digits}g}"
    for places in (1, 0):
        mantissa, _, exponent = f"{value:.{places}e}".partition("e")
        text = f"{mantissa.removesuffix('.0')}e{int(exponent)}"
        if len(text) <= 6:
            break
    return mark + text


def in_seconds(seconds: float) -> str:
    """Write a time in at most six characters."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        number = seconds / size
        if number >= 0.9995:
            return f"{number:.3g} {unit}" if number < 100 else f"{number:.0f} {unit}"
    return f"{seconds / 1e-6:.0f} us"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *more = zip(cells, widths, strict=True)
    line = [f"{first[0]:<{first[1]}}", *(f"{cell:>{width}}" for cell, width in more)]
    return " ".join(line).rstrip()


def _folded(text: str, width: int) -> list[str]:
    return [text[start : start + width] for start in range(0, max(len(text), 1), width)]
