"""The experiment's own data: one client per role of Shakespeare's plays."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from command_line import refused, run
from fedcohort.experiments.own_code import load_data
from fedcohort.simulation import FederatedData

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
ALPHABET = "\n !',-.:;?abcdefghijklmnopqrstuvwxyz"
LINE = "To be, or not to be: that is the Question 1\n"
#: Two roles that are clients, and one that speaks a character too little.
TEXTS = {"b/TWO": LINE * 150, "a/ONE": LINE[3:] * 200, "a/SHORT": "x" * 4999}


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDCOHORT_DATA", str(tmp_path))
    (tmp_path / "shakespeare").mkdir()
    return tmp_path


def write(folder: Path, content: str) -> None:
    (folder / "shakespeare" / "roles.json").write_text(content, encoding="utf-8")


def spoken(data: FederatedData, rows: NDArray[np.int64]) -> list[str]:
    """Read the characters back from what the model sees; * stands for all that are not listed."""
    letters = np.array([*ALPHABET, "*"])
    seen = data.dataset.x[rows].reshape(len(rows), 5, 37).argmax(axis=2)
    return [
        "".join(letters[[*before, data.dataset.y[row]]])
        for before, row in zip(seen, rows, strict=True)
    ]


def test_a_client_holds_its_roles_characters_and_the_next(data_folder: Path) -> None:
    write(data_folder, json.dumps(TEXTS))

    data = load_data("roles.py:roles", EXPERIMENTS)

    assert isinstance(data, FederatedData)
    assert data.n_clients == 2
    for role, train, test in zip(("a/ONE", "b/TWO"), data.train, data.test, strict=True):
        text = TEXTS[role].lower().replace("1", "*")
        windows = [text[k : k + 6] for k in range(0, len(text) - 5, 40)]
        assert len(test) == len(windows) // 5
        assert spoken(data, np.asarray(train)) == windows[: len(windows) - len(test)]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (None, "roles.json is missing. Write there a JSON object"),
        ("{", "roles.json is not JSON (Expecting"),
        ("[1]", "must hold an object that maps each role to a text."),
        ('{"a/ONE": 1}', "must hold an object that maps each role to a text."),
        ('{"a/SHORT": "x"}', "needs a role with 5000 characters or more;"),
    ],
)
def test_texts_that_cannot_be_used_get_one_sentence(
    content: str | None,
    part: str,
    data_folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if content is not None:
        write(data_folder, content)

    result = run(capsys, "run", EXPERIMENTS / "roles.toml", "--out", data_folder / "run")

    assert refused(result, part, "roles"), result.err
    assert not (data_folder / "run").exists()
