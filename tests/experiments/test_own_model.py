"""Models of a user's own, named by import path."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from command_line import refused, run
from fedcohort.experiments import RunFolder
from small_runs import SMALL, small_run, tables, write

OWN = """
from math import prod
from torch import nn

def twin(dataset, hidden=50):
    inputs = prod(dataset.x.shape[1:])
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, dataset.n_classes)
    )

def narrow(dataset):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))

def nothing(dataset):
    return None

def lazy(dataset):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(dataset.n_classes))

class Tired(nn.Module):
    def __init__(self, dataset):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        if len(x) > 1:
            raise RuntimeError("no more")
        return self.layer(x.flatten(1))

def broken(dataset):
    raise RuntimeError("no luck")
"""


def using(name: str, more: str = "") -> str:
    return f'{SMALL}\n[model]\nname = "{name}"\n{more}\n'


def test_a_function_of_a_file_makes_the_model(own: Path, tmp_path: Path) -> None:
    """The same layers under another name: the same run."""
    (tmp_path / "plain").mkdir()
    plain = tables(small_run(tmp_path / "plain", using("mlp", "hidden = 20")))

    assert tables(small_run(own, using("mine.py:twin", "hidden = 20"))) == plain


def test_the_run_keeps_the_file_and_goes_on_without_the_original(
    goes_on_without: Callable[[str], Path],
) -> None:
    path = goes_on_without(using("mine.py:twin"))

    assert (path / "code" / "mine.py").read_text() == OWN
    assert RunFolder.open(path).progress().state == "complete"


@pytest.mark.parametrize(
    ("name", "more", "part"),
    [
        ("mine.py:nobody", "", "model 'mine.py:nobody': nobody must be a function; mine.py has"),
        ("none.py:twin", "", "model file none.py: is not in "),
        ("mine.py:twin", "hiden = 3", "(TypeError: twin() got an unexpected keyword argument"),
        ("mine.py:broken", "", "model 'mine.py:broken': cannot be made (RuntimeError: no luck)"),
        ("mine.py:nothing", "", "model: needs an nn.Module or a function that makes one; got"),
        ("mine.py:narrow", "", "model: must give (batch, 10) outputs, one per class; got shape"),
        ("mine.py:lazy", "", "run: the run stopped with nothing to keep: model: has a lazy layer"),
        ("mine.py:Tired", "", "mine.py, line 27 raises RuntimeError: no more. Fix it."),
        ("mine.py:twin", "hidden = 2020-01-01", "values must be numbers, texts, truth values"),
        (
            "mpl",
            "",
            "model.name must be one of mlp, cnn, small-transformer, gru, lstm, "
            "my_model.py:function; got 'mpl'.",
        ),
        ("mlp", "hiden = 3", "unknown key 'model.hiden'; known are name, hidden."),
    ],
)
def test_what_is_no_model_gets_one_sentence(
    name: str, more: str, part: str, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that fails in its first round does so below the plan."""
    result = run(capsys, "run", write(own, using(name, more)), "--out", own / "run")

    lines = result.err.splitlines(keepends=True)
    sentence = "".join(line for line in lines if not line.startswith("plan: "))
    assert refused(replace(result, err=sentence), part), result.err
    assert not (own / "run").exists()


def test_the_report_names_the_function_and_its_arguments(own: Path) -> None:
    pytest.importorskip("plotly", reason="the extra 'report' is not installed")
    from fedcohort.experiments import read_results
    from fedcohort.report.page import write_page

    path = small_run(own, using("mine.py:twin", "hidden = 20"))
    write_page([read_results(path)], own / "page.html")

    page = (own / "page.html").read_text()
    assert "mine.py:twin" in page
    assert "&quot;hidden&quot;: 20" in page
