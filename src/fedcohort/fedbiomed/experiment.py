"""Read what the strategy needs from a Fed-BioMed experiment, which does not pass it on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import getLogger
from pathlib import Path
from typing import Any, final
from weakref import ref

from fedcohort.deployment.arrays import ModelArrays, as_arrays, like_parameters
from fedcohort.deployment.plugin import Plugin
from fedcohort.errors import FedBioMedError

FEDBIOMED = Plugin(
    framework="fedbiomed",
    owner="CohortStrategy",
    error=FedBioMedError,
    #: A child of Fed-BioMed's own logger, so that its lines stand among the experiment's.
    logger=getLogger("fedbiomed.fedcohort"),
    clients="nodes",
    lacks=("overlap", "tries", "extra"),
)
#: A node's parameters, arrays or tensors by name.
Params = Mapping[str, Any]


@final
class AttachedExperiment:
    """An experiment, weakly held: it holds the strategy."""

    def __init__(self, experiment: object) -> None:
        needed = ("training_data", "training_plan", "aggregator", "secagg", "requests")
        if not all(hasattr(experiment, name) for name in needed):
            raise FEDBIOMED.refusal(
                f"attach needs Fed-BioMed's Experiment; got {type(experiment).__name__}."
            )
        self._experiment = ref(experiment)

    @property
    def _own(self) -> Any:
        experiment = self._experiment()
        if experiment is None:
            raise FEDBIOMED.refusal("its experiment is gone. Call attach with the one that runs.")
        return experiment

    def check(self) -> None:
        """Refuse an aggregator or secure aggregation that would ignore the weights."""
        from fedbiomed.researcher.aggregators import FedAverage

        aggregator = self._own.aggregator()
        if not isinstance(aggregator, FedAverage):
            raise FEDBIOMED.refusal(
                f"needs an aggregator that averages by weights, FedAverage or one that "
                f"inherits it; got {type(aggregator).__name__}. Use DefaultStrategy with it."
            )
        if self._own.secagg.active:
            raise FEDBIOMED.refusal(
                "with secure aggregation each node weighs its own parameters by its "
                "samples, so the draw's weights would not count. Switch secagg off, or use "
                "DefaultStrategy."
            )

    def known_sizes(self) -> dict[str, int]:
        """Return the nodes' samples where the metadata has them, as for tabular data."""
        data = self._own.training_data()
        datasets = {} if data is None else data.data()
        rows = {node: _rows(dataset.get("shape")) for node, dataset in datasets.items()}
        return {node: number for node, number in rows.items() if number is not None}

    def connected(self, nodes: list[str], seconds: float) -> list[str]:
        """Return those of the nodes that answer a ping in time.

        Fed-BioMed's own ``ping_nodes`` waits forever for a node that reconnects meanwhile.
        """
        from fedbiomed.common.message import PingRequest
        from fedbiomed.researcher.requests import StopOnTimeout

        ping = PingRequest(researcher_id=self._own.researcher_id)
        with self._own.requests.send(ping, nodes, [StopOnTimeout(seconds)]) as request:
            online = request.replies()
        return [node for node in nodes if node in online]

    def params(self) -> Params:
        """Return the parameters that nodes are sent."""
        plan = self._own.training_plan()
        has_buffers = self._own.training_args()["share_persistent_buffers"]
        params: Params = plan.get_model_params(
            exclude_buffers=not has_buffers, local_params=plan.local_params
        )
        return params

    def move(self, step: Mapping[str, Any]) -> None:
        """Add a step to the model."""
        params, plan = self.params(), self._own.training_plan()
        moved = ModelArrays(as_arrays(params)).plus(step)
        if moved is not None:
            plan.set_model_params(like_parameters(params, moved), local_params=plan.local_params)

    def state_file(self) -> Path:
        """Return the checkpoint beside the last round's breakpoint."""
        number = self._own.round_current() - 1
        return Path(self._own.experimentation_path()) / f"cohorts_{number:04d}.state"


def _rows(shape: object) -> int | None:
    """Return the rows of a table; None for other data, whose shape is that of one sample."""
    table = shape.get("csv") if isinstance(shape, Mapping) else None
    is_table = isinstance(table, Sequence) and len(table) == 2 and type(table[0]) is int
    return int(table[0]) if is_table and table is not None else None
