"""The sentences say what the numbers say."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort.experiments import Panel, Results
from fedcohort.experiments.results import DesignSummary, PanelSummary, interval
from fedcohort.report.answer import (
    panel_sentences,
    rounds_needed,
    state_sentence,
    summary_sentences,
    unbiased_designs,
)

NAN = math.nan


def design(
    label: str,
    losses: list[float],
    needed: list[float],
    base: list[float] | None = None,
    diverged: list[float] | None = None,
    accuracy: list[float] | None = None,
) -> DesignSummary:
    values = np.array(losses)
    return DesignSummary(
        label,
        final_loss=values,
        final_accuracy=np.full(len(losses), NAN) if accuracy is None else np.array(accuracy),
        worst_accuracy=values,
        classes=values,
        clients=values,
        share=values,
        rounds_needed=np.array(needed),
        jump=values,
        difference=None if base is None else interval(values - np.array(base)),
        diverged=np.full(len(losses), NAN) if diverged is None else np.array(diverged),
        lost=0.0,
        scaled=0.0,
        variance=values,
        floor=values,
        above_floor=values,
    )


def sentences(
    designs: list[DesignSummary],
    *,
    rounds: int = 100,
    window: int = 25,
    biased: tuple[str, ...] = (),
    unknown: tuple[str, ...] = (),
    draws: dict[str, int] | None = None,
) -> list[str]:
    n_seeds = len(designs[0].final_loss)
    setting = Panel.of(
        {
            "label": "p",
            "rounds": 100,
            "seeds": list(range(n_seeds)),
            "data": {"dataset": "digits", "partition": "iid"},
            "design": [
                {
                    "recipe": "multinomial",
                    "label": each.label,
                    "cohort_size": (draws or {}).get(each.label, 10),
                }
                for each in designs
            ],
        }
    )
    level = float(np.mean(designs[0].final_loss))
    seeds = list(range(n_seeds))
    claims = {each.label: each.label not in biased for each in designs}
    return summary_sentences(
        PanelSummary("p", seeds, rounds, window, "md", level, designs),
        setting,
        {label: None if label in unknown else claim for label, claim in claims.items()},
    )


def test_a_difference_larger_than_the_spread_over_seeds_is_called_so() -> None:
    base = [1.0, 1.1, 1.2]
    designs = [
        design("md", base, [50, 49, NAN]),
        design("size", [0.8, 0.91, 1.0], [60, 62, 64], base),
    ]

    first, second, third = sentences(designs)

    assert first == (
        "After 100 rounds with 3 seeds, size has the lowest final loss of the 2 unbiased designs: "
        "0.903 \u00b1 0.100."
    )
    assert second == (
        "The loss of size is 0.197 lower than that of md, the baseline (paired by seed, 95 % "
        "interval 0.182 to 0.211): more than the spread over seeds."
    )
    assert third == (
        "The smoothed loss reached 1.100, where md ends: size after 62 rounds and md "
        "after 50 rounds (in 2 of 3 seeds)."
    )


def test_the_answer_names_loss_and_accuracy_and_the_biased_design_that_is_ahead() -> None:
    base = [1.0, 1.1, 1.2]
    designs = [
        design("md", base, [50, 49, 51], accuracy=[0.8, 0.8, 0.8]),
        design("size", [0.8, 0.91, 1.0], [50, 49, 51], base, accuracy=[0.81, 0.83, 0.82]),
        design("greedy", [0.5, 0.61, 0.7], [50, 49, 51], base, accuracy=[0.9, 0.9, 0.9]),
        design("near", [0.6, 0.61, 1.49], [50, 49, 51], base),
    ]

    first = sentences(designs, biased=("greedy", "near"))[0]

    assert first == (
        "After 100 rounds with 3 seeds, size has the lowest final loss of the 2 unbiased designs: "
        "0.903 \u00b1 0.100, with an accuracy of 82.0 \u00b1 1.0 %; greedy (biased; loss 0.603 "
        "\u00b1 0.100, accuracy 90.0 \u00b1 0.0 %) is ahead of it; near (biased; loss 0.900 "
        "\u00b1 0.511) is ahead of it by no more than the spread over seeds."
    )


def test_a_biased_design_that_is_behind_and_a_higher_accuracy_are_told() -> None:
    designs = [
        design("md", [1.0], [50], accuracy=[0.9]),
        design("size", [0.9], [50], [1.0], accuracy=[0.8]),
        design("greedy", [2.0], [50], [1.0], accuracy=[0.95]),
    ]

    first = sentences(designs, biased=("greedy",))[0]

    assert first.endswith(
        ": 0.900, with an accuracy of 80.0 %; md has the highest accuracy, 90.0 %; no biased "
        "design is ahead of it."
    )


def test_a_design_of_another_cohort_size_does_not_win_but_is_named() -> None:
    designs = [
        design("md", [1.0], [50]),
        design("size", [0.9], [50], [1.0]),
        design("everyone", [0.5], [50], [1.0]),
    ]

    first, second, *_ = sentences(designs, draws={"everyone": 100})

    assert "size has the lowest final loss of the 2 unbiased designs with 10 draws a round" in first
    assert second == "everyone (100 draws a round; loss 0.500) is ahead of size."


def test_without_an_unbiased_design_the_best_is_not_called_unbiased() -> None:
    designs = [design("md", [1.0], [50]), design("own", [0.9], [50], [1.0])]

    first = sentences(designs, biased=("md",), unknown=("own",))[0]

    assert first == (
        "After 100 rounds with one seed, own has the lowest final loss of 2 designs, none of them "
        "known to be unbiased: 0.900."
    )


def test_many_designs_are_counted_and_not_listed() -> None:
    designs = [design(f"d{k}", [1.0], [k + 1.0]) for k in range(8)]
    slow = [design(f"s{k}", [1.0], [NAN]) for k in range(7)]

    last = sentences([*designs, *slow])[-1]

    assert "d3 after 4 rounds, d4 after 5 rounds and 3 more; " in last
    assert last.endswith("; s0, s1, s2, s3 and 3 more never did.")


def test_a_design_that_diverged_is_named_and_never_the_best() -> None:
    base = [1.0, 1.1, 1.2]
    designs = [
        design("md", base, [50, 49, 51]),
        design("wild", [0.1, 0.1, 0.1], [1, 1, 1], base, diverged=[NAN, 6.0, 3.0]),
    ]

    first, *_, last = sentences(designs)

    assert "md, the only unbiased design that did not diverge, has a final loss of 1.1" in first
    assert last == (
        "wild diverged in 2 of 3 seeds, from round 4 on: its model, or all updates of a round, "
        "were not finite. Lower lr or server_lr."
    )


def test_nothing_is_compared_with_a_baseline_that_diverged() -> None:
    gone = [NAN, NAN]
    designs = [
        design("md", gone, gone, diverged=[NAN, 6.0]),
        design("size", [0.9, 1.0], gone, gone),
        design("own", [1.9, 2.0], gone, gone),
    ]

    found = sentences(designs, biased=("size",), unknown=("own",))

    assert found == [
        "After 100 rounds with 2 seeds, size has the lowest final loss of 2 designs that did not "
        "diverge, none of them known to be unbiased: 0.950 \u00b1 0.071.",
        "md diverged in 1 of 2 seeds, from round 7 on: its model, or all updates of a round, were "
        "not finite. Lower lr or server_lr.",
    ]
    assert (
        "size, the only design that did not diverge, has"
        in sentences(designs[:2], biased=("size",))[0]
    )


def test_if_every_design_diverged_the_answer_says_so() -> None:
    designs = [
        design("md", [NAN], [NAN], diverged=[0.0]),
        design("size", [NAN], [NAN], [NAN], diverged=[4.0]),
    ]

    first, *others = sentences(designs)

    assert first == (
        "After 100 rounds with one seed there is no final loss to compare: every design diverged."
    )
    assert [each.split(":")[0] for each in others] == [
        "md diverged, from round 1 on",
        "size diverged, from round 5 on",
    ]


def test_a_difference_within_the_spread_may_be_chance() -> None:
    base = [1.0, 1.1]
    designs = [design("md", base, [90, 90]), design("size", [0.7, 1.2], [NAN, NAN], base)]

    _, second, third = sentences(designs)

    assert second == (
        "The loss of size is 0.100 lower than that of md, the baseline (paired by seed, 95 % "
        "interval \u22122.441 to 2.641): no more than the spread over seeds, so it may be chance."
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
        "md is the baseline itself; the next, near, is 0.205 higher (paired by seed, 95 % interval "
        "0.141 to 0.269): more than the spread over seeds."
    )
    assert third.endswith("; far and near never did.")


def test_one_seed_has_no_interval() -> None:
    designs = [design("md", [1.0], [90]), design("size", [0.9], [80], [1.0])]

    first, second, _ = sentences(designs, window=1)

    assert first == (
        "After 100 rounds with one seed, size has the lowest final loss of the 2 unbiased designs: "
        "0.900."
    )
    assert second == (
        "The loss of size is 0.100 lower than that of md, the baseline; with one seed there is no "
        "interval, so this may be chance."
    )


def test_one_design_alone_is_not_the_lowest_of_anything() -> None:
    first, second = sentences([design("md", [1.0, 1.2], [90, NAN])])

    assert first.endswith("md, the only design, has a final loss of 1.100 \u00b1 0.141.")
    assert second.startswith("The smoothed loss reached")


def test_a_level_that_nobody_reached_is_told() -> None:
    last = sentences([design("md", [1.0], [NAN]), design("size", [2.0], [NAN], [1.0])])[-1]

    assert last == "No design's smoothed loss reached 1.000, where md ends."


def test_a_loss_that_was_not_measured_has_no_winner() -> None:
    only = sentences([design("md", [NAN, NAN], [NAN, NAN])])

    assert only == [
        "After 100 rounds with 2 seeds there is no final loss to compare: the loss was not "
        "measured in the last 25 rounds."
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


def test_a_recorded_bias_decides_and_the_library_is_known_without_it(
    two_panels: Results, unfinished: Results
) -> None:
    panel, stopped = (each.folder.experiment.panels[0] for each in (two_panels, unfinished))
    names = {"cohort-mean": False, "uniform": False, "size": True, "norm-optimal": True}
    labels = [*names, "everyone"]
    entries: list[dict[str, object]] = [{"recipe": name} for name in names]
    entries.append({"recipe": "uniform", "cohort_size": 10})
    changed = Panel.of(
        {
            **stopped.as_dict(),
            "design": [{**e, "label": n} for e, n in zip(entries, labels, strict=True)],
        }
    )

    assert unbiased_designs(two_panels, panel) == dict.fromkeys(
        ("multinomial", "size", "similarity", "similarity l2"), True
    )
    assert unbiased_designs(unfinished, changed) == {**names, "everyone": True}


def test_a_design_of_ones_own_is_not_judged_before_it_was_recorded(unfinished: Results) -> None:
    panel = unfinished.folder.experiment.panels[0]
    own = Panel.of({**panel.as_dict(), "design": [{"recipe": "my.py:Mine", "label": "own"}]})

    assert unbiased_designs(unfinished, own) == {"own": None}
