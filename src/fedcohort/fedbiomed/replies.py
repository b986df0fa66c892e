"""A round's replies: which nodes' parameters can be used, and as what update."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._deployment import (
    ArrayCheck,
    Arrays,
    ClientUpdate,
    ModelArrays,
    claimed_size,
    is_finite_number,
    log_reasons,
)
from fedcohort._updates import as_numpy, is_tensor, like

#: A child of Fed-BioMed's own logger, so that its lines stand among the experiment's.
log = getLogger("fedbiomed.fedcohort")

#: Why a node failed whose reply never came.
SILENCE = "no reply: it is disconnected, or reported an error"
#: A node's parameters, arrays or tensors by name.
Params = Mapping[str, Any]


def as_arrays(params: Params) -> dict[str, NDArray[Any]]:
    """Return parameters as numpy arrays."""
    return {
        str(name): as_numpy(value.detach()) if is_tensor(value) else np.asarray(value)
        for name, value in params.items()
    }


def as_params(arrays: Arrays, model: Params) -> dict[str, Any]:
    """Return arrays in the kinds of the model's parameters, numpy or torch."""
    return {
        name: like(arrays[name], own) if is_tensor(own) else arrays[name]
        for name, own in model.items()
    }


@final
@dataclass(slots=True, eq=False)
class RoundReplies:
    """A round between the draw and the aggregate: who answered, and why others did not.

    Attributes
    ----------
    number
        Fed-BioMed's number of the round, from 0.
    asked
        The nodes that were sent the model.
    is_count
        Whether the round asks everyone, to learn how many samples the nodes have.
    replies, updates, samples
        Of the nodes whose replies can be used: the replies, their updates, and how many samples
        they trained on.
    failed
        Why other nodes' replies cannot be used.
    """

    number: int
    asked: list[str]
    is_count: bool = False
    replies: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    updates: dict[str, ClientUpdate] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def take(
        self, replies: Mapping[str, Mapping[str, Any]], sent: ModelArrays, check: ArrayCheck
    ) -> None:
        """Check the replies of the nodes that were asked, and log why some cannot be used."""
        for node in self.asked:
            found = self._update(replies.get(node), sent, check)
            if isinstance(found, str):
                self.failed[node] = found
                continue
            self.replies[node], self.updates[node] = replies[node], found
            self.samples[node] = int(replies[node]["sample_size"])
        log_reasons(
            self.failed, f"training in round {self.number}", len(self.asked), "nodes", logger=log
        )

    def reject(self, node: str, reason: str) -> None:
        """Count a node among the failed after all."""
        for found in (self.replies, self.updates, self.samples):
            found.pop(node, None)
        self.failed[node] = reason
        log_reasons(
            {node: reason}, f"training in round {self.number}", len(self.asked), "nodes", logger=log
        )

    def _log(self, failed: dict[str, str]) -> None:
        """Log why nodes failed."""
        doing = f"training in round {self.number}"
        log_reasons(failed, doing, len(self.asked), "nodes", logger=log)

    def durations(self) -> dict[str, float]:
        """Return the seconds that the nodes say they trained."""
        found = {}
        for node, reply in self.replies.items():
            seconds: Any = (reply.get("timing") or {}).get("rtime_training")
            if is_finite_number(seconds) and seconds >= 0:
                found[node] = float(seconds)
        return found

    def params(self, nodes: Iterable[str]) -> dict[str, Params]:
        """Return the parameters of these nodes as they came."""
        return {node: self.replies[node]["params"] for node in nodes}

    def _update(
        self, reply: Mapping[str, Any] | None, sent: ModelArrays, check: ArrayCheck
    ) -> ClientUpdate | str:
        """Return a node's update, or what is wrong with its reply."""
        if reply is None:
            return SILENCE
        if reply.get("success") is not True:
            return f"error: {reply.get('msg') or 'it gave no reason'}"
        params = reply.get("params")
        if not isinstance(params, Mapping) or set(params) != set(sent.arrays):
            return "has other arrays than the model"
        if isinstance(wrong := claimed_size(reply.get("sample_size")), str):
            return wrong
        try:
            arrays = as_arrays({name: params[name] for name in sent.arrays})
        except Exception as error:  # a node can send anything
            return f"cannot be read: {type(error).__name__}, {error}"
        cast = check(arrays, sent)
        return cast if isinstance(cast, str) else ClientUpdate(sent, {**arrays, **cast})
