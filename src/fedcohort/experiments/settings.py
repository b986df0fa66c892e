"""The tables of an experiment file: data, devices, models, training, server, designs, panels."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import field, replace
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast, get_args

from torch import nn

from fedcohort._arguments import ListNeed, OneOrListNeed, TextNeed, brief, checked_choice
from fedcohort._display import short_repr
from fedcohort._fields import choice, declared, flag, number, settings_of
from fedcohort.designs import Recipe
from fedcohort.errors import AggregationError, DataError, ExperimentError
from fedcohort.experiments.checked_table import (
    COUNT,
    LABEL,
    NAME,
    SEED,
    WHOLE,
    Table,
    TableNeed,
    fixed,
)
from fedcohort.experiments.own_code import own_errors, own_file, own_function
from fedcohort.memory import ESTIMATORS, EstimatorName, EstimatorSettings, Keep
from fedcohort.memory.difference import RECORDS, WEIGHTS
from fedcohort.memory.regression import FeatureSource
from fedcohort.optimizers import OPTIMIZERS, SGD, ServerOptimizer
from fedcohort.selector.settings import SelectorKeywords, SelectorSettings
from fedcohort.simulation import (
    Dataset,
    Devices,
    FederatedData,
    LocalTraining,
    Options,
    cnn,
    gru,
    lstm,
    mlp,
    read_devices,
    small_transformer,
)
from fedcohort.simulation.data import partitions
from fedcohort.simulation.devices.availability import PROCESSES, Availability
from fedcohort.simulation.devices.chances import (
    class_chances,
    class_turn_chances,
    given_chances,
    log_normal_chances,
    lowest_class_chances,
    size_chances,
    skewed_class_chances,
)
from fedcohort.simulation.engine.models import ModelSource
from fedcohort.simulation.runs import IMPORTANCES
from fedcohort.streams import Stream, stream

#: The seed that tries grids for every design by itself, unless the file gives another.
TUNE_SEED = 1_000_000


class Data(Table, ABC):
    """A data set and its division among clients.

    Attributes
    ----------
    dataset
        ``digits`` and ``shakespeare`` (no download), ``mnist``, ``fashion-mnist`` or ``cifar10``.
    shuffle_clients
        Whether to number clients at random. Otherwise the partition numbers them.
    seed
        Fixes the division. Without it, each seed of the experiment has its own division.
    """

    dataset: str = declared(NAME)
    shuffle_clients: bool = flag(True)
    seed: int | None = declared(SEED, None)

    #: The function that divides a data set; its settings are keys of the table.
    divide: ClassVar[Callable[..., FederatedData]]

    def federation(self, source: Dataset | FederatedData, seed: int) -> FederatedData:
        """Divide the data set for a run with this seed."""
        own = seed if self.seed is None else self.seed
        data = self._divided(source, own)
        if not self.shuffle_clients:
            return data
        return data.renumbered(stream(own, use=Stream.NUMBERING))

    def _divided(self, source: Dataset | FederatedData, seed: int) -> FederatedData:
        """Divide the samples. The partition numbers the clients."""
        samples = source.dataset if isinstance(source, FederatedData) else source
        divide = type(self).divide
        return divide(samples, seed=seed, **self._settings(divide))


class OneClass(Data, like=[partitions.one_class_shards]):
    """``one-class``: every client has samples of one class only."""

    divide = staticmethod(partitions.one_class_shards)
    partition: str = fixed("one-class")

    def _check(self) -> None:
        if isinstance(self.train_size, list) and len(self.train_size) != self.clients_per_class:
            raise ExperimentError(
                f"data.train_size must be one number, or one for each of a class's "
                f"{self.clients_per_class} clients (clients_per_class); got {len(self.train_size)}."
            )


class Dirichlet(Data, like=[partitions.dirichlet_unbalanced]):
    """``dirichlet``: class shares from Dir(alpha), sizes as listed (clients, samples)."""

    divide = staticmethod(partitions.dirichlet_unbalanced)
    partition: str = fixed("dirichlet")


class DirichletDisjoint(Data, like=[partitions.dirichlet_disjoint], defaults={"n_clients": 100}):
    """``dirichlet-disjoint``: split each class by shares from Dir(alpha), use each sample once."""

    divide = staticmethod(partitions.dirichlet_disjoint)
    partition: str = fixed("dirichlet-disjoint")


class DirichletClients(Data, like=[partitions.dirichlet_clients], defaults={"n_clients": 100}):
    """``dirichlet-clients``: class shares of each client from Dir(alpha), each sample once."""

    divide = staticmethod(partitions.dirichlet_clients)
    partition: str = fixed("dirichlet-clients")


class DirichletParts(Data, like=[partitions.dirichlet_parts]):
    """``dirichlet-parts``: parts of the data set, each with an alpha of its own, in balance."""

    divide = staticmethod(partitions.dirichlet_parts)
    partition: str = fixed("dirichlet-parts")


class Iid(Data, like=[partitions.iid], defaults={"n_clients": 100}):
    """``iid``: shuffle the samples and divide them evenly."""

    divide = staticmethod(partitions.iid)
    partition: str = fixed("iid")


class Natural(Data):
    """``natural``: the data set (``shakespeare`` or your own) says who holds which samples."""

    partition: str = fixed("natural")
    shuffle_clients: bool = flag(False)

    def _divided(self, source: Dataset | FederatedData, seed: int) -> FederatedData:
        if isinstance(source, FederatedData):
            return source
        if source.clients is not None:
            return partitions.natural(source)
        raise ExperimentError(
            f"data.partition 'natural' needs a data set that says who holds what; "
            f"{self.dataset!r} does not. Let its function return a FederatedData, or choose "
            f"another partition."
        )


class Presence(Table, ABC, like=list(PROCESSES.values())):
    """Who is there in each round: ``kind`` says where the chances come from.

    Attributes
    ----------
    process
        What the chances mean: an independent coin in every round
        (:class:`~fedcohort.simulation.Coins`), clients that stay for a while
        (:class:`~fedcohort.simulation.Markov`) or that come in cycles
        (:class:`~fedcohort.simulation.Cyclic`).
    pattern
        Only with ``coins``: how chances change over the rounds.
    period
        Only with ``staircase`` and ``sine``: the rounds of a period.
    high, low
        Only with ``staircase`` and ``sine``: the highest and the lowest factor on the chances.
    absent_below
        Only with ``coins``: a client with a lower chance than this in a round is away.
    come
        Only with ``markov``: the largest chance of an absent client to come.
    cycle
        Only with ``cyclic``: the rounds of a cycle.
    seed
        Fixes the chances. Without it, each seed of the experiment has its own. In every round, the
        seed of the run decides who comes.
    """

    process: str = choice("coins", PROCESSES)
    seed: int | None = declared(SEED, None)

    #: The function that gives the chances; its settings are keys of the table.
    chances: ClassVar[Callable[..., Any]]
    takes_seed: ClassVar[bool] = False

    def _check(self) -> None:
        self._made([0.5])

    def availability(self, data: FederatedData, seed: int) -> Availability:
        """Return the simulator's record, for a run with this seed."""
        own = {"seed": seed if self.seed is None else self.seed} if self.takes_seed else {}
        find = type(self).chances
        return self._made(find(data, **own, **self._settings(find)))

    def _made(self, chance: Any) -> Availability:
        return PROCESSES[self.process](chance, **self._only_settings(PROCESSES, "process"))


class GivenPresence(Presence, like=[given_chances], leave_out=["data"]):
    """``given``: one chance for all clients, or a list."""

    chances = staticmethod(given_chances)
    kind: str = fixed("given")


class ClassPresence(Presence, like=[class_chances], leave_out=["data"]):
    """``classes``: a client's chance depends on its shares of classes, as in FedAWE."""

    chances, takes_seed = staticmethod(class_chances), True
    kind: str = fixed("classes")


class SkewedClassPresence(Presence, like=[skewed_class_chances], leave_out=["data"]):
    """``skewed-classes``: clients of a few classes come often, all others rarely, as in FedAU."""

    chances, takes_seed = staticmethod(skewed_class_chances), True
    kind: str = fixed("skewed-classes")


class SizePresence(Presence, like=[size_chances], leave_out=["data"]):
    """``sizes``: clients with many samples come more often, or those with few."""

    chances = staticmethod(size_chances)
    kind: str = fixed("sizes")


class LowestClassPresence(Presence, like=[lowest_class_chances], leave_out=["data"]):
    """``lowest-class``: the higher a client's lowest class, the more often it comes."""

    chances = staticmethod(lowest_class_chances)
    kind: str = fixed("lowest-class")


class ClassTurnPresence(Presence, like=[class_turn_chances], leave_out=["data"]):
    """``class-turns``: classes take turns; clients without the class come less often."""

    chances = staticmethod(class_turn_chances)
    kind: str = fixed("class-turns")

    def _check(self) -> None:
        super()._check()
        if self.process != "coins":
            raise ExperimentError(
                f"process must be 'coins' with class-turns, whose chances change by the round; "
                f"got {self.process!r}. Leave it out."
            )


class LogNormalPresence(Presence, like=[log_normal_chances], leave_out=["data"]):
    """``log-normal``: random chances that depend on nothing else."""

    chances, takes_seed = staticmethod(log_normal_chances), True
    kind: str = fixed("log-normal")


PRESENCE = TableNeed(
    key="kind",
    kinds={
        "given": GivenPresence,
        "classes": ClassPresence,
        "skewed-classes": SkewedClassPresence,
        "sizes": SizePresence,
        "lowest-class": LowestClassPresence,
        "class-turns": ClassTurnPresence,
        "log-normal": LogNormalPresence,
    },
)


class DeviceTable(Table, ABC):
    """The devices that clients train on.

    Attributes
    ----------
    presence
        Who is there in each round: a table of its own, below.
    """

    presence: Presence | None = declared(PRESENCE, None)

    def devices(self, data: FederatedData, seed: int, folder: Path) -> Devices | None:
        """Return the simulator's devices, None for its default.

        ``folder`` contains the user's own files.
        """
        found = self._own(data.n_clients, seed, folder)
        if self.presence is None:
            return found
        found = Devices.equal(data.n_clients) if found is None else found
        if found.availability is not None:
            raise ExperimentError(
                "devices.presence needs devices without hours; these come and go by simulated "
                "time. Leave out awake, or start and end in the file."
            )
        return replace(found, availability=self.presence.availability(data, seed))

    @abstractmethod
    def _own(self, n_clients: int, seed: int, folder: Path) -> Devices | None:
        """Return the devices without the table's presence."""


class EqualDevices(DeviceTable, like=[Devices.equal], leave_out=["n_clients"]):
    """``equal``: every client has the same device and is always available."""

    kind: str = fixed("equal")

    def _own(self, n_clients: int, seed: int, folder: Path) -> Devices | None:
        if replace(self, presence=None) == EqualDevices(kind="equal"):
            return None
        return Devices.equal(n_clients, **self._settings(Devices.equal))


class GeneratedDevices(DeviceTable, like=[Devices.generated], leave_out=["n_clients"]):
    """``generated``: log-normal speeds and lines; clients are available for a share of each day.

    See :meth:`fedcohort.simulation.Devices.generated`.

    Attributes
    ----------
    seed
        Fixes the devices. Without it, each seed of the experiment has its own.
    """

    kind: str = fixed("generated")
    seed: int | None = declared(SEED, None)

    def _own(self, n_clients: int, seed: int, folder: Path) -> Devices | None:
        own = seed if self.seed is None else self.seed
        return Devices.generated(n_clients, own, **self._settings(Devices.generated))


class DeviceFile(DeviceTable, like=[read_devices], leave_out=["n_clients"]):
    """``file``: read devices from a CSV file in the experiment file's folder or below it.

    See :func:`fedcohort.simulation.read_devices`. The run folder keeps a copy.

    Attributes
    ----------
    file
        Its path, relative to the experiment file's folder.
    """

    kind: str = fixed("file")
    file: str = declared(NAME)

    def _own(self, n_clients: int, seed: int, folder: Path) -> Devices | None:
        path = own_file("device", folder, self.file)
        try:
            return read_devices(path, n_clients, **self._settings(read_devices))
        except DataError as error:
            # Name the original: the copy may be gone when the user reads this message.
            raise ExperimentError(str(error).replace(str(path), self.file)) from error


class OwnModel(Table):
    """``file.py:function``: the function makes the model for a data set.

    All other keys are passed to the function as keyword arguments.

    Attributes
    ----------
    name
        A file and a function in it, for example ``my_model.py:make``.
    """

    rest: ClassVar[str] = "arguments"

    name: str = declared(NAME)
    arguments: dict[str, Any] = field(default_factory=dict)

    def source(self, dataset: Dataset, folder: Path) -> ModelSource:
        """Return a function that makes the model. ``folder`` contains the file."""
        make = own_function("model", self.name, folder)

        def made() -> Any:
            with own_errors(f"model {self.name!r}", "made"):
                return make(dataset, **self.arguments)

        return made


class Mlp(Table, like=[mlp], leave_out=["inputs", "classes"]):
    """``mlp``: one hidden layer."""

    name: str = fixed("mlp")

    def source(self, dataset: Dataset, folder: Path) -> ModelSource:
        """Return a function that makes the model."""
        inputs = prod(dataset.x.shape[1:])
        return partial(mlp, inputs, self.hidden, dataset.n_classes)


class Cnn(Table):
    """``cnn``: the paper's three convolutions, for images of 3 x 32 x 32."""

    name: str = fixed("cnn")

    def source(self, dataset: Dataset, folder: Path) -> ModelSource:
        """Return a function that makes the model."""
        return partial(cnn, dataset.n_classes)


class TextModel(Table, ABC):
    """A model for sequences of integers. Its numbers of tokens and classes come from the data."""

    #: The function that makes the model; its settings are keys of the table.
    make: ClassVar[Callable[..., nn.Module]]

    def source(self, dataset: Dataset, folder: Path) -> ModelSource:
        """Return a function that makes the model."""
        if dataset.x.dtype.kind not in "iu" or dataset.x.ndim != 2 or not dataset.x.size:
            raise ExperimentError(
                f"model {self.name!r}: needs inputs that are sequences of integers; got "
                f"{dataset.x.dtype} of shape {dataset.x.shape}. Choose another model or data set."
            )
        largest = max(int(part.max(initial=0)) for part in (dataset.x, dataset.test_x))
        tokens, make = max(largest + 1, dataset.n_classes), type(self).make
        own = {**self._settings(make), **self._of_data(dataset)}
        return partial(make, tokens, dataset.n_classes, last=dataset.length is None, **own)

    def _of_data(self, dataset: Dataset) -> dict[str, int]:
        """Return further settings that come from the data."""
        return {}


class SmallTransformer(
    TextModel, like=[small_transformer], leave_out=["tokens", "classes", "length", "last"]
):
    """``small-transformer``: causal, for sequences of integers."""

    make = staticmethod(small_transformer)
    name: str = fixed("small-transformer")

    def _of_data(self, dataset: Dataset) -> dict[str, int]:
        return {"length": dataset.x.shape[1]}


class Gru(TextModel, like=[gru], leave_out=["tokens", "classes", "last"]):
    """``gru``: gated recurrent units, for sequences of integers."""

    make = staticmethod(gru)
    name: str = fixed("gru")


class Lstm(TextModel, like=[lstm], leave_out=["tokens", "classes", "last"]):
    """``lstm``: LEAF's model for Shakespeare, for sequences of integers."""

    make = staticmethod(lstm)
    name: str = fixed("lstm")


class Rates(NamedTuple):
    """One point of a grid."""

    lr: float
    mu: float
    server_lr: float


def points(value: float | list[float]) -> list[float]:
    """Return the values of a grid; a number is a grid of one."""
    return value if isinstance(value, list) else [value]


class Training(Table, like=[LocalTraining], lists=["lr", "mu"]):
    """The training of every client. A list for ``lr`` or ``mu`` is a grid to choose from."""

    def _check(self) -> None:
        for lr, mu in product(points(self.lr), points(self.mu)):
            self.local(Rates(lr, mu, 1.0))

    def local(self, rates: Rates) -> LocalTraining:
        """Return the simulator's record at one point of the grid."""
        return LocalTraining(**{**self._settings(LocalTraining), "lr": rates.lr, "mu": rates.mu})


class Step(Table, like=list(OPTIMIZERS.values()), leave_out=["lr"]):
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

    optimizer: str = choice("sgd", OPTIMIZERS)
    server_lr: float | list[float] | None = declared(
        OneOrListNeed(item=settings_of(Options)["server_lr"].need), None
    )

    def _check(self) -> None:
        if self.server_lr is None:
            self._put(server_lr=OPTIMIZERS[self.optimizer].lr)
        self.made()

    @property
    def rates(self) -> list[float]:
        """The learning rates to choose from."""
        assert self.server_lr is not None  # for mypy: it has its default
        return points(self.server_lr)

    def made(self) -> ServerOptimizer | None:
        """Return the optimiser with a learning rate of 1; None for the plain step."""
        kind = OPTIMIZERS[self.optimizer]
        own = self._only_settings(OPTIMIZERS, "optimizer")
        if kind is SGD and all(own[name] == settings_of(SGD)[name].default for name in own):
            return None
        try:
            return kind(lr=1.0, **own)
        except AggregationError as error:
            raise ExperimentError(str(error)) from error


#: Settings of the selector that belong to a design, and to both; all others belong to the server.
OF_DESIGN = (
    *("on_failure", "tries", "extra", "presence", "max_boost", "interval_cutoff"),
    *("max_participations", "min_separation", "rest"),
)
OF_BOTH = ("max_norm",)
OF_SERVER = tuple(n for n in settings_of(SelectorSettings) if n not in (*OF_DESIGN, *OF_BOTH))


class Server(
    Step,
    like=[Options, SelectorSettings],
    leave_out=["device", "threads", *OF_DESIGN],
    defaults={"rows_every": 10},
):
    """The settings of the server and of all designs.

    See ``fedcohort.simulation.Options`` and :class:`fedcohort.Selector`.

    Attributes
    ----------
    failures
        The chance that a drawn client sends no update.
    importance
        How much a client counts: ``sizes``, by its number of training samples, or ``equal``, all
        clients with samples alike.
    """

    failures: float = number(0.0, least=0, most=1)
    importance: str = choice("sizes", IMPORTANCES)

    def options(self, device: str, server_lr: float) -> Options:
        """Return the simulator's record at one point of the grid."""
        return Options(**{**self._settings(Options), "server_lr": server_lr}, device=device)


#: The keys of a design that set up its estimator.
OF_ESTIMATOR = {"plain": (), **{name: tuple(settings_of(own)) for name, own in RECORDS.items()}}
OF_ANY_ESTIMATOR = tuple(dict.fromkeys(name for own in OF_ESTIMATOR.values() for name in own))
#: Those whose default is the estimator's.
OF_EACH = ("keep", "shrink", "weights")
#: Their words: a file says "none" for None, and cannot give features.
KEEP_WORDS = (*get_args(Keep), "none")
FEATURE_WORDS = (*(word for word in get_args(FeatureSource) if word != "given"), "none")


def _check_estimator_keys(estimator: str, keys: Iterable[str]) -> None:
    """Refuse keys of another estimator."""
    for name in keys:
        if name not in OF_ESTIMATOR.get(estimator, (name,)):
            needed = [repr(each) for each, own in OF_ESTIMATOR.items() if name in own]
            raise ExperimentError(
                f"{name} needs estimator = {' or '.join(needed)}; got {estimator!r}. Change it, or "
                f"leave {name} out."
            )


class DesignEntry(Table, like=[*RECORDS.values(), SelectorSettings], leave_out=OF_SERVER):
    """One ``[[design]]``: a recipe by its name or import path, and its hyper-parameters.

    All other keys are the recipe's hyper-parameters.

    Attributes
    ----------
    recipe
        The name of a recipe, or a file and a class in it: ``my_design.py:MyRecipe``.
    label
        Its name in tables and figures. Default: the recipe and its hyper-parameters.
    cohort_size
        Replaces the panel's cohort size.
    estimator
        How updates are aggregated: ``plain``; ``difference`` (:class:`fedcohort.Difference`),
        ``mifa``, ``fedvarp`` or ``fedstale`` with the keys ``shrink``, ``keep``, ``rank``,
        ``max_remembered`` and ``weights``; or ``regression`` (:class:`fedcohort.Regression`) with
        ``features``, ``keep``, ``output`` and ``rank``.
    keep
        How the estimator keeps updates. Default: ``int8`` for ``regression``, which alone can keep
        ``none``; ``float32`` for the others.
    shrink
        Default: 0.5 for ``fedstale``, 1 for the others.
    weights
        Default: ``importance`` for ``mifa``, ``design`` for the others.
    features, output
        Where ``regression`` takes features from: ``output``, the update of the output layer's bias
        or of the array ``output``; ``classes``, the shares of classes; ``none``; or ``auto``.
    max_norm
        Replaces the server's for this design.
    server
        Replaces the panel's optimiser for this design: a table with the keys ``optimizer``,
        ``server_lr`` and those of the optimiser.
    """

    rest: ClassVar[str] = "hyperparameters"

    recipe: str = declared(NAME)
    label: str = declared(LABEL, "")
    cohort_size: int | None = declared(COUNT, None)
    estimator: EstimatorName = choice("plain", ESTIMATORS)
    keep: str | None = choice(None, KEEP_WORDS)
    shrink: float | None = number(None, least=0, most=1)
    weights: str | None = choice(None, WEIGHTS)
    features: str = choice("auto", FEATURE_WORDS)
    server: Step | None = declared(TableNeed(kinds={"": Step}), None)
    hyperparameters: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._put(label=self.label or self.recipe)
        super().__post_init__()

    def _check(self) -> None:
        usual = [
            (name, each.default)
            for own in (RECORDS["difference"], RECORDS["regression"])  # earlier runs have these
            for name, each in settings_of(own).items()
        ]
        given = [(name, getattr(self, name)) for name in OF_ANY_ESTIMATOR]
        changed = [name for name, own in given if own is not None and (name, own) not in usual]
        _check_estimator_keys(self.estimator, changed)
        self.aggregation()

    @classmethod
    def of(cls, content: object, place: str = "") -> Self:
        """Make the entry from plain values. The label names what they change."""
        if isinstance(content, dict) and isinstance(content.get("recipe"), str):
            if "estimator" not in content:
                _check_estimator_keys("plain", sorted(content.keys() & OF_ANY_ESTIMATOR))
            content = {"label": _label(content), **content}
        return super().of(content, place)

    def aggregation(self) -> EstimatorName | EstimatorSettings:
        """Return the simulator's record of how updates are aggregated."""
        if self.estimator == "plain":
            return "plain"
        kind = RECORDS[self.estimator]
        given = self._settings(kind)
        for name in OF_EACH:
            if given.get(name, "") is None:  # the estimator's own default
                del given[name]
        for name in given:
            if given[name] == "none" and settings_of(kind)[name].need.optional:
                given[name] = None
        try:
            return kind(**given)
        except AggregationError as error:
            raise ExperimentError(str(error).partition(": ")[2]) from error

    def selector_settings(self, server: Server, recipe: Recipe) -> SelectorKeywords:
        """Return the settings of a run's selector: the design's own, and the server's."""
        own = self._settings(SelectorSettings)
        settings: dict[str, Any] = {
            **server._settings(SelectorSettings),
            **{name: value for name, value in own.items() if value is not None},
            "estimator": self.aggregation(),
        }
        if recipe.signals:  # it needs a design in every round
            settings["rebuild_every"] = 1
        return cast("SelectorKeywords", settings)

    def draws(self, panel: Panel) -> int:
        """Return the number of draws in a round."""
        return panel.cohort_size if self.cohort_size is None else self.cohort_size


def _label(content: dict[str, Any]) -> str:
    """Return the recipe's name and the values that an entry gives, the estimator's last."""
    given = {k: v for k, v in content.items() if k not in ("recipe", "label")}
    after: dict[str, Any] = {k: given.pop(k) for k in OF_ANY_ESTIMATOR if k in given}
    if (estimator := given.pop("estimator", "plain")) != "plain":
        after = {"+": "+", "estimator": estimator, **after}
    if isinstance(server := given.pop("server", None), dict):
        after |= {"++": "+", "optimizer": "sgd", **server}
        after.pop("server_lr", None)
    words = [content["recipe"].rpartition(":")[2]]
    for key, value in [*given.items(), *after.items()]:
        # "deadline 4.0": the name of the setting would say the recipe's name again.
        words.append(str(value) if key == words[-1] else _worded(key, value))
    return " ".join(words)


def _worded(key: str, value: object) -> str:
    if isinstance(value, bool):
        return key if value else f"no {key}"
    if value == "none":
        return f"no {key}"
    return value if isinstance(value, str) else f"{key}={value}"


#: Tables of several kinds.
DATA = TableNeed(
    key="partition",
    kinds={
        "one-class": OneClass,
        "dirichlet": Dirichlet,
        "dirichlet-disjoint": DirichletDisjoint,
        "dirichlet-clients": DirichletClients,
        "dirichlet-parts": DirichletParts,
        "iid": Iid,
        "natural": Natural,
    },
)
MODELS: dict[str, type[Table]] = {
    "mlp": Mlp,
    "cnn": Cnn,
    "small-transformer": SmallTransformer,
    "gru": Gru,
    "lstm": Lstm,
}
MODEL = TableNeed(key="name", kinds=MODELS, own=OwnModel)
DEVICES = TableNeed(
    key="kind",
    kinds={"equal": EqualDevices, "generated": GeneratedDevices, "file": DeviceFile},
)


class Panel(Table):
    """One panel of an experiment: the settings that its runs share, and their seeds.

    Attributes
    ----------
    label
        The panel's name in tables and figures.
    seeds
        A list, or in a file also ``"0-4"``. Every design runs once with each seed.
    rounds
        Number of rounds. With 0 rounds and no design, only the data are divided.
    cohort_size
        Draws in a round.
    tune
        Who tries a grid, a list for ``lr``, ``mu`` or ``server_lr``: ``baseline`` tries it for
        all designs, ``each`` lets every design choose for itself.
    tune_seed
        The seed that tries the grid. Default: the first of ``seeds`` for ``baseline``, 1000000
        for ``each``, which needs a seed that is not in ``seeds``.
    tune_rounds
        Rounds of each trial of a grid, at most ``rounds``, which is the default. Shorter trials
        favour rates that are fast at first.
    data, model, training, server, devices, design
        Tables of their own, below.
    """

    label: str = declared(LABEL)
    seeds: list[int] = declared(ListNeed(item=SEED), [0])
    rounds: int = declared(WHOLE)
    cohort_size: int = declared(COUNT, 10)
    tune: Literal["baseline", "each"] = choice("baseline", ("baseline", "each"))
    tune_seed: int | None = declared(SEED, None)
    tune_rounds: int | None = declared(COUNT, None)
    data: Data = declared(DATA)
    model: Mlp | Cnn | TextModel | OwnModel = declared(MODEL, Mlp(name="mlp"))
    training: Training = declared(TableNeed(kinds={"": Training}), Training.of({"steps": 50}))
    server: Server = declared(TableNeed(kinds={"": Server}), Server())
    devices: DeviceTable = declared(DEVICES, EqualDevices(kind="equal"))
    design: list[DesignEntry] = declared(
        ListNeed(item=TableNeed(kinds={"": DesignEntry}), least=0), []
    )

    def _check(self) -> None:
        labels = [entry.label for entry in self.design]
        for label in labels:
            if labels.count(label) > 1:
                raise ExperimentError(
                    f"two designs are labelled {label!r}; give one another label."
                )
        if bool(self.design) != bool(self.rounds):
            raise ExperimentError(
                "rounds and [[design]] go together; only a partition has neither."
            )
        if self.tune != "each" and any(
            entry.server is not None and isinstance(entry.server.server_lr, list)
            for entry in self.design
        ):
            raise ExperimentError(
                "a list for server_lr of one design needs tune = 'each'. Add it, or give a number."
            )
        if self.tune == "each" and self.is_grid and self.tuning_seed in self.seeds:
            raise ExperimentError(
                f"tune_seed must not be in seeds with tune = 'each'; got {self.tuning_seed}. Choose"
                f" another."
            )

        if self.tune_rounds is not None and self.tune_rounds > self.rounds:
            raise ExperimentError(
                f"tune_rounds must be at most rounds, {self.rounds}; got {self.tune_rounds}. Lower "
                f"it, or leave it out."
            )

    @property
    def is_grid(self) -> bool:
        """Return whether ``lr``, ``mu`` or ``server_lr`` is a list to choose from."""
        return bool(self.grid_names)

    @property
    def grid_names(self) -> list[str]:
        """Return the names of the rates that have a list to choose from."""
        steps = [self.server, *(entry.server for entry in self.design if entry.server is not None)]
        given: dict[str, list[Any]] = {
            "lr": [self.training.lr],
            "mu": [self.training.mu],
            "server_lr": [step.server_lr for step in steps],
        }
        return [n for n, values in given.items() if any(isinstance(v, list) for v in values)]

    @property
    def tuning_seed(self) -> int:
        """Return the seed that tries the grid."""
        if self.tune_seed is not None:
            return self.tune_seed
        return TUNE_SEED if self.tune == "each" else self.seeds[0]

    def step(self, design: str) -> Step:
        """Return how the server moves with a design."""
        return self.entry(design).server or self.server

    def candidates(self, design: str) -> list[Rates]:
        """Return every point of a design's grid; without a grid, there is one."""
        grids = (points(self.training.lr), points(self.training.mu), self.step(design).rates)
        return [Rates(*point) for point in product(*grids)]

    def __repr__(self) -> str:
        counts = {"designs": len(self.design), "seeds": len(self.seeds)}
        return short_repr(self, label=self.label, rounds=self.rounds, **counts)

    def entry(self, label: str) -> DesignEntry:
        """Return the design with this label."""
        found = {entry.label: entry for entry in self.design}
        checked_choice("Panel", "design", label, found, error=ExperimentError)
        return found[label]


class Experiment(Table):
    """A resolved experiment, as saved in a run folder.

    Attributes
    ----------
    name
        The file's name without its extension.
    title
        The title of reports.
    checkpoint_every
        Save the state after this many rounds, again and again. A resumed run starts from there.
    panels
        In a file, each is a ``[[panel]]`` with a label and the keys above that it changes.
    """

    name: str = declared(NAME)
    title: str = declared(TextNeed(), "")
    checkpoint_every: int = declared(COUNT, 10)
    panels: list[Panel] = declared(ListNeed(item=TableNeed(kinds={"": Panel})))

    def _check(self) -> None:
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.name) is None:
            raise ExperimentError(f"name must be a file name; got {brief(self.name)}.")

    def __repr__(self) -> str:
        return short_repr(self, name=self.name, panels=len(self.panels))

    @property
    def heading(self) -> str:
        """Return the title, or the name if there is none."""
        return self.title or self.name

    def panel(self, label: str) -> Panel:
        """Return the panel with this label."""
        found = {panel.label: panel for panel in self.panels}
        checked_choice("Experiment", "panel", label, found, error=ExperimentError)
        return found[label]
