"""How a comparison is shown: the table and its legend, the answer in words, and the figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import brief, checked_flag, listed
from fedcohort._display import COLUMNS, counted, html_table, printed, record_repr, shortened
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
from fedcohort.baselines.chosen import ChosenDesign
from fedcohort.baselines.cohort_mean import CohortMean
from fedcohort.baselines.round_robin import RoundRobinCycle
from fedcohort.baselines.shuffled import ShuffledRounds
from fedcohort.designs import RECIPES, AutoDesign, Design, Multinomial, Recipe, Stratified, Target
from fedcohort.errors import InputError
from fedcohort.population import IMPORTANCE_UNITS, Population

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table

    from fedcohort.comparison.rows import Row

#: The smallest width of the column of names.
FEWEST = 12
#: The digits of the numbers in a column, and the longest number before it becomes 1.2e-5.
DIGITS, LONGEST = 3, 7


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
        The results of each design, by its label. A row has the attributes of
        :class:`~fedcohort.diagnostics.Summary`, and ``label``, ``recipe``, ``design`` (of the first
        round) and ``law`` (of a random round, which the numbers describe).
        ``weight_variance_ratio`` is divided by multinomial's, None if that is 0. ``weights_exact``
        is False for estimates; ``bias_standard_error`` and ``weight_variance_standard_error`` are
        0 if exact, None if unknown. ``build_seconds`` and ``draw_seconds`` are times, the second a
        median. With updates, ``aggregate_variance`` is V, bias included; it has
        ``aggregate_variance_ratio``, ``aggregate_variance_exact`` and
        ``aggregate_variance_standard_error``. Without updates these four are None.
    left_out
        The designs that could not be built: the reason, by label.
    row_notes
        Which rows of a file or a data frame were left out, and which rows or names of clients are
        doubtful.
    source
        The clients as Python writes them, for ``next_steps``.
    """

    population: Population
    cohort_size: int
    seed: int
    dimension: int | None
    rows: dict[str, Row]
    left_out: dict[str, str]
    row_notes: tuple[str, ...] = ()
    source: str = "clients"

    @property
    def answer(self) -> str:
        """The recommended design for these clients and the reasons, in a few sentences.

        A design wins only if it is unbiased and draws a fixed number of times.
        """
        return _Answer(self).text()

    @property
    def best(self) -> Row | None:
        """The recommended design; None if all are biased or of random size."""
        return _Answer(self).best()

    @property
    def next_steps(self) -> dict[str, str]:
        """Three lines of Python with the recommended design: for a server loop and for Flower.

        They name these clients and this seed. Empty without a recommendation, or if its recipe is
        not one of the library's.
        """
        row = self.best
        if row is None or RECIPES.get(row.recipe.name) is not type(row.recipe):
            return {}
        kind, recipe = type(row.recipe).__name__, record_repr(row.recipe)
        is_file = self.source.startswith("read_clients")
        reader, seed, sizes = ", read_clients" if is_file else "", f"seed={self.seed}", self.source
        ours = ", ".join(sorted([kind, "Selector"]))
        if isinstance(self.population.ids, range) and not is_file:
            sizes = f"dict(enumerate({self.source}))"
        steps = {
            "In your server loop": (
                f"from fedcohort import {ours}{reader}\n"
                f"selector = Selector({recipe}, {self.source}, {seed})\n"
                f"cohort = selector.draw()  # train cohort.ids, then selector.aggregate(updates)"
            ),
            "In Flower, around your strategy": (
                f"from fedcohort import {kind}{reader}\n"
                f"from fedcohort.flower import CohortStrategy\n"
                f"strategy = CohortStrategy(strategy, {recipe}, sizes={sizes}, {seed})"
            ),
        }
        if not is_file and self.population.groups is not None:
            del steps["In Flower, around your strategy"]  # it needs groups by name
        return steps

    def shown(self, *, all_columns: bool = False, explain: bool = False) -> Shown:
        """Return the table and the answer to print, with all columns or with their meaning."""
        flags = {"all_columns": all_columns, "explain": explain}
        return Shown(self, *(checked_flag("Comparison.shown", *each) for each in flags.items()))

    @property
    def notes(self) -> list[str]:
        """``row_notes``, and a sentence for every design whose numbers need an explanation."""
        return [*self.row_notes, *_design_notes(self.rows.values())]

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
        """Draw all three panels; return the axes of the chances."""
        top, below, right = three_panels(figure)
        draw_inclusion(top, self.population.sizes, self._chances)
        draw_size_density(below, self.population.sizes)
        below.set_xlabel(top.get_xlabel())
        top.set(xlabel="", title="Who is drawn")
        rows = self._ordered
        draw_ratios(
            right,
            {row.label: row.variance.ratio for row in rows},
            order=list(self.rows),
            pale=[row.label for row in rows if not row.unbiased],
            estimated=[row.label for row in rows if not row.variance.is_exact],
        )
        what = (
            "V, the variance of the aggregate" if self._has_updates else "Variance of the weights"
        )
        right.set(title=what, xlabel="multinomial sampling = 1")
        figure.suptitle(self._head, fontweight="bold")
        return top

    @property
    def _chances(self) -> dict[str, NDArray[np.float64]]:
        return {label: row.law.inclusion_probability() for label, row in self.rows.items()}

    @property
    def _has_updates(self) -> bool:
        return self.dimension is not None

    @property
    def _ordered(self) -> list[Row]:
        """The rows, biased ones last."""
        return sorted(self.rows.values(), key=lambda row: not row.unbiased)

    @property
    def _head(self) -> str:
        head = f"{counted(self.cohort_size, 'draw')} from {_clients_text(self.population)}"
        return head if self.dimension is None else f"{head}, updates of {self.dimension:,} numbers"

    @property
    def _multinomial(self) -> float:
        """The variance of multinomial sampling."""
        known = (row.variance for row in self.rows.values())
        return next((each.value / each.ratio for each in known if each.ratio), 0.0)

    def _columns(self, every: bool) -> tuple[Column, ...]:
        """Return the columns beside the designs' labels."""
        columns = UPDATES_COLUMNS if self._has_updates else SIZES_COLUMNS
        return columns if every else tuple(each for each in columns if each not in REST)

    def _lines(self, columns: Sequence[Column]) -> list[tuple[str, ...]]:
        """Return the cells of every row, biased ones last."""
        rows = self._ordered
        cells = [[row.label for row in rows], *(each.cells(rows) for each in columns)]
        return list(zip(*cells, strict=True))

    def __repr__(self) -> str:
        return repr(self.shown())

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yield the table and the answer, as ``print`` of rich shows them."""
        yield from self.shown().__rich_console__(console, options)

    def _table(self, columns: Sequence[Column], console: Console, options: ConsoleOptions) -> Table:
        """Return the table: only names are wrapped, and the columns stand apart if they can."""
        from rich import box
        from rich.measure import Measurement
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column("design", overflow="fold", min_width=FEWEST, vertical="bottom")
        for column in columns:
            heading = Text(column.heading, justify="right")
            table.add_column(
                heading,
                justify="left" if column is CLIENTS else "right",
                no_wrap=True,
                vertical="bottom",
            )
        n_unbiased = sum(row.unbiased for row in self.rows.values())
        for place, line in enumerate(self._lines(columns)):
            if place == n_unbiased:
                table.add_section()
                table.add_row("biased", style="dim")
            table.add_row(*map(Text, line), style="dim" if place >= n_unbiased else "")
        widest = Measurement.get(console, options.update(width=10 * COLUMNS), table).maximum
        if widest > options.max_width:
            table.padding = 0
        return table

    def _legend(self, columns: Sequence[Column]) -> Iterator[tuple[str, str]]:
        """Yield each column's meaning, and what ``~`` stands for."""
        yield from ((column.name, column.meaning) for column in columns)
        if texts := list(self._estimates()):
            yield "~", f"estimated, with standard errors. {'; '.join(texts)}"

    def _estimates(self) -> Iterator[str]:
        """Yield what was estimated, from how many cohorts, and how well."""
        for row in self._ordered:
            if not row.weights_exact:
                number = f"{row.law.estimate_cohorts:,} drawn cohorts"
                errors = (row.bias_standard_error, row.weight_variance_standard_error)
                yield f"{row.label}: weights from {number}{_errors(*errors)}"
            if row.aggregate_variance_exact is False:
                error = _errors(row.aggregate_variance_standard_error)
                yield f"{row.label}: V from {row.MEASURED_COHORTS} drawn cohorts{error}"

    def _choices(self) -> Iterator[str]:
        """Yield what ``auto`` draws from."""
        for row in self._ordered if self._has_updates else ():
            if isinstance(row.design, AutoDesign):
                names, values = row.design.predicted.keys(), list(row.design.predicted.values())
                known = zip(names, numbers(values), strict=True)
                predicted = ", ".join(f"{name} {text}" for name, text in known)
                yield f"{row.label} draws from {row.design.choice}; predicted V: {predicted}"

    def _repr_html_(self) -> str:
        columns = self._columns(every=False)
        names = ["design", *(column.name for column in columns)]
        cells = [[cell.strip() for cell in line] for line in self._lines(columns)]
        cells += [[name, f"left out: {reason}"] for name, reason in self.left_out.items()]
        dim = range(sum(row.unbiased for row in self.rows.values()), len(cells))
        return html_table(f"{self._head}. {self.answer}", names, cells, most=len(cells), dim=dim)


@final
class Shown:
    """A comparison to print: ``repr`` is its text, and rich styles it on a terminal."""

    def __init__(self, found: Comparison, all_columns: bool, explain: bool) -> None:
        self._found, self._explain = found, explain
        self._columns = found._columns(all_columns)

    def __repr__(self) -> str:
        return printed(self)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yield the table, the answer and the legend."""
        from rich.constrain import Constrain
        from rich.text import Text

        found, blank = self._found, Text()
        yield Text(found._head)
        yield from (Constrain(Text(note), COLUMNS) for note in found.row_notes)
        yield blank
        yield found._table(self._columns, console, options)
        if found.left_out:
            yield _two_columns(
                (name, f"left out: {reason.partition('. ')[0].rstrip('.')}")
                for name, reason in found.left_out.items()
            )
        yield blank
        yield Constrain(Text(found.answer, "bold"), COLUMNS)
        if self._explain:
            yield blank
            yield Constrain(_two_columns(found._legend(self._columns)), COLUMNS)
        for note in (*_design_notes(found._ordered), *found._choices()):
            yield blank
            yield Constrain(Text(note, "dim"), COLUMNS)


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CohortSizes:
    """Comparisons of the same clients with several cohort sizes; the ``repr`` is a table.

    Parameters
    ----------
    comparisons
        The comparison with each cohort size, by the size.

    Examples
    --------
    >>> from fedcohort import compare
    >>> sizes = CohortSizes({m: compare([5, 3, 2], m, designs="size") for m in (1, 2)})
    >>> sizes.answer.partition(". ")[0]
    'In draws of multinomial sampling, 1 draw by size is worth 1 and 2 draws by size are worth 5.17'
    """

    comparisons: Mapping[int, Comparison]

    def __post_init__(self) -> None:
        found = self.comparisons
        if not (isinstance(found, Mapping) and found) or not all(
            isinstance(each, Comparison) for each in found.values()
        ):
            raise InputError(
                f"CohortSizes: comparisons must be comparisons by cohort size; got {brief(found)}. "
                f"Pass for example {{m: compare(sizes, m) for m in (5, 10)}}."
            )

    @property
    def answer(self) -> str:
        """How many draws of multinomial sampling each cohort of the best design is worth."""
        best = {m: found.best for m, found in self.comparisons.items()}
        worth = [
            f"{counted(m, 'draw')} by {row.label} {'is' if m == 1 else 'are'} worth {m / ratio:.3g}"
            for m, row in best.items()
            if row is not None and (ratio := row.variance.ratio)
        ]
        if not worth:
            return "Multinomial sampling's variance is 0 with each of these cohort sizes."
        return (
            f"In draws of multinomial sampling, {listed(worth)}. Take the smallest cohort that "
            f"trains well: each of its clients costs work in every round."
        )

    def __repr__(self) -> str:
        return printed(self)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yield the table and the answer."""
        from rich import box
        from rich.constrain import Constrain
        from rich.table import Table
        from rich.text import Text

        first = next(iter(self.comparisons.values()))
        sizes = listed([f"{m}" for m in self.comparisons])
        what = (
            "V, the variance of the aggregate," if first._has_updates else "Variance of the weights"
        )
        yield Text(f"Cohorts of {sizes} draws from {_clients_text(first.population)}")
        draws = counted(first.cohort_size, "draw")
        yield Text(f"{what} over that of multinomial sampling with {draws}")
        yield Text()
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column("design", overflow="fold", min_width=FEWEST)
        unbiased = [
            row for each in self.comparisons.values() for row in each._ordered if row.unbiased
        ]
        labels = list(dict.fromkeys(row.label for row in unbiased))
        columns = []
        for m, each in self.comparisons.items():
            table.add_column(f"{m}", justify="right", no_wrap=True)
            rows = [each.rows.get(label) for label in labels]
            columns.append(_over(rows, first._multinomial))
        for label, *cells in zip(labels, *columns, strict=True):
            table.add_row(Text(label), *cells)
        yield table
        yield Text()
        yield Constrain(Text(self.answer, "bold"), COLUMNS)


def _clients_text(population: Population) -> str:
    """Write how many clients there are, and how many samples they have."""
    clients, total = counted(population.n_clients, "client"), population.total
    is_importance = total == IMPORTANCE_UNITS
    return f"{clients}, {'by importance' if is_importance else counted(total, 'sample')}"


def _two_columns(pairs: Iterable[tuple[str, str]]) -> Table:
    """Return dim lines of a name and a text."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=FEWEST)
    for pair in pairs:
        grid.add_row(*map(Text, pair), style="dim")
    return grid


def note_on(label: str, design: Design) -> str | None:
    """Return a sentence if a design's numbers need an explanation, else None."""
    law = design.over_rounds()
    if isinstance(law, RoundRobinCycle):
        return (
            f"{label} draws nothing: the clients take turns. These numbers describe a random round "
            f"of its cycle of {law.n_cohorts()}; every single round is biased."
        )
    if isinstance(law, ShuffledRounds):
        return (
            f"{label} lets every client take part once in a pass, in random order. These numbers "
            f"describe a random round; given the earlier ones of its pass, each is biased."
        )
    if not isinstance(law, ChosenDesign):
        return None
    return (
        f"{label} chooses new clients in every round; these numbers describe one such cohort. To "
        f"measure many rounds, call fedcohort.diagnostics.estimated_bias."
    )


def _design_notes(rows: Iterable[Row]) -> list[str]:
    notes = [note_on(row.label, row.design) for row in rows]
    return [note for note in notes if note is not None]


#: A function that writes the cells of some rows.
Cells = Callable[[Sequence["Row"]], list[str]]


class Column(NamedTuple):
    """A column: its heading, what it means, and its cells."""

    heading: str
    meaning: str
    cells: Cells

    @property
    def name(self) -> str:
        """The heading in one line."""
        return self.heading.replace("-\n", "").replace("\n", " ")


def _numbers(value: str, exact: str, places: int | None = None) -> Cells:
    """Return a function that writes an attribute of rows, as an estimate unless ``exact`` holds."""
    values, marks = attrgetter(value), attrgetter(exact)
    return lambda rows: numbers([*map(values, rows)], exact=[*map(marks, rows)], places=places)


def _bias_cells(rows: Sequence[Row]) -> list[str]:
    texts = _numbers("bias", "weights_exact", 3)(rows)
    return ["none" if row.unbiased else text for row, text in zip(rows, texts, strict=True)]


def _client_cells(rows: Sequence[Row]) -> list[str]:
    """Write how many different clients a cohort has, ± its deviation if its size is random."""
    most = max(row.expected_distinct for row in rows)
    places = 2 if most < 100 else 1 if most < 1000 else 0
    exact = [row.law.exact_counts for row in rows]
    means = numbers([row.expected_distinct for row in rows], exact=exact, places=places)
    spreads = [f" ± {row.size_deviation:.{places}f}" if row.size_deviation else "" for row in rows]
    # The means stand below each other, whether a deviation follows or not.
    after = max(map(len, spreads))
    before = max(len("a round") - after, *map(len, means))
    return [
        f"{mean:>{before}}{spread:<{after}}" for mean, spread in zip(means, spreads, strict=True)
    ]


def _time_cells(rows: Sequence[Row]) -> list[str]:
    return [in_seconds(row.build_seconds + row.draw_seconds) for row in rows]


BIAS = Column(
    "bias",
    "sum over the clients of |E[w] - p|, w the weight of a client in a round, p its importance: "
    "its share of all samples",
    _bias_cells,
)
WEIGHT_VARIANCE = Column(
    "weight\nvariance",
    "sum over the clients of Var[w]",
    _numbers("weight_variance", "weights_exact"),
)
V = Column(
    "V",
    "E|sum w u - sum p u|^2, u the updates: how far a cohort's aggregate is from that of all "
    "clients, bias included",
    _numbers("variance.value", "variance.is_exact"),
)
RATIO = Column(
    "variance\nvs multi-\nnomial",
    "variance of the weights, or V if there are updates, divided by that of multinomial sampling",
    _numbers("variance.ratio", "variance.is_exact", 3),
)
CHANCE = Column(
    "smallest\nchance",
    "of any client with samples to be in the cohort",
    _numbers("smallest_inclusion", "law.exact_counts"),
)
CLIENTS = Column(
    "clients\na round",
    "different clients on average; ± standard deviation if the number of draws is random",
    _client_cells,
)
TIME = Column("time", "to build the design and to draw once", _time_cells)
SIZES_COLUMNS = (BIAS, WEIGHT_VARIANCE, RATIO, CHANCE, CLIENTS, TIME)
UPDATES_COLUMNS = (V, RATIO, BIAS, WEIGHT_VARIANCE, CLIENTS, TIME)
#: The columns that are shown on demand.
REST = (WEIGHT_VARIANCE, CHANCE, TIME)


def _errors(*errors: float | None) -> str:
    """Write ``, bias ± 0.001 and variance ± 0.002`` or ``, ± 0.003``; nothing if unknown."""
    known = [error for error in errors if error is not None]
    if len(known) == 2:
        return f", bias ± {known[0]:.2g} and variance ± {known[1]:.2g}"
    return f", ± {known[0]:.2g}" if known else ""


def numbers(
    values: Sequence[float | None],
    *,
    exact: Sequence[bool] | None = None,
    places: int | None = None,
) -> list[str]:
    """Write the numbers of a column with equal decimals, ``~`` before estimates, ``-`` for None.

    ``places`` is their number; by default as many as show three digits of most numbers. If these
    need too much room, all numbers are written as 1.23e-5.

    Examples
    --------
    >>> numbers([0.0987, 0.08754, 0.00001], exact=[True, False, True])
    ['0.0987', '~0.0875', '<0.0001']
    >>> numbers([3e-9, 2e-9, None, 0])
    ['3.00e-9', '2.00e-9', '-', '0']
    """
    known = [abs(value) for value in values if value]
    if places is None:
        typical = float(np.quantile(known, 0.25)) if known else 1.0  # of the smaller ones
        places = max(0, DIGITS - 1 - math.floor(math.log10(typical)))
        fits = len(f"{max(known, default=0.0):.{places}f}") <= LONGEST
        places = places if fits else None
    marks = exact if exact is not None else [True] * len(values)
    return [
        _number(value, places, "" if is_exact else "~")
        for value, is_exact in zip(values, marks, strict=True)
    ]


def _number(value: float | None, places: int | None, mark: str) -> str:
    """Write a number with this many decimals; with an exponent if that is None or too long."""
    if value is None:
        return "-"
    least = 0.0 if places is None else 10.0**-places
    if 0 < abs(value) < least / 2:
        return f"<{least:.{places}f}"
    text = f"{value:.{places}f}" if places is not None else "0"
    if value and (places is None or len(text) > LONGEST):
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        text = f"{mantissa}e{int(exponent)}"
    return mark + text


def in_seconds(seconds: float) -> str:
    """Write a time in at most six characters."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        number = seconds / size
        if number >= 0.9995:
            return f"{number:.3g} {unit}" if number < 100 else f"{number:.0f} {unit}"
    return f"{seconds / 1e-6:.0f} us"


#: Variances closer to each other differ by rounding only.
ROUNDING = 1e-9
#: Estimates closer to each other than this many standard errors count as equal.
ERRORS = 2
#: A gain below this share is called small. A design that needs more than sizes must gain as much
#: more than one that does not.
SMALL_GAIN = 0.01
#: A client with this share of all samples is said to dominate.
DOMINANT = 0.5
#: Above this gain, the answer does not suggest a better design.
MUCH_GAIN = 0.5
#: Final losses with known groups, as in docs/which-design.md.
GROUPED: dict[type[Recipe], str] = {Stratified: "0.751", Target: "0.774"}
#: The most clauses of the second sentence, and the most designs of equal variance that are named.
MOST_PARTS, MOST_NAMED = 2, 2


class _Answer:
    """Writes what to use and why. A winner is unbiased and its cohort size is fixed."""

    def __init__(self, found: Comparison, rows: Sequence[Row] | None = None) -> None:
        self.found, self.rows = found, list(found.rows.values()) if rows is None else rows
        self.population, self.cohort_size = found.population, found.cohort_size
        self.has_updates = found.dimension is not None
        self.what, self.the_what = "weight variance", "the variance of the weights"
        if self.has_updates:
            self.what = "V"
            self.the_what = (
                "V, the mean squared distance of its aggregate from that of all clients,"
            )
        sizes = self.population.sizes[self.population.sizes > 0]
        self.equal_sizes = len(sizes) > 1 and bool((sizes == sizes[0]).all())

    def best(self) -> Row | None:
        """Return the recommended design; None if all are biased or of random size."""
        fixed = [row for row in self.rows if row.unbiased and row.size_deviation == 0]
        return self._by_group() or (_best(fixed) if fixed else None)

    def _by_group(self) -> Row | None:
        """Return the design for clients that are alike in groups; None without groups.

        With updates, V sees who is alike, and decides.
        """
        labels, sizes = self.population.groups, self.population.sizes
        if labels is None or self.has_updates:
            return None
        n_groups = len({label for label, n in zip(labels, sizes, strict=True) if n})
        kind = Stratified if n_groups <= self.cohort_size else Target
        found = (row for row in self.rows if isinstance(row.recipe, kind))
        return next(found, None) if n_groups > 1 else None

    def text(self) -> str:
        """Return the sentences."""
        grouped = self._by_group()
        if grouped is None:
            return self._by_variance()
        n_groups = len(set(self.population.groups or ()))
        how = f"the draws cover as many of the {n_groups} groups as they can"
        if isinstance(grouped.recipe, Stratified):
            how = f"each of the {n_groups} groups has its own draws and its full weight"
        start = (
            f"Use {grouped.label} if clients of a group are alike: in every round {how}. The "
            f"variance of the weights ({grouped.weight_variance_ratio or 0:.2f} of multinomial's) "
            f"cannot see this, as it knows sizes only. In our experiment with one digit per "
            f"client, known groups lowered the final loss from 0.936 to "
            f"{GROUPED[type(grouped.recipe)]}; sizes alone to 0.906, inside the spread."
        )
        rest = [row for row in self.rows if not row.recipe.grouped]
        if not any(row.unbiased for row in rest):
            return start
        other = _Answer(self.found, rest).text()
        return f"{start} Otherwise {'u' if other.startswith('Use ') else other[0]}{other[1:]}"

    def _by_variance(self) -> str:
        """Say which design has the smallest variance."""
        unbiased = [row for row in self.rows if row.unbiased]
        if not unbiased:
            return self._only_biased()
        fixed = [row for row in unbiased if row.size_deviation == 0]
        if not fixed:
            best = min(unbiased, key=lambda row: row.variance.value)
            cut = f" and {self._cut(best)}" if (_gain(best) or 0.0) > ROUNDING else ""
            return (
                f"{best.label} is unbiased{cut}, but its cohort size is random: "
                f"{_cohort_text(best)} clients. Compare size as well, which draws "
                f"{self.cohort_size} times in every round."
            )
        best = _best(fixed)
        return f"{self._first(best, fixed)} {self._second(best, unbiased)}".rstrip()

    def _first(self, best: Row, fixed: Sequence[Row]) -> str:
        """Say what to use, and what it gains."""
        gain = _gain(best)
        if gain is None:
            # If weights do not sum to 1, the length of the step still varies.
            which = " whose weights sum to 1" if self.has_updates else ""
            why = "all updates are equal" if self.has_updates else "one client has all samples"
            return f"Any unbiased design{which} will do: {why}, and multinomial's {self.what} is 0."
        if gain <= ROUNDING:
            return f"{self._no_gain(best)}{self._reason() if len(self.rows) > 1 else ''}."
        equal = [row.label for row in fixed if row is not best and _equals(row, best)]
        names, verb = shortened(equal, MOST_NAMED), "are" if len(equal) > 1 else "is"
        others = f" ({listed(names)} {verb} equal)" if equal else ""
        start = f"Use {best.label}{others}: it"
        if len(self.rows) == 1:
            start = f"{best.label}, the only design compared,"
        if gain < SMALL_GAIN:
            return f"{start} {self._how(best)} but {self._cut(best, 'only ')}{self._reason()}."
        return f"{start} {self._how(best)} and {self._cut(best)}."

    def _second(self, best: Row, unbiased: Sequence[Row]) -> str:
        """Say what is cheaper, what is lower but random, or which small variance misleads."""
        gain = _gain(best)
        if gain is None:
            return ""
        parts = [
            self._cheaper(best, unbiased),
            self._random(best, unbiased),
            self._usual(best) or self._misleading(best),
        ]
        text = "; ".join([part for part in parts if part][:MOST_PARTS]) or self._hint(gain)
        is_word = text.startswith(("without ", "all "))  # not a design's label
        return f"{text[0].upper() if is_word else text[0]}{text[1:]}." if text else ""

    def _hint(self, gain: float) -> str:
        """Say where more could be gained."""
        learns = any(row.recipe.learns for row in self.rows)
        if self.has_updates or learns or len(self.rows) == 1 or self.cohort_size == 1:
            return ""
        further = (
            "tournament, which learns from updates who is alike, can lead further if there are few "
            "kinds of clients and each is drawn 15 times or more"
        )
        if self.equal_sizes and gain > ROUNDING:
            return f"all sizes are equal, but {further}"
        return further if gain < MUCH_GAIN else ""

    def _cheaper(self, best: Row, unbiased: Sequence[Row]) -> str:
        """Name the best design that needs less than the winner."""
        needs = _needs(best)
        free = [row for row in unbiased if not _needs(row) and row.size_deviation == 0]
        if not needs or not free:
            return ""
        other = _best(free)
        if (_gain(other) or 0.0) <= ROUNDING:
            return f"without {needs}, none of these designs gains anything"
        return f"{other.label} does it with {_gain_text(other)} and needs no {needs}"

    def _random(self, best: Row, unbiased: Sequence[Row]) -> str:
        """Name the lowest design of random cohort size, if it is below the winner."""
        lower = [row for row in unbiased if row.size_deviation and _is_below(row, best)]
        other = min(lower, key=lambda row: row.variance.value, default=best)
        if _gain_text(other) == _gain_text(best):
            return ""
        return (
            f"{other.label} would cut it by {_gain_text(other)}, but its cohort size is random: "
            f"{_cohort_text(other)} clients"
        )

    def _usual(self, best: Row) -> str:
        """Describe the bias of cohort-mean."""
        row = next((row for row in self.rows if isinstance(row.recipe, CohortMean)), best)
        if row.unbiased:
            return ""
        times = row.variance.value / best.variance.value if best.variance.value else 1.0
        more = f" and has {_rounded(times)} times this {self.what}"
        if times < 1 + SMALL_GAIN:
            more = ", whatever its variance"
        return f"{row.label}, the FedAvg of most frameworks, is biased{_by(row)}{more}"

    def _misleading(self, best: Row) -> str:
        """Warn of the biased design with the smallest variance, if it is below the winner's."""
        low = [row for row in self.rows if not row.unbiased and _is_below(row, best)]
        if not low:
            return ""
        row = min(low, key=lambda row: row.variance.value)
        return f"{row.label} has a smaller {self.what}, but is biased{_by(row)}"

    def _only_biased(self) -> str:
        """Answer if no design is unbiased."""
        if len(self.rows) == 1:
            (row,) = self.rows
            return f"{row.label} is biased{_by(row)}. Compare size as well, which is unbiased."
        return "None of these designs is unbiased. Compare size as well, which is."

    def _no_gain(self, best: Row) -> str:
        if len(self.rows) == 1:
            others = "Compare size as well" if self.cohort_size > 1 else "No design gains much here"
            is_baseline = isinstance(best.recipe, Multinomial)
            what = "is the baseline itself" if is_baseline else "gains nothing against multinomial"
            return f"{best.label}, the only design compared, {what}. {others}"
        return (
            f"Use {best.label}: none of these unbiased designs lowers {self.the_what} below "
            f"multinomial sampling's"
        )

    def _reason(self) -> str:
        """Explain why nothing gains, if that is clear."""
        if self.cohort_size == 1 and not self.has_updates:
            return ", as there is only one draw"
        share = self.population.sizes.max() / self.population.total
        if share > DOMINANT:
            return f", as one client holds {_share_text(share)} of all samples"
        return ", as all sizes are equal" if self.equal_sizes else ""

    def _how(self, row: Row) -> str:
        """Say what makes the design unbiased."""
        by_size = row.law.cohort_size * self.population.importance
        # The same quotient in another order of operations.
        if np.allclose(row.law.expected_counts(), by_size, rtol=1e-12, atol=0):
            return "draws each client as often as its size says"
        return "is unbiased"

    def _cut(self, row: Row, only: str = "") -> str:
        return f"cuts {self.the_what} by {only}{_gain_text(row)} against multinomial sampling"


def _best(rows: Sequence[Row]) -> Row:
    """Return the first row of smallest variance; one that needs only sizes if it is close."""
    lowest = _lowest(rows)
    free = [row for row in rows if not _needs(row)]
    if not _needs(lowest) or not free:
        return lowest
    other = _lowest(free)
    gain, others = _gain(lowest), _gain(other)
    is_close = gain is None or others is None or gain - others < SMALL_GAIN
    return other if is_close else lowest


def _lowest(rows: Sequence[Row]) -> Row:
    lowest = min(rows, key=lambda row: row.variance.value)
    return next(row for row in rows if _equals(row, lowest))


def _equals(row: Row, other: Row) -> bool:
    return not _is_below(row, other) and not _is_below(other, row)


def _is_below(row: Row, other: Row) -> bool:
    """Return whether a variance is smaller, by more than rounding and standard errors."""
    one, two = row.variance, other.variance
    error = ERRORS * math.hypot(one.standard_error, two.standard_error)
    return one.value < two.value * (1 - ROUNDING) - error


def _gain(row: Row) -> float | None:
    """Return 1 minus the ratio to multinomial's variance; None if that is 0."""
    return None if row.variance.ratio is None else 1 - row.variance.ratio


def _gain_text(row: Row) -> str:
    return f"{'' if row.variance.is_exact else 'about '}{_share_text(_gain(row) or 0.0)}"


def _over(rows: Sequence[Row | None], first: float) -> list[str]:
    """Write variances, divided by another one; a dash for a design that was left out."""
    known = [None if row is None or not first else row.variance.value / first for row in rows]
    exact = [row is None or row.variance.is_exact for row in rows]
    return numbers(known, exact=exact, places=3)


def _needs(row: Row) -> str:
    """Name what a design must know besides the sizes."""
    if row.recipe.learns:
        return "updates"
    if row.recipe.signals:
        return "signals"
    return "groups" if row.recipe.grouped else ""


def _rounded(value: float, digits: int = 2) -> str:
    """Write a number with this many digits, without an exponent if it is large."""
    text = f"{value:.{digits}g}"
    return text if value < 10**digits else f"{float(text):,.0f}"


def _by(row: Row) -> str:
    """Write how large a bias is."""
    return f" by {'' if row.weights_exact else 'about '}{row.bias:.2g}"


def _cohort_text(row: Row) -> str:
    """Write the size of a cohort and its deviation: ``10 ± 2.9``."""
    return f"{_rounded(row.expected_distinct, 3)} ± {_rounded(row.size_deviation)}"


def _share_text(share: float) -> str:
    """Write a share in per cent, with two digits, and more near 100 %."""
    percent = 100 * share
    for digits in (2, 3, 4, 5):
        text = f"{percent:.{digits}g}"
        if percent < 99 or float(text) < 100:
            break
    return f"{text} %"
