"""How experiment files say what is aggregated: estimators, and cohort sizes of a design's own."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from command_line import refused, run
from fedcohort import MIFA, Difference, FedStale, FedVARP, Regression
from fedcohort.errors import FedcohortError
from fedcohort.experiments import (
    Experiment,
    Observer,
    RunFolder,
    execute,
    read_experiment,
    read_results,
)
from fedcohort.experiments.units import LANES, PlannedRun, plan_units
from small_runs import SMALL, go_on, make_folder, small_run, tables, write

BOTH = f'{SMALL}[[design]]\nrecipe = "multinomial"\nestimator = "difference"\n'


def with_design(*lines: str, recipe: str = "multinomial") -> str:
    """Write an experiment with one more design."""
    return f'{SMALL}[[design]]\nrecipe = "{recipe}"\n' + "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("lines", "label", "estimator", "draws"),
    [
        (['estimator = "difference"'], "multinomial + difference", Difference(), 3),
        (
            ["rank = 4", 'estimator = "difference"', 'keep = "rank"', "shrink = 0.5"],
            "multinomial + difference shrink=0.5 rank 4",
            Difference(0.5, "rank", 4),
            3,
        ),
        (
            ['estimator = "difference"', "shrink = 1"],
            "multinomial + difference shrink=1",
            Difference(1.0),
            3,
        ),
        (["cohort_size = 7"], "multinomial cohort_size=7", "plain", 7),
        (
            ['estimator = "difference"', "cohort_size = 7"],
            "multinomial cohort_size=7 + difference",
            Difference(),
            7,
        ),
        (
            ['estimator = "regression"', 'features = "classes"', 'keep = "none"'],
            "multinomial + regression no keep classes",
            Regression(features="classes", keep=None),
            3,
        ),
        (['estimator = "regression"'], "multinomial + regression", Regression(), 3),
        (['estimator = "mifa"'], "multinomial + mifa", MIFA(), 3),
        (['estimator = "fedstale"'], "multinomial + fedstale", FedStale(), 3),
        (
            ['estimator = "fedstale"', "shrink = 1", 'keep = "int8"'],
            "multinomial + fedstale shrink=1 int8",
            FedStale(shrink=1.0, keep="int8"),
            3,
        ),
        (
            ['estimator = "fedvarp"', 'weights = "equal"'],
            "multinomial + fedvarp equal",
            FedVARP(weights="equal"),
            3,
        ),
        (
            ['estimator = "regression"', 'features = "output"', "output = 1", 'keep = "none"'],
            "multinomial + regression no keep output 1",
            Regression("output", None, 1),
            3,
        ),
        (['label = "my own"', 'estimator = "difference"'], "my own", Difference(), 3),
        (['label = "plainly"', 'estimator = "plain"'], "plainly", "plain", 3),
    ],
)
def test_a_design_says_how_it_aggregates_and_its_label_tells(
    lines: list[str], label: str, estimator: object, draws: int, tmp_path: Path
) -> None:
    experiment = read_experiment(write(tmp_path, with_design(*lines)))
    (panel,) = experiment.panels
    entry = panel.design[-1]

    assert (entry.label, entry.draws(panel)) == (label, draws)
    assert repr(entry.aggregation()) == repr(estimator)
    assert entry.hyperparameters == {}
    assert Experiment.of(experiment.as_dict()) == experiment
    assert Experiment.of(json.loads(json.dumps(experiment.as_dict()))) == experiment


def test_hyperparameters_stay_the_recipes(tmp_path: Path) -> None:
    lines = ('measure = "l2"', 'estimator = "difference"', "max_remembered = 2", "cohort_size = 4")
    (panel,) = read_experiment(write(tmp_path, with_design(*lines, recipe="similarity"))).panels

    assert panel.design[-1].hyperparameters == {"measure": "l2"}
    assert panel.design[-1].label == "similarity l2 cohort_size=4 + difference max_remembered=2"


NEEDED = (
    "shrink needs estimator = 'difference' or "
    "'mifa' or 'fedvarp' or 'fedstale'; got 'plain'. Change it, or leave shrink out."
)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["shrink = 0.5"], NEEDED),
        (["shrink = 1.0"], NEEDED),
        (['label = "x"', "shrink = 1.0"], NEEDED),
        (
            ["rank = 4"],
            "rank needs estimator = 'difference' or "
            "'mifa' or 'fedvarp' or 'fedstale' or 'regression'; got 'plain'. Change it, or leave "
            "rank out.",
        ),
        (
            ['estimator = "regression"', "shrink = 0.5"],
            "shrink needs estimator = 'difference' or "
            "'mifa' or 'fedvarp' or 'fedstale'; got 'regression'. Change it, or leave shrink "
            "out.",
        ),
        (
            ['estimator = "difference"', 'keep = "none"'],
            "keep must be one of float32, float16, int8, rank; got 'none'.",
        ),
        (['estimator = "plain"', "shrink = 0.5"], NEEDED),
        (
            ['estimator = "diference"'],
            "design.2.estimator must be one of plain, difference, mifa, fedvarp, fedstale, "
            "regression; got 'diference'. "
            "Did you mean 'difference'?",
        ),
        (
            ["estimator = 3"],
            "design.2.estimator must be one of plain, difference, mifa, fedvarp, fedstale, "
            "regression; got 3.",
        ),
        (
            ['estimator = "difference"', "rank = 0"],
            "design.2.rank must be a whole number of at least 1; got 0. Try 32.",
        ),
        (
            ['estimator = "difference"', "shrink = 1.5"],
            "design.2.shrink must be a number from 0 to 1; got 1.5. Pass one in these limits.",
        ),
        (
            ['estimator = "difference"', "shrink = nan"],
            "design.2.shrink must be a number from 0 to 1; got nan. Pass one in these limits.",
        ),
        (
            ["cohort_size = 0"],
            "design.2.cohort_size must be a whole number of at least 1; got 0. Pass an integer.",
        ),
    ],
)
def test_a_mistake_gets_one_sentence(lines: list[str], sentence: str, tmp_path: Path) -> None:
    path = write(tmp_path, with_design(*lines))

    with pytest.raises(FedcohortError) as found:
        read_experiment(path)

    assert str(found.value) == f"{path}: {sentence}"


def test_a_misspelt_option_of_the_estimator_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other keys of a design are its recipe's, which knows none of that name."""
    file = write(tmp_path, with_design('estimator = "difference"', "shrnk = 0.5"))

    result = run(capsys, "run", file, "--out", tmp_path / "run")

    assert refused(result, str(file), "unknown key 'shrnk'")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        ("multinomial", ["multinomial"]),
        ("multinomial + difference", ["multinomial + difference"]),
        ("multinomial + difference,multinomial", ["multinomial", "multinomial + difference"]),
        ("similarity", ["similarity"]),
        ("size", ["size whole_rows_first", "size + difference"]),
    ],
)
def test_designs_are_chosen_by_label_and_else_by_recipe(
    wanted: str, kept: list[str], tmp_path: Path
) -> None:
    """A recipe's name is the label of its plainest design: then it means that one only."""
    text = f"""{BOTH}
    [[design]]
    recipe = "size"
    whole_rows_first = true
    [[design]]
    recipe = "size"
    estimator = "difference"
    """

    (panel,) = read_experiment(write(tmp_path, text), designs=wanted).panels

    assert [entry.label for entry in panel.design] == kept


def test_every_design_draws_its_own_cohort_size(tmp_path: Path) -> None:
    results = read_results(small_run(tmp_path, with_design("cohort_size = 8")))

    for label, draws in (("multinomial", 3), ("similarity", 3), ("multinomial cohort_size=8", 8)):
        for seed in (0, 1):
            rows = results.of("cohorts", PlannedRun("small", label, seed)).to_pylist()
            for round_ in range(6):
                assert sum(row["count"] for row in rows if row["round"] == round_) == draws


def test_full_participation_is_a_design_with_a_cohort_of_all(tmp_path: Path) -> None:
    text = with_design('label = "full participation"', "cohort_size = 10", recipe="uniform")

    results = read_results(small_run(tmp_path, text))

    planned = PlannedRun("small", "full participation", 0)
    assert results.column("rounds", planned, "distinct_classes").tolist() == [10.0] * 6


def test_a_cohort_that_its_design_cannot_draw_is_refused_at_the_start(tmp_path: Path) -> None:
    path = make_folder(tmp_path, with_design("cohort_size = 11", recipe="uniform"))

    with pytest.raises(FedcohortError, match=r"design 'uniform cohort_size=11': UniformDesign: "):
        go_on(path)


@pytest.mark.parametrize(
    ("own", "seeds"), [(LANES["cpu"].enough - 6, [1, 1]), ((LANES["cpu"].enough - 12) // 2, [2])]
)
def test_lanes_are_counted_by_every_designs_own_cohort_size(
    own: int, seeds: list[int], tmp_path: Path
) -> None:
    """Two designs of 3 and one of its own, two seeds: together where they all fit."""
    experiment = read_experiment(write(tmp_path, with_design(f"cohort_size = {own}")))

    units = plan_units(experiment, "cpu")

    assert [len({planned.seed for planned in unit.runs}) for unit in units] == seeds


def test_work_is_weighed_by_every_designs_own_cohort_size(tmp_path: Path) -> None:
    """Two steps of 3 + 3 + 8 clients for two seeds, six rounds."""
    seen = []

    class Watching(Observer):
        def started(self, total: int, done: int, workers: int) -> None:
            seen.append((total, done))

    path = make_folder(tmp_path, with_design("cohort_size = 8"))
    execute(RunFolder.open(path), observer=Watching())

    assert seen == [(2 * (3 + 3 + 8) * 2 * 6, 0)]


def test_the_estimator_of_the_file_is_the_one_that_runs(tmp_path: Path) -> None:
    """A shrink of 0 is the plain run; the whole memory is the same in the first round only."""
    text = with_design('estimator = "difference"') + "".join(
        f'[[design]]\nrecipe = "multinomial"\nestimator = "difference"\n{line}\n'
        for line in ("shrink = 0.0", "max_remembered = 1", "shrink = 0.5")
    )
    results = read_results(small_run(tmp_path, text))

    def losses(*words: str) -> list[float]:
        planned = PlannedRun("small", " ".join(["multinomial", *words]), 1)
        found: list[float] = results.column("rounds", planned, "loss").tolist()
        return found

    plain = losses()
    assert losses("+ difference shrink=0.0") == plain
    others = [
        losses("+ difference", *more) for more in ((), ("max_remembered=1",), ("shrink=0.5",))
    ]
    assert {tuple(other[:1]) for other in others} == {(plain[0],)}
    assert len({tuple(other) for other in [plain, *others]}) == 4


def test_a_run_with_estimators_goes_on_bit_for_bit(tmp_path: Path) -> None:
    text = f'{BOTH}[[design]]\nrecipe = "auto"\nestimator = "difference"\nkeep = "rank"\n'
    (tmp_path / "whole").mkdir()
    whole = tables(small_run(tmp_path / "whole", text))

    path = make_folder(tmp_path, text)
    go_on(path, rounds=3)
    go_on(path)

    assert tables(path) == whole


LISTED = SMALL.replace("clients_per_class = 1", "clients_per_class = 2")


def test_sizes_can_be_listed_for_a_classs_clients(tmp_path: Path) -> None:
    text = LISTED.replace("train_size = 20", "train_size = [5, 25]")
    path = small_run(tmp_path, text)
    experiment = RunFolder.open(path).experiment
    data = experiment.panels[0].data

    assert data == read_experiment(tmp_path / "small.toml").panels[0].data
    sizes = tables(path)["federations.parquet"]["samples"].to_pylist()
    assert sorted(sizes) == [5] * 20 + [25] * 20


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        (
            "[5, 25, 30]",
            "data.train_size must be one number, or one for each of a class's 2 clients "
            "(clients_per_class); got 3.",
        ),
        ("[]", "data.train_size must be a list of at least one value; got []."),
        (
            "[5, 0]",
            "data.train_size.1 must be a whole number of at least 1; got 0. Pass an integer.",
        ),
        (
            "20.0",
            "data.train_size must be a whole number of at least 1; got 20.0. Pass an integer.",
        ),
        (
            "true",
            "data.train_size must be a whole number of at least 1; got True. Pass an integer.",
        ),
    ],
)
def test_other_sizes_are_refused_before_anything_is_made(
    sizes: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, LISTED.replace("train_size = 20", f"train_size = {sizes}"))

    result = run(capsys, "run", file, "--out", tmp_path / "run")

    assert refused(result, f"{file}: {sentence}")
    assert not (tmp_path / "run").exists()
