"""The sentences say what the numbers say."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort.experiments import Panel, Results
from fedcohort.experiments.results import DesignSummary, PanelSummary, interval
from fedcohort.report.page import (
    panel_sentences,
    rounds_needed,
    state_sentence,
    summary_sentences,
)

NAN = math.nan


def design(
    label: str,
    losses: list[float],
    needed: list[float],
    base: list[float] | None = None,
    diverged: list[float] | None = None,
) -> DesignSummary:
    values = np.array(losses)
    return DesignSummary(
        label,
        final_loss=values,
        final_accuracy=values,
        classes=values,
        clients=values,
        rounds_needed=np.array(needed),
        jump=values,
        difference=None if base is None else interval(values - np.array(base)),
        diverged=np.full(len(losses), NAN) if diverged is None else np.array(diverged),
    )


def sentences(designs: list[DesignSummary], *, rounds: int = 100, window: int = 25) -> list[str]:
    n_seeds = len(designs[0].final_loss)
    setting = Panel.of(
        {
            "label": "p",
            "rounds": 100,
            "seeds": list(range(n_seeds)),
            "data": {"dataset": "digits", "partition": "iid"},
            "design": [{"recipe": "multinomial", "label": each.label} for each in designs],
        }
    )
    level = float(np.mean(designs[0].final_loss))
    seeds = list(range(n_seeds))
    return summary_sentences(
        PanelSummary("p", seeds, rounds, window, "md", level, designs), setting
    )


def test_a_difference_larger_than_the_spread_over_seeds_is_called_so() -> None:
    base = [1.0, 1.1, 1.2]
    designs = [
        design("md", base, [50, 49, NAN]),
        design("size", [0.8, 0.91, 1.0], [60, 62, 64], base),
    ]

    first, second, third = sentences(designs)

    assert first == (
        "After 100 rounds with 3 seeds, size has the lowest final loss of 2 designs: 0.9033 (mean "
        "over the last 25 rounds; standard deviation over seeds 0.1002)."
    )
    assert second == (
        "That is 0.1967 lower than md, the baseline (paired by seed, 95 % interval 0.1823 to "
        "0.211): more than the spread over seeds."
    )
    assert third == (
        "The rolling mean reached the loss of 1.1, where md ends: size after 62 rounds and md "
        "after 50 rounds (in 2 of 3 seeds)."
    )


def test_a_design_that_diverged_is_named_and_never_the_best() -> None:
    base = [1.0, 1.1, 1.2]
    designs = [
        design("md", base, [50, 49, 51]),
        design("wild", [0.1, 0.1, 0.1], [1, 1, 1], base, diverged=[NAN, 6.0, 3.0]),
    ]

    first, *_, last = sentences(designs)

    assert "md has the lowest final loss" in first
    assert last == (
        "wild diverged in 2 of 3 seeds, from round 4 on: updates that are not finite count as "
        "lost. Lower lr or server_lr."
    )


def test_a_difference_within_the_spread_may_be_chance() -> None:
    base = [1.0, 1.1]
    designs = [design("md", base, [90, 90]), design("size", [0.7, 1.2], [NAN, NAN], base)]

    _, second, third = sentences(designs)

    assert second == (
        "That is 0.1 lower than md, the baseline (paired by seed, 95 % interval -2.441 to 2.641): "
        "no more than the spread over seeds, so it may be chance."
    )
    assert third.endswith("md after 90 rounds; size never did.")


def test_a_baseline_that_is_best_is_compared_with_the_next() -> None:
    base = [1.0, 1.1]
    designs = [
        design("md", base, [90, 90]),
        design("far", [3.0, 3.1], [NAN, NAN], base),
        design("near", [1.2, 1.31], [NAN, NAN], base),
    ]

    _, second, third = sentences(designs)

    assert second == (
        "It is the baseline itself; the next, near, is 0.205 higher (paired by seed, 95 % interval "
        "0.1415 to 0.2685): more than the spread over seeds."
    )
    assert third.endswith("; far and near never did.")


def test_one_seed_has_no_interval() -> None:
    designs = [design("md", [1.0], [90]), design("size", [0.9], [80], [1.0])]

    first, second, _ = sentences(designs, window=1)

    assert first == (
        "After 100 rounds with one seed, size has the lowest final loss of 2 designs: 0.9 (mean "
        "over the last round)."
    )
    assert second == (
        "That is 0.1 lower than md, the baseline; with one seed there is no interval, so this may "
        "be chance."
    )


def test_one_design_alone_is_not_the_lowest_of_anything() -> None:
    first, second = sentences([design("md", [1.0, 1.2], [90, NAN])])

    assert "md, the only design, has a final loss of 1.1 (" in first
    assert second.startswith("The rolling mean reached")


def test_a_level_that_nobody_reached_is_told() -> None:
    last = sentences([design("md", [1.0], [NAN]), design("size", [2.0], [NAN], [1.0])])[-1]

    assert last == "No design's rolling mean reached the loss of 1, where md ends."


def test_a_loss_that_was_not_measured_has_no_winner() -> None:
    only = sentences([design("md", [NAN, NAN], [NAN, NAN])])

    assert only == [
        "After 100 rounds with 2 seeds, but the loss was not measured in the last 25 rounds, so "
        "there is no final loss to compare."
    ]


def test_fewer_rounds_than_planned_are_told() -> None:
    first = sentences([design("md", [1.0], [NAN])], rounds=40)[0]

    assert first.startswith("After 40 of 100 rounds with one seed, ")


@pytest.mark.parametrize(
    ("needed", "text"),
    [
        ([NAN, NAN], "never"),
        ([1, 1], "1 round"),
        ([10, 13], "12 rounds"),
        ([10, NAN], "10 rounds (in 1 of 2 seeds)"),
    ],
)
def test_rounds_are_counted_in_english(needed: list[float], text: str) -> None:
    assert rounds_needed(design("md", [1.0, 1.0], needed)) == text


def test_a_complete_run_says_nothing_of_its_state_and_a_stopped_one_how_far_it_is(
    two_panels: Results, unfinished: Results
) -> None:
    said = state_sentence(unfinished)

    assert state_sentence(two_panels) == ""
    assert said.startswith("The run is not finished (interrupted): 10 of 24 rounds")
    first = panel_sentences(unfinished, unfinished.folder.experiment.panels[0])[0]
    assert first.startswith("After 5 of 12 rounds with 2 seeds, multinomial, the only design, ")


def test_a_partition_has_no_winner(partition: Results) -> None:
    panel = partition.folder.experiment.panels[0]

    assert panel_sentences(partition, panel) == [
        "No training was asked for: the data are divided among the clients, no more."
    ]
