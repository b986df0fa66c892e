"""A Fed-BioMed strategy that draws the nodes, weighs their replies, and settles failures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import numpy as np
from fedbiomed.common.exceptions import FedbiomedStrategyError
from fedbiomed.researcher.strategies import Strategy

from fedcohort._arguments import brief, checked_number
from fedcohort._deployment import (
    ArrayCheck,
    ClaimedSizes,
    Limits,
    ModelArrays,
    Patience,
    checked_sizes,
)
from fedcohort.designs import Recipe
from fedcohort.designs.signals import ASKED
from fedcohort.errors import FedBioMedError, FedcohortError
from fedcohort.fedbiomed.experiment import OWNER, AttachedExperiment
from fedcohort.fedbiomed.replies import Params, RoundReplies, as_arrays, as_params, log
from fedcohort.memory import Difference, EstimatorName
from fedcohort.population import Label
from fedcohort.selector import Selector
from fedcohort.selector.open_round import OnFailure
from fedcohort.streams import Seed

#: Signals that Fed-BioMed's replies do not bring.
NOT_REPORTED = (*ASKED, "past_loss")
#: After this many empty cohorts in a row, the design is taken to be always empty.
MOST_EMPTY = 1000
#: Weights and parameters by node; then what Fed-BioMed takes: parameters by node, their weights,
#: all samples, and encryption factors.
Shares = dict[str, tuple[float, Params]]
Refined = tuple[dict[str, Params], dict[str, float], int, dict[str, Any]]


@final
class CohortStrategy(Strategy):
    """Draw every round's nodes by a recipe, instead of Fed-BioMed's ``DefaultStrategy``.

    Pass it to an ``Experiment`` as ``node_selection_strategy``, then call :meth:`attach`.

    Parameters
    ----------
    recipe
        Which design to draw from. None only if Fed-BioMed loads a breakpoint, which has it.
    seed
        Seeds the draws: one seed gives one sequence of cohorts.
    sizes
        Samples by node id. None takes them from the metadata of tabular data; the nodes of other
        data count their samples in a first round that asks everyone.
    groups
        Labels by node id, for recipes that draw by group.
    estimator
        ``"plain"``, ``"difference"``, or a :class:`fedcohort.Difference`.
    sketch
        Numbers that the memory keeps of an update; None keeps it whole.
    on_failure
        What happens to the weight of a drawn node that fails: ``"keep"`` leaves it on the current
        model, ``"renormalise"`` spreads it over the nodes that answered (biased). Fed-BioMed asks
        once a round, so there is no ``"redraw"``.
    ping
        The seconds within which a node must answer a ping to be drawn from. None pings no node, and
        draws from all nodes of the experiment.
    limits
        What the researcher accepts.
    log_file
        Where to write a JSON line for every round; None writes none.

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
        seed: Seed = None,
        sizes: Mapping[str, int] | None = None,
        groups: Mapping[str, Label | None] | None = None,
        estimator: EstimatorName | Difference = "plain",
        sketch: int | None = None,
        on_failure: OnFailure = "keep",
        ping: float | None = 5.0,
        limits: Limits | None = None,
        log_file: str | Path | None = None,
    ) -> None:
        super().__init__()
        limits = Limits() if limits is None else limits
        if not isinstance(limits, Limits):
            raise FedBioMedError(
                f"{OWNER}: limits must be Limits(...); got {brief(limits)}. Import it from "
                f"fedcohort.fedbiomed."
            )
        if ping is not None:
            ping = checked_number(OWNER, "ping", ping, least=0.0, error=FedBioMedError)
        self._ping, self._log_file = ping, log_file
        self._given = None if sizes is None else checked_sizes(OWNER, sizes, FedBioMedError)
        self._counted: dict[str, int] = {}
        self._claims: dict[str, int] | None = None
        self._silent: set[str] = set()
        self._attached: AttachedExperiment | None = None
        self._saved: Path | None = None
        self._round: RoundReplies | None = None
        self._set_limits(limits)
        if recipe is None:
            return
        if on_failure == "redraw":
            raise FedBioMedError(
                f"{OWNER}: Fed-BioMed asks nodes once a round, so none can be asked in the place "
                f"of another; got on_failure='redraw'. Use 'keep' or 'renormalise'."
            )
        selector = Selector(
            recipe,
            {},
            seed=seed,
            groups=groups,
            estimator=estimator,
            sketch=sketch,
            on_failure=on_failure,
            max_draws=limits.max_draws,
            log=log_file or True,
        )
        self._use(selector)
        limits.check_cohort(OWNER, recipe.cohort_size, FedBioMedError)

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
            raise FedBioMedError(
                f"{OWNER}: has a recipe, {self.selector.recipe!r}; got another. Leave it out."
            )
        self._attached = attached
        return self

    # Called by Fed-BioMed, in the order of a round

    def sample_nodes(self, from_nodes: list[str], round_i: int) -> list[str]:
        """Draw the round's nodes."""
        with _as_fedbiomed_errors():
            experiment = self._experiment()
            experiment.check()
            self._close_dropped_round()
            for _ in range(MOST_EMPTY):
                now = self._drawn(experiment, list(from_nodes), round_i)
                if now.asked:
                    break
                self._step_alone(experiment)
            else:
                raise FedBioMedError(
                    f"{OWNER}: {self.selector.recipe.name} drew no node {MOST_EMPTY} times in a "
                    f"row. Use a larger cohort."
                )
            self._round = now
            self._sampling_node_history[round_i] = list(now.asked)
            return list(now.asked)

    def refine(self, training_replies: dict[str, Any], round_i: int) -> Refined:
        """Check the replies, settle what failed, and return what the aggregator averages."""
        with _as_fedbiomed_errors():
            now = self._round
            if now is None or now.number != round_i:
                raise FedBioMedError(
                    f"{OWNER}: round {round_i} was not drawn by it. Call sample_nodes first."
                )
            params = self._experiment().params()
            now.take(training_replies, ModelArrays(as_arrays(params)), self._check)
            # Fed-BioMed saves the replies, and cannot load a breakpoint that has a failed one.
            for node in [each for each in training_replies if each not in now.replies]:
                del training_replies[node]
            self._success_node_history[round_i] = list(now.replies)
            shares = self._counted_shares(now) if now.is_count else self._settled(now, params)
            self._round = None
            self._patience.end_round(now.replies, now.failed.values())
            return _refined(now, shares or {now.asked[0]: (1.0, params)})

    def save_state_breakpoint(self) -> dict[str, Any]:
        """Return what Fed-BioMed writes into a breakpoint; the selector has a file beside it."""
        with _as_fedbiomed_errors():
            path = self._experiment().state_file()
            self.selector.save(path)
            self._parameters = {
                "selector": str(path),
                "limits": asdict(self._limits),
                "log_file": self._log_file and str(self._log_file),
                "ping": self._ping,
                "sizes": self._given,
                "counted": self._counted,
            }
            state: dict[str, Any] = super().save_state_breakpoint()
            return state

    def load_state_breakpoint(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`save_state_breakpoint` gave; :meth:`attach` reads the selector."""
        with _as_fedbiomed_errors():
            super().load_state_breakpoint(state)
            found: dict[str, Any] = state["parameters"]
            try:
                self._saved, self._ping = Path(found["selector"]), found["ping"]
                self._log_file, self._given = found["log_file"], found["sizes"]
                self._counted = dict(found["counted"])
                self._set_limits(Limits(**found["limits"]))
            except (KeyError, TypeError) as error:
                raise FedBioMedError(
                    f"{OWNER}: the breakpoint was not written by it ({error}). Load another one."
                ) from error
            if hasattr(self, "selector"):
                del self.selector

    # Helpers of the above

    def _set_limits(self, limits: Limits) -> None:
        self._limits = limits
        self._patience = Patience(OWNER, limits, FedBioMedError)

    def _load(self, recipe: Recipe | None) -> None:
        """Load the selector of a breakpoint."""
        if self._saved is None:
            raise FedBioMedError(f"{OWNER}: needs a recipe; got none. Pass CohortStrategy one.")
        self._use(Selector.load(self._saved, recipe=recipe, log=self._log_file or True))

    def _use(self, selector: Selector) -> None:
        """Take over a selector; refuse a recipe that reads what Fed-BioMed's nodes do not say."""
        recipe = selector.recipe
        missing = [signal for signal in recipe.signals if signal in NOT_REPORTED]
        if missing:
            raise FedBioMedError(
                f"{OWNER}: {recipe.name} needs the signal {missing[0]!r}, which Fed-BioMed's nodes "
                f"do not report. Use another recipe, such as SizeClustered."
            )
        self.selector = selector
        self._check = ArrayCheck(self._limits.max_norm, recipe.learns)

    def _experiment(self) -> AttachedExperiment:
        if self._attached is None:
            raise FedBioMedError(
                f"{OWNER}: is not attached to an experiment. Call strategy.attach(experiment) "
                f"before it runs; after load_breakpoint, experiment.strategy().attach(experiment)."
            )
        return self._attached

    def _close_dropped_round(self) -> None:
        """Skip a round that an error kept from its end."""
        self._round = None
        if (cohort := self.selector.cohort) is not None:
            log.warning("round %d was dropped", cohort.round_)
            self.selector.skip(failed=dict.fromkeys(cohort.ids, "the round was dropped"))

    def _learn_sizes(self, experiment: AttachedExperiment, there: list[str]) -> list[str]:
        """Return the nodes that must say their sizes; if none, tell the selector all sizes."""
        given = self._given or {}
        claims = {**self._counted, **experiment.known_sizes(), **given}
        self._silent &= set(there)  # a node that went and came back may count again
        unknown = [node for node in there if node not in claims and node not in self._silent]
        if not unknown and claims != self._claims:
            is_own_word = [node not in given for node in claims]
            claimed = ClaimedSizes(list(claims), list(claims.values()), is_own_word)
            sizes = claimed.bounded(self._limits).tolist()
            self.selector.clients = dict(zip(claims, sizes, strict=True))
            self._claims = claims
        return unknown

    def _drawn(self, experiment: AttachedExperiment, nodes: list[str], number: int) -> RoundReplies:
        """Draw a round, from the nodes that are there."""
        there = nodes if self._ping is None else experiment.connected(nodes, self._ping)
        if unknown := self._learn_sizes(experiment, there):
            log.info("round %d asks everyone, for the sizes of %s", number, unknown)
            return RoundReplies(number, there, is_count=True)
        members = self.selector.clients
        cohort = self.selector.draw([node for node in there if node in members])
        if self.selector.design is None:
            self.selector.skip()
            raise FedBioMedError(
                f"{OWNER}: no node with samples is there. Start the nodes, and run on."
            )
        return RoundReplies(number, [str(each) for each in cohort.ids])

    def _step_alone(self, experiment: AttachedExperiment) -> None:
        """End a round with an empty cohort; the difference estimator steps by H.

        Fed-BioMed would end the experiment if a round asked no node.
        """
        log.info("round %d of the selector draws no node: on to the next", self.selector.round_)
        step = self.selector.step({})
        self.selector.skip()
        if isinstance(step, np.ndarray):
            experiment.move(ModelArrays(as_arrays(experiment.params())).unflat(step))

    def _counted_shares(self, now: RoundReplies) -> Shares:
        """Note how many samples nodes have, and weigh their parameters by it."""
        self._counted |= now.samples
        self._silent |= set(now.failed)
        if now.failed:
            log.warning("not drawn until they come back, for want of a size: %s", [*now.failed])
        total = sum(now.samples.values())
        params = now.params(node for node, samples in now.samples.items() if samples)
        return {node: (now.samples[node] / total, own) for node, own in params.items()}

    def _settled(self, now: RoundReplies, params: Params) -> Shares:
        """Settle and remember the round; return the nodes to average, none if the model stays."""
        if self._patience.is_void(now.number, len(now.replies), log):
            unused = dict.fromkeys(now.replies, "the round was void")
            self.selector.skip(failed={**unused, **now.failed})
            return {}
        shares = self._shares(now, params)
        updates = {node: now.updates[node] for node in now.replies}
        self.selector.remember(updates, durations=now.durations(), failed=now.failed)
        weights = {node: round(weight, 4) for node, (weight, _) in shares.items()}
        log.info("round %d: weights %s, failed %s", now.number, weights, list(now.failed) or "none")
        return shares

    def _shares(self, now: RoundReplies, params: Params) -> Shares:
        """Return weights that sum to 1, and parameters whose mean is the aggregate."""
        settled = self.selector.settle(now.replies)
        if self.selector.variates is None and settled.sums_to_one:
            weights = zip(map(str, settled.ids), settled.weights.tolist(), strict=True)
            return {node: (w, now.replies[node]["params"]) for node, w in weights if w}
        sent, found = ModelArrays(as_arrays(params)), list(self.selector.for_average(now.updates))
        total = math.fsum(weight for _, weight, _ in found)
        shares: Shares = {}
        for node, weight, update in found:
            moved = sent.plus(update)
            if moved is None:
                now.reject(str(node), "its update is too large for its weight")
                return self._shares(now, params)
            shares[str(node)] = weight / total, as_params(moved, params)
        return shares


def _refined(now: RoundReplies, shares: Shares) -> Refined:
    """Return what Fed-BioMed's aggregators take."""
    return (
        {node: params for node, (_, params) in shares.items()},
        {node: weight for node, (weight, _) in shares.items()},
        sum(now.samples.get(node, 0) for node in shares),
        {node: now.replies.get(node, {}).get("encryption_factor") for node in shares},
    )


@contextmanager
def _as_fedbiomed_errors() -> Iterator[None]:
    """Raise Fed-BioMed's own error, whose sentence it prints; others look like its bugs."""
    try:
        yield
    except FedcohortError as error:
        raise FedbiomedStrategyError(str(error)) from error
