"""What the site's pages say of designs is what the designs do."""

import re
import tomllib
from math import comb

import numpy as np
import pytest

pytest.importorskip("sphinx", reason="the extra 'docs' is not installed")

from example_federation import COHORT_SIZE, POPULATION, ROUNDS, SIZES, behaviour, signals
from fedcohort.designs import RECIPES
from mathml_formulas import displayed, mathml
from plain_english import PAGES, files
from repository_links import REPOSITORY, ROOT, relocated

#: Every page that people read, and its counts: "18 designs".
READ = [page for page in files([ROOT / page for page in PAGES]) if page.suffix == ".md"]
COUNT = re.compile(r"\b(\d+) (designs|schemes)\b")


def test_exact_chances_are_those_of_the_formula() -> None:
    expected = 1 - (1 - POPULATION.importance) ** COHORT_SIZE

    assert np.allclose(behaviour("multinomial").inclusion, expected, rtol=1e-12)
    assert behaviour("multinomial").variance == 1


def test_measured_chances_are_those_of_the_law() -> None:
    """False alarms: 1 in 1.7 million for each of 20 clients (five standard errors)."""
    seen = behaviour("deadline")
    # 15 of 20 candidates, the 5 fastest: the client of rank r (from 0) is in if it is asked and
    # at most 4 of the r faster ones are.
    ranks = np.argsort(np.argsort(signals()["duration"], kind="stable"), kind="stable")
    total, asked = len(SIZES), 3 * COHORT_SIZE
    law = [
        sum(
            comb(r, k) * comb(total - 1 - r, asked - 1 - k)
            for k in range(min(r, COHORT_SIZE - 1) + 1)
        )
        / comb(total, asked)
        for r in range(total)
    ]
    expected = np.array(law)[ranks]
    errors = np.sqrt(expected * (1 - expected) / ROUNDS)

    assert len(set(signals()["duration"])) == total
    assert (abs(seen.inclusion - expected) <= 5 * errors + 1e-12).all()


def test_the_cohort_mean_draws_everybody_alike() -> None:
    """False alarms: 1 in 1.7 million for each of 20 clients (five standard errors)."""
    law = COHORT_SIZE / len(SIZES)
    error = np.sqrt(law * (1 - law) / ROUNDS)

    assert (abs(behaviour("cohort-mean").inclusion - law) <= 5 * error).all()


@pytest.mark.parametrize("name", RECIPES)
def test_a_cohort_has_as_many_draws_as_it_should(name: str) -> None:
    seen = behaviour(name)

    assert ((seen.inclusion >= 0) & (seen.inclusion <= 1)).all()
    assert seen.inclusion.sum() <= COHORT_SIZE + 1e-9
    measured = ("cohort-mean", "deadline", "power-of-choice")
    assert (seen.standard_error > 0) == (name in measured)


def test_designs_that_are_never_worse_than_multinomial_are_not_worse_in_the_example() -> None:
    for name in ("size", "similarity", "target", "tournament", "auto"):
        assert behaviour(name).variance < 1, name
        assert (behaviour(name).inclusion >= behaviour("multinomial").inclusion - 1e-12).all(), name


def test_designs_and_schemes_are_as_many_as_the_pages_say() -> None:
    """The glossary defines both words; every page that counts agrees with the catalogue."""
    text = (ROOT / "results" / "everyone" / "experiment.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)["design"]
    counts = {"designs": len(RECIPES), "schemes": len(rows)}
    # These came after the experiment was run.
    newer = {"osmd", "k-vib", "hics", "shuffled"}
    counted = {page: COUNT.findall(page.read_text(encoding="utf-8")) for page in READ}

    assert {row["recipe"] for row in rows} == set(RECIPES) - newer
    assert {word for _, word in counted[ROOT / "docs" / "glossary.md"]} == set(counts)
    wrong = {
        page.name: found
        for page, found in counted.items()
        if any(int(number) != counts[word] for number, word in found)
    }
    assert wrong == {}


def test_formulas_stay_in_order() -> None:
    made = displayed(
        r"E\Big\|\sum_i w_i\Big\|^2 , \qquad v = \begin{cases} a & b \\ c & d \end{cases} \tag{2}"
    )

    assert made.count("<math") == 2
    assert made.count("‖") == 2
    assert '<span class="formula-number">(2)</span>' in made
    assert mathml(r"\tfrac12").count("<mn>") == 2


def test_links_hold_on_the_site_and_on_a_repository_page() -> None:
    here = ROOT / "docs" / "how-to" / "flower.md"
    text = (
        "[results](../../results/README.md#figure-1), [TLS](flower-tls.md), [tests](../../tests), "
        "[start](../../README.md), "
        "[Flower](https://flower.ai), `[x](../../results/README.md)`, [up](#top)"
    )

    assert relocated(text, here, here) == (
        "[results](../results/index.md#figure-1), [TLS](flower-tls.md), "
        f"[tests]({REPOSITORY}/tree/main/tests), [start]({REPOSITORY}/blob/main/README.md), "
        "[Flower](https://flower.ai), `[x](../../results/README.md)`, [up](#top)"
    )
