"""The clients: their names, their nodes, and their sizes, bounded."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import astuple, replace
from itertools import count
from logging import getLogger
from typing import Any, Literal, final, get_args

from flwr.serverapp import Grid

from fedcohort._arguments import brief, checked_choice
from fedcohort._deployment import ClaimedSizes, Limits, checked_sizes, log_reasons
from fedcohort.errors import FlowerError
from fedcohort.flower.grid import LONGEST_PAUSE, SHORTEST_PAUSE, Deadline, node_of, pulled, sent
from fedcohort.flower.queries import Claim, Properties, claim_of, size_queries
from fedcohort.flower.settings import Waits

log = getLogger("flwr.fedcohort")

Names = Literal["client", "node"]
NAMES: tuple[Names, ...] = get_args(Names)
#: Says whether a client may take part, from its name, its node's id and its properties.
Eligible = Callable[[str, int, Properties], bool]


@final
class Directory:
    """The clients that ever told their sizes, and those that are connected now.

    Nodes are asked for their sizes once. The questions stay open while training goes on: a late
    answer counts. A node that does not answer, or answers nonsense, is asked again after
    ``waits.query`` seconds, then after twice as long, and so on. The first node with a name keeps
    it while the SuperLink lists the node; then the next node with that name takes it over.

    Parameters
    ----------
    sizes
        Samples by client, where the server knows them: keys are client names or node ids. None
        asks the nodes.
    eligible
        Who may take part: names, or a function of name, node id and properties.
    names
        Whether a client's name is what the ``"client"`` says, or its ``"node"`` id.
    waits, limits
        How long to wait for sizes, and how large they can be.

    Attributes
    ----------
    sizes
        Samples by client, bounded among the connected ones; the others keep their last size.
    """

    def __init__(
        self,
        sizes: Mapping[Any, int] | None = None,
        *,
        eligible: Eligible | Collection[str] | None = None,
        names: Names = "client",
        waits: Waits | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._given = {} if sizes is None else checked_sizes("CohortStrategy", sizes, FlowerError)
        self._eligible = checked_eligible(eligible)
        checked_choice("CohortStrategy", "names", names, NAMES)
        self._names, self._waits, self._limits = names, waits or Waits(), limits or Limits()
        self._nodes: set[int] = set()
        self._claims: dict[int, Claim] = {}
        self._holder: dict[str, int] = {}
        self._open: dict[str, int] = {}  # nodes by the question that they have not answered
        self._pauses: dict[int, tuple[Deadline, float]] = {}
        self._told: set[int] = set()
        self._unclear: dict[str, str] = {}  # for whom eligible failed, and why
        self._seated: dict[str, int] = {}
        self.sizes: dict[str, int] = {}

    @property
    def present(self) -> list[str]:
        """The clients that are connected."""
        return list(self._seated)

    @property
    def n_nodes(self) -> int:
        """How many nodes are connected, with a known client or not."""
        return len(self._nodes)

    def node_of(self, key: str) -> int:
        """Return the node that a client runs on, or ran on last."""
        return self._holder[key]

    def properties_of(self, key: str) -> Properties:
        """Return what a client says of itself."""
        return self._claims[self._holder[key]].properties

    def takers(self, *, with_samples: bool = False) -> list[str]:
        """Return the clients that are connected and may take part."""
        found = self.present if self._eligible is None else self._allowed(self._eligible)
        return [key for key in found if self.sizes[key]] if with_samples else found

    def _allowed(self, eligible: Eligible) -> list[str]:
        """Return the connected clients that are eligible, and log for whom that cannot be said."""
        found, failed = list[str](), dict[str, str]()
        for key in self.present:
            try:
                if eligible(key, self.node_of(key), self.properties_of(key)):
                    found.append(key)
            except Exception as error:  # properties are a client's own word
                failed[key] = f"{type(error).__name__}, {error}"
        if failed != self._unclear:
            log_reasons(failed, "eligible", len(self.present), logger=log)
            self._unclear = failed
        return found

    def wait_for_somebody(self, grid: Grid, until: Deadline) -> None:
        """Look up the connected clients; where none can be drawn, wait until one can."""
        for look in _looks(until):
            self.refresh(grid)
            if self.takers(with_samples=True) or until.has_passed:
                break
            if look == 0:
                log.warning("no client with samples is there: waiting for one")

    def gather(self, grid: Grid, needed: int) -> None:
        """Wait for ``needed`` nodes and their sizes, while answers arrive.

        Raises
        ------
        FlowerError
            If too few nodes came, or none that can be drawn, before the start's limit.
        """
        end, quiet, before = Deadline(self._waits.start), Deadline(self._waits.query), (-1, -1)
        for _ in _looks(end):
            self.refresh(grid)
            if (now := (self.n_nodes, len(self.present))) != before:
                log.info("%d of %d nodes are known, %d are needed", now[1], now[0], needed)
                quiet, before = Deadline(self._waits.query), now
            is_enough = self.n_nodes >= needed and self.takers(with_samples=True)
            if is_enough and (not self._open or quiet.has_passed or end.has_passed):
                break
            if end.has_passed:
                raise FlowerError(
                    f"CohortStrategy: needs {needed} nodes, and a client with samples that can be "
                    f"drawn, within {self._waits.start:g} s; {now[0]} nodes came and {now[1]} "
                    f"told their sizes. Start nodes, call register_size_query in the client app "
                    f"or pass sizes by node id, see whom eligible lets in, or allow more time: "
                    f"Waits(start=...)."
                )
        if unknown := sorted(self._given.keys() - self._holder.keys()):
            log.warning("sizes has %d names that no node has: %.200s", len(unknown), unknown)

    def refresh(self, grid: Grid) -> bool:
        """Look up the connected nodes, without waiting. Return whether a client came or went."""
        self._nodes = set(grid.get_node_ids())
        # Ask nodes that come back at once.
        self._pauses = {each: of for each, of in self._pauses.items() if each in self._nodes}
        self._collect(grid)
        self._ask(grid)
        self._collect(grid)
        return self._seat()

    def state(self) -> dict[str, Any]:
        """Return what is known of all clients, connected or not."""
        return {
            "claims": [[node, *astuple(claim)] for node, claim in self._claims.items()],
            "holders": dict(self._holder),
            "sizes": dict(self.sizes),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` returned; these nodes are not asked again."""
        self._claims = {node: Claim(*claim) for node, *claim in state["claims"]}
        self._holder, self.sizes = dict(state["holders"]), dict(state["sizes"])
        self._nodes, self._seated, self._open, self._pauses = set(), {}, {}, {}

    def _ask(self, grid: Grid) -> None:
        """Ask the nodes that are unknown, unless they were asked a short while ago."""
        due = []
        for node in sorted(self._nodes - self._claims.keys()):
            again, pause = self._pauses.get(node, (None, self._waits.query))
            if str(node) in self._given:
                self._claims[node] = Claim(str(node), self._given[str(node)])
            elif again is None or again.has_passed:
                due.append(node)
                self._pauses[node] = Deadline(pause), 2 * pause
        if due:
            self._open |= sent(grid, size_queries(due, self._waits.start))

    def _collect(self, grid: Grid) -> None:
        """Read the answers that have come."""
        nodes, failed = dict(self._open), dict[str, str]()
        for reply in pulled(grid, self._open) if nodes else ():
            node = node_of(reply, nodes)
            if node not in self._nodes or node in self._claims:
                continue
            claim = claim_of(reply, node)
            if isinstance(claim, str):
                failed[str(node)] = claim
                continue
            name = claim.key if self._names == "client" else str(node)
            self._claims[node] = replace(claim, key=name)
        log_reasons(failed, "asking for sizes", len(set(nodes.values())), "nodes", logger=log)
        unknown = self._nodes - self._claims.keys()
        self._open = {each: node for each, node in self._open.items() if node in unknown}

    def _seat(self) -> bool:
        """Give every name to one connected node; return whether anything changed."""
        for node, claim in self._claims.items():
            holder = self._holder.get(claim.key)
            if node not in self._nodes or holder == node:
                continue
            if holder is None or holder not in self._nodes:
                self._holder[claim.key] = node
            elif node not in self._told:
                self._told.add(node)
                log.warning(
                    "node %d says it is %r, which is node %d: it waits until that one has gone",
                    *(node, claim.key, holder),
                )
        # Of a client that has left, only its last node can come back.
        kept = self._nodes | set(self._holder.values())
        self._claims = {node: claim for node, claim in self._claims.items() if node in kept}
        self._told &= self._nodes
        seated = {key: node for key, node in self._holder.items() if node in self._nodes}
        has_changed, self._seated = seated != self._seated, seated
        if has_changed:
            self._bound()
        return has_changed

    def _bound(self) -> None:
        """Bound the sizes of the connected clients."""
        keys = list(self._seated)
        claimed = [self._given.get(key, self._claims[self._seated[key]].size) for key in keys]
        claims = ClaimedSizes(keys, claimed, [key not in self._given for key in keys])
        sizes = claims.bounded(self._limits, log)
        self.sizes |= dict(zip(keys, sizes.tolist(), strict=True))


def _looks(until: Deadline) -> Iterator[int]:
    """Count looks, with longer and longer pauses between them; none ends after ``until``."""
    pause = SHORTEST_PAUSE
    for look in count():
        yield look
        time.sleep(min(pause, until.left))
        pause = min(1.5 * pause, LONGEST_PAUSE)


def checked_eligible(eligible: object) -> Eligible | None:
    """Return a function that says whether a client may take part; None where all may."""
    if eligible is None or callable(eligible):
        return eligible
    if isinstance(eligible, (str, bytes)) or not isinstance(eligible, Collection):
        raise FlowerError(
            f"CohortStrategy: eligible must be client names, or a function of name, node id and "
            f"properties; got {brief(eligible)}. Pass a set of names."
        )
    names = {str(each) for each in eligible}
    return lambda name, node_id, properties: name in names
