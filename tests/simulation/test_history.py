"""Histories as frames and figures, and the progress that a run shows."""

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort import Multinomial, SizeClustered
from fedcohort.errors import InputError, MissingExtraError, SimulationError
from fedcohort.simulation import (
    FederatedData,
    History,
    LocalTraining,
    Options,
    Quality,
    Round,
    Run,
    Simulation,
    iid,
    load_dataset,
    mlp,
)
from fedcohort.simulation.history import COLUMNS

DIGITS = iid(load_dataset("digits"), n_clients=10, seed=0)
#: Without test samples.
UNTESTED = FederatedData(DIGITS.dataset, DIGITS.train, tuple(part[:0] for part in DIGITS.test))


def simulation_of(data: FederatedData = DIGITS, n_runs: int = 1, **options: Any) -> Simulation:
    runs = [Run(Multinomial(3), data)] * n_runs
    training = LocalTraining(steps=1, batch_size=5, lr=0.1)
    return Simulation(runs, lambda: mlp(64, 4), training, Options(device="cpu", **options))


@pytest.fixture
def without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)


@pytest.fixture
def pyplot(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    matplotlib = pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


def test_a_frame_has_a_row_per_round_and_nan_where_nothing_was_measured() -> None:
    pandas = pytest.importorskip("pandas", reason="makes frames")
    (history,) = simulation_of(measure_every=2, oracle_every=3).run(4)

    frame = history.to_frame()

    assert isinstance(frame, pandas.DataFrame)
    assert frame["round"].tolist() == [0, 1, 2, 3]
    assert frame["loss"].isna().tolist() == [True, False, True, False]
    assert frame["squared_error"].isna().tolist() == [False, True, True, False]
    assert frame["loss"][3] == history.rounds[3].quality.loss  # type: ignore[union-attr]
    assert frame["bytes_up"][1] == history.rounds[1].cost.bytes_up  # type: ignore[union-attr]
    assert frame["distinct_clients"].tolist() == [len(each.clients) for each in history.rounds]


def test_a_frame_has_the_columns_of_the_run_folder_in_their_types(without_pandas: None) -> None:
    (history,) = simulation_of().run(1)

    frame = history.to_frame()

    assert type(frame) is dict
    assert list(frame) == list(COLUMNS)
    for name in ("round", "distinct_clients", "bytes_down", "contacted", "failed_clients"):
        assert frame[name].dtype == np.int64
    assert frame["diverged"].dtype == np.bool_
    assert frame["loss"].dtype == frame["design_variance"].dtype == np.float64


def test_a_frame_without_rounds_has_its_columns(without_pandas: None) -> None:
    frame = History().to_frame()

    assert list(frame) == list(COLUMNS)
    assert all(len(column) == 0 for column in frame.values())


def test_costs_that_were_not_counted_are_nan(without_pandas: None) -> None:
    frame = History([Round(0, [1], [1], [1.0], 0.0, 1)]).to_frame()

    assert np.isnan(frame["bytes_down"]).all()
    assert np.isnan(frame["loss"]).all()
    assert frame["failed_clients"].tolist() == [0]


def test_a_plot_shows_loss_and_accuracy_against_the_rounds_done(pyplot: Any) -> None:
    (history,) = simulation_of(measure_every=2).run(4)

    loss, accuracy = history.plot(label="multinomial")

    (line,) = loss.lines
    assert line.get_xdata().tolist() == [2, 4]
    assert line.get_ydata().tolist() == [
        each.quality.loss for each in history.measured if each.quality
    ]
    assert (loss.get_ylabel(), accuracy.get_ylabel()) == ("loss", "accuracy")
    assert loss.get_legend().get_texts()[0].get_text() == "multinomial"


def test_histories_can_share_their_axes(pyplot: Any) -> None:
    first, second = simulation_of(n_runs=2).run(2)

    axes = first.plot(label="one")
    again = second.plot(ax=axes, label="other")

    assert list(again) == list(axes)
    assert [len(each.lines) for each in axes] == [2, 2]
    assert len(pyplot.get_fignums()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ax": 3}, "History.plot: ax must be axes of matplotlib; got 3"),
        ({"path": 3}, "History.plot: path must be a file name that ends in .png, .svg, .pdf; got"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(
    arguments: dict[str, Any], message: str, pyplot: Any
) -> None:
    (history,) = simulation_of().run(1)

    with pytest.raises(InputError, match=message):
        history.plot(**arguments)


def test_one_pair_of_axes_takes_the_loss(pyplot: Any) -> None:
    (history,) = simulation_of().run(2)
    _, place = pyplot.subplots()

    (axes,) = history.plot(ax=place)

    assert axes is place
    assert place.get_ylabel() == "loss"


def test_without_test_samples_only_the_loss_is_drawn(pyplot: Any) -> None:
    (history,) = simulation_of(UNTESTED).run(2)

    (axes,) = history.plot()

    assert axes.get_ylabel() == "loss"


def test_a_plot_can_be_written_to_a_file(pyplot: Any, tmp_path: Path) -> None:
    (history,) = simulation_of().run(2)

    history.plot(tmp_path / "loss.svg")

    assert (tmp_path / "loss.svg").read_text().startswith("<?xml")
    assert pyplot.get_fignums() == []  # nothing is shown
    with pytest.raises(InputError, match=r"path must end in .png, .svg, .pdf; got 'loss.gif'"):
        history.plot(tmp_path / "loss.gif")


def test_a_history_without_a_measure_cannot_be_plotted(pyplot: Any) -> None:
    with pytest.raises(SimulationError, match="needs a measured round; got 0 rounds"):
        History().plot()


def test_without_matplotlib_a_plot_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    history = History([Round(0, [1], [1], [1.0], 0.0, 1, quality=Quality(0.5, 0.5, 0.0))])

    with pytest.raises(MissingExtraError, match=r"needs matplotlib.*fedcohort\[report\]"):
        history.plot()


class Terminal(io.StringIO):
    """Standard error, as a terminal."""

    def isatty(self) -> bool:
        return True


def made_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Put a terminal in the place of standard error; pytest undoes it between fixture and test."""
    for name, value in {"TERM": "xterm", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    return found


def test_a_terminal_shows_a_bar_with_the_rounds_and_the_last_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = made_terminal(monkeypatch)
    pytest.importorskip("rich")
    simulation = simulation_of()
    simulation.run(2, progress=False)
    assert terminal.getvalue() == ""

    (history,) = simulation.run(3)

    assert "5/5" in terminal.getvalue()
    assert history.last_quality is not None
    assert f"loss {history.last_quality.loss:.4g}" in terminal.getvalue()


def test_a_bar_shows_the_mean_loss_of_several_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = made_terminal(monkeypatch)
    pytest.importorskip("rich")

    histories = simulation_of(n_runs=2).run(1)

    losses = [history.last_quality.loss for history in histories if history.last_quality]
    assert f"mean loss {np.mean(losses):.4g}" in terminal.getvalue()


def test_a_function_replaces_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = made_terminal(monkeypatch)
    done: list[int] = []

    simulation_of().run(2, progress=lambda now, histories: done.append(now))

    assert done == [1, 2]
    assert terminal.getvalue() == ""


def test_without_rich_there_is_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = made_terminal(monkeypatch)
    monkeypatch.setitem(sys.modules, "rich", None)

    simulation_of().run(1)

    assert terminal.getvalue() == ""


@pytest.mark.parametrize("progress", [None, False])
def test_nothing_is_shown_in_a_pipe_unless_asked_for(
    progress: bool | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where programs are told to write colours into pipes."""
    monkeypatch.setenv("FORCE_COLOR", "1")

    simulation_of().run(1, progress=progress)

    assert capsys.readouterr() == ("", "")


def test_ten_lines_are_written_into_a_pipe_if_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    simulation = simulation_of(measure_every=10)
    simulation.run(10)

    (history,) = simulation.run(20, progress=True)

    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert [line.partition(" of 30, loss ")[0] for line in lines] == [
        f"round {now}" for now in range(12, 31, 2)
    ]
    assert all(re.search(r"; \d+ s left$", line) for line in lines[:-1])
    assert history.last_quality is not None
    assert lines[-1] == f"round 30 of 30, loss {history.last_quality.loss:.4g}"


def test_each_of_a_few_rounds_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    simulation_of(measure_every=2).run(2, progress=True)

    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("round 1 of 2; ")  # nothing is measured yet
    assert second.startswith("round 2 of 2, loss ")


def test_the_bar_goes_away_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = made_terminal(monkeypatch)
    pytest.importorskip("rich")
    simulation = simulation_of()

    def broken(*_: object, last: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "_play", broken)
    with pytest.raises(KeyboardInterrupt):
        simulation.run(1)

    assert terminal.getvalue().endswith("\x1b[2K")  # the line is erased


def test_run_trains_more_rounds() -> None:
    simulation, whole = simulation_of(), simulation_of()
    whole.run(5)

    simulation.run(2)
    (history,) = simulation.run(3)

    assert simulation.rounds_done == len(history.rounds) == 5
    assert (simulation.models == whole.models).all()


def test_no_more_rounds_change_nothing() -> None:
    simulation = simulation_of()
    before = simulation.models

    (history,) = simulation.run(0)

    assert history.rounds == []
    assert (simulation.models == before).all()


@pytest.mark.parametrize("rounds", [-1, 2.5, "10", True, None])
def test_rounds_that_are_no_number_are_refused(rounds: Any) -> None:
    with pytest.raises(SimulationError, match="rounds must be a whole number of at least 0; got"):
        simulation_of().run(rounds)


def test_bad_progress_and_checkpoint_intervals_are_refused_before_a_round() -> None:
    simulation = simulation_of()

    with pytest.raises(
        SimulationError, match="progress must be True, False, None or a function; got"
    ):
        simulation.run(1, progress="yes")  # type: ignore[arg-type]
    with pytest.raises(SimulationError, match="every must be a whole number of at least 1; got 0"):
        simulation.run(1, every=0)
    with pytest.raises(SimulationError, match="the folder of checkpoint must be there; got "):
        simulation.run(1, checkpoint=Path("nowhere") / "state")
    assert simulation.rounds_done == 0


def test_a_history_knows_its_run_also_after_a_resume(pyplot: Any, tmp_path: Path) -> None:
    runs = [
        Run(SizeClustered(3, whole_rows_first=True), DIGITS, 7, estimator="difference"),
        Run(Multinomial(3), DIGITS, label="mine"),
    ]
    training = LocalTraining(steps=1, batch_size=5, lr=0.1)

    def made() -> Simulation:
        return Simulation(runs, lambda: mlp(64, 4), training, Options(device="cpu"))

    made().run(1, checkpoint=tmp_path / "state")
    resumed = made()
    resumed.resume(tmp_path / "state")

    histories = resumed.run(1)

    assert [(each.label, each.seed) for each in histories] == [
        ("size:whole_rows_first + difference", 7),
        ("mine", 0),
    ]
    assert repr(histories[1]).startswith("History(label='mine', seed=0, rounds=2, ")
    loss, _ = histories[1].plot()
    assert loss.get_legend().get_texts()[0].get_text() == "mine"
