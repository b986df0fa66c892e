"""Compare designs on given clients, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import as_whole, brief, checked_cohort_size
from fedcohort._comparison_answer import Answer
from fedcohort._comparison_rows import Row, Task, note_on
from fedcohort._comparison_text import COLUMNS, Line, Table, wrapped
from fedcohort._display import html_table
from fedcohort._figures import (
    check_axes,
    checked_figure_path,
    draw_inclusion,
    draw_ratios,
    draw_size_density,
    new_figure,
    save_figure,
    styled,
    three_panels,
)
from fedcohort._lazy import frame_of
from fedcohort._updates import Rows, as_numpy, finite_rows
from fedcohort.designs import Recipe
from fedcohort.designs.catalogue import named_recipe, text_of
from fedcohort.errors import DesignError, PopulationError
from fedcohort.population import Population
from fedcohort.selector.roster import Clients, Groups, in_order_of_ids
from fedcohort.similarity.measures import checked_updates
from fedcohort.streams import checked_seed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: A recipe, or its name as on the command line: ``"size:whole_rows_first"``.
Asked = Recipe | str
#: Wraps a list to show progress, like ``tqdm``.
Progress = Callable[[list[str]], Iterable[str]]

#: Compared by default: what needs only sizes, and what most frameworks do.
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


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Comparison:
    """The result of :func:`compare`; its ``repr`` is the table.

    Attributes
    ----------
    population
        The clients, in the order of ids: numbers by value, then names.
    cohort_size, seed
        The arguments; if the seed was None, the random one that was used.
    dimension
        The number of entries of an update; None without updates.
    rows
        The results of each design, by its label: the attributes of
        :class:`~fedcohort.diagnostics.Summary`, ``label``, ``recipe``, ``design`` (that of the
        first round), ``law`` (that of a random round, which the numbers describe),
        ``weight_variance_ratio`` (divided by multinomial's; None if that is 0), ``weights_exact``
        (False: these are estimates), ``bias_standard_error`` and
        ``weight_variance_standard_error`` (0 if exact, None if unknown), ``build_seconds`` and
        ``draw_seconds`` (a median); with updates, else None, also ``aggregate_variance`` (V, bias
        included), ``aggregate_variance_ratio``, ``aggregate_variance_exact`` and
        ``aggregate_variance_standard_error`` (0 if V is exact).
    left_out
        The designs that could not be built: the reason, by label.
    """

    population: Population
    cohort_size: int
    seed: int
    dimension: int | None
    rows: dict[str, Row]
    left_out: dict[str, str]

    @property
    def answer(self) -> str:
        """What to use for these clients and why, in two sentences.

        A design wins only if it is unbiased and draws a fixed number of times.
        """
        rows, has_updates = list(self.rows.values()), self.dimension is not None
        return Answer(rows, self.population, self.cohort_size, has_updates).text()

    @property
    def notes(self) -> list[str]:
        """A sentence for every design whose numbers need an explanation."""
        found = [note_on(label, row.design) for label, row in self.rows.items()]
        return [note for note in found if note is not None]

    def to_frame(self) -> Any:
        """Return a row per design as a pandas DataFrame; without pandas, a dict of arrays.

        Missing numbers are NaN.
        """
        lines = [row.values() for row in self.rows.values()]
        columns = {
            name: np.array([np.nan if line[name] is None else line[name] for line in lines])
            for name in lines[0]
        }
        return frame_of(columns)

    def plot(self, path: str | Path | None = None, ax: Axes | None = None) -> Axes:
        """Plot each client's chance to be in the cohort against its size; return these axes.

        A new figure also has the number of clients of each size, and each design's variance over
        multinomial's. Designs that coincide share a line; if there are many sizes, a line is the
        median of clients of similar size, with a band of 90 % of them. Needs the extra ``report``.

        Parameters
        ----------
        path
            Also write the figure to this file: .png, .svg or .pdf.
        ax
            The axes to draw on; by default those of a new figure.
        """
        owner = "Comparison.plot"
        file = checked_figure_path(path, owner, "path")
        with styled(owner):
            if ax is None:
                axes = self._drawn(new_figure(owner, (11, 5), shown=path is None))
            else:
                check_axes(owner, ax)
                axes = ax
                draw_inclusion(axes, self.population.sizes, self._chances)
            if file is not None:
                save_figure(axes.figure.figure, file)  # the whole figure, if ax is in a subfigure
        return axes

    def _drawn(self, figure: Figure) -> Axes:
        """Draw everything; return the axes of the chances."""
        top, below, beside = three_panels(figure)
        draw_inclusion(top, self.population.sizes, self._chances)
        draw_size_density(below, self.population.sizes)
        below.set_xlabel(top.get_xlabel())
        top.set(xlabel="", title="Who is drawn")
        self._draw_ratios(beside)
        figure.suptitle(self._head, fontweight="bold")
        return top

    def _draw_ratios(self, axes: Axes) -> None:
        rows, has_updates = self._table.rows, self.dimension is not None
        name = "aggregate_variance" if has_updates else "weight_variance"
        exact = "aggregate_variance_exact" if has_updates else "weights_exact"
        draw_ratios(
            axes,
            {row.label: getattr(row, f"{name}_ratio") for row in rows},
            order=list(self.rows),
            pale=[row.label for row in rows if not row.unbiased],
            estimated=[row.label for row in rows if not getattr(row, exact)],
        )
        what = "V, the variance of the aggregate" if has_updates else "Variance of the weights"
        axes.set(title=what, xlabel="multinomial sampling = 1")

    @property
    def _chances(self) -> dict[str, NDArray[np.float64]]:
        return {label: row.law.inclusion_probability() for label, row in self.rows.items()}

    def __repr__(self) -> str:
        return "\n".join(line.text for line in self._lines())

    def _lines(self, width: int = COLUMNS) -> list[Line]:
        """Return the printed lines: the table, the answer, and the legend."""
        table, blank = self._table, Line("")
        answer = [Line(text, "bold") for text in wrapped(self.answer).split("\n")]
        legend = [Line(text, "dim") for text in table.legend().split("\n")]
        return [Line(self._head), blank, *table.lines(width), blank, *answer, blank, *legend]

    def _repr_html_(self) -> str:
        table = self._table
        headings, lines = table.cells()
        names = [heading.replace("-\n", "").replace("\n", " ").strip() for heading in headings]
        lines += [[name, f"left out: {reason}"] for name, reason in self.left_out.items()]
        dim = range(len(table.unbiased), len(lines))
        return html_table(f"{self._head}. {self.answer}", names, lines, most=len(lines), dim=dim)

    @property
    def _table(self) -> Table:
        has_updates = self.dimension is not None
        return Table.of(self.rows.values(), self.left_out, has_updates=has_updates)

    @property
    def _head(self) -> str:
        n, total = self.population.n_clients, self.population.total
        head = f"{self.cohort_size:,} draws from {n:,} clients, {total:,} samples"
        return head if self.dimension is None else f"{head}, updates of {self.dimension:,} numbers"


def compare(
    clients: Clients,
    cohort_size: int,
    *,
    designs: Asked | Iterable[Asked] | Mapping[str, Asked] | None = None,
    updates: ArrayLike | Mapping[Any, Any] | None = None,
    groups: Groups | None = None,
    seed: int | np.random.Generator | None = 0,
    progress: Progress | None = None,
) -> Comparison:
    """Compare designs on the clients' sizes, and on their updates if given.

    Parameters
    ----------
    clients
        Sizes as a list or an array (ids 0 ... n - 1), sizes by id, or a :class:`Population`.
    cohort_size
        The number of draws in a round.
    designs
        Recipes, or their names as on the command line (``"size:whole_rows_first"``,
        ``"size,multinomial"``); a mapping gives them labels. A recipe keeps its own cohort size.
        The default is all designs that need only sizes, with ``groups`` also those that draw by
        group, and with ``updates`` also those that learn.
    updates
        The clients' last updates: shape (n_clients, dimension) in the order of ``clients``, or
        by id. Use zeros for a client that has sent none. Adds V, the variance of the aggregate.
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
    given_order = _population(clients, groups)
    population, places = in_order_of_ids(given_order)
    rows = None if updates is None else _rows(updates, given_order)
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
    return Comparison(population, size, task.seed, dimension, found, left_out)


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


def _population(clients: Clients, groups: Groups | None) -> Population:
    """Return the clients in the given order."""
    if isinstance(clients, Mapping):
        population = Population(list(clients.values()), ids=list(clients))
    else:
        population = clients if isinstance(clients, Population) else Population(clients)
    for each in () if isinstance(population.ids, range) else population.ids:
        if not isinstance(each, str) and as_whole(each) is None:
            raise PopulationError(
                f"compare: ids must be strings or integers; got {brief(each)}. Name clients by one "
                f"of these."
            )
    if groups is None:
        return population
    labels: Any = groups
    if isinstance(groups, Mapping):
        _check_known("groups", groups, population)
        labels = [groups.get(each) for each in population.ids]
    return Population(population.sizes, ids=population.ids, groups=labels)


def _rows(updates: ArrayLike | Mapping[Any, Any], population: Population) -> NDArray[np.floating]:
    """Return the updates in the order of the population, one row per client."""
    if not isinstance(updates, Mapping):
        return checked_updates("compare", updates, population.n_clients)
    _check_known("updates", updates, population)
    missing = [each for each in population.ids if each not in updates]
    if missing:
        raise DesignError(
            f"compare: updates by id must have one for every client; {len(missing)} are missing, "
            f"the first of {brief(missing[0])}. Give zeros for a client that has sent none."
        )
    rows = Rows.of("compare", [updates[each] for each in population.ids], population.n_clients)
    for each, is_finite in zip(population.ids, finite_rows(rows.flat), strict=True):
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
