"""Tables of an experiment file: data, devices, and the base of all tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedcohort._arguments import brief
from fedcohort.errors import DataError, ExperimentError
from fedcohort.experiments.own_code import own_file
from fedcohort.simulation import (
    Dataset,
    Devices,
    FederatedData,
    dirichlet_disjoint,
    dirichlet_unbalanced,
    iid,
    one_class_shards,
    read_devices,
)
from fedcohort.simulation.data.partitions import PAPER_SIZES
from fedcohort.simulation.devices.devices import LINE, SPEED
from fedcohort.streams import Stream, stream

#: Upper limit of counts: clients, steps, rounds, units of a layer.
MOST = 10**9
Count = Annotated[int, Field(ge=1, le=MOST)]
Whole = Annotated[int, Field(ge=0, le=MOST)]
#: A seed is a 64-bit signed integer in tables.
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
#: Samples or bytes a second. These limits keep a client's time finite for every spread.
Rate = Annotated[float, Field(ge=1e-9, le=1e18)]
Label = Annotated[str, Field(min_length=1, max_length=200)]
#: A data set, a model, a recipe or a file, by name.
Name = Annotated[str, Field(max_length=500)]


class Table(BaseModel):
    """One table of the file. Unknown keys are refused, and types are not converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Data(Table, ABC):
    """A data set and its division among clients.

    Attributes
    ----------
    dataset
        ``digits`` (no download), ``mnist``, ``fashion-mnist`` or ``cifar10``.
    shuffle_clients
        Whether to number clients at random. Otherwise the partition numbers them.
    seed
        Fixes the division. Without it, each seed of the experiment has its own division.
    """

    dataset: Name
    shuffle_clients: bool = True
    seed: Seed | None = None

    def federation(self, source: Dataset | FederatedData, seed: int) -> FederatedData:
        """Divide the data set for a run with this seed."""
        own = seed if self.seed is None else self.seed
        data = self._divided(source, own)
        if not self.shuffle_clients:
            return data
        return data.renumbered(stream(own, use=Stream.NUMBERING))

    @abstractmethod
    def _divided(self, source: Dataset | FederatedData, seed: int) -> FederatedData:
        """Divide the data set. The partition numbers the clients."""


class OneClass(_Data):
    """``one-class``: every client has samples of one class only.

    Attributes
    ----------
    partition
        ``one-class``.
    clients_per_class
        How many clients have samples of one class.
    train_size
        Training samples of every client; or a list with one number for each client of a class.
    deal_sizes
        Whether to assign a list of sizes at random to the clients of all classes.
    test_size
        Test samples of every client.
    """

    partition: Literal["one-class"]
    clients_per_class: Count = 10
    train_size: int | list[int] = 500
    deal_sizes: bool = False
    test_size: Whole = 80

    @field_validator("train_size", mode="before")
    @classmethod
    def _is_one_or_a_list(cls, value: Any) -> Any:
        sizes = value if isinstance(value, list) else [value]
        if not sizes or any(type(size) is not int or not 1 <= size <= MOST for size in sizes):
            raise ValueError(
                f"data.train_size must be a whole number from 1 to 10^9, or a list of such; got "
                f"{brief(value)}"
            )
        return value

    @model_validator(mode="after")
    def _has_a_size_for_each(self) -> OneClass:
        if isinstance(self.train_size, list) and len(self.train_size) != self.clients_per_class:
            raise ValueError(
                f"data.train_size must be one number, or one for each of a class's "
                f"{self.clients_per_class} clients (clients_per_class); got {len(self.train_size)}"
            )
        return self

    def _divided(self, source: Dataset | FederatedData, seed: int) -> FederatedData:
        return one_class_shards(
            samples(source),
            seed=seed,
            clients_per_class=self.clients_per_class,
            train_size=self.train_size,
            deal_sizes=self.deal_sizes,
            test_size=self.test_size,
        )


class Dirichlet(_Data):
    """``dirichlet``: class shares from Dir(alpha), sizes as listed (clients, samples).

    Attributes
    ----------
    partition
        ``dirichlet``.
    alpha
        The smaller, the fewer classes a client has.
    sizes
        Pairs: a number of clients, and the training samples of each of them.
    test_share
        Number of a client's test samples, as a share of its training samples.
    """

    partition: Literal["dirichlet"]
    alpha: Positive
    sizes: Annotated[
        list[Annotated[list[Count], Field(min_length=2, max_length=2)]], Field(min_length=1)
    ] = Field(default=[list(pair) for pair in PAPER_SIZES])
    test_share: Annotated[float, Field(ge=0, le=10)] = 0.2

    def _divided(self, source: Dataset | FederatedData, seed: int) -> FederatedData:
        sizes = [(pair[0], pair[1]) for pair in self.sizes]
        return dirichlet_unbalanced(
            samples(source), alpha=self.alpha, seed=seed, sizes=sizes, test_share=self.test_share
        )


class DirichletDisjoint(_Data):
    """``dirichlet-disjoint``: split each class by shares from Dir(alpha), use each sample once.

    Attributes
    ----------
    partition
        ``dirichlet-disjoint``.
    alpha
        The smaller, the fewer clients share a class.
    n_clients
        How many clients there are.
    """

    partition: Literal["dirichlet-disjoint"]
    alpha: Positive
    n_clients: Count = 100

    def _divided(self, source: Dataset | FederatedData, seed: int) -> FederatedData:
        return dirichlet_disjoint(
            samples(source), alpha=self.alpha, n_clients=self.n_clients, seed=seed
        )


class Iid(_Data):
    """``iid``: shuffle the samples and divide them evenly.

    Attributes
    ----------
    partition
        ``iid``.
    n_clients
        How many clients there are.
    """

    partition: Literal["iid"]
    n_clients: Count = 100

    def _divided(self, source: Dataset | FederatedData, seed: int) -> FederatedData:
        return iid(samples(source), n_clients=self.n_clients, seed=seed)


class Natural(_Data):
    """``natural``: the data set (for example your own) says which client holds which samples.

    Attributes
    ----------
    partition
        ``natural``.
    """

    partition: Literal["natural"]
    shuffle_clients: bool = False

    def _divided(self, source: Dataset | FederatedData, seed: int) -> FederatedData:
        if isinstance(source, FederatedData):
            return source
        raise ExperimentError(
            f"data.partition 'natural' needs a data set that says who holds what; "
            f"{self.dataset!r} does not. Let its function return a FederatedData, or choose "
            f"another partition."
        )


def samples(source: Dataset | FederatedData) -> Dataset:
    """Return the samples without their division among clients."""
    return source.dataset if isinstance(source, FederatedData) else source


Data = Annotated[
    OneClass | Dirichlet | DirichletDisjoint | Iid | Natural, Field(discriminator="partition")
]


Spread = Annotated[float, Field(ge=0, le=10)]


class EqualDevices(Table):
    """``equal``: every client has the same device and is always available.

    Attributes
    ----------
    kind
        ``equal``.
    speed
        Samples that a client processes in a second of training.
    down, up
        Bytes a second to and from a client.
    jitter
        Each round multiplies a client's computing time by exp(jitter * z), z standard normal.
    """

    kind: Literal["equal"] = "equal"
    speed: Rate = SPEED
    down: Rate = LINE
    up: Rate = LINE
    jitter: Spread = 0.0

    def devices(self, n_clients: int, seed: int, folder: Path) -> Devices | None:
        """Return the simulator's devices; None for its default."""
        if self == EqualDevices():
            return None
        options = self.model_dump(exclude={"kind"})
        return Devices.equal(n_clients, **options)


class GeneratedDevices(Table):
    """``generated``: log-normal speeds and lines; clients are available for a share of each day.

    See :meth:`fedcohort.simulation.Devices.generated`.

    Attributes
    ----------
    kind
        ``generated``.
    seed
        Fixes the devices. Without it, each seed of the experiment has its own.
    jitter
        Each round multiplies a client's computing time by exp(jitter * z), z standard normal.
    """

    kind: Literal["generated"]
    speed: Rate = SPEED
    speed_spread: Spread = 1.0
    down: Rate = LINE
    up: Rate = LINE
    line_spread: Spread = 1.0
    awake: Annotated[float, Field(ge=1e-9, le=1)] = 1.0
    day: Positive = 86_400.0
    jitter: Spread = 0.0
    seed: Seed | None = None

    def devices(self, n_clients: int, seed: int, folder: Path) -> Devices | None:
        """Return the simulator's devices."""
        options = self.model_dump(exclude={"kind", "seed"})
        return Devices.generated(n_clients, seed if self.seed is None else self.seed, **options)


class DeviceFile(Table):
    """``file``: read devices from a CSV file in the experiment file's folder or below it.

    See :func:`fedcohort.simulation.read_devices`. The run folder keeps a copy.

    Attributes
    ----------
    kind
        ``file``.
    file
        Its path, relative to the experiment file's folder.
    jitter
        Each round multiplies a client's computing time by exp(jitter * z), z standard normal.
    """

    kind: Literal["file"]
    file: Annotated[Name, Field(min_length=1)]
    jitter: Spread = 0.0

    def devices(self, n_clients: int, seed: int, folder: Path) -> Devices | None:
        """Return the simulator's devices. ``folder`` contains the file."""
        path = own_file("device", folder, self.file)
        try:
            return read_devices(path, n_clients, jitter=self.jitter)
        except DataError as error:
            # Name the original: the copy may be gone when the user reads this message.
            raise ExperimentError(str(error).replace(str(path), self.file)) from error


DeviceTable = Annotated[EqualDevices | GeneratedDevices | DeviceFile, Field(discriminator="kind")]
