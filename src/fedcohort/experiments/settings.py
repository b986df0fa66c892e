"""Settings of an experiment file: designs, panels, the experiment."""

from __future__ import annotations

import re
from dataclasses import field, fields
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from fedcohort._arguments import brief
from fedcohort._display import short_repr
from fedcohort.errors import AggregationError, ExperimentError
from fedcohort.experiments.checked_table import (
    SOME,
    Count,
    Kinds,
    Label,
    Name,
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
from fedcohort.experiments.training_settings import (
    Cnn,
    Mlp,
    Model,
    OwnModel,
    Rates,
    Server,
    Step,
    Training,
    points,
)
from fedcohort.memory import Difference, EstimatorName, Keep
from fedcohort.selector.open_round import OnFailure

#: The keys of a design that set up its difference estimator.
OF_DIFFERENCE = ("shrink", "clusters", "keep", "rank", "max_remembered", "on_disk")
NEEDS_DIFFERENCE = (
    f"{', '.join(OF_DIFFERENCE)} need estimator = 'difference'. Add it, or leave them out."
)
#: Tables of several kinds.
KINDS = {
    "data": Kinds("partition", PARTITIONS),
    "model": Kinds("name", {"mlp": Mlp, "cnn": Cnn}, own=OwnModel),
    "devices": Kinds("kind", DEVICE_KINDS),
}


#: The seed that tries grids for every design by itself, unless the file gives another.
TUNE_SEED = 1_000_000


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
    shrink, clusters, keep, rank, max_remembered
        Settings of the difference estimator.
    on_disk
        Keep the difference estimator's rows in a file of the run folder, not in memory.
    on_failure, extra
        What to do with the weight of lost clients, and how many extra clients to draw: see
        :class:`fedcohort.Selector`.
    server
        Replaces the panel's optimiser for this design: a table with the keys ``optimizer``,
        ``server_lr`` and those of the optimiser.
    """

    rest: ClassVar[str] = "hyperparameters"

    recipe: Name
    label: Label = ""
    cohort_size: Count | None = None
    estimator: EstimatorName = "plain"
    shrink: Share = 1.0
    clusters: Count | None = None
    keep: Keep = "float32"
    rank: Count = 32
    max_remembered: Count | None = None
    on_disk: bool = False
    on_failure: OnFailure = "keep"
    extra: Whole = 0
    server: Step | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.recipe)
        super().__post_init__()
        defaults = {each.name: each.default for each in fields(self)}
        is_set = any(getattr(self, name) != defaults[name] for name in OF_DIFFERENCE)
        if self.estimator == "plain" and is_set:
            raise ExperimentError(NEEDS_DIFFERENCE)
        self.aggregation(Path("rows"))

    @classmethod
    def of(cls, content: object, place: str = "") -> Self:
        """Make the entry from plain values. The label names what they change."""
        if isinstance(content, dict) and isinstance(content.get("recipe"), str):
            if "estimator" not in content and set(OF_DIFFERENCE) & content.keys():
                raise ExperimentError(NEEDS_DIFFERENCE)
            content = {"label": _label(content), **content}
        return super().of(content, place)

    def aggregation(self, rows: Path) -> EstimatorName | Difference:
        """Return the simulator's record of how updates are aggregated.

        ``rows`` is the file for the rows of the difference estimator, if they are on disk.
        """
        if self.estimator == "plain":
            return "plain"
        own = {name: getattr(self, name) for name in OF_DIFFERENCE if name != "on_disk"}
        try:
            return Difference(**own, file=str(rows) if self.on_disk else None)
        except AggregationError as error:
            raise ExperimentError(str(error).removeprefix("Difference: ")) from error

    def draws(self, panel: Panel) -> int:
        """Return the number of draws in a round."""
        return panel.cohort_size if self.cohort_size is None else self.cohort_size


def _label(content: dict[str, Any]) -> str:
    """Return the recipe's name and the values that an entry gives, the estimator's last."""
    given = {k: v for k, v in content.items() if k not in ("recipe", "label")}
    after: dict[str, Any] = {k: given.pop(k) for k in OF_DIFFERENCE if k in given}
    if (estimator := given.pop("estimator", "plain")) != "plain":
        after = {"+": "+", "estimator": estimator, **after}
    if isinstance(server := given.pop("server", None), dict):
        after |= {"++": "+", "optimizer": "sgd", **server}
        after.pop("server_lr", None)
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
