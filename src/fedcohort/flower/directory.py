"""The clients: their names, their nodes, and their sizes, bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import Any, Literal, final, get_args

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedcohort._arguments import checked_choice
from fedcohort.flower.queries import ask_sizes

log = getLogger("flwr.fedcohort")

Names = Literal["client", "node"]
NAMES: tuple[Names, ...] = get_args(Names)
#: By default, if so many clients have samples, a claimed size counts up to this share of all
#: samples.
MANY, LARGEST_SHARE = 10, 0.5
#: With fewer clients a share beyond this is worth a warning.
ALARMING_SHARE = 0.9


@final
class Directory:
    """The clients that ever told their sizes, and those that are connected now.

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
        Whether a client's name is what the ``"client"`` says, or its ``"node"`` id.
    query_timeout
        Seconds that nodes have to answer the question for their sizes.

    Attributes
    ----------
    sizes
        Samples by client, bounded among the connected ones; the others keep their last size.
    """

    def __init__(
        self,
        sizes: Mapping[Any, int] | None = None,
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
        self._claimed: dict[str, int] = {}
        self._node_of: dict[str, int] = {}
        self._is_bounded = False
        self.sizes: dict[str, int] = {}

    @property
    def present(self) -> list[str]:
        """The clients that are connected."""
        return list(self._node_of)

    @property
    def has_samples(self) -> bool:
        """Whether a connected client can be drawn."""
        return any(self._claimed[key] > 0 for key in self._node_of)

    def node_of(self, key: str) -> int:
        """Return the node that a client runs on now."""
        return self._node_of[key]

    def refresh(self, grid: Grid) -> bool:
        """Look up the connected nodes, and ask new ones. Return whether anything changed."""
        present = set(grid.get_node_ids())
        self._silent &= present  # ask again whoever comes back
        new = sorted(present - set(self._key_of) - self._silent)
        if new:
            self._learn(grid, new)
            self._silent.update(set(new) - set(self._key_of))
        nodes: dict[str, int] = {}
        holders = {node for node in self._node_of.values() if node in present}
        known = present & set(self._key_of)
        for node_id in [*sorted(holders & known), *sorted(known - holders)]:
            key = self._key_of[node_id]
            # Who holds a name keeps it: a newcomer cannot take another's place.
            if self._node_of.get(key) == node_id or key not in nodes:
                nodes[key] = node_id
        changed = bool(new) or set(nodes) != set(self._node_of) or not self._is_bounded
        self._node_of = nodes
        if changed:
            self._bound()
        return changed

    def state(self) -> dict[str, dict[str, Any]]:
        """Return what is known of all nodes and clients, connected or not."""
        return {
            "nodes": {str(node_id): key for node_id, key in self._key_of.items()},
            "holders": dict(self._node_of),
            "claimed": dict(self._claimed),
            "sizes": dict(self.sizes),
        }

    def restore(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what :meth:`state` returned; these nodes are not asked again."""
        self._key_of = {int(node_id): key for node_id, key in state["nodes"].items()}
        self._claimed = {**state["claimed"], **(self._given or {})}
        self._node_of, self.sizes = dict(state["holders"]), dict(state["sizes"])
        self._is_bounded = False

    def _learn(self, grid: Grid, new: list[int]) -> None:
        """Ask nodes for names and sizes, unless the server knows them."""
        present, taken = set(grid.get_node_ids()), set[str]()
        if self._given is not None:
            for node_id in new:
                if str(node_id) in self._given:
                    self._key_of[node_id] = str(node_id)
                    self._claimed[str(node_id)] = self._given[str(node_id)]
            new = [node_id for node_id in new if node_id not in self._key_of]
        for answer in ask_sizes(grid, new, timeout=self._query_timeout) if new else ():
            key = answer.key if self._names == "client" else str(answer.node_id)
            if self._node_of.get(key) in present or key in taken:
                log.warning("node %d says it is %r, which is there", answer.node_id, key)
                continue
            taken.add(key)
            self._key_of[answer.node_id] = key
            given = None if self._given is None else self._given.get(key)
            self._claimed[key] = answer.size if given is None else given

    def _bound(self) -> None:
        """Bound the sizes of the connected clients."""
        keys = self.present
        own_word = [self._given is None or key not in self._given for key in keys]
        claims = Claims(keys, [self._claimed[key] for key in keys], own_word)
        sizes = claims.bounded(max_size=self._max_size, max_share=self._max_share)
        self.sizes |= dict(zip(keys, sizes.tolist(), strict=True))
        self._is_bounded = True


@final
@dataclass(frozen=True, slots=True)
class Claims:
    """Sizes as they are claimed, before any bound.

    Attributes
    ----------
    keys, sizes
        The clients, and how many samples each is said to have.
    is_own_word
        Whether the client itself claims the size; otherwise the server knows it.
    """

    keys: Sequence[str]
    sizes: Sequence[int]
    is_own_word: Sequence[bool]

    def bounded(self, *, max_size: int | None, max_share: float | None) -> NDArray[np.int64]:
        """Return the sizes that count, and log whom a bound concerns.

        Explicit bounds hold for everybody; where ``max_share`` is None, clients' own word is
        bounded by half of all samples if ten clients or more have samples.
        """
        claimed = np.array(self.sizes, dtype=object)  # a sum of claims must not wrap around
        sizes = claimed if max_size is None else np.minimum(claimed, max_size)
        sizes = self._believed(sizes) if max_share is None else cut_to_share(sizes, max_share)
        for place in np.flatnonzero(sizes < claimed).tolist():
            log.warning(
                "client %r claims %d samples; it counts as %d",
                self.keys[place],
                claimed[place],
                sizes[place],
            )
        return sizes.astype(np.int64)

    def _believed(self, sizes: NDArray[Any]) -> NDArray[Any]:
        """Bound the clients' own claims if there are many clients; otherwise only warn."""
        own_word = np.array(self.is_own_word, dtype=bool)
        n_positive, total = np.count_nonzero(sizes), int(sizes.sum())
        if n_positive >= MANY:
            return np.where(own_word, cut_to_share(sizes, LARGEST_SHARE, own_word), sizes)
        for place in np.flatnonzero(own_word & (sizes > ALARMING_SHARE * total)).tolist():
            if n_positive > 1:
                log.warning(
                    "client %r claims %d of all %d samples: it will be drawn nearly always. Bound "
                    "max_share if that cannot be",
                    self.keys[place],
                    sizes[place],
                    total,
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
