"""A Fed-BioMed strategy that draws the nodes, weighs their replies, and settles failures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Unpack, final

from fedbiomed.common.exceptions import FedbiomedStrategyError
from fedbiomed.researcher.strategies import Strategy
from numpy.typing import NDArray

from fedcohort.deployment.arrays import (
    ArrayCheck,
    LazyArrays,
    ModelArrays,
    as_arrays,
    like_parameters,
)
from fedcohort.deployment.checkpoint import read_checkpoint
from fedcohort.deployment.directory import Claim, Directory, checked_sizes, claimed_size
from fedcohort.deployment.limits import Limits
from fedcohort.deployment.options import PluginKeywords, SelectorOptions
from fedcohort.deployment.round import ClientAnswer, Rounds, TrainingRound, is_number
from fedcohort.designs import Recipe
from fedcohort.designs.signals import ASKED
from fedcohort.errors import FedcohortError
from fedcohort.fedbiomed.experiment import FEDBIOMED, AttachedExperiment, Params
from fedcohort.population import Population
from fedcohort.selector import Selector
from fedcohort.selector.settings import unpacks

log = FEDBIOMED.logger

#: Why a node failed whose reply never came.
NO_REPLY = "no reply: it is disconnected, or reported an error"
#: Signals that Fed-BioMed's replies do not bring.
NOT_REPORTED = (*ASKED, "past_loss")
#: After this many empty cohorts in a row, the design is taken to be always empty.
MOST_EMPTY = 1000
#: Weights and parameters by node; then what Fed-BioMed takes: parameters by node, their weights,
#: all samples, and encryption factors.
Shares = dict[str, tuple[float, Params]]
Refined = tuple[dict[str, Params], dict[str, float], int, dict[str, Any]]


class Drawn(NamedTuple):
    """The nodes of a round, by Fed-BioMed's number; ``is_count``: all, to learn their sizes."""

    number: int
    nodes: list[str]
    is_count: bool = False


@unpacks(SelectorOptions, without=FEDBIOMED.lacks)
@final
class CohortStrategy(Strategy):
    """Draw every round's nodes by a recipe, instead of Fed-BioMed's ``DefaultStrategy``.

    Pass it to an ``Experiment`` as ``node_selection_strategy``, then call :meth:`attach`.
    Fed-BioMed asks nodes once a round, so there is no ``on_failure="redraw"``.

    Parameters
    ----------
    recipe
        Which design to draw from. None only if Fed-BioMed loads a breakpoint, which has it.
    {settings}
    sizes
        Samples by node id. None takes them from the metadata of tabular data; the nodes of other
        data count their samples in a first round that asks everyone.
    ping
        The seconds within which a node must answer a ping to be drawn from. None pings no node, and
        draws from all nodes of the experiment.

    Attributes
    ----------
    selector
        Draws the nodes and remembers what it needs of them; rounds count from 0.
    """

    selector: Selector

    def __init__(
        self,
        recipe: Recipe | None = None,
        *,
        ping: float | None = 5.0,
        **settings: Unpack[PluginKeywords],
    ) -> None:
        super().__init__()
        limits, log_file = settings.get("limits"), settings.get("log_file")
        self._ping = None if ping is None else FEDBIOMED.number("ping", ping, least=0.0)
        self._log_file, self._audit_every = log_file, settings.get("audit_every")
        self._attached: AttachedExperiment | None = None
        self._saved: Mapping[str, NDArray[Any]] | None = None  # a breakpoint's selector
        self._round: Drawn | None = None
        self._bound(FEDBIOMED.record("limits", limits, Limits), settings.get("sizes"))
        if recipe is None:
            return
        options = SelectorOptions(recipe, plugin=FEDBIOMED, **settings)
        if options.on_failure == "redraw":
            raise FEDBIOMED.refusal(
                "Fed-BioMed asks nodes once a round, so none can be asked in the place of "
                "another; got on_failure='redraw'. Use 'keep' or 'renormalise'."
            )
        self._use(options.selector())

    def attach(self, experiment: object, *, recipe: Recipe | None = None) -> CohortStrategy:
        """Let the strategy read an experiment's metadata and model; return the strategy.

        Call it once, before the experiment runs and after it is loaded from a breakpoint; then a
        recipe that is not one of the library's must be given again.
        """
        attached = AttachedExperiment(experiment)
        attached.check()
        if not hasattr(self, "selector"):
            self._load(recipe)
        elif recipe is not None:
            raise FEDBIOMED.refusal(
                f"has a recipe, {self.selector.recipe!r}; got another. Leave it out."
            )
        self._attached = attached
        return self

    # Called by Fed-BioMed, in the order of a round

    def sample_nodes(self, from_nodes: list[str], round_i: int) -> list[str]:
        """Draw the round's nodes."""
        with _as_fedbiomed_errors():
            experiment = self._experiment()
            experiment.check()
            self._round = None
            self._rounds.skip_abandoned()
            for _ in range(MOST_EMPTY):
                drawn = self._drawn(experiment, list(from_nodes), round_i)
                if drawn.nodes:
                    break
                self._step_alone(experiment)
            else:
                raise FEDBIOMED.refusal(
                    f"{self.selector.recipe.name} drew no node {MOST_EMPTY} times in a row. Use "
                    f"a larger cohort."
                )
            self._round = drawn
            self._sampling_node_history[round_i] = list(drawn.nodes)
            return list(drawn.nodes)

    def refine(self, training_replies: dict[str, Any], round_i: int) -> Refined:
        """Check the replies, settle what failed, and return what the aggregator averages."""
        with _as_fedbiomed_errors():
            drawn = self._round
            if drawn is None or drawn.number != round_i:
                raise FEDBIOMED.refusal(
                    f"round {round_i} was not drawn by it. Call sample_nodes first."
                )
            params = self._experiment().params()
            now = self._opened(drawn, params)
            read_replies(now, training_replies)
            # Fed-BioMed saves the replies, and cannot load a breakpoint that has a failed one.
            for node in [each for each in training_replies if each not in now.answered]:
                del training_replies[node]
            self._success_node_history[round_i] = list(now.answered)
            settle = self._counted_shares if drawn.is_count else self._settled
            shares = settle(now, params)
            self._round = None
            return _refined(now, shares or {drawn.nodes[0]: (1.0, params)})

    def save_state_breakpoint(self) -> dict[str, Any]:
        """Return what Fed-BioMed writes into a breakpoint; save the rest to a checkpoint."""
        with _as_fedbiomed_errors():
            path = self._experiment().state_file()
            self._rounds.save(path, {})
            self._parameters = {
                "state": str(path),
                "limits": asdict(self._limits),
                "log_file": self._log_file and str(self._log_file),
                "audit_every": self._audit_every,
                "ping": self._ping,
                "sizes": self._given,
            }
            state: dict[str, Any] = super().save_state_breakpoint()
            return state

    def load_state_breakpoint(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`save_state_breakpoint` gave; :meth:`attach` makes the selector."""
        with _as_fedbiomed_errors():
            own: dict[str, Any] = state["parameters"]
            try:
                path, limits = Path(own["state"]), Limits(**own["limits"])
                sizes, ping, log_file = own["sizes"], own["ping"], own["log_file"]
                audit_every = own["audit_every"]
            except (KeyError, TypeError) as error:
                raise FEDBIOMED.refusal(
                    f"the breakpoint was not written by it ({error}). Load another one."
                ) from error
            saved, parts = read_checkpoint(FEDBIOMED, path)
            self._bound(limits, sizes, saved["directory"])
            super().load_state_breakpoint(state)
            self._saved, self._ping, self._log_file = parts["selector"], ping, log_file
            self._audit_every = audit_every
            if hasattr(self, "selector"):
                del self.selector

    # Helpers of the above

    def _bound(
        self,
        limits: Limits,
        sizes: Mapping[Any, int] | Population | None,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        """Set the limits and the given sizes; take over the nodes of a breakpoint."""
        given = None if sizes is None else checked_sizes(FEDBIOMED, sizes)
        directory = Directory(FEDBIOMED, given, limits=limits)
        if saved is not None:
            directory.restoring(saved)()
        self._limits, self._given, self._directory = limits, given, directory

    def _load(self, recipe: Recipe | None) -> None:
        """Make the selector of a breakpoint."""
        if self._saved is None:
            raise FEDBIOMED.refusal("needs a recipe; got none. Pass CohortStrategy one.")
        self._use(Selector.of_state(self._saved, recipe=recipe, log=self._log_file or True))

    def _use(self, selector: Selector) -> None:
        """Take over a selector; refuse a recipe that reads what Fed-BioMed's nodes do not say."""
        recipe = selector.recipe
        missing = [signal for signal in recipe.signals if signal in NOT_REPORTED]
        if missing:
            raise FEDBIOMED.refusal(
                f"{recipe.name} needs the signal {missing[0]!r}, which Fed-BioMed's nodes "
                f"do not report. Use another recipe, such as SizeClustered."
            )
        self.selector = selector
        self._rounds = Rounds(
            *(FEDBIOMED, selector, self._directory, self._limits),
            whole=False,
            audit_every=self._audit_every,
        )

    def _experiment(self) -> AttachedExperiment:
        if self._attached is None:
            raise FEDBIOMED.refusal(
                "is not attached to an experiment. Call strategy.attach(experiment) "
                "before it runs; after load_breakpoint, experiment.strategy().attach(experiment)."
            )
        return self._attached

    def _unknown(self, experiment: AttachedExperiment, there: list[str]) -> list[str]:
        """Look up the nodes; return those that must count their samples."""
        directory = self._directory
        directory.see(there)
        for node, rows in experiment.known_sizes().items():
            directory.claim(node, Claim(node, rows))
        unknown = directory.due()
        directory.seat()
        return unknown

    def _drawn(self, experiment: AttachedExperiment, nodes: list[str], number: int) -> Drawn:
        """Draw a round from the connected nodes."""
        there = nodes if self._ping is None else experiment.connected(nodes, self._ping)
        if unknown := self._unknown(experiment, there):
            log.info("round %d: asking all nodes; sizes unknown for %s", number, unknown)
            return Drawn(number, there, is_count=True)
        cohort = self._rounds.draw(self._directory.present, lambda signal, ids: {})
        if self.selector.design is None:
            self._step_alone(experiment)
            raise FEDBIOMED.refusal(
                "no node with samples is connected. Start the nodes, and run on."
            )
        return Drawn(number, [str(each) for each in cohort.ids])

    def _opened(self, drawn: Drawn, params: Params) -> TrainingRound:
        """Return the round in which nodes were sent these parameters."""
        sent = ModelArrays(as_arrays(params))
        if drawn.is_count:
            check = ArrayCheck(self._limits)
            bound = self.selector.max_norm
            now = TrainingRound(
                FEDBIOMED, drawn.number, sent, check, max_norm=bound, whole=False, silence=NO_REPLY
            )
        else:
            now = self._rounds.open(sent, number=drawn.number, silence=NO_REPLY)
        now.ask(drawn.nodes)
        return now

    def _step_alone(self, experiment: AttachedExperiment) -> None:
        """End a round with an empty cohort; an estimator that remembers updates steps by H.

        Fed-BioMed would end the experiment if a round asked no node.
        """
        log.info("round %d of the selector: empty cohort; skipping", self.selector.round_)
        step = self.selector.step({})
        self.selector.skip()
        if isinstance(step, Mapping):
            experiment.move(step)

    def _counted_shares(self, now: TrainingRound, params: Params) -> Shares:
        """Note how many samples nodes have, and weigh their parameters by it."""
        samples = samples_of(now)
        for node, size in samples.items():
            self._directory.claim(node, Claim(node, size))
        for node in now.failed:
            self._directory.wait(node, math.inf)  # until it has left and come back
        if now.failed:
            log.warning("size unknown, not drawn until they reconnect: %s", [*now.failed])
        total = sum(samples.values())
        return {
            node: (size / total, _params_of(now.answered[node], params))
            for node, size in samples.items()
            if size
        }

    def _settled(self, now: TrainingRound, params: Params) -> Shares:
        """Settle and remember the round; return the nodes to average, none if the model stays."""
        is_void = self._rounds.is_void(now)
        shares = {} if is_void else self._shares(now, params)
        self._rounds.end(now, has_moved=not is_void)
        weights = {node: round(weight, 4) for node, (weight, _) in shares.items()}
        log.info("round %d: weights %s, failed %s", now.number, weights, list(now.failed) or "none")
        return shares

    def _shares(self, now: TrainingRound, params: Params) -> Shares:
        """Return weights that sum to 1, and parameters whose mean is the aggregate."""
        has_estimator = self.selector.estimator is not None
        shares = now.shares(
            lambda settled: settled.sums_to_one and not has_estimator,
            lambda arrays: like_parameters(params, arrays),
        )
        total = math.fsum(weight for _, weight, _ in shares)
        return {
            node: (weight / total, _params_of(now.answered[node], params) if own is None else own)
            for node, weight, own in shares
        }


def _params_of(answer: ClientAnswer, params: Params) -> Params:
    """Return a node's parameters, as it sent them or scaled down to ``max_norm``."""
    if answer.scaled is None:
        return answer.reply["params"]  # type: ignore[no-any-return]
    return like_parameters(params, answer.scaled)


def read_replies(now: TrainingRound, replies: Mapping[str, Mapping[str, Any]]) -> None:
    """Read the replies of the nodes that were asked, and log why some cannot be used."""
    for node in now.asked:
        if node not in replies:
            continue
        reply = replies[node]
        if (problem := _problem(reply)) is not None:
            now.accept(node, problem)
            continue
        seconds: Any = (reply.get("timing") or {}).get("rtime_training")
        seconds = float(seconds) if is_number(seconds, least=0.0) else math.nan
        now.accept_arrays(node, LazyArrays(reply["params"]), reply, seconds=seconds)
    now.close(now.asked)


def samples_of(now: TrainingRound) -> dict[str, int]:
    """Return how many samples the nodes trained on whose replies can be used."""
    return {node: int(answer.reply["sample_size"]) for node, answer in now.answered.items()}


def _problem(reply: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a reply, except with its arrays."""
    if reply.get("success") is not True:
        return f"error: {reply.get('msg') or 'it gave no reason'}"
    if not isinstance(reply.get("params"), Mapping):
        return "has other arrays than the model"
    size = claimed_size(reply.get("sample_size"))
    return size if isinstance(size, str) else None


def _refined(now: TrainingRound, shares: Shares) -> Refined:
    """Return what Fed-BioMed's aggregators take."""
    samples = samples_of(now)
    factors = {node: own.reply.get("encryption_factor") for node, own in now.answered.items()}
    return (
        {node: params for node, (_, params) in shares.items()},
        {node: weight for node, (weight, _) in shares.items()},
        sum(samples.get(node, 0) for node in shares),
        {node: factors.get(node) for node in shares},
    )


@contextmanager
def _as_fedbiomed_errors() -> Iterator[None]:
    """Raise Fed-BioMed's own error, whose sentence it prints; others look like its bugs."""
    try:
        yield
    except FedcohortError as error:
        raise FedbiomedStrategyError(str(error)) from error
