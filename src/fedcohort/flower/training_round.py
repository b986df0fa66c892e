"""A round between sending and receiving: who was drawn, who answered, and why others did not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from logging import getLogger
from typing import final

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from fedcohort.designs import Design
from fedcohort.flower.replies import Reply

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
    design
        What was drawn from; None where no client with samples was there.
    counts, weights
        The drawn clients' counts and weights.
    check
        Returns a reply that can be used, or what is wrong with it.
    answered, failed
        The usable replies, and why others cannot be used.
    """

    server_round: int
    number: int
    sent: ArrayRecord
    config: ConfigRecord
    grid: Grid
    check: Callable[[Message], Reply | str]
    design: Design | None = None
    counts: dict[str, int] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    answered: dict[str, Reply] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def take(self, replies: Iterable[Message], key_of: Mapping[int, str]) -> None:
        """Sort the replies of the nodes in ``key_of``; who sent none has failed."""
        for message in replies:
            key = key_of.get(message.metadata.src_node_id)
            if key is None or key in self.answered:
                continue
            found = self.check(message)
            if isinstance(found, Reply):
                self.answered[key] = found
                self.failed.pop(key, None)
            else:
                self.failed[key] = found
        for key in key_of.values():
            if key not in self.answered:
                reason = self.failed.setdefault(key, "no answer")
                log.warning("client %r, round %d: %.200r", key, self.number, reason)

    def draws_answered(self, replies: Iterable[Message], key_of: Mapping[int, str]) -> int:
        """Return how many draws these replies answer; broken ones answer none."""
        nodes = {
            reply.metadata.src_node_id for reply in replies if isinstance(self.check(reply), Reply)
        }
        return sum(self.counts[key_of[node]] for node in nodes if node in key_of)
