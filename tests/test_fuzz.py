"""Random calls of the documented API: each is refused in a sentence, or keeps its promises."""

import logging
from pathlib import Path
from typing import Any

import pytest

import fuzz
from fedcohort import Population, synthetic
from fedcohort.errors import DesignError, FedcohortError
from fuzz_arguments import PACKAGES, fuzz_in_folder
from fuzz_calls import SCENARIOS, Trial, fuzz_population

CALLS = 4000


def test_no_random_call_ends_in_anything_but_a_sentence_or_a_right_result() -> None:
    """About half a minute; ``python tests/fuzz.py`` makes more calls."""
    logging.disable(logging.CRITICAL)
    try:
        report = fuzz.fuzz(seed=0, calls=CALLS, minutes=2)
    finally:
        logging.disable(logging.NOTSET)

    assert report.failures == [], "\n".join(report.failures)
    # Neither all nonsense, nor all sense.
    assert report.refusals > 0.2 * report.calls
    assert report.successes > 0.2 * report.calls
    kinds = {kind.__name__ for kind in SCENARIOS}
    assert set(report.by_scenario) >= kinds - {"fuzz_experiment_file"}


@pytest.mark.parametrize(
    "error",
    [
        ValueError("Population: sizes must be numbers; got 'a'. Give numbers."),
        DesignError("two\nlines: of text."),
        DesignError("no owner."),
        DesignError("Population: no end"),
        FedcohortError(""),
    ],
)
def test_what_is_no_refusal_in_a_sentence_is_found(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(trial: Trial) -> None:
        raise error

    monkeypatch.setattr(fuzz, "SCENARIOS", {broken: 1})

    report = fuzz.fuzz(seed=0, calls=3)

    assert (report.calls, len(report.failures)) == (3, 3)
    assert report.failures[1].startswith("--seed 0 --only 1: broken\n")


def test_a_result_that_breaks_a_promise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A population whose total is off by one."""
    total = Population.total
    monkeypatch.setattr(Population, "total", property(lambda self: total.__get__(self) + 1))
    monkeypatch.setattr(fuzz, "SCENARIOS", {fuzz_population: 1})

    report = fuzz.fuzz(seed=0, calls=20)

    assert any("total is the sum of the sizes" in each for each in report.failures)
    assert report.successes == 0


def test_a_call_with_a_number_is_the_same_again(tmp_path: Path) -> None:
    one, other = fuzz.Report(), fuzz.Report()
    for report in (one, other):
        for number in range(40):
            fuzz.play(5, number, tmp_path, report)

    assert one == other


@pytest.mark.parametrize("package", PACKAGES)
def test_nonsense_in_any_argument_of_an_exported_name_is_refused_in_a_sentence(
    package: str,
) -> None:
    """About fifty kinds of nonsense in each argument; ``python tests/fuzz_arguments.py``."""
    if PACKAGES[package]:
        pytest.importorskip(PACKAGES[package], reason="the extra is not installed")

    outcome = fuzz_in_folder(package)

    assert outcome.failures == [], "\n".join(outcome.failures)
    assert outcome.refused > 0.8 * outcome.calls


def test_an_argument_that_is_not_checked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unbalanced_sizes(n_clients: Any, *, seed: int) -> Any:
        return [0] * n_clients

    unbalanced_sizes.__module__ = "fedcohort.synthetic"
    monkeypatch.setattr(synthetic, "unbalanced_sizes", unbalanced_sizes)

    outcome = fuzz_in_folder("fedcohort.synthetic", "unbalanced")

    none = next(
        each for each in outcome.failures if each.startswith("unbalanced_sizes(n_clients=N")
    )
    assert "TypeError" in none
    assert outcome.refused == 0
