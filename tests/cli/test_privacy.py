"""fedcohort privacy."""

import json
from pathlib import Path

import pytest

from command_line import SIZES, refused, run


@pytest.fixture
def equal(tmp_path: Path) -> Path:
    path = tmp_path / "equal.json"
    path.write_text(json.dumps([50] * 1000))
    return path


def test_every_epsilon_stands_under_its_relation(
    equal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    designs = "poisson,uniform:unbiased,round-robin,similarity"
    result = run(
        capsys, "privacy", equal, "-m", 10, "--rounds", 600, "--delta", 5e-4, "--designs", designs
    )
    lines = [line.split() for line in result.out.splitlines()]

    assert ["poisson", "0.1", "600", "380", "0.968", "1,360", "-"] in lines
    assert ["uniform:unbiased", "0.1", "600", "380", "-", "1,360", "12.7"] in lines
    assert ["round-robin", "0.1", "6", "10.4", "-", "27.4", "-"] in lines
    assert max(map(len, result.out.splitlines())) <= 80
    assert "similarity: chooses by clients' updates" in result.err


def test_limits_on_participation_bound_what_a_client_pays(
    equal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("privacy", equal, "-m", 10, "--rounds", 600, "--delta", 5e-4, "-d", "poisson,shuffled")
    for limits in (("--max-participations", 6), ("--min-separation", 100)):
        lines = [line.split() for line in run(capsys, *asked, *limits).out.splitlines()]

        assert ["poisson", "0.1", "6", "10.4", "-", "27.4", "-"] in lines
        assert ["shuffled", "0.1", "6", "10.4", "-", "27.4", "-"] in lines
    lines = [line.split() for line in run(capsys, *asked).out.splitlines()]
    assert ["shuffled", "0.1", "6", "10.4", "-", "27.4", "-"] in lines


def test_programs_get_the_same_numbers(equal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("privacy", equal, "-m", 10, "--rounds", 5, "-d", "uniform,oort", "--json")
    found = json.loads(run(capsys, *asked).out)
    (row,) = found["designs"]

    assert (row["largest_weight"], row["participations"]) == (0.001, 5)
    assert row["epsilon"]["zero-out"]["secret"] is None
    assert 0 < row["epsilon"]["replace-one"]["secret"] < row["epsilon"]["replace-one"]["known"]
    assert [each["design"] for each in found["left_out"]] == ["oort"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-d", "similarity"], "design 'similarity' has no epsilon: chooses by clients' updates"),
        (["--noise", "0"], "--noise must be a number above 0; got 0.0"),
        (["--delta", "1"], "--delta must be a number above 0 and below 1; got 1.0"),
    ],
)
def test_what_has_no_epsilon_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(capsys, "privacy", SIZES, "-m", 10, "--rounds", 3, *arguments)

    assert refused(result, words)
