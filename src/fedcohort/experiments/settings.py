"""Settings of an experiment file: a frozen model that checks each table."""

from __future__ import annotations

from functools import partial
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from fedcohort._display import short_repr
from fedcohort._open_round import OnFailure
from fedcohort.errors import ExperimentError
from fedcohort.experiments.data_settings import (
    Count,
    Data,
    DeviceTable,
    EqualDevices,
    Label,
    Name,
    Number,
    Seed,
    Table,
    Whole,
)
from fedcohort.experiments.own_code import own_function
from fedcohort.memory import Difference, EstimatorName
from fedcohort.simulation import Dataset, LocalTraining, Options, cnn, mlp
from fedcohort.simulation.engine.models import ModelSource


class OwnModel(BaseModel):
    """``file.py:function``: the function makes the model for a data set.

    All other keys are passed to the function as keyword arguments.

    Attributes
    ----------
    name
        A file and a function in it, for example ``my_model.py:make``.
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: Name

    def source(self, dataset: Dataset, folder: Path) -> ModelSource:
        """Return a function that makes the model. ``folder`` contains the file."""
        make = own_function("model", self.name, folder)

        def made() -> Any:
            try:
                return make(dataset, **(self.model_extra or {}))
            except (Exception, SystemExit) as error:
                raise ExperimentError(
                    f"model {self.name!r}: cannot be made ({type(error).__name__}: {error}). "
                    f"Mend it."
                ) from error

        return made


class Mlp(Table):
    """``mlp``: one hidden layer.

    Attributes
    ----------
    name
        ``mlp``.
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
    """``cnn``: the paper's three convolutions, for images of 3 x 32 x 32.

    Attributes
    ----------
    name
        ``cnn``.
    """

    name: Literal["cnn"]

    def source(self, dataset: Dataset, folder: Path) -> ModelSource:
        """Return a function that makes the model."""
        return partial(cnn, dataset.n_classes)


def _kind_of_model(table: Any) -> Any:
    """Return the kind of model that a table names. A colon marks the user's own model."""
    name = table.get("name") if isinstance(table, dict) else getattr(table, "name", None)
    return "own" if isinstance(name, str) and ":" in name else name


Model = Annotated[
    Annotated[Mlp, Tag("mlp")] | Annotated[Cnn, Tag("cnn")] | Annotated[OwnModel, Tag("own")],
    Discriminator(_kind_of_model),
]


def kinds_of(table: Any, key: str) -> dict[str, type[BaseModel]]:
    """Return the kinds of a table by the value of ``key``, without the user's own code."""
    members = get_args(get_args(table)[0])
    kinds = [get_args(each)[0] if get_args(each) else each for each in members]
    named = [(get_args(kind.model_fields[key].annotation), kind) for kind in kinds]
    return {names[0]: kind for names, kind in named if names}


#: Tables of several kinds: the key that selects the kind, and the kinds.
KINDS = {
    "data": ("partition", kinds_of(Data, "partition")),
    "model": ("name", kinds_of(Model, "name")),
    "devices": ("kind", kinds_of(DeviceTable, "kind")),
}


class Training(Table):
    """The training of every client. A list for ``lr`` or ``mu`` is a grid to choose from."""

    steps: Count | None = None
    epochs: Count | None = None
    batch_size: Count = 50
    lr: Number | Annotated[list[Number], Field(min_length=1)] = 0.01
    lr_decay: Number = 1.0
    momentum: Number = 0.0
    weight_decay: Number = 0.0
    mu: Number | Annotated[list[Number], Field(min_length=1)] = 0.0

    @model_validator(mode="after")
    def _can_train(self) -> Training:
        for candidate in self.candidates():
            candidate.local()
        return self

    @property
    def is_grid(self) -> bool:
        """Return whether ``lr`` or ``mu`` is a list to choose from."""
        return isinstance(self.lr, list) or isinstance(self.mu, list)

    def candidates(self) -> list[Training]:
        """Return every point of the grid. Without a grid, return the training itself."""
        lrs = self.lr if isinstance(self.lr, list) else [self.lr]
        mus = self.mu if isinstance(self.mu, list) else [self.mu]
        return [
            self.model_copy(update={"lr": float(lr), "mu": float(mu)}) for lr in lrs for mu in mus
        ]

    def local(self) -> LocalTraining:
        """Return the simulator's record."""
        return LocalTraining(**self.model_dump())


class Server(Table):
    """What the server does besides drawing: see ``fedcohort.simulation.Options``.

    Attributes
    ----------
    failures
        The chance that a drawn client sends no update.
    """

    server_lr: Number = 1.0
    measure_every: Count = 1
    oracle_every: Count | None = None
    rows_every: Count | None = 10
    sketch: Count | None = None
    overlap: bool = False
    failures: Annotated[float, Field(ge=0, le=1)] = 0.0

    @model_validator(mode="after")
    def _can_serve(self) -> Server:
        self.options("cpu")
        return self

    def options(self, device: str) -> Options:
        """Return the simulator's record."""
        return Options(**self.model_dump(exclude={"failures"}), device=device)


class DesignEntry(BaseModel):
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
        How updates are aggregated: ``plain``, or ``difference`` (:class:`fedcohort.Difference`).
    on_failure, extra
        What to do with the weight of lost clients, and how many extra clients to draw: see
        :class:`fedcohort.Selector`.
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    recipe: Name
    label: Label = ""
    cohort_size: Count | None = None
    estimator: EstimatorName = "plain"
    shrink: Annotated[float, Field(ge=0, le=1)] = 1.0
    clusters: Count | None = None
    on_failure: OnFailure = "keep"
    extra: Whole = 0

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("recipe"), str):
            given = {k: v for k, v in values.items() if k not in ("recipe", "label")}
            after = {k: given.pop(k) for k in ("shrink", "clusters") if k in given}
            if (estimator := given.pop("estimator", "plain")) != "plain":
                after = {"+": "+", "estimator": estimator, **after}
            own = values["recipe"].rpartition(":")[2]
            words = (_worded(key, value) for key, value in [*given.items(), *after.items()])
            return {"label": " ".join([own, *words]), **values}
        return values

    @model_validator(mode="after")
    def _has_an_estimator(self) -> DesignEntry:
        given = self.model_fields_set & {"estimator", "shrink", "clusters"}
        is_set = self.shrink != 1.0 or self.clusters is not None
        if self.estimator == "plain" and (is_set or (given and "estimator" not in given)):
            raise ValueError("shrink and clusters need estimator = 'difference'")
        return self

    def aggregation(self) -> EstimatorName | Difference:
        """Return the simulator's record of how updates are aggregated."""
        return "plain" if self.estimator == "plain" else Difference(self.shrink, self.clusters)

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Return the recipe's arguments after the cohort size."""
        return dict(self.model_extra or {})

    def draws(self, panel: Panel) -> int:
        """Return the number of draws in a round."""
        return panel.cohort_size if self.cohort_size is None else self.cohort_size


def _worded(key: str, value: object) -> str:
    if isinstance(value, bool):
        return key if value else f"no {key}"
    return value if isinstance(value, str) else f"{key}={value}"


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
    data, model, training, server, devices, design
        Tables of their own, below.
    """

    label: Label
    seeds: Annotated[list[Seed], Field(min_length=1)] = Field(default=[0])
    rounds: Whole
    cohort_size: Count = 10
    data: Data
    model: Model = Mlp()
    training: Training = Training(steps=50)
    server: Server = Server()
    devices: DeviceTable = EqualDevices()
    design: list[DesignEntry] = Field(default=[])

    @model_validator(mode="after")
    def _labels_differ(self) -> Panel:
        labels = [entry.label for entry in self.design]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"two designs are labelled {label!r}; give one another label")
        if bool(self.design) != bool(self.rounds):
            raise ValueError("rounds and [[design]] go together; only a partition has neither")
        return self

    def __repr__(self) -> str:
        counts = {"designs": len(self.design), "seeds": len(self.seeds)}
        return short_repr(self, label=self.label, rounds=self.rounds, **counts)

    def entry(self, label: str) -> DesignEntry:
        """Return the design with this label."""
        return next(entry for entry in self.design if entry.label == label)


class Experiment(Table):
    """A resolved experiment, as saved in a run folder.

    Attributes
    ----------
    name
        The file's name without its extension.
    title
        The title of reports.
    checkpoint_every
        Save the state after every so many rounds. A resumed run starts from there.
    panels
        In a file, each is a ``[[panel]]`` with a label and the keys above that it changes.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    title: str = ""
    checkpoint_every: Count = 10
    panels: Annotated[list[Panel], Field(min_length=1)]

    def __repr__(self) -> str:
        return short_repr(self, name=self.name, panels=len(self.panels))

    def panel(self, label: str) -> Panel:
        """Return the panel with this label."""
        return next(panel for panel in self.panels if panel.label == label)
