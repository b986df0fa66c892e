"""Data sets and their division among clients, as experiment files name them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from fedcohort._arguments import brief
from fedcohort.errors import ExperimentError
from fedcohort.experiments.settings_table import (
    MOST,
    Count,
    Name,
    Positive,
    Seed,
    Table,
    Whole,
)
from fedcohort.simulation import (
    Dataset,
    FederatedData,
    dirichlet_disjoint,
    dirichlet_unbalanced,
    iid,
    one_class_shards,
)
from fedcohort.simulation.partitions import PAPER_SIZES
from fedcohort.streams import Stream, stream


class _Data(Table, ABC):
    """A data set and its division among clients.

    Attributes
    ----------
    dataset
        ``digits`` (no download), ``mnist``, ``fashion-mnist`` or ``cifar10``.
    shuffle_clients
        Whether clients are numbered at random, instead of as the partition numbers them.
    seed
        Holds the division fixed; without it every seed of the experiment divides anew.
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
        """Divide, clients numbered as the partition numbers them."""


class OneClass(_Data):
    """``one-class``: every client has samples of one class only.

    Attributes
    ----------
    partition
        ``one-class``.
    clients_per_class
        How many clients have samples of one class.
    train_size
        Training samples of every client; or a list, one number for each of a class's clients.
    deal_sizes
        Whether a list of sizes is dealt out at random to the clients of all classes.
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
        Pairs: so many clients have so many training samples each.
    test_share
        Test samples of a client, for each of its training samples.
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
    """``dirichlet-disjoint``: every class split by shares from Dir(alpha), each sample once.

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
    """``iid``: shuffled samples, dealt out evenly.

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
    """``natural``: the data set itself says who holds what, as a user's own can.

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
    """Return the samples alone, to be divided anew."""
    return source.dataset if isinstance(source, FederatedData) else source


Data = Annotated[
    OneClass | Dirichlet | DirichletDisjoint | Iid | Natural, Field(discriminator="partition")
]
