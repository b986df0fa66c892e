"""Fed-BioMed's own experiments with nodes in this process: only its server is replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import numpy as np
import pytest
from fedbiomed.common.datamanager import DataManager
from fedbiomed.common.dataset import TabularDataset
from fedbiomed.common.message import PingRequest, TrainReply, TrainRequest
from fedbiomed.common.training_plans import FedSGDClassifier
from fedbiomed.researcher.federated_workflows import Experiment, _federated_workflow
from numpy.typing import NDArray

#: Numbers of a model: five coefficients and an intercept.
DIMENSION = 6
SIZES = {"Brest": 20, "Caen": 50, "Lyon": 30, "Metz": 10, "Nice": 70}
#: What a node does with the parameters that it is sent: trains, fails with a text, is silent.
Node = Callable[[str, dict[str, Any]], Mapping[str, Any] | str | None]


class LinearPlan(FedSGDClassifier):
    """A linear classifier; nodes in this process do not train it."""

    def init_dependencies(self) -> list[str]:
        return []

    def training_data(self) -> DataManager:
        return DataManager(TabularDataset(["x"], "y"))


class InProcessNodes:
    """Takes the place of Fed-BioMed's ``Requests``; nodes answer at once.

    Attributes
    ----------
    sizes
        Samples by node, for the replies.
    connected
        The nodes that are there.
    node
        What a node does.
    asked
        The nodes of every training request.
    """

    def __init__(self) -> None:
        self.sizes = dict(SIZES)
        self.connected = list(SIZES)
        self.node: Node = lambda name, params: moved(params, update_of(name))
        self.asked: list[list[str]] = []
        self.pings = 0

    @classmethod
    def installed(cls, monkeypatch: pytest.MonkeyPatch) -> InProcessNodes:
        nodes = cls()
        monkeypatch.setattr(_federated_workflow, "Requests", lambda config: nodes)
        return nodes

    def online(self) -> list[str]:
        """Return the nodes that answer a ping."""
        self.pings += 1
        return self.connected

    def add_monitor_callback(self, *ignored: object) -> None:
        pass

    def remove_monitor_callback(self, *ignored: object) -> None:
        pass

    def send(self, messages: Any, nodes: list[str], policies: object) -> _Answered:
        if isinstance(messages, PingRequest):
            return _Answered(dict.fromkeys(set(self.online()) & set(nodes)))
        self.asked.append(sorted(nodes))
        replies = {node: self._reply(node, messages[node]) for node in nodes}
        return _Answered({node: reply for node, reply in replies.items() if reply is not None})

    def _reply(self, name: str, request: TrainRequest) -> TrainReply | None:
        found = self.node(name, request.params)
        if found is None or name not in self.connected:
            return None
        has_trained = not isinstance(found, str)
        return TrainReply(
            request_id="request",
            researcher_id=request.researcher_id,
            experiment_id=request.experiment_id,
            success=has_trained,
            node_id=name,
            node_name=name,
            dataset_id=request.dataset_id,
            timing={"rtime_training": 0.5} if has_trained else {},
            msg="" if has_trained else str(found),
            state_id=f"state_{name}",
            sample_size=self.sizes[name] if has_trained else None,
            params=dict(found) if isinstance(found, Mapping) else None,
        )


class _Answered:
    """The answers to one request."""

    def __init__(self, replies: dict[str, Any]) -> None:
        self._replies = replies

    def __enter__(self) -> _Answered:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def replies(self) -> dict[str, Any]:
        return self._replies

    def errors(self) -> dict[str, Any]:
        return {}


def update_of(name: str, round_: int = 0) -> NDArray[np.float64]:
    """Return a node's update, without ties."""
    seed = sum(map(ord, name)) + 1000 * round_
    return np.random.default_rng(seed).normal(size=DIMENSION)


def moved(params: Mapping[str, Any], update: NDArray[np.floating]) -> dict[str, Any]:
    """Return parameters plus a flat update."""
    return {
        "intercept_": params["intercept_"] + update[:1],
        "coef_": params["coef_"] + update[1:].reshape(1, -1),
    }


def flat(params: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return parameters as a vector."""
    return np.concatenate([params["intercept_"], params["coef_"].reshape(-1)])


def model_of(experiment: Any) -> NDArray[np.float64]:
    """Return an experiment's model as a vector."""
    return flat(experiment.training_plan().get_model_params())


def tables(sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the metadata of tables with so many rows."""
    return {
        node: {"dataset_id": f"dataset_{node}", "data_type": "csv", "shape": {"csv": [rows, 6]}}
        for node, rows in sizes.items()
    }


def images(sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the metadata of images, which does not say how many there are."""
    about = {"data_type": "images", "shape": {"data": [28, 28], "target": 1}}
    return {node: {"dataset_id": f"dataset_{node}", **about} for node in sizes}


def experiment_with(strategy: Any, nodes: InProcessNodes, **more: Any) -> Any:
    """Return an experiment on the nodes, with the strategy attached."""
    arguments = {
        "training_data": tables(nodes.sizes),
        "training_plan_class": LinearPlan,
        "model_args": {"n_features": DIMENSION - 1, "n_classes": 2},
        "training_args": {"epochs": 1, "loader_args": {"batch_size": 4}},
        "node_selection_strategy": strategy,
    }
    experiment = Experiment(**{**arguments, **more})
    strategy.attach(experiment)
    return experiment
