"""Experiment files: what they say, and what is said of bad ones."""

from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort._fields import settings_of
from fedcohort.errors import FedcohortError
from fedcohort.experiments import Experiment, Panel, read_experiment
from fedcohort.experiments.checked_table import Table
from fedcohort.experiments.experiment_file import parsed_seeds
from fedcohort.experiments.settings import (
    Cnn,
    DesignEntry,
    Dirichlet,
    DirichletDisjoint,
    EqualDevices,
    GeneratedDevices,
    Iid,
    Mlp,
    OneClass,
    Server,
    Training,
)
from fedcohort.simulation import Devices, LocalTraining, Options, one_class_shards
from small_runs import SMALL, TWO_UNITS, write

TOP = set(Panel.known_keys()) | {"title", "checkpoint_every", "panel"}
TABLES: dict[str, type[Table]] = {
    "data": OneClass,
    "training": Training,
    "server": Server,
    "model": Mlp,
    "devices": EqualDevices,
}
#: Tables that SMALL does not have.
KINDS = '\n[model]\nname = "mlp"\n[devices]\nkind = "equal"\n'
#: As people type them; the names of partitions and models among them.
WORDS = st.text(ascii_lowercase + "_", min_size=1, max_size=12) | st.sampled_from(
    ["iid", "mlp", "cnn", "dirichlet", "float", "panels", "designs", "learning_rate"]
)


def complaint(path: Path, **options: Any) -> str:
    """Read a file that is refused, and return why."""
    with pytest.raises(FedcohortError) as found:
        read_experiment(path, **options)
    return str(found.value)


def is_a_sentence(text: str, path: Path) -> bool:
    """One line that names the file and ends once."""
    return (
        str(path) in text
        and "\n" not in text
        and text.endswith((".", "?"))
        and not text.endswith("..")
    )


def test_what_is_not_said_has_the_documented_defaults(tmp_path: Path) -> None:
    text = """
    rounds = 3
    data = {dataset = "digits", partition = "iid"}
    design = [{recipe = "size"}]
    """

    (panel,) = read_experiment(write(tmp_path, text)).panels

    assert (panel.label, panel.seeds, panel.cohort_size) == ("small", [0], 10)
    assert panel.data == Iid.of({"dataset": "digits", "partition": "iid", "n_clients": 100})
    assert panel.model == Mlp.of({"name": "mlp", "hidden": 50})
    assert panel.training == Training.of({"steps": 50, "batch_size": 50, "lr": 0.01, "mu": 0.0})
    assert panel.server == Server.of({"measure_every": 1, "rows_every": 10})
    assert panel.design == [DesignEntry(recipe="size", label="size")]


def test_the_file_name_is_the_experiments_name(tmp_path: Path) -> None:
    assert read_experiment(write(tmp_path, name="my run (2).toml")).name == "my-run--2-"
    assert read_experiment(write(tmp_path, name="...toml")).name == "experiment"


def test_a_panel_changes_single_values_of_a_table(tmp_path: Path) -> None:
    slow, fast = read_experiment(write(tmp_path, TWO_UNITS)).panels

    assert (slow.training.lr, slow.training.steps, slow.rounds) == (0.01, 2, 6)
    assert (fast.training.lr, fast.training.steps, fast.rounds) == (0.1, 2, 5)


def test_labels_tell_hyperparameters(tmp_path: Path) -> None:
    text = f"""{SMALL}
    [[design]]
    recipe = "similarity"
    measure = "l2"
    [[design]]
    recipe = "size"
    whole_rows_first = true
    [[design]]
    recipe = "size"
    whole_rows_first = false
    [[design]]
    recipe = "some.module:MyRecipe"
    depth = 3
    [[design]]
    recipe = "deadline"
    deadline = 4.0
    """

    (panel,) = read_experiment(write(tmp_path, text)).panels

    assert [entry.label for entry in panel.design[2:]] == [
        "similarity l2",
        "size whole_rows_first",
        "size no whole_rows_first",
        "MyRecipe depth=3",
        "deadline 4.0",
    ]


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [("", f" = 3\n{SMALL}", ""), (TWO_UNITS, " = 3\n", "panel 2: ")],
    ids=["at the top", "in a panel"],
)
@given(word=WORDS)
def test_any_unknown_key_of_an_experiment_is_refused(
    word: str, before: str, after: str, place: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assume(word not in TOP)
    path = write(tmp_path_factory.getbasetemp(), f"{before}{word}{after}")

    text = complaint(path)

    assert f"{place}unknown key '{word}'; known are " in text
    assert is_a_sentence(text, path)


@given(word=WORDS, table=st.sampled_from(sorted(TABLES)))
def test_any_unknown_key_in_a_table_is_refused(
    word: str, table: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assume(word not in TABLES[table].known_keys())
    path = write(tmp_path_factory.getbasetemp(), SMALL + KINDS)

    text = complaint(path, changes=[f"{table}.{word}=3"])

    first = next(iter(TABLES[table].known_keys()))
    assert f"unknown key '{table}.{word}'; known are {first}" in text
    assert is_a_sentence(text, path)


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("rounds = 6", "rouns = 6", ("unknown key 'rouns'", "Did you mean 'rounds'?")),
        ("cohort_size", "cohrt", ("unknown key 'cohrt'",)),
        ("dataset =", "datset =", ("unknown key 'data.datset'", "Did you mean 'dataset'?")),
        ("train_size", "trainsize", ("'data.trainsize'", "Did you mean 'train_size'?")),
        ("lr = 0.1", "learn_rate = 0.1", ("unknown key 'training.learn_rate'",)),
        ("lr = 0.1", "lr_decy = 0.1", ("Did you mean 'lr_decay'?",)),
        ("[training]", "[server]\nsketh = 3\n[training]", ("Did you mean 'sketch'?",)),
        ("[training]", '[model]\nname = "mlp"\nhiden = 3\n[training]', ("'hidden'?",)),
        ('"one-class"', '"one_class"', ("data.partition must be one of one-class, dirichlet,",)),
        ('"one-class"', '"one-clas"', ("got 'one-clas'. Did you mean 'one-class'?",)),
        ("[training]", '[model]\nname = "mpl"\n[training]', ("model.name must be", "'mlp'?")),
        ("[training]", '[devices]\nkind = "equals"\n[training]', ("devices.kind must", "'equal'?")),
        (
            "[training]",
            "[devices]\nspeed = 1.0\n[training]",
            ("devices.kind must be one of equal,",),
        ),
        (
            "[training]",
            '[devices]\nkind = "equal"\nspeed = -1.0\n[training]',
            ("devices.speed must be a number from 1e-9 to 1e18; got -1.0.",),
        ),
        (
            "[training]",
            '[devices]\nkind = "generated"\nawake = 0.0\n[training]',
            ("devices.awake must be a number from 1e-9 to 1; got 0.0.",),
        ),
        (
            "[training]",
            '[devices]\nkind = "generated"\nawke = 0.5\n[training]',
            ("unknown key 'devices.awke'; known are presence, kind, seed", "Did you mean 'awake'?"),
        ),
        (
            "[training]",
            '[devices]\nkind = "file"\n[training]',
            ("key 'devices.file' is missing. Add it.",),
        ),
        ("rounds = 6", "", ("key 'rounds' is missing. Add it.",)),
        ('dataset = "digits"', "", ("key 'data.dataset' is missing. Add it.",)),
        ('recipe = "similarity"', 'label = "x"', ("key 'design.1.recipe' is missing",)),
        ("rounds = 6", "rounds = 6.0", ("rounds must be a whole number of at least 0; got 6.0.",)),
        ("rounds = 6", "rounds = -1", ("rounds must be a whole number of at least 0; got -1.",)),
        (
            "cohort_size = 3",
            "cohort_size = true",
            ("cohort_size must be a whole number of at least 1; got True.",),
        ),
        ("cohort_size = 3", "cohort_size = 0", ("cohort_size", "got 0.")),
        (
            "lr = 0.1",
            'lr = "fast"',
            ("training.lr must be a number of at least 0 and below 3.4e38; got 'fast'.",),
        ),
        (
            "lr = 0.1",
            "lr = nan",
            ("training.lr must be a number of at least 0 and below 3.4e38; got nan.",),
        ),
        ("lr = 0.1", "lr = []", ("training.lr must be a list of at least one value; got [].",)),
        (
            "lr = 0.1",
            "lr = -0.1",
            ("lr must be a number of at least 0 and below 3.4e38; got -0.1.",),
        ),
        (
            "lr = 0.1",
            "lr = [0.1, -1.0]",
            ("training.lr.1 must be a number of at least 0 and below 3.4e38; got -1.0.",),
        ),
        ("steps = 2", "steps = 2\nepochs = 1", ("needs either steps or epochs",)),
        (
            "batch_size = 10",
            "momentum = 1.0",
            ("momentum must be a number of at least 0",),
        ),
        ("seeds = [0, 1]", "seeds = [true]", ("seeds: must be ", "as 0-4", "True")),
        ("rounds = 6", "rounds = 0", ("rounds and [[design]] go together",)),
        ("rounds = 6", "panel = 3\nrounds = 6", ("panels must be written as [[panel]]",)),
        (
            'recipe = "similarity"',
            "recipe = 3",
            ("design.1.recipe must be a text of 1 to 500 characters; got 3.",),
        ),
        ('recipe = "similarity"', 'recipe = "multinomial"', ("two designs are labelled",)),
        ("rounds = 6", "rounds = ", ("is not a TOML file (", "line 2", "Fix that line.")),
    ],
)
def test_a_mistake_gets_one_sentence(
    old: str, new: str, parts: tuple[str, ...], tmp_path: Path
) -> None:
    path = write(tmp_path, SMALL.replace(old, new, 1))

    text = complaint(path)

    assert is_a_sentence(text, path)
    for part in parts:
        assert part in text


def test_a_panel_is_not_told_to_use_a_key_of_the_whole_file(tmp_path: Path) -> None:
    text = complaint(write(tmp_path, f'{SMALL}[[panel]]\ntitle = "x"\n'))

    known = text.partition("known are ")[2]
    assert "unknown key 'title'" in text
    assert "title" not in known


def test_panels_need_labels_that_differ(tmp_path: Path) -> None:
    path = write(tmp_path, f"{SMALL}[[panel]]\nrounds = 1\n[[panel]]\nrounds = 2\n")

    assert complaint(path) == f"{path}: panels need labels that differ; got small, small."


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x = '\x00'"])
def test_what_is_no_text_is_no_experiment(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_bytes(content)

    assert "is not a TOML file" in complaint(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"

    assert complaint(path) == (
        f"{path}: cannot be read (no such file or directory). Check the path."
    )
    assert "cannot be read (is a directory)" in complaint(tmp_path)


@pytest.mark.parametrize(
    ("given_", "seeds"),
    [
        ("0-4", [0, 1, 2, 3, 4]),
        ("3", [3]),
        (" 0 - 2 , 7", [0, 1, 2, 7]),
        ([0, 3], [0, 3]),
        ([5, "0-1"], [5, 0, 1]),
        (7, [7]),
    ],
)
def test_seeds_are_lists_or_ranges(given_: object, seeds: list[int]) -> None:
    assert parsed_seeds(given_, "seeds") == seeds


@pytest.mark.parametrize(
    "given_",
    ["", "x", "1-", "-1", "4-0", "0,0", "0-2,1", [], [True], [1.0], [None], [[0]], -1, "0-10000"],
)
def test_other_seeds_are_refused(given_: object) -> None:
    with pytest.raises(FedcohortError, match=r"^seeds: .*got .*\."):
        parsed_seeds(given_, "seeds")


@pytest.mark.parametrize("digits", [20, 5000])
def test_a_seed_too_large_for_the_tables_is_refused(digits: int, tmp_path: Path) -> None:
    text = complaint(write(tmp_path), seeds="9" * digits)

    assert text.startswith("--seeds: ")


@given(seeds=st.lists(st.integers(0, 50), min_size=1, max_size=6, unique=True))
def test_seeds_on_the_command_line_replace_those_of_all_panels(
    seeds: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write(tmp_path_factory.getbasetemp(), TWO_UNITS)

    experiment = read_experiment(path, seeds=",".join(map(str, seeds)))

    assert [panel.seeds for panel in experiment.panels] == [seeds, seeds]


def test_bad_seeds_on_the_command_line_are_its_fault(tmp_path: Path) -> None:
    assert complaint(write(tmp_path), seeds="0-x").startswith("--seeds: must be ")


def test_designs_are_kept_by_label_or_recipe_in_the_files_order(tmp_path: Path) -> None:
    text = f'{SMALL}[[design]]\nrecipe = "similarity"\nmeasure = "l2"\nlabel = "by l2"\n'
    path = write(tmp_path, text)

    def labels(*wanted: str) -> list[str]:
        (panel,) = read_experiment(path, designs=",".join(wanted)).panels
        return [entry.label for entry in panel.design]

    assert labels("by l2", "multinomial") == ["multinomial", "by l2"]
    assert labels("by l2") == ["by l2"]
    assert set(labels("similarity")) >= {"similarity"}
    assert "multinomial" not in labels("similarity")


def test_a_label_with_a_comma_can_be_chosen(tmp_path: Path) -> None:
    text = SMALL.replace('"similarity"', '"similarity"\nlabel = "size, by number"')
    path = write(tmp_path, text)

    (one,) = read_experiment(path, designs="size, by number").panels
    (both,) = read_experiment(path, designs="size, by number, multinomial").panels

    assert [entry.label for entry in one.design] == ["size, by number"]
    assert [entry.label for entry in both.design] == ["multinomial", "size, by number"]


def test_an_unknown_design_or_panel_gets_a_suggestion(tmp_path: Path) -> None:
    path = write(tmp_path, TWO_UNITS)

    designs, panels = complaint(path, designs="similarty"), complaint(path, panels="slw")

    assert designs.startswith(
        f"--designs: {path} has no 'similarty'; it has multinomial, similarity."
    )
    assert designs.endswith("Did you mean 'similarity'?")
    assert panels.startswith(f"--panels: {path} has no 'slw'; it has slow, fast.")
    assert panels.endswith("Did you mean 'slow'?")


def test_panels_are_kept_by_label(tmp_path: Path) -> None:
    experiment = read_experiment(write(tmp_path, TWO_UNITS), panels="fast")

    assert [panel.label for panel in experiment.panels] == ["fast"]


VALUES = (
    st.integers(-(2**40), 2**40)
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.lists(st.integers(0, 9), max_size=3)
    | st.text(ascii_lowercase + " -", min_size=1, max_size=8)
)


def as_toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


@given(value=VALUES)
def test_a_set_value_is_the_value_of_a_file(
    value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever --set is given, it does what the same words in the file would do."""
    home = tmp_path_factory.getbasetemp()
    changed = SMALL.replace("lr = 0.1", f"lr = {as_toml(value)}", 1)
    written = write(home, changed, "small.toml")
    by_file = outcome(written, [])
    path = write(home, SMALL, "small.toml")

    assert outcome(path, [f"training.lr={as_toml(value)}"]) == by_file


def outcome(path: Path, changes: list[str]) -> Experiment | str:
    try:
        return read_experiment(path, changes=changes)
    except FedcohortError as error:
        return str(error)


def test_a_set_value_wins_over_panels(tmp_path: Path) -> None:
    path = write(tmp_path, TWO_UNITS)

    experiment = read_experiment(path, changes=["training.lr=0.5", "rounds=3", "rounds=4"])

    assert [panel.training.lr for panel in experiment.panels] == [0.5, 0.5]
    assert [panel.rounds for panel in experiment.panels] == [4, 4]


def test_set_reaches_what_the_file_does_not_have(tmp_path: Path) -> None:
    changes = ["server.oracle_every=2", "title=A title, no quotes", "checkpoint_every = 3"]

    experiment = read_experiment(write(tmp_path), changes=changes)

    assert experiment.panels[0].server.oracle_every == 2
    assert (experiment.title, experiment.checkpoint_every) == ("A title, no quotes", 3)


def test_words_without_quotes_are_text(tmp_path: Path) -> None:
    changes = ["data.partition=iid", "data.dataset=digits"]
    text = SMALL.replace("clients_per_class = 1\ntrain_size = 20\ntest_size = 5", "")

    experiment = read_experiment(write(tmp_path, text), changes=changes)

    assert experiment.panels[0].data == Iid(dataset="digits", partition="iid")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ("training.lr", "must be as training.lr=0.1"),
        ("=3", "must be as training.lr=0.1"),
        (".lr=3", "must be as training.lr=0.1"),
        ("training..lr=3", "must be as training.lr=0.1"),
        ("design=[]", "no design or panel; got 'design=[]'"),
        ("panel.label=x", "no design or panel"),
        ("rounds.x=1", "rounds is not a table"),
        ("training.lr.x=1", "lr is not a table"),
        ("training=3", "training must be a table; got 3."),
        ("data=3", "data must be a table; got 3."),
        ("checkpoint_every.x=1", "checkpoint_every is not a table"),
        ("title.x=1", "title must be a text; got "),
        ("training.lr=0.1\nrounds=2", "got"),
    ],
)
def test_a_bad_set_gets_one_sentence(change: str, part: str, tmp_path: Path) -> None:
    text = complaint(write(tmp_path), changes=[change])

    assert part in text
    assert "\n" not in text


def test_reading_and_writing_settings_is_a_round_trip(tmp_path: Path) -> None:
    experiment = read_experiment(write(tmp_path, TWO_UNITS))

    assert Experiment.of(experiment.as_dict()) == experiment


@pytest.mark.parametrize(
    ("partition", "kind", "clients"),
    [
        ('"iid"\nn_clients = 7', Iid, 7),
        ('"dirichlet-disjoint"\nn_clients = 7\nalpha = 0.5', DirichletDisjoint, 7),
        ('"dirichlet"\nalpha = 0.5\nsizes = [[3, 20], [2, 30]]', Dirichlet, 5),
        ('"one-class"\nclients_per_class = 2\ntrain_size = 9\ntest_size = 0', OneClass, 20),
    ],
)
def test_every_partition_divides(
    partition: str, kind: type[object], clients: int, tmp_path: Path
) -> None:
    from fedcohort.simulation import load_dataset

    before, after = SMALL.split('"one-class"')
    rest = after[after.index("[training]") :]
    (panel,) = read_experiment(write(tmp_path, f"{before}{partition}\n{rest}")).panels

    data = panel.data.federation(load_dataset("digits"), 3)

    assert type(panel.data) is kind
    assert data.n_clients == clients


def test_the_division_has_its_own_seed_where_one_is_given(tmp_path: Path) -> None:
    from fedcohort.simulation import load_dataset

    dataset = load_dataset("digits")
    (anew,) = read_experiment(write(tmp_path)).panels
    (fixed,) = read_experiment(write(tmp_path), changes=["data.seed=4"]).panels

    def held(panel: Panel, seed: int) -> list[list[int]]:
        return [samples.tolist() for samples in panel.data.federation(dataset, seed).train]

    assert held(anew, 0) != held(anew, 1)
    assert held(fixed, 0) == held(fixed, 1) == held(anew, 4)


def test_unshuffled_clients_stand_in_the_order_of_the_partition(tmp_path: Path) -> None:
    from fedcohort.simulation import load_dataset

    dataset = load_dataset("digits")
    (mixed,) = read_experiment(write(tmp_path)).panels
    (plain,) = read_experiment(write(tmp_path), changes=["data.shuffle_clients=false"]).panels

    def classes(panel: Panel) -> list[int]:
        return [int(label) for label in panel.data.federation(dataset, 0).main_class()]

    assert classes(plain) == list(range(10))
    assert classes(mixed) != classes(plain)
    assert sorted(classes(mixed)) == list(range(10))


def test_the_convolutions_are_a_model(tmp_path: Path) -> None:
    (panel,) = read_experiment(write(tmp_path), changes=["model.name=cnn"]).panels

    assert panel.model == Cnn(name="cnn")


#: Numbers that no machine can use: the file is refused when it is read.
@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("training.lr", "1e308", "lr must be a number of at least 0 and below 3.4e38"),
        ("training.lr", "[0.1, 1e39]", "lr.1 must be a number of at least 0 and below 3.4"),
        ("training.lr", "nan", "training.lr must be a number of at least 0 and below 3.4e38"),
        ("training.lr", "true", "training.lr"),
        ("training.lr_decay", "inf", "training.lr_decay must be a number of at least 0"),
        (
            "training.weight_decay",
            "1e308",
            "weight_decay must be a number of at least 0",
        ),
        ("training.mu", "1e308", "mu must be a number of at least 0 and below 3.4"),
        ("training.mu", "-1", "mu must be a number of at least 0"),
        (
            "training.batch_size",
            "9223372036854775808",
            "training.batch_size must be at most 10^9; got",
        ),
        ("training.steps", "10000000000", "training.steps must be at most 10^9; got"),
        ("server.server_lr", "1e308", "server_lr must be a number of at least 0 and below 3.4"),
        ("server.server_lr", "-1", "server_lr must be a number of at least 0"),
        ("server.sketch", "9223372036854775808", "server.sketch must be at most 10^9; got"),
        (
            "model",
            '{name = "mlp", hidden = 100000000000}',
            "model.hidden must be at most 10^9; got",
        ),
        ("rounds", "9223372036854775808", "rounds must be at most 10^9; got"),
        ("cohort_size", "9223372036854775808", "cohort_size must be at most 10^9; got"),
        ("checkpoint_every", "0", "checkpoint_every must be a whole number of at least 1"),
        (
            "data.clients_per_class",
            "9223372036854775808",
            "clients_per_class must be at most 10^9; got",
        ),
        ("data.train_size", "9223372036854775808", "data.train_size must be at most 10^9; got"),
        ("data.test_size", "-1", "data.test_size must be a whole number of at least 0"),
        ("data.seed", "9223372036854775808", "data.seed must be a 64-bit integer, below 2^63"),
        ("data.dataset", f'"{"x" * 5000}"', "data.dataset must be a text of 1 to 500 characters"),
        ("label", f'"{"x" * 5000}"', "label must be a text of 1 to 200 characters"),
        (
            "devices",
            '{kind = "equal", speed = 1e-308}',
            "devices.speed must be a number from 1e-9 to 1e18",
        ),
        (
            "devices",
            '{kind = "equal", up = 1e308}',
            "devices.up must be a number from 1e-9 to 1e18",
        ),
        (
            "devices",
            '{kind = "generated", awake = 1e-308}',
            "devices.awake must be a number from 1e-9",
        ),
    ],
)
def test_a_number_that_no_machine_can_use_is_refused(
    key: str, value: str, said: str, tmp_path: Path
) -> None:
    path = write(tmp_path)

    text = complaint(path, changes=[f"{key}={value}"])

    assert said in text
    assert is_a_sentence(text, path)
    assert len(text) < len(str(path)) + 200


@pytest.mark.parametrize("rank", ["0", "-1", "9223372036854775807", "1e3", "nan"])
def test_a_rank_that_cannot_be_is_refused(rank: str, tmp_path: Path) -> None:
    path = write(tmp_path, f'{SMALL}estimator = "difference"\nkeep = "rank"\nrank = {rank}\n')

    assert "design.1.rank must be " in complaint(path)


@pytest.mark.parametrize("value", ["1" + "0" * 5000, "0x" + "f" * 9000, "[" * 5000 + "]" * 5000])
def test_a_value_of_thousands_of_letters_is_one_short_sentence(value: str, tmp_path: Path) -> None:
    path = write(tmp_path, SMALL.replace("rounds = 6", f"rounds = {value}"))

    for text in (
        complaint(path),
        complaint(write(tmp_path, name="other.toml"), changes=[f"rounds={value}"]),
    ):
        assert "\n" not in text
        assert len(text) < len(str(path)) + 300


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("training.lr = 0.1", None),
        ("training.lr = -1", "lr must be a number of at least 0"),
        ('training.lr = "fast"', "training.lr"),
        ("training.lr = 1e308", "lr must be a number of at least 0 and below 3.4"),
        ("rounds = -1", "rounds must be a whole number of at least 0"),
        ("rounds = 3", None),
        ('seeds = "x"', "seeds: must be whole numbers"),
        ("seeds = [7]", None),
        ("server.server_lr = -2", "server_lr must be a number of at least 0"),
        ('data.partition = "one-clas"', "data.partition must be one of"),
        ('data.partition = "iid"', None),  # what the panels add does not fit it, and need not
        ("data.alpha = -1", "data.alpha must be a number above 0"),
        ("data = 3", "data must be a table; got 3."),
    ],
)
def test_a_value_that_every_panel_replaces_is_checked(
    base: str, said: str | None, tmp_path: Path
) -> None:
    panel = """
    [[panel]]
    rounds = 2
    seeds = [0]
    training = {steps = 2, lr = 0.1}
    server.server_lr = 1.0
    data = {dataset = "digits", partition = "dirichlet-disjoint", alpha = 1.0, n_clients = 20}
    """
    panels = f'{panel}label = "a"\n{panel}label = "b"\n'
    path = write(tmp_path, f'{base}\ndesign = [{{recipe = "size"}}]\n{panels}')

    if said is None:
        assert len(read_experiment(path).panels) == 2
    else:
        text = complaint(path)
        assert said in text
        assert is_a_sentence(text, path)


@pytest.mark.parametrize(
    ("table", "source"),
    [
        (Training, LocalTraining),
        (Server, Options),
        (OneClass, one_class_shards),
        (GeneratedDevices, Devices.generated),
    ],
)
def test_a_table_has_the_names_needs_and_defaults_of_the_record(
    table: type[Table], source: Any
) -> None:
    own, declared = settings_of(table), settings_of(source)
    shared = [name for name in declared if name in own]

    alone = {"device", "threads", "n_clients"}  # the command line's, and the data's
    assert set(declared) - set(shared) <= alone
    for name in set(shared) - {"lr", "mu", "server_lr", "rows_every"}:  # grids, and a default
        assert own[name] == declared[name], name
