"""Readers of LEAF's JSON, data sets of Hugging Face and tables, on what the tests write."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort.errors import DataError
from fedcohort.simulation import FederatedData, decode_text, encode_text
from fedcohort.simulation.data.text import UNKNOWN

#: Samples of each user: x and y.
Users = Mapping[str, tuple[list[Any], list[Any]]]


def leaf_file(users: Users) -> str:
    """Write users as LEAF does."""
    return json.dumps(
        {
            "users": list(users),
            "num_samples": [len(x) for x, _ in users.values()],
            "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
        }
    )


def leaf_folder(folder: Path, train: list[Users], test: list[Users]) -> Path:
    for part, files in (("train", train), ("test", test)):
        (folder / "data" / part).mkdir(parents=True)
        for k, users in enumerate(files):
            (folder / "data" / part / f"all_data_{k}.json").write_text(leaf_file(users))
    return folder


def image(grey: float) -> list[float]:
    return [grey] * 784


def test_the_images_of_femnist_are_read_by_writer(tmp_path: Path) -> None:
    train: list[Users] = [
        {"f02": ([image(0.5), image(0.25)], [61, 3])},
        {"f01": ([image(1.0)], [0]), "f03": ([], [])},
    ]
    folder = leaf_folder(tmp_path, train, [{"f01": ([image(0.0)], [1]), "f02": ([], [])}])

    data = FederatedData.from_leaf(folder)

    assert data.n_clients == 2
    assert data.dataset.x.shape == (3, 1, 28, 28)
    assert data.dataset.n_classes == 62
    f01, f02 = ([float(data.dataset.x[k, 0, 0, 0]) for k in part] for part in data.train)
    assert (f01, f02) == ([1.0], [0.5, 0.25])
    assert data.dataset.y[data.train[1]].tolist() == [61, 3]
    assert [len(part) for part in data.test] == [1, 0]
    assert FederatedData.from_leaf(tmp_path / "data").n_clients == 2


def tweet(user: str, text: str) -> list[str]:
    return ["1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", user, text, "training"]


def test_the_tweets_of_sent140_become_words_that_training_knows(tmp_path: Path) -> None:
    train: list[Users] = [
        {
            "ann": ([tweet("ann", "Good day, good luck"), tweet("ann", "bad")], [1, 0]),
            "bob": ([tweet("bob", "good good")], [1]),
        }
    ]
    test: list[Users] = [{"bob": ([tweet("bob", "GOOD moon!")], [1])}]

    data = FederatedData.from_leaf(leaf_folder(tmp_path, train, test), words=3, length=4)

    # By frequency, then by the word: good 4 times; a comma, bad, day and luck once.
    good, comma, bad = 2, 3, 4
    assert data.dataset.x[data.train[0]].tolist() == [
        [good, UNKNOWN, comma, good],
        [bad, 0, 0, 0],
    ]
    assert data.dataset.x[data.train[1]].tolist() == [[good, good, 0, 0]]
    assert data.dataset.test_x.tolist() == [[good, UNKNOWN, UNKNOWN, 0]]
    assert data.dataset.y.tolist() == [1, 0, 1]


def test_the_characters_of_shakespeare_predict_the_next(tmp_path: Path) -> None:
    play = "THE_TRAGEDY_OF_KING_LEAR_FOOL"
    text = "Have more than thou showest, Speak less than thou knowest, Lend less than thou owest,"
    train: list[Users] = [{play: ([text[:80], text[1:81]], [text[80], text[81]])}]

    data = FederatedData.from_leaf(leaf_folder(tmp_path, train, []))

    assert [decode_text(row) for row in data.dataset.x] == [text[:80], text[1:81]]
    assert data.dataset.y.tolist() == encode_text(text[80:82]).tolist()
    assert len(data.dataset.test_y) == 0


def test_other_users_for_testing_are_shared_by_all_clients(tmp_path: Path) -> None:
    train: list[Users] = [{"a": ([[1.0]], [0]), "b": ([[2.0]], [1])}]

    data = FederatedData.from_leaf(leaf_folder(tmp_path, train, [{"c": ([[3.0], [4.0]], [0, 1])}]))

    assert [part.tolist() for part in data.test] == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ({"a": ([], [])}, "must have a folder train with .json files of samples"),
        ({"a": ([[1.0]], [0, 1])}, "user 'a' needs a list x, and a list y of the same length"),
        ({"a": ([[1.0], [1.0, 2.0]], [0, 1])}, "user 'a' needs samples of equally many numbers"),
        ({"a": ([[1.0]], [0]), "b": ([[1.0, 2.0]], [0])}, "user 'b' needs 1 numbers for each"),
        ({"a": ([[]], [0])}, "user 'a' needs samples of equally many numbers"),
        ({"a": ([[10**400]], [0])}, "user 'a' needs samples of equally many numbers"),
        ({"a": ([[1.0]], [10**30])}, "user 'a' needs whole numbers as y; got 1"),
        ({"a": ([[1.0]], [0.5])}, r"user 'a' needs whole numbers as y; got 0\.5"),
        ({"a": (["1.jpg"], [1])}, "user 'a' needs the next character as y of each text; got 1"),
        ({"a": (["to b"], ["e"]), "b": ([[1.0]], [1])}, "user 'b' needs texts as the first user"),
    ],
)
def test_a_user_that_cannot_be_read_is_named(users: Users, message: str, tmp_path: Path) -> None:
    folder = leaf_folder(tmp_path, [users], [])

    with pytest.raises(DataError, match=message):
        FederatedData.from_leaf(folder)


@pytest.mark.parametrize("content", ["", "[1]", '{"user_data": {"a": {"x": []}}}', "{}"])
def test_a_file_that_is_not_leafs_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "one.json").write_text(content)

    with pytest.raises(DataError, match=r"from_leaf: one\.json: must be JSON with the key user_d"):
        FederatedData.from_leaf(tmp_path)


def hugging_face(columns: dict[str, Any]) -> Any:
    datasets = pytest.importorskip("datasets", reason="reads data sets of Hugging Face")
    return datasets.Dataset.from_dict(columns)


def test_a_hugging_face_data_set_is_divided_by_its_column_of_clients() -> None:
    data = hugging_face({"who": ["v", "u", "v"], "x": [[1.0], [2.0], [3.0]], "y": [0, 1, 1]})

    found = FederatedData.from_hugging_face(data, client="who", x="x", y="y")

    assert [found.dataset.x[part].ravel().tolist() for part in found.train] == [[2.0], [1.0, 3.0]]
    assert found.dataset.y.tolist() == [0, 1, 1]


def test_the_parts_of_a_hugging_face_data_set_share_words_and_labels() -> None:
    datasets = pytest.importorskip("datasets", reason="reads data sets of Hugging Face")
    train = hugging_face({"who": [1, 2], "text": ["so so good", "good"], "y": ["no", "yes"]})
    test = hugging_face({"who": [2], "text": ["bad so"], "y": ["yes"]})

    found = FederatedData.from_hugging_face(
        datasets.DatasetDict(train=train, test=test), client="who", x="text", y="y", length=3
    )

    good, so = 2, 3
    assert found.dataset.x.tolist() == [[so, so, good], [good, 0, 0]]
    assert found.dataset.test_x.tolist() == [[UNKNOWN, so, 0]]
    assert (found.dataset.y.tolist(), found.dataset.test_y.tolist()) == ([0, 1], [1])


def test_text_without_labels_predicts_its_next_characters() -> None:
    data = hugging_face({"role": ["a", "b"], "text": ["abcdef", "xy"]})

    found = FederatedData.from_hugging_face(data, client="role", x="text", length=3)

    assert [len(part) for part in found.train] == [2, 1]
    assert [decode_text(row[row > 0]) for row in found.dataset.x] == ["abc", "de", "x"]
    assert found.dataset.y[2].tolist() == [int(encode_text("y")[0]), -1, -1]


def test_images_of_a_hugging_face_data_set_have_their_colours_first() -> None:
    images = pytest.importorskip("PIL.Image", reason="decodes images")
    pixels = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    data = hugging_face(
        {"who": ["u", "u"], "image": [images.fromarray(each) for each in pixels], "y": [0, 1]}
    )

    found = FederatedData.from_hugging_face(data, client="who", x="image", y="y")

    assert (found.dataset.x == pixels.transpose(0, 3, 1, 2)).all()
    assert found.dataset.scale == 1 / 255


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"client": "whom", "x": "x", "y": "y"}, r"client must be one of the columns .*'whom'"),
        ({"client": "who", "x": "x", "y": "z"}, "y must be one of the columns"),
        ({"client": "who", "x": "x"}, "x must be a column of texts without y"),
    ],
)
def test_columns_that_are_not_there_are_named(columns: dict[str, Any], message: str) -> None:
    data = hugging_face({"who": ["u"], "x": [[1.0]], "y": [0]})

    with pytest.raises(DataError, match=message):
        FederatedData.from_hugging_face(data, **columns)


@pytest.mark.parametrize(
    ("columns", "labels"),
    [
        ({"text": ["good", None], "y": [0, 1]}, "y"),
        ({"text": ["good", None], "y": [0, 1]}, None),
        ({"text": ["good", "bad"], "y": ["yes", None]}, "y"),
    ],
)
def test_a_missing_text_is_not_read_as_a_word(columns: dict[str, Any], labels: str | None) -> None:
    data = hugging_face({"who": ["u", "v"], **columns})

    with pytest.raises(DataError, match=r"texts must have one in each row; '\w+' has None"):
        FederatedData.from_hugging_face(data, client="who", x="text", y=labels)


def test_what_is_no_data_set_of_hugging_face_is_refused() -> None:
    with pytest.raises(DataError, match="data must be a Dataset of the package datasets"):
        FederatedData.from_hugging_face([1], client="who", x="x")


PATIENTS = (
    "hospital,age,sex,stay,died\n"
    "St. Mary,50,f,3,no\n"
    "St. Mary,70,m,,yes\n"
    "Total care,60,f,5,no\n"
    "Total care,80,,9,yes\n"
)


def columns_of(data: FederatedData) -> list[list[float]]:
    return [[round(float(value), 4) for value in column] for column in data.dataset.x.T]


def test_a_table_is_divided_by_its_column_of_clients(tmp_path: Path) -> None:
    (tmp_path / "patients.csv").write_text(PATIENTS)

    data = FederatedData.from_table(tmp_path / "patients.csv", client="hospital", y="died")

    age, missing, female, male, stay = columns_of(data)
    assert [part.tolist() for part in data.train] == [[0, 1], [2, 3]]
    assert data.dataset.y.tolist() == [0, 1, 0, 1]
    # Standard deviations: the root of 125 for the ages, and of 56 / 9 for 3, 5 and 9 days.
    assert age == [-1.3416, 0.4472, -0.4472, 1.3416]
    assert (missing, female, male) == ([0, 0, 0, 1], [1, 0, 1, 0], [0, 1, 0, 0])
    assert stay == [-1.069, 0.0, -0.2673, 1.3363]


def test_all_formats_of_a_table_give_the_same_samples(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="writes the formats")
    pytest.importorskip("openpyxl", reason="writes Excel files")
    (tmp_path / "a.csv").write_text(PATIENTS)
    (tmp_path / "b.csv").write_text(PATIENTS.replace(",", ";"))
    frame = pandas.read_csv(tmp_path / "a.csv")
    frame.to_parquet(tmp_path / "c.parquet")
    frame.to_json(tmp_path / "d.json", orient="records")
    frame.to_excel(tmp_path / "e.xlsx", index=False)
    sources = [*sorted(tmp_path.iterdir()), frame]

    found = [FederatedData.from_table(each, client="hospital", y="died") for each in sources]

    assert len(found) == 6
    for data in found[1:]:
        assert columns_of(data) == columns_of(found[0])
        assert data.dataset.y.tolist() == found[0].dataset.y.tolist()


def test_decimal_commas_are_read_where_semicolons_divide(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("site;dose;y\n1;0,5;0\n10;1,5;1\n2;0,5;0\n")

    data = FederatedData.from_table(tmp_path / "t.csv", client="site", y="y")

    assert columns_of(data) == [[-0.7071, 1.4142, -0.7071]]
    # Sites in the order of their numbers: 1, 2, 10.
    assert [part.tolist() for part in data.train] == [[0], [2], [1]]


def test_features_are_scaled_by_the_training_samples_only(tmp_path: Path) -> None:
    rows = [f"{k % 4},{k * k},{k % 2}" for k in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["site,dose,y", *rows]))

    data = FederatedData.from_table(tmp_path / "t.csv", client="site", y="y", test=0.2, seed=1)

    assert (len(data.dataset.y), len(data.dataset.test_y)) == (32, 8)
    assert abs(data.dataset.x.mean()) < 1e-6
    assert abs(data.dataset.x.std() - 1) < 1e-6
    assert abs(data.dataset.test_x.mean()) > 0.01


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("site,y\n1,0\n", "needs features, and a label in column 'y' of each row; it has 1"),
        (
            "site,a,y\n1,2,\n1,2,0\n",
            r"a label in column 'y' of each row; 1 have none, line 2 first",
        ),
        ("site,a,y\n,2,1\n", r"a client in column 'site' of each row; 1 have none, line 2 first"),
        ("site,a,y\n1,2,0.5\n1,2,1\n", "y must be a column of classes; 'y' has numbers with"),
        ("site,a,a,y\n1,2,3,0\n", "needs distinct names of columns; 'a' appears twice"),
        ("site,a,y\n1,2,0,9\n", r"line 2: needs 3 values \(site, a, y\); got 4"),
        ("where,a,y\n1,2,0\n", "client must be one of the columns where, a and y"),
        ("", "needs at least one sample; the file is empty"),
    ],
)
def test_a_table_that_cannot_be_used_gets_one_sentence(
    text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(text)

    with pytest.raises(DataError, match=message):
        FederatedData.from_table(tmp_path / "t.csv", client="site", y="y")


@pytest.mark.parametrize(
    "sites", [["007", "7", "07"], ["9007199254740993", "9007199254740992", "1"]]
)
def test_clients_that_are_equal_as_numbers_only_stay_apart(
    sites: list[str], tmp_path: Path
) -> None:
    """Leading zeros, and numbers that a float rounds to its neighbour."""
    rows = [f"{site},{k},{k % 2}" for k, site in enumerate(sites)]
    (tmp_path / "t.csv").write_text("\n".join(["site,a,y", *rows]))

    data = FederatedData.from_table(tmp_path / "t.csv", client="site", y="y")

    assert data.n_clients == 3


def test_a_column_of_one_number_has_no_spread(tmp_path: Path) -> None:
    """The mean of three times 0.1 is not 0.1; a variance of that error would scale it to 1."""
    (tmp_path / "t.csv").write_text("site,a,y\n1,0.1,0\n1,0.1,1\n1,0.1,0\n")

    data = FederatedData.from_table(tmp_path / "t.csv", client="site", y="y")

    assert columns_of(data) == [[0, 0, 0]]


def test_a_column_of_names_is_no_feature(tmp_path: Path) -> None:
    rows = [f"1,patient {k},{k},{k % 2}" for k in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["site,name,age,y", *rows]))

    with pytest.raises(DataError, match=r"'name' has 60\. Pass leave_out=\['name'\]"):
        FederatedData.from_table(tmp_path / "t.csv", client="site", y="y")
    data = FederatedData.from_table(tmp_path / "t.csv", client="site", y="y", leave_out=["name"])
    assert data.dataset.x.shape == (60, 1)


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more")

    with pytest.raises(DataError, match=r"t\.parquet: is a damaged Parquet file"):
        FederatedData.from_table(tmp_path / "t.parquet", client="site", y="y")
