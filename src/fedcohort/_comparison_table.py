"""The rows of a comparison, one per design, and the table of all rows."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from fedcohort.baselines.chosen import ChosenDesign
from fedcohort.designs import AutoDesign, Design, MultinomialDesign, Recipe
from fedcohort.designs.signals import ASKED, Signals
from fedcohort.diagnostics import Estimate, Summary, estimated_aggregate_variance, summary
from fedcohort.population import Population
from fedcohort.similarity.measures import largest_entries
from fedcohort.streams import Stream, stream

#: The number of draws that are timed; the result is their median.
TIMED_DRAWS = 15
#: The number of cohorts to estimate V without a formula, to about 2 %.
MEASURED_COHORTS = 200


@dataclass(frozen=True, slots=True, eq=False)
class GivenUpdates:
    """A memory of the updates passed by the user, shape (n_clients, dimension)."""

    updates: NDArray[np.floating]

    @property
    def norms(self) -> NDArray[np.float64]:
        """The Euclidean norm of every update, in float64."""
        return np.asarray(np.linalg.norm(self.updates.astype(np.float64), axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """What the designs are compared on; clients and updates are in the order of ids."""

    population: Population
    cohort_size: int
    seed: int
    given: GivenUpdates | None


@dataclass(frozen=True, slots=True)
class Baseline:
    """Multinomial sampling's variances; None if they are 0 or unknown."""

    weight_variance: float | None
    aggregate_variance: float | None


@dataclass(frozen=True, slots=True)
class Row(Summary):
    """One design of a comparison; the attributes of :class:`Summary`, and these.

    Attributes
    ----------
    label
        The design's name in the table.
    recipe, design
        The recipe, and the design that it builds for the first round.
    weight_variance_ratio
        The weight variance divided by multinomial's; None if that is 0.
    weights_exact
        Whether bias, weight variance and chances have formulas. If not, they are estimated.
    aggregate_variance
        V, the variance of the aggregate on the given updates, bias included; None without updates.
    aggregate_variance_exact, aggregate_variance_standard_error
        Whether V has a formula. If not, it is estimated with this standard error (else 0).
    aggregate_variance_ratio
        V divided by multinomial's; None if that is 0.
    build_seconds, draw_seconds
        The time to build the design, and the median time of a draw.
    """

    label: str
    recipe: Recipe
    design: Design
    weight_variance_ratio: float | None
    weights_exact: bool
    aggregate_variance: float | None
    aggregate_variance_exact: bool | None
    aggregate_variance_standard_error: float | None
    aggregate_variance_ratio: float | None
    build_seconds: float
    draw_seconds: float

    def __repr__(self) -> str:
        return f"Row({self.label!r}, {self.recipe!r})"

    def values(self) -> dict[str, object]:
        """Return the label (as ``design``) and all numbers by name; V only if there are updates."""
        known = {each.name: getattr(self, each.name) for each in fields(self)}
        label = known.pop("label")
        kept = {
            name: value
            for name, value in known.items()
            if name not in ("recipe", "design")
            and not (self.aggregate_variance is None and name.startswith("aggregate"))
        }
        return {"design": label, **kept}


def baseline_of(task: Task) -> Baseline:
    """Return the variances that the designs' variances are divided by."""
    design = MultinomialDesign(task.population, task.cohort_size)
    weights, aggregate = summary(design).weight_variance, None
    if task.given is not None:
        updates = task.given.updates
        aggregate = design.aggregate_variance(updates)
        # For equal updates V is only the rounding of their mean, at most n eps per entry.
        rounding = len(updates) * np.finfo(np.float64).eps * largest_entries(updates).max()
        if aggregate <= updates.shape[1] * rounding**2 / task.cohort_size:
            aggregate = None
    return Baseline(weights or None, aggregate)


def row_of(label: str, recipe: Recipe, task: Task, baseline: Baseline) -> Row:
    """Build, evaluate and time one design."""
    if recipe.learns:
        import_module("scipy.cluster.hierarchy")  # load it now: not part of build time
    start = time.perf_counter()
    design = first_design(recipe, task.population, seed=task.seed, given=task.given)
    build_seconds = time.perf_counter() - start
    found, draw_seconds = summary(design), _draw_seconds(design, task.seed)
    variance = None if task.given is None else _variance(design, task.given, task.seed)
    return Row(
        **asdict(found),
        label=label,
        recipe=recipe,
        design=design,
        weight_variance_ratio=_ratio(found.weight_variance, baseline.weight_variance),
        weights_exact=design.exact_weights,
        aggregate_variance=None if variance is None else variance.value,
        aggregate_variance_exact=None if variance is None else design.exact_moments,
        aggregate_variance_standard_error=None if variance is None else variance.standard_error,
        aggregate_variance_ratio=(
            None if variance is None else _ratio(variance.value, baseline.aggregate_variance)
        ),
        build_seconds=build_seconds,
        draw_seconds=draw_seconds,
    )


def first_design(
    recipe: Recipe, population: Population, *, seed: int, given: GivenUpdates | None = None
) -> Design:
    """Build the design of a selector with this seed in round 0, as if it knew these updates.

    ``population`` is in the order of ids.
    """
    signals = _signals(recipe, population, seed, given) if recipe.signals else None
    rng = stream(seed, use=Stream.TIES)
    return recipe.build(population, memory=given, signals=signals, rng=rng)


def note_on(label: str, design: Design) -> str | None:
    """Return a sentence if a design's numbers are valid for one round only, else None."""
    if not isinstance(design, ChosenDesign):
        return None
    return (
        f"{label}: chooses anew in every round, and these numbers are those of one cohort, certain "
        f"once it is chosen; fedcohort.diagnostics.estimated_bias measures many rounds."
    )


def _signals(
    recipe: Recipe, population: Population, seed: int, given: GivenUpdates | None
) -> Signals:
    """Return the signals before round 0: no past signals, and the norms of the asked clients."""
    nothing = np.full(population.n_clients, np.nan)
    known = {name: nothing.copy() for name in recipe.signals if name not in ASKED}
    request = recipe.ask(population, 0, stream(seed, use=Stream.CANDIDATES))
    if given is not None and request is not None and request.signal == "update_norm":
        known["update_norm"] = nothing.copy()
        known["update_norm"][request.clients] = given.norms[request.clients]
    return known


def _draw_seconds(design: Design, seed: int) -> float:
    times = []
    for round_ in range(TIMED_DRAWS):
        rng = stream(seed, round_=round_, use=Stream.COHORT)
        before = time.perf_counter()
        design.draw(rng)
        times.append(time.perf_counter() - before)
    return float(np.median(times))


def _variance(design: Design, given: GivenUpdates, seed: int) -> Estimate:
    if design.exact_moments:
        return Estimate(design.aggregate_variance(given.updates), 0.0)
    rng = stream(seed, round_=TIMED_DRAWS, use=Stream.COHORT)
    return estimated_aggregate_variance(design, given.updates, rng=rng, rounds=MEASURED_COHORTS)


def _ratio(value: float, divisor: float | None) -> float | None:
    return None if divisor is None else value / divisor


#: The longest line, and the default and the smallest width of the column of names.
COLUMNS, NAMES, FEWEST = 80, 16, 12

Cell = Callable[[Row], str]

#: Heading and content of every column after the design's label.
SIZES_COLUMNS: dict[str, Cell] = {
    "\nbias": lambda row: "none" if row.unbiased else _mark(row.weights_exact) + f"{row.bias:.3f}",
    "weight\nvar.": lambda row: _mark(row.weights_exact) + short(row.weight_variance),
    "vs\nMD": lambda row: _marked(row.weights_exact, row.weight_variance_ratio),
    "min.\nincl.": lambda row: short(row.smallest_inclusion),
    "mean\nincl.": lambda row: short(row.mean_inclusion),
    "distinct\nclients": lambda row: short(row.expected_distinct, digits=4),
    "max\ndraws": lambda row: short(row.max_count, digits=4),
    "\nbuild": lambda row: in_seconds(row.build_seconds),
    "\ndraw": lambda row: in_seconds(row.draw_seconds),
}
UPDATES_COLUMNS: dict[str, Cell] = {
    "\nV": lambda row: _marked(row.aggregate_variance_exact, row.aggregate_variance),
    "V vs\nMD": lambda row: _marked(row.aggregate_variance_exact, row.aggregate_variance_ratio),
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
    chosen = [wrapped(_choice(row)) for row in rows if has_updates and _is_auto(row)]
    return "\n\n".join([text, *chosen])


def wrapped(text: str) -> str:
    """Break a sentence into lines that fit."""
    return textwrap.fill(text, COLUMNS)


def short(value: float | None, digits: int = 3) -> str:
    """Write a number in at most six characters."""
    if value is None:
        return "-"
    if value == 0 or 1e-2 <= abs(value) < 10 ** (digits + 1):
        return f"{value:.{digits}g}"
    for places in (1, 0):
        mantissa, _, exponent = f"{value:.{places}e}".partition("e")
        text = f"{mantissa.removesuffix('.0')}e{int(exponent)}"
        if len(text) <= 6:
            break
    return text


def in_seconds(seconds: float) -> str:
    """Write a time in at most six characters."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * size:
            return (
                f"{seconds / size:.3g} {unit}"
                if seconds < 100 * size
                else f"{seconds / size:.0f} {unit}"
            )
    return f"{seconds / 1e-6:.0f} us"


def _is_auto(row: Row) -> bool:
    return isinstance(row.design, AutoDesign)


def _choice(row: Row) -> str:
    assert isinstance(row.design, AutoDesign)  # for mypy: the caller has checked
    predicted = ", ".join(f"{name} {short(v)}" for name, v in row.design.predicted.items())
    return f"{row.label} draws from {row.design.choice}; predicted V: {predicted}"


def _mark(exact: bool | None) -> str:
    return "~" if exact is False else ""


def _marked(exact: bool | None, value: float | None) -> str:
    """Write a number, with ``~`` before an estimate."""
    return "-" if value is None else _mark(exact) + short(value)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *more = zip(cells, widths, strict=True)
    line = [f"{first[0]:<{first[1]}}", *(f"{cell:>{width}}" for cell, width in more)]
    return " ".join(line).rstrip()


def _folded(text: str, width: int) -> list[str]:
    return [text[start : start + width] for start in range(0, max(len(text), 1), width)]
