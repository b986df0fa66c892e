"""The settings of a selector: each is declared, described and checked here, and nowhere else.

A new setting needs a field of :class:`SelectorSettings`, its description there, and its type in
:class:`SelectorKeywords`. Selectors, runs, plug-ins, experiment files and saved states follow.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field, fields
from typing import ClassVar, Literal, TypedDict, TypeVar, cast, get_args

from fedcohort._arguments import MOST, checked_kind
from fedcohort._fields import Record, choice, flag, number, number_or, whole
from fedcohort.designs import Recipe
from fedcohort.designs.recipe import estimator_for
from fedcohort.errors import FedcohortError, SelectorError
from fedcohort.memory import EstimatorName, EstimatorSettings

OnFailure = Literal["keep", "redraw", "renormalise"]
Presence = Literal["ignore", "estimated", "known"]

#: Stands in the docstring of a constructor for the settings that it unpacks.
PLACE = "{settings}\n"
KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
_ENTRY = re.compile(r"^(\w+)\n((?: {4}.*\n?)+)", re.MULTILINE)
_Kind = TypeVar("_Kind", bound=type)


class SelectorKeywords(TypedDict, total=False):
    """The settings as keyword arguments; :class:`SelectorSettings` declares them."""

    estimator: EstimatorName | EstimatorSettings
    sketch: int | None
    on_failure: OnFailure
    tries: int
    extra: int
    max_draws: int | None
    max_norm: float | Literal["auto"] | None
    overlap: bool
    rebuild_every: int
    presence: Presence
    max_boost: float | None
    interval_cutoff: int | None
    max_participations: int | None
    min_separation: int
    rest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorSettings(Record):
    """How a selector draws, treats failures, bounds updates and remembers them.

    Attributes
    ----------
    recipe
        How clients are drawn.
    estimator
        ``"plain"``, ``"difference"``, ``"mifa"``, ``"fedvarp"``, ``"fedstale"``,
        ``"regression"``, or the settings: for example a :class:`fedcohort.Difference` or
        :class:`fedcohort.Regression`. These predict clients' updates from past updates or
        features, which usually lowers the variance of the aggregate. They need memory, for up to
        one model per client.
    sketch
        Numbers that the memory keeps of an update; None keeps it whole.
    on_failure
        What happens to the weight of a drawn client that does not answer. ``"keep"`` leaves it on
        the current model. ``"redraw"`` draws other clients instead; it needs the plain estimator.
        ``"renormalise"`` spreads it over the clients that answered (biased).
    tries
        How often ``"redraw"`` can replace one draw.
    extra
        Over-selection: draw this many more, and use the first ``cohort_size`` draws that are
        answered (biased toward fast clients).
    max_draws
        Refuse a design that can draw one client more often in a round: with differential privacy
        a client that is drawn k times moves the aggregate by k shares.
    max_norm
        Scale down updates of a larger norm to this one: the aggregate is unbiased for the scaled
        updates. ``"auto"``: 10 times the median norm of the updates of the last 20 rounds with
        answers, fixed before the draw; nothing is scaled before the first. The norm is that of the
        floating-point arrays. Integer arrays shrink by the same factor, and have no bound of their
        own but 2^52: in a loop of your own, drop updates that move them too far.
    overlap
        Build each design without the last round's updates: it can then be built while clients
        train.
    rebuild_every
        Build a design that learns in every k-th round only; it knows the updates up to then.
    presence
        What weights do about clients that are not always there. ``"ignore"``: they are unbiased
        over the clients that are there. ``"estimated"`` and ``"known"``: a client that is there
        with chance q counts 1 / q times as much, so that weights are unbiased over all members
        that may take part. 1 / q is the mean of the client's intervals between presences so far,
        or comes from ``chances``. The weights of a round then sum to 1 only on average.
    max_boost
        The largest 1 / q that counts; None for no bound. A client with q below 1 / ``max_boost``
        then falls short of its importance by the share 1 - q ``max_boost``.
    interval_cutoff
        Count an absence as an interval that ends after this many rounds; None for never. A client
        with the chance q then falls short of its importance by the share (1 - q)^cutoff.
    max_participations
        Ask a client in at most this many rounds; None for no limit.
    min_separation
        Ask a client again only this many rounds after it was asked, or later.
    rest
        Do not ask a client that sent no usable update in this many rounds after the failure.
    """

    _owner = "Selector"
    _error: ClassVar[type[FedcohortError]] = SelectorError

    recipe: Recipe = field(kw_only=False)
    estimator: EstimatorName | EstimatorSettings = "plain"
    sketch: int | None = whole(None, least=1, most=MOST)
    on_failure: OnFailure = choice("keep", get_args(OnFailure))
    tries: int = whole(10, most=MOST)
    extra: int = whole(0, most=MOST)
    max_draws: int | None = whole(None, least=1, most=MOST)
    max_norm: float | Literal["auto"] | None = number_or("auto", None, above=0)
    overlap: bool = flag(False)
    rebuild_every: int = whole(1, least=1, most=MOST)
    presence: Presence = choice("ignore", get_args(Presence))
    max_boost: float | None = number(None, least=1, way_out="Pass for example 20, or None.")
    interval_cutoff: int | None = whole(None, least=1, most=MOST)
    max_participations: int | None = whole(None, least=1, most=MOST)
    min_separation: int = whole(1, least=1, most=MOST)
    rest: int = whole(0, most=MOST)

    def _check(self) -> None:
        owner, error = self._owner, self._error
        way_out = "Pass for example SizeClustered(10)."
        checked_kind(owner, "recipe", self.recipe, Recipe, way_out=way_out, error=error)  # type: ignore[type-abstract]
        estimator = estimator_for(owner, self.recipe, self.estimator, error=error)
        self._put(estimator=estimator or "plain")  # one form for each estimator
        if self.extra and self.on_failure == "redraw":
            raise error(
                f"{owner}: extra must be 0 with on_failure='redraw', which replaces lost draws; "
                f"got {self.extra}. Choose one of the two."
            )
        if self.extra and estimator is not None and estimator.own_weights:
            raise error(
                f"{owner}: extra must be 0 with {estimator!r}, whose weights are not the "
                f"design's: the first answers would get equal ones; got {self.extra}. Leave it out."
            )
        if self.on_failure == "renormalise" and estimator is not None and estimator.over_members:
            raise error(
                f"{owner}: on_failure='renormalise' would make weights sum to 1 after a failure "
                f"only; those of {estimator!r} are importances. Use on_failure='keep': a lost "
                f"client then counts with what it sent last."
            )
        if self.on_failure == "redraw" and estimator is not None:
            raise error(
                f"{owner}: on_failure='redraw' biases every estimator but the plain one: lost "
                f"draws go to the clients that can be reached, and the mean H runs over all "
                f"available ones. Use on_failure='keep': a lost client then counts with what is "
                f"predicted of it."
            )
        if self.rebuild_every > 1 and (self.recipe.signals or self.overlap):
            asks = f"{self.recipe.name} asks clients for"
            needs = "overlap builds" if self.overlap else asks
            raise error(
                f"{owner}: rebuild_every must be 1 here, since {needs} a design in every round; "
                f"got {self.rebuild_every}. Leave it out."
            )
        self._check_attendance()

    def _check_attendance(self) -> None:
        """Refuse settings of who comes that do not fit each other."""
        owner, error = self._owner, self._error
        if self.corrects_presence and (self.on_failure != "keep" or self.extra):
            other = f"extra={self.extra}" if self.extra else f"on_failure={self.on_failure!r}"
            raise error(
                f"{owner}: presence={self.presence!r} needs weights that no answer changes; got "
                f"{other}. Use on_failure='keep' without extra, or presence='ignore'."
            )
        if self.corrects_presence and self.has_own_weights:
            raise error(
                f"{owner}: presence={self.presence!r} needs the weights of the design; those of "
                f"{self.estimator!r} do not follow who comes. Use presence='ignore', or the "
                f"difference estimator."
            )
        needs = {
            "max_boost": (self.corrects_presence, "'estimated' or 'known'"),
            "interval_cutoff": (self.presence == "estimated", "'estimated'"),
        }
        for name, (is_used, words) in needs.items():
            if getattr(self, name) is not None and not is_used:
                raise error(
                    f"{owner}: {name} needs presence={words}; got presence={self.presence!r}. "
                    f"Change it, or leave {name} out."
                )
        if self.rest and self.extra:
            raise error(
                f"{owner}: rest must be 0 with extra, since clients that the round does not wait "
                f"for would rest too; got {self.rest}. Leave one of the two out."
            )

    @property
    def corrects_presence(self) -> bool:
        """Whether weights make up for clients that are not always there."""
        return self.presence != "ignore"

    @property
    def has_own_weights(self) -> bool:
        """Whether the estimator's weights are not those of the design."""
        return not isinstance(self.estimator, str) and self.estimator.own_weights

    @property
    def predictor(self) -> EstimatorSettings | None:
        """The estimator's settings without given features; None for the plain one."""
        return None if isinstance(self.estimator, str) else self.estimator.plain

    def keywords(self) -> SelectorKeywords:
        """Return the settings as keyword arguments."""
        settings = {name: getattr(self, name) for name in KEYWORDS}
        return cast("SelectorKeywords", settings)


#: The names of the keyword arguments.
KEYWORDS = tuple(SelectorKeywords.__annotations__)


def unpacks(record: type, *, without: Iterable[str] = ()) -> Callable[[_Kind], _Kind]:
    """Show the settings of a record that a constructor takes as ``**settings: Unpack[...]``.

    They stand in its signature, and in its docstring in place of ``{settings}``: all but those
    in ``without`` and those that the constructor lists or describes itself.
    """

    def decorate(kind: _Kind) -> _Kind:
        make = kind.__init__  # type: ignore[misc]
        own = inspect.signature(make).parameters
        left_out = {*own, *without}
        shown = [
            inspect.Parameter(each.name, KEYWORD_ONLY, default=each.default, annotation=each.type)
            for each in fields(record)
            if each.default is not MISSING and each.name not in left_out
        ]
        *first, last = own.values()  # others than Unpack can be the arguments of a base class
        rest = [] if str(last.annotation).startswith("Unpack") else [last]
        make.__signature__ = inspect.Signature([*first, *shown, *rest])
        described = inspect.cleandoc(kind.__doc__ or "")
        wanted = {*own, *(each.name for each in shown)}
        wanted -= {name for name, _ in _ENTRY.findall(described)}
        entries = [
            f"{name}\n{text.rstrip()}\n"
            for source in reversed(record.__mro__)
            for name, text in _ENTRY.findall(_attributes(source))
            if name in wanted
        ]
        kind.__doc__ = described.replace(PLACE, "".join(entries))
        return kind

    return decorate


def _attributes(source: type) -> str:
    return inspect.cleandoc(source.__doc__ or "").partition("Attributes\n----------\n")[2]
