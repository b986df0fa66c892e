"""Tables of an experiment file: data sets and their division, and devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from fedcohort.errors import DataError, ExperimentError
from fedcohort.experiments.checked_table import (
    SOME,
    Count,
    Name,
    Need,
    Pair,
    Positive,
    Rate,
    Seed,
    Spread,
    Table,
    Whole,
)
from fedcohort.experiments.own_code import own_file
from fedcohort.simulation import Dataset, Devices, FederatedData, read_devices
from fedcohort.simulation.data import partitions
from fedcohort.simulation.devices.devices import LINE, SPEED
from fedcohort.streams import Stream, stream


class Data(Table, ABC):
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

    #: The function that divides a data set; its arguments are the other keys of the table.
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
        options = self.as_dict("dataset", "shuffle_clients", "seed", "partition")
        return type(self).divide(samples, seed=seed, **options)


class OneClass(Data):
    """``one-class``: every client has samples of one class only.

    Attributes
    ----------
    clients_per_class
        How many clients have samples of one class.
    train_size
        Training samples of every client; or a list with one number for each client of a class.
    deal_sizes
        Whether to assign a list of sizes at random to the clients of all classes.
    test_size
        Test samples of every client.
    """

    divide = staticmethod(partitions.one_class_shards)
    partition: Literal["one-class"]
    clients_per_class: Count = 10
    train_size: Count | Annotated[list[Count], SOME] = 500
    deal_sizes: bool = False
    test_size: Whole = 80

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.train_size, list) and len(self.train_size) != self.clients_per_class:
            raise ExperimentError(
                f"data.train_size must be one number, or one for each of a class's "
                f"{self.clients_per_class} clients (clients_per_class); got {len(self.train_size)}."
            )


class Dirichlet(Data):
    """``dirichlet``: class shares from Dir(alpha), sizes as listed (clients, samples).

    Attributes
    ----------
    alpha
        The smaller, the fewer classes a client has.
    sizes
        Pairs: a number of clients, and the training samples of each of them.
    test_share
        Number of a client's test samples, as a share of its training samples.
    """

    divide = staticmethod(partitions.dirichlet_unbalanced)
    partition: Literal["dirichlet"]
    alpha: Positive
    sizes: Annotated[list[Pair], SOME] = field(
        default_factory=lambda: [list(pair) for pair in partitions.PAPER_SIZES]
    )
    test_share: Spread = 0.2


class DirichletDisjoint(Data):
    """``dirichlet-disjoint``: split each class by shares from Dir(alpha), use each sample once.

    Attributes
    ----------
    alpha
        The smaller, the fewer clients share a class.
    n_clients
        How many clients there are.
    """

    divide = staticmethod(partitions.dirichlet_disjoint)
    partition: Literal["dirichlet-disjoint"]
    alpha: Positive
    n_clients: Count = 100


class Iid(Data):
    """``iid``: shuffle the samples and divide them evenly.

    Attributes
    ----------
    n_clients
        How many clients there are.
    """

    divide = staticmethod(partitions.iid)
    partition: Literal["iid"]
    n_clients: Count = 100


class Natural(Data):
    """``natural``: the data set (for example your own) says which client holds which samples."""

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


class DeviceTable(Table, ABC):
    """The devices that clients train on.

    Attributes
    ----------
    jitter
        Each round multiplies a client's computing time by exp(jitter * z), z standard normal.
    """

    @abstractmethod
    def devices(self, n_clients: int, seed: int, folder: Path) -> Devices | None:
        """Return the simulator's devices. ``folder`` contains the user's own files."""


class EqualDevices(DeviceTable):
    """``equal``: every client has the same device and is always available.

    Attributes
    ----------
    speed
        Samples that a client processes in a second of training.
    down, up
        Bytes a second to and from a client.
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
        return Devices.equal(n_clients, **self.as_dict("kind"))


class GeneratedDevices(DeviceTable):
    """``generated``: log-normal speeds and lines; clients are available for a share of each day.

    See :meth:`fedcohort.simulation.Devices.generated`.

    Attributes
    ----------
    seed
        Fixes the devices. Without it, each seed of the experiment has its own.
    """

    kind: Literal["generated"]
    speed: Rate = SPEED
    speed_spread: Spread = 1.0
    down: Rate = LINE
    up: Rate = LINE
    line_spread: Spread = 1.0
    awake: Annotated[float, Need("a number from 1e-9 to 1", float, 1e-9, 1)] = 1.0
    day: Positive = 86_400.0
    jitter: Spread = 0.0
    seed: Seed | None = None

    def devices(self, n_clients: int, seed: int, folder: Path) -> Devices | None:
        """Return the simulator's devices."""
        own = seed if self.seed is None else self.seed
        return Devices.generated(n_clients, own, **self.as_dict("kind", "seed"))


class DeviceFile(DeviceTable):
    """``file``: read devices from a CSV file in the experiment file's folder or below it.

    See :func:`fedcohort.simulation.read_devices`. The run folder keeps a copy.

    Attributes
    ----------
    file
        Its path, relative to the experiment file's folder.
    """

    kind: Literal["file"]
    file: Name
    jitter: Spread = 0.0

    def devices(self, n_clients: int, seed: int, folder: Path) -> Devices | None:
        """Return the simulator's devices. ``folder`` contains the file."""
        path = own_file("device", folder, self.file)
        try:
            return read_devices(path, n_clients, jitter=self.jitter)
        except DataError as error:
            # Name the original: the copy may be gone when the user reads this message.
            raise ExperimentError(str(error).replace(str(path), self.file)) from error


PARTITIONS: dict[str, type[Table]] = {
    "one-class": OneClass,
    "dirichlet": Dirichlet,
    "dirichlet-disjoint": DirichletDisjoint,
    "iid": Iid,
    "natural": Natural,
}
DEVICE_KINDS: dict[str, type[Table]] = {
    "equal": EqualDevices,
    "generated": GeneratedDevices,
    "file": DeviceFile,
}
