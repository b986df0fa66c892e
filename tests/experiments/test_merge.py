"""Merging: parts of one experiment become the folder that one run of all would have made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

import pyarrow.compute as pc
import pyarrow.parquet as pq

from command_line import refused, run
from fedcohort.errors import ExperimentError
from fedcohort.experiments import (
    RunFolder,
    execute,
    merge_runs,
    read_experiment,
    read_results,
)
from fedcohort.experiments.tables import SCHEMAS, keep_table
from fedcohort.experiments.tuning import chosen_rates
from fedcohort.experiments.units import PlannedRun
from small_runs import SMALL, contents, truncate, without_times, write

Capture = pytest.CaptureFixture[str]
#: Two panels with seeds of their own, three designs with ten draws: a unit is a seed.
TEXT = f"""{SMALL.replace("size = 3", "size = 10").replace("rounds = 6", "rounds = 4")}
[[design]]
recipe = "size"

[[panel]]
label = "one"
seeds = "0-2"

[[panel]]
label = "two"
data.train_size = 12
"""


def part(home: Path, name: str, text: str = TEXT, **options: Any) -> Path:
    """Run a part of an experiment, as the command line's options choose it."""
    file = write(home, text)
    folder = RunFolder.create(
        home / name, read_experiment(file, **options), source=file, device="cpu", command=["run"]
    )
    execute(folder)
    return folder.path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of everything, and parts of it."""
    home = tmp_path_factory.mktemp("merge")
    part(home, "all")
    part(home, "first", panels="one", seeds="0")
    part(home, "others", panels="one", seeds="1,2")
    part(home, "two", panels="two")
    part(home, "designs", panels="one", seeds="0-2", designs="size")
    part(home, "rest", panels="one", seeds="0-2", designs="multinomial,similarity")
    return home


def test_seeds_and_panels_apart_equal_one_run_bit_for_bit(home: Path, tmp_path: Path) -> None:
    """Whatever their order: panels, designs and seeds have the file's."""
    folder, notes = merge_runs([home / "two", home / "others", home / "first"], tmp_path / "out")

    assert notes == []
    assert without_times(folder.path) == without_times(home / "all")
    assert folder.experiment == RunFolder.open(home / "all").experiment
    assert read_results(folder.path).runs == read_results(home / "all").runs


def test_designs_apart_equal_one_run_of_the_same_units(home: Path, tmp_path: Path) -> None:
    """Size alone is a unit of two seeds; rounding may depend on who trains together."""
    folder, _ = merge_runs([home / "designs", home / "rest"], tmp_path / "out")

    merged, alone = read_results(folder.path), read_results(home / "designs")
    assert [entry.label for entry in folder.experiment.panels[0].design] == [
        "multinomial",
        "similarity",
        "size",
    ]
    for planned in alone.runs:
        assert merged.of("rounds", planned).equals(alone.of("rounds", planned))
    order = [planned for planned in read_results(home / "all").runs if planned.panel == "one"]
    assert merged.runs == order
    lines = merged.tables["rounds"].select(["panel", "design", "seed"]).to_pylist()
    assert [PlannedRun(**line) for line in lines[::4]] == order


def test_every_unit_names_its_source(home: Path, tmp_path: Path, capsys: Capture) -> None:
    folder, _ = merge_runs([home / "two", home / "others", home / "first"], tmp_path / "out")

    sources = folder.head["sources"]
    assert [Path(each["folder"]).name for each in sources] == ["two", "others", "first"]
    for key in ("created", "command", "file", "versions", "machine"):
        assert sources[1][key] == RunFolder.open(home / "others").head[key]
    assert [
        (sorted({planned.seed for planned in unit.runs}), unit.runs[0].panel, unit.source)
        for unit in folder.units
    ] == [([0], "one", 2), ([1], "one", 1), ([2], "one", 1), ([0], "two", 0), ([1], "two", 0)]
    told = run(capsys, "runs", tmp_path / "out").out
    assert f"merged from {home / 'others'}: units 1, 2; {sources[1]['created']}; run; " in told


def test_what_was_merged_can_be_merged_again(home: Path, tmp_path: Path) -> None:
    merge_runs([home / "first", home / "others"], tmp_path / "one")

    folder, _ = merge_runs([tmp_path / "one", home / "two"], tmp_path / "out")

    assert without_times(folder.path) == without_times(home / "all")
    names = [Path(each["folder"]).name for each in folder.head["sources"]]
    assert [names[unit.source or 0] for unit in folder.units] == [
        *("first", "others", "others", "two", "two")
    ]


def test_the_commands_read_a_merged_folder(home: Path, tmp_path: Path, capsys: Capture) -> None:
    parts = [home / name for name in ("first", "others", "two")]
    out = tmp_path / "out"

    result = run(capsys, "merge", *parts, "--out", out)

    assert (result.code, result.err) == (0, "")
    assert result.out.endswith(f"run folder: {out}\n")
    assert "one: 4 rounds, 3 seeds" in result.out
    for words in (["resume"], ["compare"], ["export", "--csv"], ["runs"]):
        assert run(capsys, words[0], out, *words[1:]).code == 0
    assert RunFolder.open(out).progress().state == "complete"
    command = f"fedcohort merge {' '.join(map(str, parts))} --out {out}"
    assert RunFolder.open(out).head["command"] == command


def test_a_damaged_merged_folder_is_not_resumed(home: Path, tmp_path: Path) -> None:
    folder, _ = merge_runs(
        [home / "first", home / "others"], tmp_path / "out", command=["fedcohort", "merge"]
    )
    truncate(folder.units[0].table("rounds"))

    with pytest.raises(ExperimentError) as found:
        execute(RunFolder.open(folder.path))

    assert str(found.value).endswith(
        "was merged and is damaged, so it cannot be resumed. Merge its parts again into another "
        "folder: fedcohort merge"
    )


def test_equal_runs_may_be_in_two_folders(home: Path, tmp_path: Path) -> None:
    folder, _ = merge_runs([home / "first", home / "all"], tmp_path / "out")

    assert without_times(folder.path) == without_times(home / "all")
    assert [unit.source for unit in folder.units] == [0, 1, 1, 1, 1]


def test_only_a_part_of_a_unit_is_taken_where_the_rest_is_known(home: Path, tmp_path: Path) -> None:
    """Size runs with two seeds in a unit: one of them is in both folders."""
    for name, seeds in (("a", "0"), ("b", "0-2")):
        part(tmp_path, name, panels="one", seeds=seeds, designs="size")

    folder, _ = merge_runs([tmp_path / "a", tmp_path / "b"], tmp_path / "out")

    assert [len(unit.runs) for unit in RunFolder.open(tmp_path / "b").units] == [2, 1]
    assert [[run.seed for run in unit.runs] for unit in folder.units] == [[0], [1], [2]]
    assert without_times(folder.path) == without_times(tmp_path / "b")
    assert folder.progress().state == "complete"


def test_a_run_with_other_results_is_refused(home: Path, tmp_path: Path) -> None:
    changed = shutil.copytree(home / "first", tmp_path / "changed")
    path = changed / "units" / "000" / "rounds.parquet"
    table = pq.read_table(path, schema=SCHEMAS["rounds"], partitioning=None)
    place = table.column_names.index("loss")
    keep_table(path, table.set_column(place, "loss", pc.add(table["loss"], 1e-9)))

    refuses(
        [home / "all", changed],
        tmp_path,
        f"{changed}: panel 'one', design 'multinomial', seed 0 is also in {home / 'all'}, with "
        "other rounds. Leave one of the folders out, or run one of them again without it.",
    )


def refuses(parts: list[Path], tmp_path: Path, message: str) -> None:
    """Check that a merge is refused with one sentence, and leaves nothing behind."""
    before = contents(tmp_path)

    with pytest.raises(ExperimentError) as found:
        merge_runs(parts, tmp_path / "out")

    assert str(found.value) == message
    assert contents(tmp_path) == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("training.lr=0.2", "panel 'one': training.lr is 0.2, and there 0.1"),
        ("rounds=3", "panel 'one': rounds is 3, and there 4"),
        ('title="x"', "title is 'x', and there ''"),
        ("data.test_size=4", "panel 'one': data.test_size is 4, and there 5"),
        ("cohort_size=9", "panel 'one': cohort_size is 9, and there 10"),
    ],
)
def test_another_configuration_is_refused(
    change: str, told: str, home: Path, tmp_path: Path
) -> None:
    other = part(tmp_path, "other", panels="one", seeds="1", changes=[change])

    refuses(
        [home / "first", other],
        tmp_path,
        f"{other}: is another experiment than {home / 'first'}: {told}. Merge runs of one "
        "experiment file.",
    )


def test_another_design_of_one_label_is_refused(home: Path, tmp_path: Path) -> None:
    text = TEXT.replace('recipe = "size"', 'recipe = "size"\nlabel = "size"\nwhole_rows_first=true')
    other = part(tmp_path, "other", text, panels="one", seeds="1")

    refuses(
        [home / "first", other],
        tmp_path,
        f"{other}: is another experiment than {home / 'first'}: panel 'one': design 'size': "
        "whole_rows_first is True, and there None. Merge runs of one experiment file.",
    )


def test_runs_that_are_missing_are_named_with_the_command_that_runs_them(
    home: Path, tmp_path: Path
) -> None:
    file = RunFolder.open(home / "designs").head["file"]

    refuses(
        [home / "designs", home / "first"],
        tmp_path,
        "merge: panel 'one' has no design 'multinomial' with seeds 1,2, and 2 more runs. Run what "
        f"is missing and merge its folder too: fedcohort run {file} --panels one --designs "
        "multinomial --seeds 1,2 --out DIR",
    )


def test_a_folder_that_is_not_complete_is_refused(home: Path, tmp_path: Path) -> None:
    other = shutil.copytree(home / "others", tmp_path / "other")
    shutil.rmtree(other / "units" / "001")

    refuses(
        [home / "first", other],
        tmp_path,
        f"{other}: must be complete to be merged; it is interrupted. Run: fedcohort resume {other}",
    )


def test_other_clients_with_one_seed_are_refused(home: Path, tmp_path: Path) -> None:
    other = shutil.copytree(home / "designs", tmp_path / "other")
    table = pq.read_table(other / "federations.parquet", partitioning=None)
    keep_table(other / "federations.parquet", table.slice(1))

    refuses(
        [home / "rest", other],
        tmp_path,
        f"{other}: panel 'one', seed 0: its federations differ from those of {home / 'rest'}. Use "
        "the same data set on all machines.",
    )


def test_folders_are_named_once_and_out_is_new(home: Path, tmp_path: Path, capsys: Capture) -> None:
    first = home / "first"

    for folders, told in (
        ([first, first], f"{first} is given twice. Name every folder once."),
        ([first, tmp_path], f"{tmp_path}: is not a run folder"),
    ):
        assert refused(run(capsys, "merge", *folders, "--out", tmp_path / "out"), told)
    here = run(capsys, "merge", first, home / "two", "--out", first)
    assert refused(here, f"{first}: holds a run already.")
    assert refused(run(capsys, "merge", first, home / "two"), "Missing option '--out'")
    assert not list(tmp_path.iterdir())


def test_other_versions_and_machines_are_told_and_kept(home: Path, tmp_path: Path) -> None:
    other = shutil.copytree(home / "others", tmp_path / "other")
    head = json.loads((other / "run.json").read_text())
    head["versions"]["torch"] = "9.9"
    head["machine"] |= {"device": "cuda", "gpu": "NVIDIA H200"}
    (other / "run.json").write_text(json.dumps(head))

    folder, notes = merge_runs([home / "first", other], tmp_path / "out")

    torch = RunFolder.open(home / "first").head["versions"]["torch"]
    assert notes == [
        f"torch differs: {torch} in {home / 'first'}; 9.9 in {other}",
        f"device differs: cpu in {home / 'first'}; cuda in {other}",
        f"gpu differs: none in {home / 'first'}; NVIDIA H200 in {other}",
    ]
    assert folder.head["machine"]["device"] == folder.device == "cpu, cuda"
    assert folder.head["sources"][1]["versions"]["torch"] == "9.9"
    execute(RunFolder.open(folder.path))  # nothing is left to do


def test_a_design_can_be_added_later(home: Path, tmp_path: Path) -> None:
    """Another file, whose configuration agrees in what it shares."""
    text = TEXT.replace("[[panel]]", '[[design]]\nrecipe = "uniform"\n\n[[panel]]', 1)
    added = part(tmp_path, "added", text, panels="one", designs="uniform")

    folder, notes = merge_runs([home / "rest", added], tmp_path / "out")

    assert notes == [
        f"{added}/experiment.toml differs from {home / 'rest'}/experiment.toml, which is kept"
    ]
    labels = [entry.label for entry in folder.experiment.panels[0].design]
    assert labels == ["multinomial", "similarity", "uniform"]


GRID = TEXT.replace("lr = 0.1", "lr = [0.001, 0.1]")


def test_grids_that_agree_are_kept_once(tmp_path: Path) -> None:
    """Each part tuned with its own first seed; the baseline's trials of one of them stay."""
    parts = [part(tmp_path, f"p{s}", GRID, panels="one", seeds=s) for s in ("1", "0")]

    folder, _ = merge_runs(parts, tmp_path / "out")

    (panel,) = folder.experiment.panels
    tried = [unit for unit in folder.units if unit.candidate is not None]
    assert [unit.candidate.lr for unit in tried if unit.candidate] == [0.001, 0.1]
    assert {unit.source for unit in tried} == {0}
    assert (panel.seeds, panel.tuning_seed) == ([0, 1], 1)
    assert chosen_rates(folder, panel, "size").lr == 0.1
    assert folder.progress().state == "complete"
    again, _ = merge_runs(
        [part(tmp_path, "p2", GRID, panels="one", seeds="2"), folder.path], tmp_path / "again"
    )
    assert (again.experiment.panels[0].seeds, again.experiment.panels[0].tuning_seed) == (
        [0, 1, 2],
        2,
    )


def test_grids_that_disagree_are_refused(tmp_path: Path) -> None:
    first = part(tmp_path, "first", GRID, panels="one", seeds="0")
    other = part(tmp_path, "other", GRID, panels="one", seeds="1")
    path = RunFolder.open(other).units[1].table("rounds")
    table = pq.read_table(path, schema=SCHEMAS["rounds"], partitioning=None)
    place = table.column_names.index("loss")
    keep_table(path, table.set_column(place, "loss", pc.add(table["loss"], 10.0)))

    refuses(
        [first, other],
        tmp_path,
        f"{other}: panel 'one', design 'multinomial': lr 0.001 was chosen from the grid, but lr "
        f"0.1 in {first}. Give all parts one value with --set, or one tune_seed, and run them "
        "again.",
    )


def test_designs_tuned_each_by_itself_equal_one_run(tmp_path: Path) -> None:
    text = f'tune = "each"\n{GRID}'
    seeds = [part(tmp_path, f"p{s}", text, panels="one", seeds=s) for s in ("0", "1,2")]
    alone = part(tmp_path, "alone", text, panels="one")

    folder, _ = merge_runs(seeds, tmp_path / "out")

    assert without_times(folder.path) == without_times(alone)
    one, two = folder.units, RunFolder.open(alone).units
    assert [(unit.runs, unit.candidate) for unit in one] == [(u.runs, u.candidate) for u in two]


def test_own_files_travel_and_must_be_the_same(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from fedcohort import Multinomial as Mine\n")
    text = TEXT.replace('recipe = "size"', 'recipe = "mine.py:Mine"')
    first = part(tmp_path, "first", text, panels="one", seeds="0")
    other = part(tmp_path, "other", text, panels="one", seeds="1")

    folder, _ = merge_runs([first, other], tmp_path / "good")

    assert (folder.path / "code" / "mine.py").read_bytes() == (tmp_path / "mine.py").read_bytes()
    (other / "code" / "mine.py").write_text("from fedcohort import Uniform as Mine\n")
    refuses(
        [first, other],
        tmp_path,
        f"{other}/code/mine.py: differs from {first}/code/mine.py. Merge runs of the same code and "
        "device files.",
    )


def test_a_full_disk_leaves_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedcohort.experiments.merge._write_files", full)

    refuses(
        [home / "first", home / "others"],
        tmp_path,
        f"{tmp_path / 'out'}: cannot be written (no space left on device). Choose another folder "
        "with --out.",
    )


def test_partitions_can_be_merged(tmp_path: Path) -> None:
    text = 'rounds = 0\n[data]\ndataset = "digits"\npartition = "iid"\nn_clients = 5\n'
    parts = [part(tmp_path, f"p{seed}", text, seeds=seed) for seed in ("0", "1")]

    folder, _ = merge_runs(parts, tmp_path / "out")

    assert pc.count_distinct(read_results(folder.path).federations["seed"]).as_py() == 2
