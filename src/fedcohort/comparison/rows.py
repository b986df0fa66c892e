"""Compare designs on given clients: build, evaluate and time each of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from importlib import import_module
from tokenize import TokenError
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import as_whole, brief, checked_cohort_size, name_of, named_values
from fedcohort._updates import Rows, as_numpy, largest_entries
from fedcohort._whole_file import reason_of
from fedcohort.client_files.clients import doubtful_names, read
from fedcohort.client_files.formats import Source, must_be_read
from fedcohort.client_files.table import Reading
from fedcohort.comparison.shown import Comparison
from fedcohort.designs import Design, MultinomialDesign, Recipe
from fedcohort.designs.catalogue import named_recipe, text_of
from fedcohort.designs.signals import ASKED
from fedcohort.diagnostics import Estimate, Summary, estimated_aggregate_variance, summary
from fedcohort.errors import DesignError, InputError, PopulationError
from fedcohort.memory import UpdateMemory
from fedcohort.population import Population
from fedcohort.selector.roster import Clients, Groups
from fedcohort.similarity.measures import checked_updates
from fedcohort.streams import Stream, checked_seed, stream

#: A recipe, or its name as on the command line: ``"size:whole_rows_first"``.
Asked = Recipe | str
#: Wraps a list to show progress, like ``tqdm``.
Progress = Callable[[list[str]], Iterable[str]]

#: Compared by default: designs that need only sizes, and what most frameworks do.
SIZES_ONLY = ("multinomial", "size", "size:whole_rows_first", "poisson")
BASELINES = ("uniform:unbiased", "uniform", "cohort-mean")
#: Compared by default if there are groups.
GROUPED = ("stratified", "target")
#: Compared by default if there are updates: designs that learn.
LEARNERS = ("similarity", "tournament", "auto")
#: Compared by default only if estimating its V takes seconds: up to this many draws, and this many
#: numbers in a cohort's updates.
BALANCED = "balanced"
EASY_COHORT, EASY_NUMBERS = 50, 10**5
#: Up to this number, clients are written out in the lines to paste.
FEW = 6
#: The number of draws that are timed; the result is their median.
TIMED_DRAWS = 15
#: Number of characters of numpy's error message that are shown.
REASON = 70


def compare(
    clients: Clients | Source,
    cohort_size: int,
    *,
    designs: Asked | Iterable[Asked] | Mapping[str, Asked] | None = None,
    updates: ArrayLike | Mapping[Any, Any] | os.PathLike[str] | None = None,
    groups: Groups | None = None,
    seed: int | np.random.Generator | None = 0,
    progress: Progress | None = None,
) -> Comparison:
    """Compare designs on the clients' sizes, and on their updates if given.

    Parameters
    ----------
    clients
        Sizes as a list or an array (ids 0 ... n - 1), sizes by id (a mapping, or a pandas Series
        whose index has names), or a :class:`Population`. Or the path of a CSV, JSON or Excel file,
        or a data frame of pandas, polars or pyarrow: see :func:`read_clients`, which also takes
        the names of its columns.
    cohort_size
        The number of draws in a round. :class:`CohortSizes` compares several.
    designs
        Recipes, or their names as on the command line (``"size:whole_rows_first"``,
        ``"size,multinomial"``); a mapping gives them labels. A recipe keeps its own cohort size.
        The default is all designs that need only sizes, with ``groups`` also those that draw by
        group, and with ``updates`` also those that learn.
    updates
        The clients' last updates: shape (n_clients, dimension) in the order of ``clients``, or
        by id, or the path of a .npy file. Use zeros for a client that has sent none. Adds V, the
        variance of the aggregate.
    groups
        Labels in the order of ``clients``, or by id.
    seed
        The seed of ties and draws: an integer, a generator that is asked for one, or None for a
        random one. ``Selector(recipe, clients, seed=seed)`` has the same designs in round 0.
    progress
        Wraps the list of labels while the designs are built, as ``tqdm`` does.

    Returns
    -------
    Comparison
        Print it for the table; ``answer`` says in words which design to use. A design that cannot
        be built is in ``left_out``, with the reason.

    Raises
    ------
    FedcohortError
        If an argument is invalid, or none of the designs can be built.

    Examples
    --------
    >>> found = compare({"Nice": 5, "Lyon": 3, "Brest": 2}, 2, designs="multinomial,size")
    >>> found.answer.split(" and ")[0]
    'Use size: it draws each client as often as its size says'
    >>> found.rows["size"].weight_variance_ratio.__round__(3)
    0.387
    """
    size = checked_cohort_size("compare", cohort_size)
    if progress is not None and not callable(progress):
        raise DesignError(
            f"compare: progress must be a function or None; got {brief(progress)}. Pass for "
            f"example tqdm."
        )
    given_order, row_notes = _population(clients, groups)
    population, places = given_order.in_order_of_ids()
    rows = None if updates is None else _updates(updates, given_order)
    if rows is not None and not np.array_equal(places, np.arange(len(places))):
        rows = rows[places]
    task = Task(population, size, checked_seed("compare", seed), rows)
    left_out: dict[str, str] = {}
    asked = _defaults(task, left_out) if designs is None else _labelled(designs, size)
    found: dict[str, Row] = {}
    for label in progress(list(asked)) if progress is not None else asked:
        try:
            found[label] = task.row(label, asked[label])
        except DesignError as error:
            if len(asked) == 1:
                raise
            owner, _, reason = str(error).partition(": ")
            left_out[label] = reason if owner.isidentifier() else str(error)
    if not found:
        label, reason = next(iter(left_out.items()))
        raise DesignError(
            f"compare: none of these {len(left_out)} designs can be built; {label}: {reason}"
        )
    dimension = None if rows is None else rows.shape[1]
    source = _source(clients, groups)
    return Comparison(population, size, task.seed, dimension, found, left_out, row_notes, source)


def _source(clients: object, groups: object) -> str:
    """Write the clients as Python does: a short mapping or list, or how a file is read."""
    text = "clients"
    if isinstance(clients, (str, os.PathLike)):
        text = f"read_clients({os.fspath(clients)!r})"
    elif isinstance(clients, (list, dict)) and len(clients) <= FEW:
        text = repr(clients)
    return text if groups is None else f"{text}, groups=groups"


class Variance(NamedTuple):
    """The variance that designs are ranked by, and how well it is known."""

    value: float
    ratio: float | None
    is_exact: bool
    standard_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Summary):
    """One design of a comparison; :class:`~fedcohort.Comparison` describes the attributes."""

    #: The number of cohorts to estimate V without a formula, to about 2 %.
    MEASURED_COHORTS: ClassVar[int] = 200

    label: str
    recipe: Recipe
    design: Design
    law: Design
    weight_variance_ratio: float | None
    weights_exact: bool
    bias_standard_error: float | None
    weight_variance_standard_error: float | None
    aggregate_variance: float | None = None
    aggregate_variance_exact: bool | None = None
    aggregate_variance_standard_error: float | None = None
    aggregate_variance_ratio: float | None = None
    build_seconds: float
    draw_seconds: float

    def __repr__(self) -> str:
        return f"Row({self.label!r}, {self.recipe!r})"

    @property
    def variance(self) -> Variance:
        """V if there are updates, else the variance of the weights."""
        if self.aggregate_variance is not None:
            error, is_exact = self.aggregate_variance_standard_error, self.aggregate_variance_exact
            value, ratio = self.aggregate_variance, self.aggregate_variance_ratio
            return Variance(value, ratio, bool(is_exact), error or 0.0)
        error = self.weight_variance_standard_error or 0.0
        return Variance(self.weight_variance, self.weight_variance_ratio, self.weights_exact, error)

    def values(self) -> dict[str, object]:
        """Return the label (as ``design``) and all numbers by name; V only if there are updates."""
        other = ("label", "recipe", "design", "law")
        names = [each.name for each in fields(self) if each.name not in other]
        if self.aggregate_variance is None:
            names = [name for name in names if not name.startswith("aggregate")]
        return {"design": self.label, **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True)
class Task:
    """The clients that designs are compared on, and their updates, in the order of ids."""

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
        law = design.over_rounds()
        found, errors = summary(law), law.standard_errors() or (None, None)
        return Row(
            **asdict(found),
            label=label,
            recipe=recipe,
            design=design,
            law=law,
            weight_variance_ratio=_ratio(found.weight_variance, self._multinomial[0]),
            weights_exact=law.exact_weights,
            bias_standard_error=errors[0],
            weight_variance_standard_error=errors[1],
            **self._aggregate(law),
            build_seconds=build_seconds,
            draw_seconds=self._draw_seconds(design),
        )

    @cached_property
    def _multinomial(self) -> tuple[float, float]:
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
        """Return V, its ratio and its error; nothing without updates."""
        if self.updates is None:
            return {}
        if design.exact_moments:
            found = Estimate(design.aggregate_variance(self.updates), 0.0)
        else:
            rng = stream(self.seed, round_=TIMED_DRAWS, use=Stream.COHORT)
            found = estimated_aggregate_variance(
                design, self.updates, rng=rng, rounds=Row.MEASURED_COHORTS
            )
        return {
            "aggregate_variance": found.value,
            "aggregate_variance_exact": design.exact_moments,
            "aggregate_variance_standard_error": found.standard_error,
            "aggregate_variance_ratio": _ratio(found.value, self._multinomial[1]),
        }

    def _draw_seconds(self, design: Design) -> float:
        times = []
        for round_ in range(TIMED_DRAWS):
            rng = stream(self.seed, round_=round_, use=Stream.COHORT)
            before = time.perf_counter()
            design.draw(rng)
            times.append(time.perf_counter() - before)
        return float(np.median(times))


def _ratio(value: float, divisor: float) -> float | None:
    return value / divisor if divisor else None


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
    memory = None if updates is None else UpdateMemory.of(updates)
    rng = stream(seed, use=Stream.TIES)
    return recipe.build(population, memory=memory, signals=signals, rng=rng)


def _defaults(task: Task, left_out: dict[str, str]) -> dict[str, Recipe]:
    names = [*SIZES_ONLY, *BASELINES, *(GROUPED if task.population.groups is not None else ())]
    if task.updates is not None:
        names += LEARNERS
        numbers = task.cohort_size * task.updates.shape[1]
        if task.cohort_size <= EASY_COHORT and numbers <= EASY_NUMBERS:
            names.append(BALANCED)
        else:
            left_out[BALANCED] = (
                f"has no formula for V, and measuring it takes long with more than {EASY_COHORT} "
                f"draws or {EASY_NUMBERS} numbers in a cohort's updates. Ask for it by name."
            )
    return {name: named_recipe(name, task.cohort_size) for name in names}


def _labelled(
    designs: Asked | Iterable[Asked] | Mapping[str, Asked], cohort_size: int
) -> dict[str, Recipe]:
    """Return the recipes by label; raise if one is invalid or a label appears twice."""
    labelled: dict[str, Recipe] = {}
    for label, asked in _pairs(designs, cohort_size):
        if not isinstance(asked, (Recipe, str)):
            raise DesignError(
                f"compare: designs must be recipes or their names; got {brief(asked)}. Pass for "
                f"example [SizeClustered(10), 'multinomial']."
            )
        if not isinstance(label, str):
            raise DesignError(
                f"compare: labels of designs must be strings; got {brief(label)}. Name it."
            )
        if label in labelled:
            raise DesignError(
                f"compare: {brief(label)} appears twice in designs. Drop one, or give both labels: "
                f"{{'first': ..., 'second': ...}}."
            )
        labelled[label] = asked if isinstance(asked, Recipe) else named_recipe(asked, cohort_size)
    if not labelled:
        raise DesignError(
            "compare: designs must name at least one design; got none. Leave it out to compare "
            "all that can be built."
        )
    return labelled


def _pairs(designs: object, cohort_size: int) -> Iterator[tuple[object, object]]:
    """Yield labels and designs; a recipe's label has its cohort size only if that differs."""
    if isinstance(designs, Mapping):
        yield from designs.items()
        return
    if isinstance(designs, str):
        designs = designs.split(",")
    elif isinstance(designs, Recipe) or not np.iterable(designs):
        designs = [designs]
    for asked in designs:
        if isinstance(asked, Recipe):
            size = "" if asked.cohort_size == cohort_size else f" (m={asked.cohort_size})"
            yield f"{text_of(asked)}{size}", asked
        else:
            yield asked.strip() if isinstance(asked, str) else asked, asked


def _population(clients: Any, groups: Groups | None) -> tuple[Population, tuple[str, ...]]:
    """Return the clients in the given order, and notes on the rows that they were read from."""
    row_notes: tuple[str, ...] = ()
    clients = named_values(clients)
    if isinstance(clients, Mapping):
        population = Population(list(clients.values()), ids=list(clients))
        row_notes = tuple(doubtful_names(clients))
    elif must_be_read(clients):
        found = read(clients, Reading()).logged()
        population, row_notes = found.population, found.row_notes
    else:
        population = clients if isinstance(clients, Population) else Population(clients)
    for each in () if isinstance(population.ids, range) else population.ids:
        if not isinstance(each, str) and as_whole(each) is None:
            raise PopulationError(
                f"compare: ids must be strings or integers; got {brief(each)}. Name clients by one "
                f"of these."
            )
    if groups is None:
        return population, row_notes
    labels = named_values(groups)
    if isinstance(labels, Mapping):
        _check_known("groups", labels, population)
        labels = [labels.get(each) for each in population.ids]
    return Population(population.sizes, ids=population.ids, groups=labels), row_notes


def _updates(
    updates: ArrayLike | Mapping[Any, Any] | os.PathLike[str], population: Population
) -> NDArray[np.floating]:
    """Return the updates in the order of the population, one row per client."""
    if isinstance(updates, (str, os.PathLike)):
        return _read_updates(updates, population.n_clients)
    named = named_values(updates, rows=True)
    if not isinstance(named, Mapping):
        return checked_updates("compare", named, population.n_clients)
    _check_known("updates", named, population)
    missing = [each for each in population.ids if each not in named]
    if missing:
        raise DesignError(
            f"compare: updates by id must have one for every client; {len(missing)} are missing, "
            f"the first of {brief(missing[0])}. Give zeros for a client that has sent none."
        )
    rows = Rows.of("compare", [named[each] for each in population.ids], population.n_clients)
    for each, is_finite in zip(population.ids, rows.usable(), strict=True):
        if not is_finite:
            raise DesignError(
                f"compare: updates must be finite; that of client {brief(each)} is not. Drop the "
                f"client, or give zeros."
            )
    return checked_updates("compare", as_numpy(rows.flat), population.n_clients)


def _check_known(name: str, given: Mapping[Any, Any], population: Population) -> None:
    known = set(population.ids)
    for each in given:
        if each not in known:
            raise PopulationError(
                f"compare: {name} has an entry for {brief(each)}, which is not a client's id. Use "
                f"the ids of clients."
            )


def _read_updates(path: str | os.PathLike[str], n_clients: int) -> NDArray[np.floating]:
    """Read one row per client from a .npy file, in the order of the file of sizes.

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


def _opened(path: str | os.PathLike[str]) -> NDArray[np.generic]:
    """Map the array into memory. Unlike numpy.load, accept only the format .npy."""
    try:
        with np.errstate(over="ignore"):  # a damaged shape can overflow
            return np.asarray(open_memmap(path, mode="r"))
    except OSError as error:
        reason = reason_of(error)
        raise InputError(f"{name_of(path)}: cannot be read ({reason}). Check the path.") from error
    except (ValueError, TypeError, OverflowError, SyntaxError, TokenError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")[:REASON]
        raise InputError(
            f"{name_of(path)}: must be a .npy file of numbers; it is not, or not whole ({reason}). "
            f"Write it with numpy.save, without Python objects."
        ) from error
