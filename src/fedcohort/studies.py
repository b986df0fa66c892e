"""Studies: compare designs by training, from Python; the same units as those of experiment files.

A study writes its arguments as an experiment file, with its objects (data, models, recipes).
From there on it is a run folder like any other: run, resumed, merged and reported in the same way.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import FlagNeed, checked_choice, checked_path
from fedcohort._display import fixed, printed, short_list
from fedcohort._figures import checked_figure_path, save_figure
from fedcohort._lazy import frame_of, import_extra
from fedcohort._whole_file import write_whole
from fedcohort.errors import ExperimentError, FedcohortError

if TYPE_CHECKING:
    from fedcohort.experiments import Experiment, Panel, Results, RunFolder
    from fedcohort.experiments.given import Asked
    from fedcohort.experiments.results import Interval, PanelSummary
    from fedcohort.experiments.units import PlannedRun
    from fedcohort.simulation import FederatedData, LocalTraining
    from fedcohort.simulation.engine.models import ModelSource

PROGRESS = FlagNeed(optional=True, way_out="Pass False to show nothing.")
#: Columns that :meth:`Study.plot` draws.
COLUMNS = ("loss", "accuracy", "clients", "distinct_classes", "distinct_clients")


def study(
    designs: Asked | Iterable[Asked] | Mapping[str, Asked],
    data: FederatedData | Mapping[str, Any],
    model: ModelSource | str | Mapping[str, Any] = "mlp",
    *,
    rounds: int,
    training: LocalTraining | Mapping[str, Any] | None = None,
    seeds: int | Sequence[int] = 3,
    cohort_size: int | None = None,
    server: Mapping[str, Any] | None = None,
    devices: Mapping[str, Any] | None = None,
    panels: Mapping[str, Mapping[str, Any]] | None = None,
    title: str = "",
    workers: int | Literal["auto"] = 1,
    ray: str | None = None,
    device: str = "auto",
    folder: str | Path | None = None,
    progress: bool | None = None,
) -> Study:
    """Train a federation with every design and seed, and compare the designs.

    Tables are those of experiment files, as dictionaries.

    Parameters
    ----------
    designs
        Names (``"size"``, ``"size:whole_rows_first"``), recipes, or tables such as
        ``{"recipe": "size", "estimator": "difference"}``, whose values may be a recipe and a
        :class:`Difference` or :class:`Regression`. A mapping gives them labels.
    data
        Who holds what, the same with every seed. Or the table ``data``, which divides a data set
        again for each seed: ``{"dataset": "digits", "partition": "iid", "n_clients": 50}``. Its
        ``dataset`` may be a :class:`~fedcohort.simulation.Dataset`.
    model
        A function without arguments that makes a ``torch.nn.Module``, a module, which every run
        starts from, ``"mlp"``, ``"cnn"``, or the table ``model``.
    rounds
        The number of rounds.
    training
        The local training of every client, or the table ``training``, in which ``lr`` and ``mu``
        can be lists to choose from.
    seeds
        How many seeds, from 0; or a list of seeds.
    cohort_size
        Draws in a round. Default: that of the first recipe; 10 if all designs are names.
    server, devices
        The tables ``server`` and ``devices``.
    panels
        Variants of the study, by label: each names what it changes of the other arguments, as in
        ``{"alike": {"data": {"alpha": 10.0}}, "different": {"data": {"alpha": 0.1}}}``.
    title
        The title of figures and reports.
    workers
        How many units run at a time, more than one in processes of their own; ``"auto"``: one for
        each GPU, or each core.
    ray
        The address of a Ray cluster that runs the units instead, or ``"local"``.
    device
        ``"auto"`` (a GPU if there is one), ``"cpu"`` or ``"cuda"``.
    folder
        The run folder. If it holds this study already, go on where it stopped. None: a temporary
        folder, which disappears with the study unless :meth:`Study.save` keeps it.
    progress
        None shows a bar if standard error is a terminal; True also writes ten lines elsewhere, as
        in a notebook; False shows nothing.

    Examples
    --------
    >>> found = study(
    ...     ["multinomial", "size"],
    ...     {"dataset": "digits", "partition": "iid", "n_clients": 20},
    ...     rounds=2, cohort_size=5, training={"steps": 2, "lr": 0.1}, device="cpu",
    ... )
    >>> found
    Study(designs=['multinomial', 'size'], seeds=3, rounds=2, state='complete')
    >>> found.runs[1]
    PlannedRun(panel='study', design='size', seed=0)
    """
    for package in ("cloudpickle", "tomli_w"):  # no run of an experiment file needs them
        import_extra(package, extra="sim", owner="study")
    from fedcohort.experiments import read_experiment  # slow to import
    from fedcohort.experiments.given import NAME, GivenParts
    from fedcohort.experiments.own_code import check_parts
    from fedcohort.simulation import Options

    PROGRESS.checked("study", "progress", progress, error=ExperimentError)
    path = (
        None if folder is None else checked_path("study", "folder", folder, error=ExperimentError)
    )
    checked_choice("study", "device", device, ("auto", "cpu", "cuda"), error=ExperimentError)
    with tempfile.TemporaryDirectory(prefix="fedcohort-") as home:
        parts = GivenParts(Path(home))
        given = {"title": title, "rounds": rounds, "server": server, "devices": devices}
        file = parts.experiment_file(
            designs, data, model, training, seeds, cohort_size, panels, given
        )
        with _naming(str(file), NAME):
            experiment = read_experiment(file)
            check_parts(experiment, file.parent)
            found = Study._made(path, experiment, file, Options(device=device).torch_device().type)
    return found.resume(workers=workers, ray=ray, progress=progress)


@contextmanager
def _naming(path: str, name: str) -> Iterator[None]:
    """Replace a temporary path by a name in errors."""
    try:
        yield
    except FedcohortError as error:
        if path not in str(error):
            raise
        raise type(error)(str(error).replace(path, name)) from error.__cause__


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Final loss and accuracy of one design minus another's, paired by seed; printed in words.

    Attributes
    ----------
    first, second
        The labels of the two designs.
    loss, accuracy
        Means with 95 % intervals by Student's t; infinite intervals with one seed.
    n_seeds
        The number of seeds.
    """

    first: str
    second: str
    loss: Interval
    accuracy: Interval
    n_seeds: int

    def __str__(self) -> str:
        lines = [self._line("loss", self.loss, 1, 3, "")]
        if not np.isnan(self.accuracy.mean):
            lines.append(self._line("accuracy", self.accuracy, 100, 1, " points"))
        return "\n".join(lines)

    def _line(self, what: str, of: Interval, factor: float, decimals: int, unit: str) -> str:
        mean, low, high = (
            fixed(factor * end, decimals, sign=True) for end in (of.mean, of.low, of.high)
        )
        text = f"{what} of {self.first} minus that of {self.second}: {mean}{unit}"
        if self.n_seeds < 2:
            return f"{text} (one seed: no interval)"
        verdict = "more" if of.excludes_zero else "no more"
        return (
            f"{text} (95 % interval {low} to {high}, {self.n_seeds} seeds): {verdict} than the "
            f"spread over seeds"
        )


@final
class Study:
    """The runs of a study and their results; ``print`` shows the table.

    :func:`study` makes it; :meth:`open` makes it from any run folder.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._remove: finalize[..., Any] | None = None

    @classmethod
    def open(cls, folder: str | Path) -> Study:
        """Open a run folder: of a study, of ``fedcohort run``, or a merged one."""
        from fedcohort.experiments import RunFolder

        return cls(RunFolder.open(folder))

    @classmethod
    def _made(cls, path: Path | None, experiment: Experiment, file: Path, device: str) -> Study:
        """Make the run folder at ``path``, or a temporary one; open one that holds the same."""
        from fedcohort.experiments.given import NAME, check_same
        from fedcohort.experiments.run_folder import HEAD, RunFolder

        if path is not None and (path / HEAD).exists():
            made = cls(RunFolder.open(path))
            check_same(made._folder, experiment, file.parent)
            return made
        command = ["python", *sys.argv]
        home = Path(tempfile.mkdtemp(prefix="fedcohort-study-")) if path is None else path
        folder = RunFolder.create(
            home, experiment, source=file, device=device, command=command, name=NAME
        )
        made = cls(folder)
        if path is None:
            made._remove = finalize(made, shutil.rmtree, home, ignore_errors=True)
        return made

    def resume(
        self,
        *,
        workers: int | Literal["auto"] = 1,
        ray: str | None = None,
        progress: bool | None = None,
    ) -> Study:
        """Run what is left, and return the study; arguments are those of :func:`study`."""
        from fedcohort.experiments import Observer, execute
        from fedcohort.experiments.progress import watched
        from fedcohort.experiments.units import worded_plan

        PROGRESS.checked("Study.resume", "progress", progress, error=ExperimentError)
        if progress is None:
            progress = sys.stderr.isatty()
        plan = worded_plan(self._folder.units, self._folder.experiment)
        shown = watched(plan) if progress else nullcontext(Observer())
        with self._folder.discarded_unless_begun(), self._words(), shown as observer:
            execute(self._folder, workers=workers, ray=ray, observer=observer)
        self.__dict__.pop("results", None)
        return self

    @contextmanager
    def _words(self) -> Iterator[None]:
        """Let errors about a temporary folder say what to do instead of resuming it."""
        if self._remove is None:
            yield
            return
        with (
            _naming(str(self._folder.path), "study"),
            _naming(
                self._folder.resume_command,
                "the same call with folder='runs/study', which it resumes",
            ),
        ):
            yield

    def __repr__(self) -> str:
        panels, state = self.experiment.panels, self._folder.progress().state
        labels = dict.fromkeys(entry.label for panel in panels for entry in panel.design)
        several = f"panels={len(panels)}, " if len(panels) > 1 else ""
        seeds, rounds = len(panels[0].seeds), panels[0].rounds
        designs = short_list(labels)
        return f"Study({several}{designs=!s}, {seeds=}, {rounds=}, {state=})"

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        from fedcohort.report.summary import summary_html

        return summary_html(self.results)

    @property
    def folder(self) -> Path:
        """The run folder; a temporary one until :meth:`save`."""
        return self._folder.path

    @property
    def experiment(self) -> Experiment:
        """The experiment: its panels with their seeds, rounds and designs."""
        return self._folder.experiment

    @cached_property
    def results(self) -> Results:
        """All tables of the run folder, as they were when first asked for."""
        from fedcohort.experiments import read_results

        return read_results(self._folder.path)

    @property
    def runs(self) -> list[PlannedRun]:
        """All runs: panel, label of the design, and seed."""
        return self.results.runs

    @property
    def answer(self) -> str:
        """The result in words: the best design, by how much, and how fast."""
        from fedcohort.report.answer import panel_sentences

        panels = self.experiment.panels
        return "\n".join(
            f"{f'{panel.label}: ' if len(panels) > 1 else ''}"
            f"{' '.join(panel_sentences(self.results, panel))}"
            for panel in panels
        )

    def summary(self, panel: str | None = None) -> PanelSummary:
        """Return the final values of every design, seed by seed; ``panel`` is needed for several.

        Its ``designs`` have ``final_loss``, ``final_accuracy``, ``rounds_needed`` and others.
        """
        from fedcohort.experiments.results import summarise

        own = self._panel("summary", panel)
        found = summarise(self.results, own)
        if found is None:
            raise ExperimentError(
                f"Study.summary: no seed has a round of every design yet; {own.rounds} rounds are "
                f"planned. Call resume()."
            )
        return found

    def table(self) -> str:
        """Return the table of designs: means and standard deviations over seeds."""
        from fedcohort.report.summary import summary_parts

        return printed(*summary_parts(self.results)).strip("\n")

    def to_latex(self, path: str | Path | None = None) -> str:
        """Return the table for LaTeX with the package booktabs; also write it to ``path``."""
        from fedcohort.report.summary import summary_latex

        text = summary_latex(self.results)
        if path is not None:
            file = checked_path("Study.to_latex", "path", path, error=ExperimentError)
            write_whole(file, text.encode())
        return text

    def to_frame(self) -> Any:
        """Return a row for every run and round: panel, design, seed, loss, accuracy, costs.

        A pandas DataFrame; without pandas, a dict of arrays.
        """
        table = self.results.tables["rounds"]
        names = table.column_names
        return frame_of({name: table[name].to_numpy(zero_copy_only=False) for name in names})

    def compare(self, first: str, second: str, *, panel: str | None = None) -> PairedDifference:
        """Return final loss and accuracy of one design minus another's, paired by seed.

        Both have ``mean``, ``low`` and ``high``, a 95 % interval, and ``excludes_zero``; ``print``
        says it in words.
        """
        from fedcohort.experiments.results import interval

        summary = self.summary(panel)
        known = {each.label: each for each in summary.designs}
        for name, label in (("first", first), ("second", second)):
            checked_choice("Study.compare", name, label, known, error=ExperimentError)
        one, other = known[first], known[second]
        return PairedDifference(
            first,
            second,
            interval(one.final_loss - other.final_loss),
            interval(one.final_accuracy - other.final_accuracy),
            len(summary.seeds),
        )

    def plot(self, *columns: str, path: str | Path | None = None) -> NDArray[Any]:
        """Draw curves of all designs, one row per panel; return the axes (panels, columns).

        Lines are means over seeds, bands go from the lowest to the highest seed. Needs the extra
        ``report``.

        Parameters
        ----------
        columns
            ``loss``, ``accuracy``, ``clients`` (the accuracy of every client at the end, on its
            own samples), ``distinct_classes``, ``distinct_clients``. Default: the first three.
        path
            Also write the figure to this file: .png, .svg or .pdf.
        """
        owner = "Study.plot"
        for column in columns:
            checked_choice(owner, "columns", column, COLUMNS, error=ExperimentError)
        file = checked_figure_path(path, owner, "path")
        import_extra("matplotlib.figure", extra="report", owner=owner)
        from fedcohort.report.figures import draw_columns

        has_tests = any(not np.isnan(each).all() for each in self._accuracies())
        usual = COLUMNS[:3] if has_tests else COLUMNS[:1]
        figure = draw_columns(self.results, columns or usual, shown=path is None)
        if figure is None:
            raise ExperimentError(
                f"{owner}: no seed has a round of every design yet. Call resume()."
            )
        if file is not None:
            save_figure(figure, file)
        return np.array(figure.axes).reshape(-1, len(columns or usual))

    def save(self, folder: str | Path) -> Path:
        """Keep the study in a new run folder, which report, resume and merge know; return it."""
        from fedcohort.experiments.run_folder import RunFolder, new_folder

        path = checked_path("Study.save", "folder", folder, error=ExperimentError)
        with new_folder(path) as new:
            unlocked = shutil.ignore_patterns("lock")
            shutil.copytree(self.folder, new, ignore=unlocked, dirs_exist_ok=True)
        if self._remove is not None:
            self._remove()
            self._remove = None
        self._folder = RunFolder.open(path)
        self.__dict__.pop("results", None)
        return path

    def _panel(self, method: str, label: str | None) -> Panel:
        known = {panel.label: panel for panel in self.experiment.panels}
        if label is None and len(known) == 1:
            return self.experiment.panels[0]
        checked_choice(f"Study.{method}", "panel", label, known, error=ExperimentError)
        return known[str(label)]

    def _accuracies(self) -> Iterator[NDArray[np.float64]]:
        return (self.results.column("rounds", run, "accuracy") for run in self.runs)
