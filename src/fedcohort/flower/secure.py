"""Secure aggregation by Flower's SecAgg+: the server learns the weighted sum of updates only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any, final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.app import MetricRecord as Metrics
from flwr.client.mod import secaggplus_mod
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import Code, FitIns, Parameters, bytes_to_ndarray, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    RECORD_KEY_STATE,
    Key,
)
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedcohort._fields import Record, number
from fedcohort.deployment.arrays import Arrays, ModelArrays
from fedcohort.deployment.options import SelectorOptions
from fedcohort.deployment.round import NO_ANSWER, is_number
from fedcohort.errors import FlowerError
from fedcohort.flower.grid import RoundClock, error_of, node_of
from fedcohort.flower.inner_strategy import without_sampling_lines
from fedcohort.flower.replies import decoded, metrics_of
from fedcohort.flower.settings import FLOWER

#: The release of Flower whose protocol this drives and tests, stage by stage.
TESTED = "1.41."
#: A sum over fewer clients says too much about one of them.
FEWEST = 3
#: The integers that an entry of a client's share becomes, at most, and the modulus of the masks.
LEVELS, MODULUS = 2**22, 2**32
#: The record with a client's share of the largest weight, in units, and the entry in it.
SHARE = "fedcohort.share"
#: The metric with the number of entries that were clipped.
CLIPPED = "clipped-entries"
#: Why clients failed whose answers came.
TOO_FEW = f"too few others: a secure sum needs {FEWEST} clients"
NO_SUM = "no secure sum: the masks could not be removed"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SecureAggregation(Record):
    """Settings of secure aggregation, for ``CohortStrategy(secure=...)``.

    The client app needs ``ClientApp(mods=[secure_aggregation_mod])``. A server that follows the
    protocol learns the weighted sum of a round's updates, and no update. It does not
    protect against a hostile server: the masks of Flower's SecAgg+ come from a 32-bit seed.

    Attributes
    ----------
    shares
        Among how many clients each client's keys are shared: a share of the cohort's distinct
        clients up to 1, or a number of clients of at least 3.
    threshold
        How many of these shares recover a key: a share of them up to 1, or a number of at least 2.
        More is safer; less survives more lost clients.
    clip
        Entries of a client's update, times its weight over the round's largest weight, are cut to
        at most this. Clients count them, and the log warns. The aggregate is exact up to about
        ``clip / 2e6`` for each client, in units of the largest weight.
    """

    _error = FlowerError

    shares: float = number(1.0, above=0)
    threshold: float = number(0.6, above=0)
    clip: float = number(8.0, above=0)

    def _check(self) -> None:
        for name, least in (("shares", 3), ("threshold", 2)):
            value = getattr(self, name)
            if value > 1 and (value != int(value) or value < least):
                raise FlowerError(
                    f"SecureAggregation: {name} must be a share up to 1, or a whole number of at "
                    f"least {least}; got {value:g}. Pass for example 0.6 or {least}."
                )

    def numbers(self, n_clients: int) -> tuple[int, int]:
        """Return the shares and the threshold for this number of clients, as Flower can use them.

        Shares are odd, or as many as there are clients; the threshold is below them.

        >>> SecureAggregation().numbers(10), SecureAggregation(shares=0.5).numbers(10)
        ((10, 6), (5, 3))
        """
        shares = math.ceil(self.shares * n_clients) if self.shares <= 1 else int(self.shares)
        shares = min(max(shares, FEWEST) | 1, n_clients)
        needed = math.ceil(self.threshold * shares) if self.threshold <= 1 else int(self.threshold)
        return shares, min(max(needed, 2), shares - 1)


def check_secure(
    secure: SecureAggregation, options: SelectorOptions, *, has_wrapper: bool, decodes: bool
) -> None:
    """Refuse what needs single updates, or does not keep the weights, with the reason."""
    FLOWER.record("secure", secure, SecureAggregation)
    if not version("flwr").startswith(TESTED):
        raise FLOWER.refusal(
            f"secure drives the protocol of flwr {TESTED}*, stage by stage; got {version('flwr')}. "
            f"Install that release."
        )
    recipe = options.recipe
    reasons = {
        f"recipe {recipe.name!r} reads clients' single answers": recipe.reads,
        f"estimator={options.estimator!r} remembers updates": options.estimator != "plain",
        "on_failure='redraw' asks others after the keys were shared": (
            options.on_failure == "redraw"
        ),
        "extra takes the first answers, and masks need all": options.extra,
        "max_norm scales single updates": options.max_norm is not None,
        "a wrapper for privacy clips or expects single updates": has_wrapper,
        "decode reads single updates": decodes,
    }
    if found := [reason for reason, is_set in reasons.items() if is_set]:
        raise FLOWER.refusal(
            f"secure shows the server the sum of the updates alone, but {'; '.join(found)}. Use a "
            f"recipe by size, the plain estimator, and on_failure='keep' or 'renormalise'."
        )
    if recipe.cohort_size > MODULUS // LEVELS:
        raise FLOWER.refusal(
            f"secure sums at most {MODULUS // LEVELS} clients; got a cohort of "
            f"{recipe.cohort_size}. Lower it."
        )


def check_floats(sent: ModelArrays) -> None:
    """Refuse a model with integer arrays: the protocol would round and clip them."""
    if whole := [name for name, own in sent.arrays.items() if own.dtype.kind != "f"]:
        raise FLOWER.refusal(
            f"secure sums floating-point arrays alone; got {', '.join(whole)!s:.200} of another "
            f"type. Send the model without them, or use layers without counters, as GroupNorm."
        )


@final
class SecureSum:
    """One round of the protocol; afterwards, what it found.

    Parameters
    ----------
    settings
        The shares, the threshold and the clipping.
    messages
        What the drawn nodes are sent, one message each.
    weights
        The weights of these nodes.
    clock
        The time that the round has left.

    Attributes
    ----------
    mean
        The weighted mean of the updates in the sum, as one vector; None if there is none.
    metrics
        What each node in the sum reported, by node; it is not protected.
    failed
        Why other nodes are not in the sum.
    """

    def __init__(
        self,
        settings: SecureAggregation,
        messages: Sequence[Message],
        weights: Mapping[int, float],
        clock: RoundClock,
    ) -> None:
        self._settings, self._clock = settings, clock
        self._contents = {each.metadata.dst_node_id: each.content for each in messages}
        largest = max(weights.values(), default=0.0)
        # In units of the largest weight, so that no weight is above Flower's largest.
        self._units = {
            node: round(LEVELS * weights[node] / largest) if largest else 0
            for node in self._contents
        }
        self.mean: NDArray[np.float64] | None = None
        self.metrics: dict[int, dict[str, Any]] = {}
        self.failed: dict[int, str] = {}

    def play(self, grid: Grid, number: int, dimension: int) -> None:
        """Play the four stages; ``dimension`` is the number of entries of an update."""
        if len(self._contents) >= FEWEST:
            line, state = _Line(grid, self._clock, dimension), WorkflowState()
            with without_sampling_lines():
                self._play(line, state, number)
            self.failed |= line.failed
        reason = NO_SUM if len(self.metrics) >= FEWEST else TOO_FEW
        if self.mean is None:
            self.metrics = {}
        for node in self._contents.keys() - self.metrics.keys():
            self.failed.setdefault(node, reason)

    def _play(self, line: _Line, state: WorkflowState, number: int) -> None:
        shares, threshold = self._settings.numbers(len(self._contents))
        workflow = SecAggPlusWorkflow(
            shares,
            threshold,
            max_weight=float(LEVELS),
            clipping_range=self._settings.clip,
            quantization_range=LEVELS,
            modulus_range=MODULUS,
        )
        records: dict[str, ConfigRecord | ArrayRecord] = {
            MAIN_CONFIGS_RECORD: ConfigRecord({WorkflowKey.CURRENT_ROUND: number}),
            MAIN_PARAMS_RECORD: ArrayRecord(),
        }
        own: Any = SimpleNamespace(
            state=RecordDict({**records}), strategy=self, client_manager=self
        )
        workflow.setup_stage(line, own, state)
        if not _has_left_out_the_lost(state):
            return
        state.nid_to_fitins = {
            node: RecordDict({**content, SHARE: ConfigRecord({SHARE: self._units[node]})})
            for node, content in self._contents.items()
        }
        line.stage = "sharing keys"
        workflow.share_keys_stage(line, own, state)
        if not _has_left_out_the_lost(state):
            return
        line.stage = "training"
        is_enough = workflow.collect_masked_vectors_stage(line, own, state)
        arrived = set(state.active_node_ids)
        if not is_enough or len(arrived) < FEWEST or not sum(self._units[node] for node in arrived):
            return
        line.stage = "removing masks"
        self.metrics = {node: line.metrics[node] for node in arrived}
        try:
            workflow.unmask_stage(line, own, state)
        except Exception as error:  # a client can send anything as its share
            FLOWER.logger.warning("round %d: %s: %.200s", number, NO_SUM, error)

    # What the workflow calls in place of a strategy and a manager of clients

    def configure_fit(self, *_: object) -> list[tuple[Any, FitIns]]:
        """Return the drawn nodes; what they are sent is filled in later."""
        nothing = FitIns(Parameters([], ""), {})
        return [(SimpleNamespace(node_id=node), nothing) for node in self._contents]

    def num_available(self) -> int:
        """Return the number of drawn nodes."""
        return len(self._contents)

    def aggregate_fit(
        self, number: int, results: Sequence[tuple[Any, Any]], failures: object
    ) -> tuple[None, dict[str, Any]]:
        """Take the mean, which Flower puts into every result."""
        (self.mean,) = parameters_to_ndarrays(results[0][1].parameters)
        return None, {}


def _has_left_out_the_lost(state: WorkflowState) -> bool:
    """Forget nodes that were lost before they shared their keys; return whether enough are left.

    No node has masks for them, so no node can be asked for their shares.
    """
    state.sampled_node_ids = state.sampled_node_ids & state.active_node_ids
    neighbours = state.nid_to_neighbours
    state.nid_to_neighbours = {
        node: neighbours[node] & state.active_node_ids for node in state.active_node_ids
    }
    least = min(map(len, state.nid_to_neighbours.values()), default=0)
    return len(state.active_node_ids) >= FEWEST and least >= state.threshold


class _Line(Grid):
    """The grid as the protocol uses it: bounded waits, and only replies that it can read."""

    def __init__(self, grid: Grid, clock: RoundClock, dimension: int) -> None:
        self._grid, self._clock, self._dimension = grid, clock, dimension
        self.stage = "making keys"
        self.failed: dict[int, str] = {}
        self.metrics: dict[int, dict[str, Any]] = {}

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages; return the replies that came in time and can be read."""
        asked, clock = list(messages), self._clock
        seconds = clock.seconds()
        if self.stage != "training":
            seconds = min(clock.waits.query, seconds / 2)
        for message in asked:
            message.metadata.ttl = min(seconds, message.metadata.ttl)
        replies = clock.exchange(self._grid, asked, seconds)
        nodes = {each.metadata.message_id: each.metadata.dst_node_id for each in asked}
        usable = {}
        for reply in replies:
            node, reason = node_of(reply, nodes), self._problem(reply)
            if reason is None and node in nodes.values():
                usable[node] = reply
            elif node in nodes.values():
                self.failed[node] = f"{reason} (when {self.stage})"
        for node in nodes.values():
            if node not in usable:
                self.failed.setdefault(node, f"{NO_ANSWER} (when {self.stage})")
        if self.stage == "removing masks":  # those that fail now are in the sum
            self.failed = {n: why for n, why in self.failed.items() if n not in self.metrics}
        return list(usable.values())

    def _problem(self, reply: Message) -> str | None:
        """Return why a reply cannot be used; None if it can."""
        if reply.has_error():
            return error_of(reply)
        try:
            configs: Mapping[str, Any] = reply.content.config_records[RECORD_KEY_CONFIGS]
            if self.stage == "training":
                parts = [bytes_to_ndarray(each) for each in configs[Key.MASKED_PARAMETERS]]
                shapes = [part.shape for part in parts if part.dtype.kind == "i"]
                if shapes != [(1,), (self._dimension,)]:
                    return f"has no masked vector of {self._dimension} numbers"
                own = reply.content.config_records["fitres.metrics"]
                found = {name: value for name, value in own.items() if is_number(value)}
                self.metrics[reply.metadata.src_node_id] = found
            else:
                needed = {
                    "making keys": (Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2),
                    "sharing keys": (Key.DESTINATION_LIST, Key.CIPHERTEXT_LIST),
                    "removing masks": (Key.NODE_ID_LIST, Key.SHARE_LIST),
                }
                first, second = (configs[name] for name in needed[self.stage])
                if len(first) != len(second) and self.stage != "making keys":
                    return "has lists of different lengths"
        except Exception as error:  # a client can send anything
            return f"cannot be read: {type(error).__name__}, {error}"
        return None

    def get_node_ids(self) -> Iterable[int]:
        """Return the connected nodes."""
        return self._grid.get_node_ids()

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run."""
        return self._grid.run

    def create_message(self, *args: Any, **more: Any) -> Message:
        """Create a message."""
        return self._grid.create_message(*args, **more)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Fetch replies."""
        return self._grid.pull_messages(message_ids)


def unflat(vector: NDArray[np.float64], sent: ModelArrays) -> dict[str, NDArray[np.float64]]:
    """Cut a vector into arrays of the model's shapes, in its order."""
    ends = np.cumsum([own.size for own in sent.arrays.values()])
    parts = np.split(vector, ends[:-1])
    return {
        name: part.reshape(own.shape)
        for (name, own), part in zip(sent.arrays.items(), parts, strict=True)
    }


def secure_aggregation_mod(
    message: Message, context: Context, call_next: ClientAppCallable
) -> Message:
    """Mask what a client app answers to training, for ``CohortStrategy(secure=...)``.

    Use it as ``ClientApp(mods=[secure_aggregation_mod])``. The app trains as always and replies
    with its model and metrics. The mod sends the masked update instead, times the weight that the
    server has named, and the metrics as they are. Training without masks is refused.
    """
    if message.metadata.message_type != MessageType.TRAIN:
        return call_next(message, context)
    content = message.content
    if RECORD_KEY_CONFIGS not in content.config_records:
        raise FlowerError(
            "secure_aggregation_mod: masks every update, but the server asked for a plain one. "
            "Pass secure=SecureAggregation() to its CohortStrategy, or leave the mod out."
        )
    # Flower's mod takes entries out of the record, which messages in one process share.
    own = copy(message)
    configs = ConfigRecord(dict(content.config_records[RECORD_KEY_CONFIGS]))
    own.content = RecordDict({**content, RECORD_KEY_CONFIGS: configs})
    return secaggplus_mod(own, context, partial(_weighted_update, call_next))


def _weighted_update(call_next: ClientAppCallable, message: Message, context: Context) -> Message:
    """Let the app train; return its update and its share as Flower's mod expects them."""
    units = int(message.content.config_records.pop(SHARE)[SHARE])  # type: ignore[arg-type]
    del message.content.config_records[RECORD_KEY_CONFIGS]
    sent = decoded(ArrayRecord(dict(_arrays_of(message).items())))
    before = {name: np.array(sent[name]) for name in sent}
    reply = call_next(message, context)
    if reply.has_error():
        raise FlowerError(f"secure_aggregation_mod: the client app failed: {reply.error.reason}.")
    vector = _flat_update(before, decoded(_arrays_of(reply)))
    state = context.state.config_records[RECORD_KEY_STATE]
    clip, most = float(state["clipping_range"]), float(state["max_weight"])  # type: ignore[arg-type]
    n_clipped = int(np.count_nonzero(np.abs(vector) * (units / most) > clip))
    numbers = {name: own for name, own in metrics_of(reply).items() if is_number(own)}
    content = RecordDict(
        {
            "fitres.parameters": ArrayRecord({"update": Array(vector)}),
            "fitres.num_examples": Metrics({"num_examples": units}),
            "fitres.metrics": ConfigRecord({**numbers, CLIPPED: n_clipped}),
            "fitres.status": ConfigRecord({"code": int(Code.OK.value), "message": ""}),
        }
    )
    return Message(content, reply_to=message)


def _arrays_of(message: Message) -> ArrayRecord:
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise FlowerError(
            f"secure_aggregation_mod: needs one record of arrays; got {len(records)}. Send the "
            f"model alone."
        )
    return records[0]


def _flat_update(before: Arrays, after: Arrays) -> NDArray[np.float64]:
    """Return a model minus the model that was sent, as one vector in the order of the latter."""
    shapes = {name: own.shape for name, own in before.items()}
    if {name: np.shape(after[name]) for name in after} != shapes:
        raise FlowerError(
            f"secure_aggregation_mod: the client app's arrays must be those of the model, "
            f"{shapes!s:.200}. Reply with the whole model."
        )
    steps = [np.subtract(after[k], own, dtype=np.float64).ravel() for k, own in before.items()]
    vector = np.concatenate(steps)
    if not np.isfinite(vector).all():
        raise FlowerError(
            "secure_aggregation_mod: the client app's update is not finite. Lower its step size."
        )
    return vector
