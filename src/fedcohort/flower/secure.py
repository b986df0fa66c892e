"""Secure aggregation by Flower's SecAgg+: the server learns the weighted sum of updates only."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any, cast, final

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
from flwr.compat.common.recorddict_compat import recorddict_to_fitres
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState
from flwr.serverapp import Grid
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, Strategy
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
#: The modulus of the masks.
MODULUS = 2**32
#: The record with a client's share of the largest weight, in units, and the entry in it.
SHARE = "fedcohort.share"
#: The metric with the number of entries that were clipped.
CLIPPED = "clipped-entries"
#: The stages of the protocol, as the log names them.
KEYS, SHARING, TRAINING, UNMASKING = "making keys", "sharing keys", "training", "removing masks"
#: Two entries of the replies in each stage but training, and their type.
NEEDED: dict[str, tuple[str, str, type]] = {
    KEYS: (Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2, bytes),
    SHARING: (Key.DESTINATION_LIST, Key.CIPHERTEXT_LIST, list),
    UNMASKING: (Key.NODE_ID_LIST, Key.SHARE_LIST, list),
}
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
        at most this. Clients count them, and the log warns. An entry of the sum over n clients is
        exact up to ``clip * n**2 / 2**30`` times the largest weight: 10 clients, ``clip / 10**7``.
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
    secure: SecureAggregation,
    options: SelectorOptions,
    strategy: Strategy,
    inner: Strategy,
    *,
    decodes: bool,
) -> None:
    """Refuse what needs single updates, or does not keep the weights, with the reason.

    ``strategy`` is ``inner`` or wraps it. A wrapper fits if clients clip: it adds noise to the sum.
    """
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
        f"{type(strategy).__name__} clips or counts single updates": not (
            strategy is inner
            or (
                isinstance(strategy, DifferentialPrivacyClientSideFixedClipping)
                and strategy.strategy is inner
            )
        ),
        "decode reads single updates": decodes,
    }
    if found := [reason for reason, is_set in reasons.items() if is_set]:
        raise FLOWER.refusal(
            f"secure shows the server the sum of the updates alone, but {'; '.join(found)}. Use a "
            f"recipe by size, the plain estimator, and on_failure='keep' or 'renormalise'."
        )
    if recipe.cohort_size < FEWEST:
        raise FLOWER.refusal(
            f"secure skips rounds with fewer than {FEWEST} answers; got a cohort of "
            f"{recipe.cohort_size}. Draw more clients."
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
        The messages to the drawn nodes, one for each.
    weights
        The weights of these nodes.
    clock
        The time that the round has left.

    Attributes
    ----------
    mean
        The weighted mean of the updates in the sum, as one vector; None if there is none.
    metrics
        The reports of the nodes in the sum, by node; they are not protected.
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
        self._levels = levels_for(len(self._contents))
        # In units of the largest weight, so that no weight is above Flower's largest.
        largest = max(weights.values(), default=0.0) or 1.0
        self._units = {
            node: round(self._levels * weights[node] / largest) for node in self._contents
        }
        self.mean: NDArray[np.float64] | None = None
        self.metrics: dict[int, dict[str, Any]] = {}
        self.failed: dict[int, str] = {}

    def play(self, grid: Grid, number: int, dimension: int) -> None:
        """Play the four stages; ``dimension`` is the number of entries of an update."""
        reason = TOO_FEW
        if self._is_enough(self._contents):
            line = _Line(grid, self._clock, dimension + 1)
            with without_sampling_lines():
                vector = self._vector(line, number)
            self.failed |= line.failed
            if vector is None and self._is_enough(line.metrics):
                reason = NO_SUM
            elif vector is not None:
                self.mean, self.metrics = vector[:-1], line.metrics
        for node in self._contents.keys() - self.metrics.keys():
            self.failed.setdefault(node, reason)

    def _vector(self, line: _Line, number: int) -> NDArray[np.float64] | None:
        """Return the weighted mean of what the nodes have masked; None if there is none."""
        shares, threshold = self._settings.numbers(len(self._contents))
        workflow = SecAggPlusWorkflow(
            shares,
            threshold,
            max_weight=float(self._levels),
            clipping_range=self._settings.clip,
            quantization_range=self._levels,
            modulus_range=MODULUS,
        )
        state, found = WorkflowState(), list[Any]()
        server, grid = _server(list(self._contents), number, found), cast(Grid, line)
        workflow.setup_stage(grid, server, state)
        if not self._has_left_out_the_lost(state):
            return None
        state.nid_to_fitins = {
            node: RecordDict({**content, SHARE: ConfigRecord({SHARE: self._units[node]})})
            for node, content in self._contents.items()
        }
        line.stage = SHARING
        workflow.share_keys_stage(grid, server, state)
        if not self._has_left_out_the_lost(state):
            return None
        line.stage = TRAINING
        can_unmask = workflow.collect_masked_vectors_stage(grid, server, state)
        if not can_unmask or not self._is_enough(line.metrics):
            return None
        line.stage = UNMASKING
        try:
            workflow.unmask_stage(grid, server, state)
        except Exception as error:  # a client can send anything as its share
            FLOWER.logger.warning("round %d: %s: %.200s", number, NO_SUM, error)
        if not found:
            return None
        (vector,) = parameters_to_ndarrays(found[0].parameters)
        return vector if self._is_unmasked(vector, line.metrics) else None

    def _is_enough(self, nodes: Iterable[int]) -> bool:
        """Whether a sum hides each of these nodes; those with a share of 0 do not count."""
        return sum(self._units[node] > 0 for node in nodes) >= FEWEST

    def _is_unmasked(self, vector: NDArray[np.float64], nodes: Collection[int]) -> bool:
        """Whether the last entry is what every client puts there: else masks are left.

        Each of n clients rounds it once. Wrong masks give this value with a chance of about
        ``n**2 / 2**31``.
        """
        clip = self._settings.clip
        step = 2 * clip / sum(self._units[node] for node in nodes)
        # One more step than there are clients, for the rounding of floats.
        return bool(abs(vector[-1] - clip) <= (len(nodes) + 1) * step)

    def _has_left_out_the_lost(self, state: WorkflowState) -> bool:
        """Forget nodes that were lost before they shared keys; return whether enough are left.

        No node has masks for them, so no node can be asked for their shares.
        """
        active, neighbours = state.active_node_ids, state.nid_to_neighbours
        state.sampled_node_ids = state.sampled_node_ids & active
        state.nid_to_neighbours = {node: neighbours[node] & active for node in active}
        least = min(map(len, state.nid_to_neighbours.values()), default=0)
        return self._is_enough(active) and least >= state.threshold


def levels_for(n_clients: int) -> int:
    """Return how many integers an entry of a share can become, so that no sum exceeds the modulus.

    >>> [levels_for(n) for n in (3, 4, 1024)] == [2**30, 2**29, 2**21]
    True
    """
    return MODULUS >> n_clients.bit_length()


def _server(nodes: Sequence[int], number: int, found: list[Any]) -> Any:
    """Return what the workflow takes for a server: a state, a strategy, a manager of clients.

    The strategy puts the result, which holds the mean, into ``found``.
    """
    asked = [(SimpleNamespace(node_id=node), FitIns(Parameters([], ""), {})) for node in nodes]

    def aggregate_fit(_: int, results: Any, failures: Any) -> tuple[None, dict[str, Any]]:
        found.append(results[0][1])
        return None, {}

    records: dict[str, ConfigRecord | ArrayRecord] = {
        MAIN_CONFIGS_RECORD: ConfigRecord({WorkflowKey.CURRENT_ROUND: number}),
        MAIN_PARAMS_RECORD: ArrayRecord(),
    }
    strategy = SimpleNamespace(configure_fit=lambda *_: asked, aggregate_fit=aggregate_fit)
    manager = SimpleNamespace(num_available=lambda: len(nodes))
    return SimpleNamespace(state=RecordDict({**records}), strategy=strategy, client_manager=manager)


class _Line:
    """The grid as the protocol uses it: bounded waits, and only replies that it can read.

    Attributes
    ----------
    stage
        The stage that the messages belong to.
    failed, metrics
        Why nodes are not in the sum, and what those in it have reported.
    """

    def __init__(self, grid: Grid, clock: RoundClock, length: int) -> None:
        self._grid, self._clock, self._length = grid, clock, length
        self.stage = KEYS
        self.failed: dict[int, str] = {}
        self.metrics: dict[int, dict[str, Any]] = {}

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages; return the replies that came in time and can be read."""
        asked, clock = list(messages), self._clock
        most = clock.waits.reply if self.stage == TRAINING else clock.waits.query
        seconds = clock.until.left / 2  # another stage, or an evaluation, may follow
        seconds = seconds if most is None else min(most, seconds)
        for message in asked:
            message.metadata.ttl = min(seconds, message.metadata.ttl)
        replies = clock.exchange(self._grid, asked, seconds)
        nodes = {each.metadata.message_id: each.metadata.dst_node_id for each in asked}
        reasons = dict.fromkeys([each.metadata.dst_node_id for each in asked], NO_ANSWER)
        usable = dict[int, Message]()
        for reply in replies:
            node = node_of(reply, nodes)
            if node not in reasons:
                continue
            try:
                reasons[node] = error_of(reply) if reply.has_error() else self._problem(reply)
            except Exception as error:  # a client can send anything
                reasons[node] = f"cannot be read: {type(error).__name__}, {error}"
            if not reasons[node]:
                usable[node] = reply
        if self.stage != UNMASKING:  # those that fail then are in the sum
            self.failed |= {
                node: f"{reason} (when {self.stage})" for node, reason in reasons.items() if reason
            }
        return list(usable.values())

    def _problem(self, reply: Message) -> str:
        """Return why a reply cannot be used, or raise it; empty if it can."""
        configs: Mapping[str, Any] = reply.content.config_records[RECORD_KEY_CONFIGS]
        if self.stage == TRAINING:
            parts = [bytes_to_ndarray(each) for each in configs[Key.MASKED_PARAMETERS]]
            shapes = [part.shape for part in parts if part.dtype.kind == "i"]
            if shapes != [(1,), (self._length,)]:
                return f"has no masked vector of {self._length} numbers"
            own = recorddict_to_fitres(reply.content, keep_input=True)  # as the workflow reads it
            found = {name: value for name, value in own.metrics.items() if is_number(value)}
            self.metrics[reply.metadata.src_node_id] = found
            return ""
        first, second, kind = NEEDED[self.stage]
        if not isinstance(configs[first], kind) or not isinstance(configs[second], kind):
            return f"has no {kind.__name__} under {first!r} and {second!r}"
        if kind is list and len(configs[first]) != len(configs[second]):
            return "has lists of different lengths"
        return ""


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
    update = _flat_update(before, decoded(_arrays_of(reply)))
    state = context.state.config_records[RECORD_KEY_STATE]
    clip, most = float(state["clipping_range"]), float(state["max_weight"])  # type: ignore[arg-type]
    n_clipped = int(np.count_nonzero(np.abs(update) * (units / most) > clip))
    vector = np.append(update, clip)  # the server checks this entry of the mean
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
