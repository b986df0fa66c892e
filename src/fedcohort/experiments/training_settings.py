"""Tables of an experiment file: models, local training and the server."""

from __future__ import annotations

from dataclasses import field, fields
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from fedcohort.errors import AggregationError, ExperimentError
from fedcohort.experiments.checked_table import (
    Count,
    Grid,
    Name,
    Number,
    Positive,
    Share,
    Table,
)
from fedcohort.experiments.own_code import own_errors, own_function
from fedcohort.optimizers import OPTIMIZERS, SGD, Convention, ServerOptimizer
from fedcohort.simulation import Dataset, LocalTraining, Options, cnn, mlp
from fedcohort.simulation.engine.models import ModelSource


class OwnModel(Table):
    """``file.py:function``: the function makes the model for a data set.

    All other keys are passed to the function as keyword arguments.

    Attributes
    ----------
    name
        A file and a function in it, for example ``my_model.py:make``.
    """

    rest: ClassVar[str] = "arguments"

    name: Name
    arguments: dict[str, Any] = field(default_factory=dict)

    def source(self, dataset: Dataset, folder: Path) -> ModelSource:
        """Return a function that makes the model. ``folder`` contains the file."""
        make = own_function("model", self.name, folder)

        def made() -> Any:
            with own_errors(f"model {self.name!r}", "made"):
                return make(dataset, **self.arguments)

        return made


class Mlp(Table):
    """``mlp``: one hidden layer.

    Attributes
    ----------
    hidden
        Units of the hidden layer.
    """

    name: Literal["mlp"] = "mlp"
    hidden: Count = 50

    def source(self, dataset: Dataset, folder: Path) -> ModelSource:
        """Return a function that makes the model."""
        inputs = prod(dataset.x.shape[1:])
        return partial(mlp, inputs, self.hidden, dataset.n_classes)


class Cnn(Table):
    """``cnn``: the paper's three convolutions, for images of 3 x 32 x 32."""

    name: Literal["cnn"]

    def source(self, dataset: Dataset, folder: Path) -> ModelSource:
        """Return a function that makes the model."""
        return partial(cnn, dataset.n_classes)


Model = Mlp | Cnn | OwnModel


class Rates(NamedTuple):
    """One point of a grid."""

    lr: float
    mu: float
    server_lr: float


def points(value: float | list[float]) -> list[float]:
    """Return the values of a grid; a number is a grid of one."""
    return value if isinstance(value, list) else [value]


class Training(Table):
    """The training of every client. A list for ``lr`` or ``mu`` is a grid to choose from."""

    steps: Count | None = None
    epochs: Count | None = None
    batch_size: Count = 50
    lr: Grid = 0.01
    lr_decay: Number = 1.0
    momentum: Number = 0.0
    weight_decay: Number = 0.0
    mu: Grid = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for lr, mu in product(points(self.lr), points(self.mu)):
            self.local(Rates(lr, mu, 1.0))

    def local(self, rates: Rates) -> LocalTraining:
        """Return the simulator's record at one point of the grid."""
        return LocalTraining(**{**self.as_dict(), "lr": rates.lr, "mu": rates.mu})


#: The settings of optimisers.
OF_STEP = ("momentum", "damped", "nesterov", "beta1", "beta2", "tau", "convention")


class Step(Table):
    """How the server moves along the aggregate: see ``fedcohort.optimizers``.

    Attributes
    ----------
    optimizer
        With ``sgd``, ``momentum = 0`` is the plain step.
    server_lr
        The server's learning rate; a list is a grid to choose from. Default: 1 for ``sgd``, 0.1
        for ``adagrad`` and ``adam``, 0.01 for ``yogi``.
    momentum, damped, nesterov
        Only with ``sgd``.
    beta1, beta2
        Only with ``adam`` and ``yogi``.
    tau, convention
        Only with ``adagrad``, ``adam`` and ``yogi``.
    """

    optimizer: Literal["sgd", "adagrad", "adam", "yogi"] = "sgd"
    server_lr: Grid | None = None
    momentum: Share = 0.0
    damped: bool = False
    nesterov: bool = False
    beta1: Share = 0.9
    beta2: Share = 0.99
    tau: Positive = 1e-3
    convention: Convention = "paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.server_lr is None:
            object.__setattr__(self, "server_lr", OPTIMIZERS[self.optimizer].lr)
        self.made()
        for server_lr in self.rates:
            Options(server_lr=server_lr)

    @property
    def rates(self) -> list[float]:
        """The learning rates to choose from."""
        assert self.server_lr is not None  # for mypy: it has its default
        return points(self.server_lr)

    def made(self) -> ServerOptimizer | None:
        """Return the optimiser with a learning rate of 1; None for the plain step."""
        kind = OPTIMIZERS[self.optimizer]
        own = {each.name for each in fields(kind)} & set(OF_STEP)
        changed = {
            each.name
            for each in fields(Step)
            if each.name in OF_STEP and getattr(self, each.name) != each.default
        }
        if wrong := sorted(changed - own):
            raise ExperimentError(
                f"{wrong[0]} is not a setting of optimizer = {self.optimizer!r}. Leave it out."
            )
        if not changed and kind is SGD:
            return None
        try:
            return kind(lr=1.0, **{name: getattr(self, name) for name in own})
        except AggregationError as error:
            raise ExperimentError(str(error)) from error


class Server(Step):
    """What the server does besides drawing: see ``fedcohort.simulation.Options``.

    Attributes
    ----------
    failures
        The chance that a drawn client sends no update.
    """

    measure_every: Count = 1
    oracle_every: Count | None = None
    rows_every: Count | None = 10
    sketch: Count | None = None
    overlap: bool = False
    rebuild_every: Count = 1
    measure_clients: Count | None = None
    failures: Share = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.options("cpu", self.rates[0])

    def options(self, device: str, server_lr: float) -> Options:
        """Return the simulator's record at one point of the grid."""
        own = self.as_dict("failures", "server_lr", "optimizer", *OF_STEP)
        return Options(**own, server_lr=server_lr, device=device)
