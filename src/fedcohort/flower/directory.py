"""Who is there: nodes by the names of their clients, and their sizes."""

from __future__ import annotations

from collections.abc import Mapping
from logging import getLogger
from typing import Any, Literal, final, get_args

from flwr.serverapp import Grid

from fedcohort.arguments import checked_choice
from fedcohort.errors import FlowerError
from fedcohort.flower.claims import Claims
from fedcohort.flower.size_query import ask_sizes
from fedcohort.population import Population

log = getLogger("flwr.fedcohort")

Names = Literal["client", "node"]
NAMES: tuple[Names, ...] = get_args(Names)


@final
class Directory:
    """The clients that are there now, in an order that does not depend on node ids.

    Parameters
    ----------
    sizes
        Samples by client, where the server knows them: keys are client names or node ids. None
        asks the nodes.
    max_size, max_share
        Bounds: on the samples of a client, and on its share of all samples. Where ``max_share`` is
        None and ten clients or more have samples, what clients say of themselves counts up to
        half of all samples; sizes that the server knows are then taken as they are.
    names
        Who says under which name a client is known: the ``"client"`` itself, or its ``"node"`` id.
    query_timeout
        Seconds that nodes have to answer the question for their sizes.
    """

    def __init__(
        self,
        sizes: Mapping[str | int, int] | None = None,
        *,
        max_size: int | None = None,
        max_share: float | None = None,
        names: Names = "client",
        query_timeout: float = 60.0,
    ) -> None:
        self._given = None if sizes is None else {str(key): n for key, n in sizes.items()}
        self._max_size, self._max_share = max_size, max_share
        self._query_timeout = query_timeout
        checked_choice("CohortStrategy", "names", names, NAMES)
        self._names = names
        self._key_of: dict[int, str] = {}
        self._silent: set[int] = set()
        self._size_of: dict[str, int] = {}
        self._node_of: dict[str, int] = {}
        self._keys: list[str] = []
        self._population: Population | None = None

    @property
    def keys(self) -> list[str]:
        """The clients that are there, in the population's order."""
        return self._keys

    @property
    def population(self) -> Population:
        """The clients that are there, with their bounded sizes."""
        if self._population is None:
            raise FlowerError(
                "fedcohort.flower: no client is there that said its size. Start nodes, and call "
                "register_size_query in the client app or pass sizes by node id."
            )
        return self._population

    @property
    def has_samples(self) -> bool:
        """Whether a client is there that can be drawn."""
        return any(self._size_of[key] > 0 for key in self._keys)

    def node_of(self, key: str) -> int:
        """Return the node that a client runs on now."""
        return self._node_of[key]

    def refresh(self, grid: Grid) -> bool:
        """Look who is there; ask who is new. Return whether anything changed."""
        present = set(grid.get_node_ids())
        self._silent &= present  # who comes back is asked again
        strangers = sorted(present - set(self._key_of) - self._silent)
        if strangers:
            self._learn(grid, strangers)
            self._silent.update(set(strangers) - set(self._key_of))
        nodes: dict[str, int] = {}
        holders = {node for node in self._node_of.values() if node in present}
        known = present & set(self._key_of)
        for node_id in [*sorted(holders & known), *sorted(known - holders)]:
            key = self._key_of[node_id]
            # Who holds a name keeps it: a newcomer cannot take another's place.
            if self._node_of.get(key) == node_id or key not in nodes:
                nodes[key] = node_id
        changed = set(nodes) != set(self._node_of) or self._population is None
        self._node_of = nodes
        if changed:
            self._keys = sorted(nodes, key=_order)
        if changed or strangers:
            self._population = self._bounded() if self.has_samples else None
        return changed or bool(strangers)

    def state(self) -> dict[str, dict[str, Any]]:
        """Return what is known of nodes and clients, also of those that are away."""
        nodes = {str(node_id): key for node_id, key in self._key_of.items()}
        return {"nodes": nodes, "holders": dict(self._node_of), "sizes": dict(self._size_of)}

    def restore(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Know again what :meth:`state` gave: these nodes need not be asked."""
        self._key_of = {int(node_id): key for node_id, key in state["nodes"].items()}
        self._size_of = {**state["sizes"], **(self._given or {})}
        self._node_of, self._population = dict(state["holders"]), None

    def _learn(self, grid: Grid, strangers: list[int]) -> None:
        present, taken = set(grid.get_node_ids()), set[str]()
        if self._given is not None:
            for node_id in strangers:
                if str(node_id) in self._given:
                    self._key_of[node_id] = str(node_id)
                    self._size_of[str(node_id)] = self._given[str(node_id)]
            strangers = [node_id for node_id in strangers if node_id not in self._key_of]
        for answer in ask_sizes(grid, strangers, timeout=self._query_timeout) if strangers else ():
            key = answer.key if self._names == "client" else str(answer.node_id)
            if self._node_of.get(key) in present or key in taken:
                log.warning("node %d says it is %r, which is there", answer.node_id, key)
                continue
            taken.add(key)
            self._key_of[answer.node_id] = key
            given = None if self._given is None else self._given.get(key)
            self._size_of[key] = answer.size if given is None else given

    def _bounded(self) -> Population:
        own_word = [self._given is None or key not in self._given for key in self._keys]
        claims = Claims(self._keys, [self._size_of[key] for key in self._keys], own_word)
        sizes = claims.bounded(max_size=self._max_size, max_share=self._max_share)
        return Population(sizes, ids=self._keys)


def _order(key: str) -> tuple[int, int, str]:
    """Sort numbers by value, before names."""
    is_number = key.isascii() and key.isdecimal() and len(key) < 20
    return (0, int(key), key) if is_number else (1, 0, key)
