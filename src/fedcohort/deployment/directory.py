"""The client directory: names, connections and sizes, as they are known or claimed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from logging import Logger
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import brief, checked_whole, is_list
from fedcohort.deployment.limits import LARGEST_SIZE, Limits
from fedcohort.deployment.plugin import Plugin
from fedcohort.deployment.waits import BackOff
from fedcohort.population import Population

#: By default, if at least ``MANY`` clients have samples, a self-reported size counts up to this
#: share of all samples.
MANY, LARGEST_SHARE = 10, 0.5
#: With fewer clients a share beyond this is worth a warning.
ALARMING_SHARE = 0.9
#: The framework's address of a client: a node's id, or the client's name.
Connection = int | str
#: A client's description of itself: text and numbers by name.
Properties = Mapping[str, Any]
#: Says whether a client may take part, from its name, its connection and its properties.
Eligible = Callable[[str, Any, Properties], bool]
#: A client's features by name, for the regression estimator.
Features = dict[str, float | str]
#: Bounds on properties: the characters of all, and what can become features.
LONGEST_PROPERTIES, MOST_FEATURES, LONGEST_TEXT = 10_000, 64, 64


@final
@dataclass(frozen=True, slots=True)
class Claim:
    """A client's description of itself: its name, samples and properties."""

    name: str
    size: int
    properties: Properties = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, size: object, properties: Properties | None = None) -> Claim | str:
        """Return what a client says of itself, or what is wrong with it."""
        own_size, own = claimed_size(size), claimed_properties(properties or {})
        if isinstance(own_size, str):
            return own_size
        return own if isinstance(own, str) else cls(name, own_size, own)


def claimed_size(size: object, name: str = "its size") -> int | str:
    """Return the samples that a client claims to have, or what is wrong with the claim."""
    if type(size) is not int or not 0 <= size <= LARGEST_SIZE:
        return f"{name} must be a whole number from 0 to 10^12; got {brief(size)}"
    return size


def claimed_properties(properties: Properties) -> Properties | str:
    """Return the properties that a client claims to have, or what is wrong with them."""
    own: dict[str, Any] = plain(properties)
    for value in own.values():
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, (str, int, float)):
                return f"its properties must be text and numbers; got {type(each).__name__}"
    try:
        length = len(repr(own))
    except ValueError:  # an integer of thousands of digits
        length = LONGEST_PROPERTIES + 1
    if length > LONGEST_PROPERTIES:
        return f"its properties must be at most {LONGEST_PROPERTIES} characters"
    return own


def plain(value: Any) -> Any:
    """Return arrays, and numbers of numpy or torch, as lists and numbers of Python, for JSON."""
    if isinstance(value, Mapping):
        return {str(key): plain(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [plain(own) for own in value]
    return value.tolist() if hasattr(value, "tolist") else value


def features_of(properties: Properties) -> Features | str:
    """Return the features in a client's properties, or why they cannot be used.

    Each entry of a list is a feature.

    Examples
    --------
    >>> features_of({"region": "south", "labels": [0.25, 0.75]})
    {'region': 'south', 'labels.0': 0.25, 'labels.1': 0.75}
    """
    features: Features = {}
    for name, value in properties.items():
        entries = {name: value}
        if isinstance(value, list):
            entries = {f"{name}.{place}": own for place, own in enumerate(value)}
        for each, own in entries.items():
            features[each] = own if isinstance(own, str) else _float(own)
    if len(features) > MOST_FEATURES:
        return f"more than {MOST_FEATURES} features"
    for name, own in features.items():
        if len(own) > LONGEST_TEXT if isinstance(own, str) else not math.isfinite(own):
            return (
                f"{name!r:.50} must be a finite number, or text of at most {LONGEST_TEXT} "
                f"characters; got {own!r:.50}"
            )
    return features


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer without bounds
        return math.inf


def checked_sizes(plugin: Plugin, sizes: object) -> dict[str, int]:
    """Validate sizes by client, as the server knows them; a population has them too."""
    if isinstance(sizes, Population):
        sizes = dict(zip(sizes.ids, sizes.sizes.tolist(), strict=True))
    if not isinstance(sizes, Mapping):
        raise plugin.refusal(
            f"sizes must map clients to samples; got {brief(sizes)}. Pass a dictionary, or None "
            f"to ask the clients."
        )
    for key, size in sizes.items():
        name = f"the size of client {str(key)!r:.50}"
        if checked_whole(plugin.owner, name, size, error=plugin.error) > LARGEST_SIZE:
            raise plugin.refusal(f"{name} must be at most 10^12; got {size}.")
    return {str(key): int(size) for key, size in sizes.items()}


def checked_eligible(plugin: Plugin, eligible: object) -> Eligible | None:
    """Return a function that says whether a client may take part; None where all may."""
    if eligible is None or callable(eligible):
        return eligible
    if not is_list(eligible) or not isinstance(eligible, Collection):
        raise plugin.refusal(
            f"eligible must be client names, or a function of name, node id and properties; got "
            f"{brief(eligible)}. Pass a set of names."
        )
    names = {str(each) for each in eligible}
    return lambda name, connection, properties: name in names


class Directory:
    """All clients that have reported a size, and those that are connected now.

    A plug-in calls :meth:`see` with the connections that the framework lists. It asks those that
    are :meth:`due` for their sizes, and passes the answers to :meth:`take`. Then :meth:`seat`
    updates ``sizes``.

    A client that answers nonsense is due again after a pause, then after twice as long, and so on.
    The first connection with a name keeps it while the framework lists it; then the next
    connection with that name takes it over.

    Parameters
    ----------
    plugin
        The plug-in, for its log.
    sizes
        Samples by client name or connection, where the server knows them.
    eligible
        Who may take part: names, or a function of name, connection and properties; None lets all.
    limits
        How large sizes can be.
    pause
        The seconds before a client that answered nonsense is asked again.

    Attributes
    ----------
    sizes
        Samples by client, bounded among the connected ones; the others keep their last size.

    Examples
    --------
    >>> directory = Directory(Plugin(framework="mine", owner="MyServer"), {"Lyon": 30})
    >>> directory.see(["Lyon", "Nice"])
    >>> directory.due()
    ['Nice']
    >>> directory.take({"Nice": Claim.of("Nice", 50)})
    >>> directory.seat(), directory.sizes
    (True, {'Lyon': 30, 'Nice': 50})
    """

    def __init__(
        self,
        plugin: Plugin,
        sizes: Mapping[Any, int] | Population | None = None,
        *,
        eligible: Eligible | Collection[str] | None = None,
        limits: Limits | None = None,
        pause: float = 60.0,
    ) -> None:
        self._plugin, self._limits = plugin, limits or Limits()
        self._given = {} if sizes is None else checked_sizes(plugin, sizes)
        self._eligible = checked_eligible(plugin, eligible)
        self._connected: set[Connection] = set()
        self._claims: dict[Connection, Claim] = {}
        self._holder: dict[str, Connection] = {}
        self._questions = BackOff(pause)
        self._warned: set[Connection] = set()  # of connections whose name another one has
        self._undecided: dict[str, str] = {}  # why eligible failed, by client
        self._usual: frozenset[tuple[str, bool]] = frozenset()  # names of features: are they text?
        self._features: dict[str, Features] = {}
        self._unusable: dict[str, str] = {}  # why features cannot be used, by client
        self._seated: dict[str, tuple[Connection, int]] = {}  # connected clients' claimed sizes
        self.sizes: dict[str, int] = {}

    # Connected clients

    @property
    def present(self) -> list[str]:
        """The clients that are connected and whose sizes are known."""
        return list(self._seated)

    @property
    def n_connected(self) -> int:
        """How many connections there are, with a known client or not."""
        return len(self._connected)

    @property
    def missing(self) -> list[str]:
        """The names in the given sizes that no client has had."""
        return sorted(self._given.keys() - self._holder.keys())

    def connection_of(self, name: str) -> Any:
        """Return the connection of a client, or its last one."""
        return self._holder[name]

    def properties_of(self, name: str) -> Properties:
        """Return what a client says of itself."""
        return self._claims[self._holder[name]].properties

    def new_features(self) -> dict[str, Features]:
        """Return the features in clients' properties that are new since the last call.

        A client whose features are gone, or cannot be used any more, has none.
        Most of the first clients decide which features there are, and which of them are text. A
        client that has others counts as one without features, and the log says so.
        """
        read = {name: features_of(self.properties_of(name)) for name in sorted(self._holder)}
        failed = {name: own for name, own in read.items() if isinstance(own, str)}
        usable = {name: own for name, own in read.items() if own and not isinstance(own, str)}
        kinds = {
            name: frozenset((each, isinstance(value, str)) for each, value in own.items())
            for name, own in usable.items()
        }
        if not self._usual and kinds:
            self._usual = Counter(kinds.values()).most_common(1)[0][0]
        for name, own in kinds.items():
            if not own <= self._usual:
                names = sorted(each for each, _ in self._usual)
                failed[name] = f"its features are not those of the first clients, {brief(names)}"
                del usable[name]
        unknown = {name: why for name, why in failed.items() if self._unusable.get(name) != why}
        self._plugin.log_failures(unknown, "features", len(read))
        now = {**dict.fromkeys(self._features, Features()), **usable}
        new = {name: own for name, own in now.items() if self._features.get(name) != own}
        self._features, self._unusable = usable, failed
        return new

    def participants(self, *, with_samples: bool = False) -> list[str]:
        """Return the clients that are connected and may take part."""
        allowed = self.eligible(self.present)
        names = self.present if allowed is None else allowed
        return [name for name in names if self.sizes[name]] if with_samples else names

    def eligible(self, names: Collection[str]) -> list[str] | None:
        """Return which of these clients may take part; None: all.

        Clients that are away count by what they said last. Logs clients for which that failed.
        """
        if (eligible := self._eligible) is None:
            return None
        allowed, failed = list[str](), dict[str, str]()
        for name in names:
            try:
                if eligible(name, self.connection_of(name), self.properties_of(name)):
                    allowed.append(name)
            except Exception as error:  # properties are what a client says
                failed[name] = f"{type(error).__name__}, {error}"
        if failed.items() - self._undecided.items():
            self._plugin.log_failures(failed, "eligible", len(names))
        # Others than these may be asked about next.
        for name in names:
            self._undecided.pop(name, None)
        self._undecided |= failed
        return allowed

    # Asking for sizes

    def see(self, connections: Iterable[Connection]) -> None:
        """Note which connections there are now; sizes that the server knows are claimed."""
        self._connected = set(connections)
        self._questions.keep(self._connected)
        for each in self.unknown():
            if str(each) in self._given:
                self._claims[each] = Claim(str(each), self._given[str(each)])

    def unknown(self) -> list[Any]:
        """Return the connections whose sizes are unknown."""
        return sorted(self._connected - self._claims.keys(), key=_order)

    def due(self) -> list[Any]:
        """Return the unknown connections to ask now."""
        return [each for each in self.unknown() if self._questions.is_due(each)]

    def wait(self, connection: Connection, seconds: float) -> None:
        """Note that a question is open for ``seconds``."""
        self._questions.wait(connection, seconds)

    def claim(self, connection: Connection, claim: Claim) -> None:
        """Note what a client says of itself; a size that the server knows comes first."""
        self._claims[connection] = claim

    def take(
        self,
        answers: Mapping[Any, Claim | str],
        *,
        n_asked: int | None = None,
        who: str | None = None,
    ) -> None:
        """Take what clients say of themselves, or what is wrong with it, by connection.

        Log those that gave no valid answer; they are asked again after a pause. ``n_asked`` is how
        many were asked, by default as many as answered; ``who`` is the log's word for them.
        """
        failed = {str(each): own for each, own in answers.items() if isinstance(own, str)}
        for each, own in answers.items():
            if isinstance(own, str):
                self.refuse(each)
            else:
                self.claim(each, own)
        asked = len(answers) if n_asked is None else n_asked
        self._plugin.log_failures(failed, "asking for sizes", asked, who)

    def refuse(self, connection: Connection) -> None:
        """Note that a client gave no valid answer: ask again after a pause."""
        self._questions.back_off(connection)

    def seat(self) -> bool:
        """Give every name to one connection; return whether a client came, left or changed."""
        for each, claim in self._claims.items():
            holder = self._holder.get(claim.name)
            if each not in self._connected or holder == each:
                continue
            if holder is None or holder not in self._connected:
                self._holder[claim.name] = each
            elif each not in self._warned:
                self._warned.add(each)
                self._plugin.logger.warning(
                    "node %s says it is %r, which is node %s: it waits until that one has gone",
                    *(each, claim.name, holder),
                )
        # Of a client that has left, only its last connection can come back.
        kept = self._connected | set(self._holder.values())
        self._claims = {each: claim for each, claim in self._claims.items() if each in kept}
        self._warned &= self._connected
        seated = {
            name: (each, self._given.get(name, self._claims[each].size))
            for name, each in self._holder.items()
            if each in self._connected
        }
        has_changed, self._seated = seated != self._seated, seated
        if has_changed:
            claimed = {name: size for name, (_, size) in seated.items()}
            self_reported = [name not in self._given for name in claimed]
            sizes = bounded_sizes(claimed, self_reported, self._limits, self._plugin.logger)
            self.sizes |= sizes
        return has_changed

    # Saving

    def state(self) -> dict[str, Any]:
        """Return what is known of all clients, connected or not, for JSON."""
        return {
            "claims": [[each, *astuple(claim)] for each, claim in self._claims.items()],
            "holders": dict(self._holder),
            "sizes": dict(self.sizes),
            "features": sorted(self._usual),
        }

    def restoring(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """Read what :meth:`state` returned, and return the function that takes it over.

        These clients are not asked again.
        """
        try:
            claims = {each: Claim(*claim) for each, *claim in state["claims"]}
            holder, sizes = dict(state["holders"]), dict(state["sizes"])
            usual = frozenset((name, is_text) for name, is_text in state["features"])
        except (LookupError, TypeError, ValueError) as error:
            raise self._plugin.refusal(
                f"the saved clients cannot be read ({error!s:.80}). Start without them."
            ) from error

        def take_over() -> None:
            self._claims, self._holder, self.sizes, self._usual = claims, holder, sizes, usual
            self._connected, self._seated, self._features = set(), {}, {}
            self._questions.keep(())

        return take_over


def _order(connection: Connection) -> tuple[bool, Connection]:
    """Sort numbers before names."""
    return isinstance(connection, str), connection


def bounded_sizes(
    claimed: Mapping[str, int], self_reported: Sequence[bool], limits: Limits, logger: Logger
) -> dict[str, int]:
    """Return the sizes that count, and log each capped client.

    Explicit bounds hold for all clients. If ``max_share`` is None, sizes that clients report
    themselves are capped at half of all samples if ten clients or more have samples.
    """
    claims = np.array(list(claimed.values()), dtype=object)  # a sum of claims must not overflow
    sizes = claims if limits.max_size is None else np.minimum(claims, limits.max_size)
    if limits.max_share is not None:
        sizes = cut_to_share(sizes, limits.max_share)
    else:
        sizes = _with_default_share(list(claimed), sizes, np.array(self_reported, bool), logger)
    for name, claim, size in zip(claimed, claims, sizes, strict=True):
        if size < claim:
            logger.warning("client %r claims %d samples; it counts as %d", name, claim, size)
    return dict(zip(claimed, sizes.astype(np.int64).tolist(), strict=True))


def _with_default_share(
    names: Sequence[str], sizes: NDArray[Any], self_reported: NDArray[np.bool_], logger: Logger
) -> NDArray[Any]:
    """Cap self-reported sizes if there are many clients; otherwise only warn."""
    n_positive, total = np.count_nonzero(sizes), int(sizes.sum())
    if n_positive >= MANY:
        cut = cut_to_share(sizes, LARGEST_SHARE, self_reported)
        return np.where(self_reported, cut, sizes)
    for place in np.flatnonzero(self_reported & (sizes > ALARMING_SHARE * total)).tolist():
        if n_positive > 1:
            logger.warning(
                "client %r claims %d of all %d samples: nearly all weight is on it. Bound "
                "max_share if that cannot be",
                *(names[place], sizes[place], total),
            )
    return sizes


def cut_to_share(
    sizes: NDArray[Any], share: float, is_bounded: NDArray[np.bool_] | bool = True
) -> NDArray[Any]:
    """Cut sizes at the largest number that is at most ``share`` of what they then sum to.

    If there are too few clients for so small a share, all get the same size. Sizes that are not
    bounded count in the sum as they are.
    """
    low, high = 0, int(sizes.max(initial=0))
    if high <= share * int(sizes.sum()):
        return sizes
    while low < high:
        middle = (low + high + 1) // 2
        total = int(np.where(is_bounded, np.minimum(sizes, middle), sizes).sum())
        low, high = (middle, high) if middle <= share * total else (low, middle - 1)
    return np.asarray(np.minimum(sizes, max(low, 1)))
