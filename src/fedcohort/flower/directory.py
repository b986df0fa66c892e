"""The clients on Flower's nodes: ask the nodes for their sizes, and wait for clients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Literal, final, get_args

from flwr.serverapp import Grid

from fedcohort._arguments import checked_choice
from fedcohort.deployment.directory import Directory, Eligible
from fedcohort.deployment.limits import Limits
from fedcohort.deployment.waits import TimeLimit, looks
from fedcohort.flower.grid import node_of, pulled, sent
from fedcohort.flower.queries import claim_of, size_queries
from fedcohort.flower.settings import FLOWER, Waits
from fedcohort.population import Population

Names = Literal["client", "node"]
NAMES: tuple[Names, ...] = get_args(Names)


@final
class NodeDirectory(Directory):
    """All clients that have reported a size, and those that are connected now.

    Nodes are asked for their sizes once. A question stays open for ``waits.start`` seconds while
    training continues, and a late answer counts; the node is asked again only after that. A node
    that answers nonsense is asked again after ``waits.query`` seconds, then after twice as long,
    and so on.

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
    """

    def __init__(
        self,
        sizes: Mapping[Any, int] | Population | None = None,
        *,
        eligible: Eligible | Collection[str] | None = None,
        names: Names = "client",
        waits: Waits | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._waits = waits or Waits()
        super().__init__(FLOWER, sizes, eligible=eligible, limits=limits, pause=self._waits.query)
        checked_choice(FLOWER.owner, "names", names, NAMES)
        self._names = names
        self._open: dict[str, int] = {}  # nodes by the question that they have not answered

    def wait_for_a_client(self, grid: Grid, until: TimeLimit) -> None:
        """Look up the connected clients; where none can be drawn, wait until one can."""
        for look in looks(until):
            self.refresh(grid)
            if self.participants(with_samples=True) or until.has_passed:
                break
            if look == 0:
                FLOWER.logger.warning("no client with samples is connected; waiting")

    def gather(self, grid: Grid, needed: int, min_known: int, can_draw: Callable[[], bool]) -> None:
        """Wait for ``needed`` nodes and ``min_known`` sizes; for more sizes, while they arrive.

        ``can_draw`` says whether the design can draw from the clients that are known.

        Raises
        ------
        FlowerError
            If too few nodes or sizes came, or no client can be drawn, before the start's limit.
        """
        end, quiet, before = TimeLimit(self._waits.start), TimeLimit(self._waits.query), (-1, -1)
        for _ in looks(end):
            self.refresh(grid)
            if (now := (self.n_connected, len(self.present))) != before:
                FLOWER.logger.info(
                    "nodes connected: %d, needed: %d; sizes known: %d, needed: %d",
                    *(now[0], needed, now[1], min_known),
                )
                quiet, before = TimeLimit(self._waits.query), now
            can_begin = now[0] >= needed and now[1] >= min_known
            if can_begin and self.participants(with_samples=True):
                is_last = not self._open or quiet.has_passed or end.has_passed
                if is_last and (can_draw() or end.has_passed):
                    break
            elif end.has_passed:
                raise FLOWER.refusal(
                    f"needs {needed} nodes, the sizes of {min_known}, and a client with samples "
                    f"that can be drawn, within {self._waits.start:g} s; {now[0]} nodes came and "
                    f"{now[1]} told their sizes. Start nodes, call register_size_query in the "
                    f"client app or pass sizes by node id, check which clients are eligible, or "
                    f"allow more time: Waits(start=...)."
                )
        if self.missing:
            FLOWER.logger.warning(
                "sizes has %d names that no node has: %.200s", len(self.missing), self.missing
            )

    def refresh(self, grid: Grid) -> bool:
        """Look up the connected nodes, without waiting. Return whether a client came or went."""
        self.see(grid.get_node_ids())
        self._collect(grid)
        self._ask(grid)
        self._collect(grid)
        return self.seat()

    def _ask(self, grid: Grid) -> None:
        """Ask the nodes that are due."""
        due = self.due()
        if not due:
            return
        asked = sent(grid, size_queries(due, self._waits.start))
        self._open = {each: node for each, node in self._open.items() if node not in due} | asked
        for node in due:
            self.wait(node, self._waits.start)
        for node in set(due) - set(asked.values()):
            self.refuse(node)  # the question could not be sent

    def _collect(self, grid: Grid) -> None:
        """Read the answers that have come."""
        nodes, unknown = dict(self._open), self.unknown()
        replies = pulled(grid, self._open) if nodes else []
        by_node = {node_of(reply, nodes): reply for reply in replies}
        claims = {node: claim_of(own, node) for node, own in by_node.items() if node in unknown}
        if self._names == "node":
            claims = {
                node: own if isinstance(own, str) else replace(own, name=str(node))
                for node, own in claims.items()
            }
        self.take(claims, n_asked=len(set(nodes.values())), who="nodes")
        unknown = self.unknown()
        self._open = {each: node for each, node in self._open.items() if node in unknown}
