"""A round between sending and receiving: who was drawn, who answered, and why others did not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, final

import numpy as np
from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedcohort.designs import Design
from fedcohort.flower.keyed_variates import Recalled
from fedcohort.flower.replies import Reply
from fedcohort.flower.sent_model import Around, SentModel

log = getLogger("flwr.fedcohort")


@final
@dataclass(slots=True)
class TrainingRound:
    """What is known of a round.

    Attributes
    ----------
    server_round, number
        The round as Flower counts it from every start, and as the stream of cohorts does.
    sent, config, grid
        What was sent, and where.
    check
        Returns a reply to what was sent that can be used, or what is wrong with it.
    design
        What was drawn from; None where no client with samples was there.
    counts, weights
        The drawn clients' counts and weights.
    asked
        The metadata of the messages that were written: Flower gives them ids when it sends them.
    answered, failed
        The usable replies, and why others cannot be used.
    recalled
        What the difference estimator remembers of the clients; None: a plain aggregate.
    """

    server_round: int
    number: int
    sent: SentModel
    config: ConfigRecord
    grid: Grid
    check: Callable[[Message, SentModel], Reply | str]
    design: Design | None = None
    counts: dict[str, int] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    asked: list[Any] = field(default_factory=list)
    answered: dict[str, Reply] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    recalled: Recalled | None = None

    def draw(self, design: Design, rng: np.random.Generator) -> None:
        """Draw the clients."""
        cohort = design.draw(rng)
        keys = [str(design.population.ids[client]) for client in cohort.clients]
        self.design = design
        self.counts = dict(zip(keys, cohort.counts.tolist(), strict=True))
        self.weights = dict(zip(keys, cohort.weights.tolist(), strict=True))

    def kept(self) -> dict[str, NDArray[np.float32]]:
        """Return what is to be remembered of those that answered."""
        return {k: reply.kept for k, reply in self.answered.items() if reply.kept is not None}

    def updates(self) -> dict[str, NDArray[np.float32]]:
        """Return the whole updates of those that answered."""
        return {k: reply.update for k, reply in self.answered.items() if reply.update is not None}

    def around(self, key: str) -> Around | None:
        """Return what the difference estimator puts around a client's update."""
        return None if self.recalled is None else self.recalled.around(key)

    @property
    def draws_answered(self) -> int:
        """How many draws have a usable reply."""
        return sum(self.counts.get(key, 0) for key in self.answered)

    def accept(self, replies: Iterable[Message], key_of: Mapping[int, str]) -> None:
        """Sort the replies of the nodes in ``key_of``; a client's first one counts."""
        node_of = {each.message_id: each.dst_node_id for each in self.asked if each.message_id}
        for message in replies:
            node = message.metadata.src_node_id
            if message.has_error() and node not in key_of:
                # The SuperLink answers in its own name for a node that has gone.
                node = node_of.get(message.metadata.reply_to_message_id, node)
            key = key_of.get(node)
            if key is None or key in self.answered or key in self.failed:
                continue
            found = self.check(message, self.sent)
            if isinstance(found, Reply):
                self.answered[key] = found
            else:
                self.failed[key] = found

    def take(self, replies: Iterable[Message], key_of: Mapping[int, str]) -> None:
        """Accept the last replies of the nodes in ``key_of``: who sent none has failed."""
        self.accept(replies, key_of)
        for key in key_of.values():
            if key not in self.answered:
                self._log(key, self.failed.setdefault(key, "no answer"))

    def reject(self, key: str, reason: str) -> None:
        """Count a client that answered as one that failed."""
        del self.answered[key]
        self.failed[key] = reason
        self._log(key, reason)

    def _log(self, key: str, reason: str) -> None:
        log.warning("client %r, round %d: %.200r", key, self.number, reason)
