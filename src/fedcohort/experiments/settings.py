"""Settings of an experiment file: models, training, server, designs, panels."""

from __future__ import annotations

import re
from dataclasses import field
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from fedcohort._arguments import brief
from fedcohort._display import short_repr
from fedcohort.errors import ExperimentError
from fedcohort.experiments.checked_table import (
    SOME,
    Count,
    Grid,
    Kinds,
    Label,
    Name,
    Number,
    Seed,
    Share,
    Table,
    Whole,
)
from fedcohort.experiments.data_settings import (
    DEVICE_KINDS,
    PARTITIONS,
    Data,
    DeviceTable,
    EqualDevices,
)
from fedcohort.experiments.own_code import own_errors, own_function
from fedcohort.memory import Difference, EstimatorName
from fedcohort.selector.open_round import OnFailure
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

NEEDS_DIFFERENCE = "shrink and clusters need estimator = 'difference'. Add it, or leave them out."
#: Tables of several kinds.
KINDS = {
    "data": Kinds("partition", PARTITIONS),
    "model": Kinds("name", {"mlp": Mlp, "cnn": Cnn}, own=OwnModel),
    "devices": Kinds("kind", DEVICE_KINDS),
}


#: The seed that tries grids for every design by itself, unless the file gives another.
TUNE_SEED = 1_000_000


class Rates(NamedTuple):
    """One point of a grid."""

    lr: float
    mu: float
    server_lr: float


def _points(value: float | list[float]) -> list[float]:
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
        for lr, mu in product(_points(self.lr), _points(self.mu)):
            self.local(Rates(lr, mu, 1.0))

    def local(self, rates: Rates) -> LocalTraining:
        """Return the simulator's record at one point of the grid."""
        return LocalTraining(**{**self.as_dict(), "lr": rates.lr, "mu": rates.mu})


class Server(Table):
    """Settings of the server, besides drawing: see ``fedcohort.simulation.Options``.

    Attributes
    ----------
    server_lr
        The server's learning rate; a list is a grid to choose from.
    failures
        The chance that a drawn client sends no update.
    """

    server_lr: Grid = 1.0
    measure_every: Count = 1
    oracle_every: Count | None = None
    rows_every: Count | None = 10
    sketch: Count | None = None
    overlap: bool = False
    failures: Share = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for server_lr in _points(self.server_lr):
            self.options("cpu", server_lr)

    def options(self, device: str, server_lr: float) -> Options:
        """Return the simulator's record at one point of the grid."""
        own = self.as_dict("failures", "server_lr")
        return Options(**own, server_lr=server_lr, device=device)


class DesignEntry(Table):
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

    rest: ClassVar[str] = "hyperparameters"

    recipe: Name
    label: Label = ""
    cohort_size: Count | None = None
    estimator: EstimatorName = "plain"
    shrink: Share = 1.0
    clusters: Count | None = None
    on_failure: OnFailure = "keep"
    extra: Whole = 0
    hyperparameters: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.recipe)
        super().__post_init__()
        is_set = self.shrink != 1.0 or self.clusters is not None
        if self.estimator == "plain" and is_set:
            raise ExperimentError(NEEDS_DIFFERENCE)

    @classmethod
    def of(cls, content: object, place: str = "") -> Self:
        """Make the entry from plain values. The label names what they change."""
        if isinstance(content, dict) and isinstance(content.get("recipe"), str):
            if "estimator" not in content and {"shrink", "clusters"} & content.keys():
                raise ExperimentError(NEEDS_DIFFERENCE)
            content = {"label": _label(content), **content}
        return super().of(content, place)

    def aggregation(self) -> EstimatorName | Difference:
        """Return the simulator's record of how updates are aggregated."""
        return "plain" if self.estimator == "plain" else Difference(self.shrink, self.clusters)

    def draws(self, panel: Panel) -> int:
        """Return the number of draws in a round."""
        return panel.cohort_size if self.cohort_size is None else self.cohort_size


def _label(content: dict[str, Any]) -> str:
    """Return the recipe's name and the values that an entry gives, the estimator's last."""
    given = {k: v for k, v in content.items() if k not in ("recipe", "label")}
    after: dict[str, Any] = {k: given.pop(k) for k in ("shrink", "clusters") if k in given}
    if (estimator := given.pop("estimator", "plain")) != "plain":
        after = {"+": "+", "estimator": estimator, **after}
    words = (_worded(key, value) for key, value in [*given.items(), *after.items()])
    return " ".join([content["recipe"].rpartition(":")[2], *words])


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
    tune
        Who tries a grid, a list for ``lr``, ``mu`` or ``server_lr``: ``baseline`` tries it for
        all designs, ``each`` lets every design choose for itself.
    tune_seed
        The seed that tries the grid. Default: the first of ``seeds`` for ``baseline``, 1000000
        for ``each``, which needs a seed that is not in ``seeds``.
    data, model, training, server, devices, design
        Tables of their own, below.
    """

    label: Label
    seeds: Annotated[list[Seed], SOME] = field(default_factory=lambda: [0])
    rounds: Whole
    cohort_size: Count = 10
    tune: Literal["baseline", "each"] = "baseline"
    tune_seed: Seed | None = None
    data: Annotated[Data, KINDS["data"]]
    model: Annotated[Model, KINDS["model"]] = Mlp()
    training: Training = Training(steps=50)
    server: Server = Server()
    devices: Annotated[DeviceTable, KINDS["devices"]] = EqualDevices()
    design: list[DesignEntry] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
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
        if self.tune == "each" and self.is_grid and self.tuning_seed in self.seeds:
            raise ExperimentError(
                f"tune_seed must not be in seeds with tune = 'each'; got {self.tuning_seed}. Choose"
                f" another."
            )

    @property
    def is_grid(self) -> bool:
        """Return whether ``lr``, ``mu`` or ``server_lr`` is a list to choose from."""
        values = (self.training.lr, self.training.mu, self.server.server_lr)
        return any(isinstance(value, list) for value in values)

    @property
    def tuning_seed(self) -> int:
        """Return the seed that tries the grid."""
        if self.tune_seed is not None:
            return self.tune_seed
        return TUNE_SEED if self.tune == "each" else self.seeds[0]

    def candidates(self) -> list[Rates]:
        """Return every point of the grid; without a grid, there is one."""
        grids = (self.training.lr, self.training.mu, self.server.server_lr)
        return [Rates(*point) for point in product(*map(_points, grids))]

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
        Save the state after this many rounds, again and again. A resumed run starts from there.
    panels
        In a file, each is a ``[[panel]]`` with a label and the keys above that it changes.
    """

    name: Name
    title: str = ""
    checkpoint_every: Count = 10
    panels: Annotated[list[Panel], SOME]

    def __post_init__(self) -> None:
        super().__post_init__()
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
        return next(panel for panel in self.panels if panel.label == label)
