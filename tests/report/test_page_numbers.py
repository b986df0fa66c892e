"""The numbers on the page, against plain loops over the tables."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")
import pyarrow as pa

from fedcohort.experiments import Results, read_results
from fedcohort.experiments.results import Curve
from fedcohort.experiments.tables import write_table
from fedcohort.experiments.units import PlannedRun
from fedcohort.report.page_data import (
    Band,
    _groups,
    _needed,
    band,
    client_data,
    client_tables,
    cluster_map,
    dendrogram,
    evenly,
    law_points,
    main_class_order,
    main_classes,
    missing_note,
    panel_data,
    plain,
)
from small_runs import DATA, TRAINING, emptied

SIMILARITY = PlannedRun("alpha = 0.01", "similarity", 0)


def test_a_band_spans_the_seeds() -> None:
    over = band(Curve(np.array([0, 4]), np.array([[1.0, 4.0], [3.0, 5.0]])))

    assert over.rounds.tolist() == [1, 5]
    assert (over.mean.tolist(), over.low.tolist(), over.high.tolist()) == ([2, 4.5], [1, 4], [3, 5])
    assert over.n_seeds == 2


def test_thinning_keeps_extremes_the_mean_and_the_last_round() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=1003)
    whole = Band(np.arange(1, 1004), values, values - 1, values + 1, 2)

    thin = whole.thinned(100)

    assert len(thin.rounds) == 100
    assert thin.rounds[-1] == 1003
    assert thin.low.min() == values.min() - 1
    assert thin.high.max() == values.max() + 1
    widths = np.diff([0, *thin.rounds])
    assert np.average(thin.mean, weights=widths) == pytest.approx(values.mean(), abs=1e-12)
    assert whole.thinned(1003) is whole


def test_numbers_are_short_and_what_is_not_there_is_null() -> None:
    assert plain([1 / 3, math.nan, -math.inf, 123456.7]) == [0.33333, None, None, 123460.0]
    assert plain(np.array([1, 2**40])) == [1, 2**40]
    assert evenly(5, 10) == [0, 1, 2, 3, 4]
    assert evenly(1000, 4) == [0, 333, 666, 999]


def test_rounds_needed_are_drawn_only_where_all_seeds_reach_the_level() -> None:
    loss = Curve(np.arange(4), np.array([[4.0, 3, 2, 1], [4.0, 4, 3, 2]]))

    # Smoothed with a half-life of one round: 4, 3.3, 2.6, 1.7 and 4, 4, 3.4, 2.7.
    found = _needed(loss, 1, [4.0, 3.0, 2.7, 1.0])

    assert found["x"] == [4, 3, 2.7]
    assert (found["low"], found["mean"], found["high"]) == ([1, 3, 3], [1, 3.5, 3.5], [1, 4, 4])


def test_observed_inclusion_and_weight_variance_equal_plain_loops(two_panels: Results) -> None:
    panel = two_panels.folder.experiment.panels[0]

    points = law_points(two_panels, panel)

    assert points["sizes"] == [20, 40]
    chances: dict[int, list[float]] = {20: [], 40: []}
    variances: dict[int, list[float]] = {20: [], 40: []}
    for seed in (0, 1):
        sizes = two_panels.class_counts(panel.label, seed).sum(axis=1)
        lines = two_panels.of("cohorts", PlannedRun(panel.label, "size", seed)).to_pylist()
        for client, size in enumerate(sizes):
            weights = [0.0] * 12
            for line in lines:
                if line["client"] == client:
                    weights[line["round"]] = line["weight"]
            chances[size].append(sum(weight > 0 for weight in weights) / 12)
            variances[size].append(float(np.var(weights)))
    found = points["designs"]["size"]
    expected = [np.mean(chances[20]), np.mean(chances[40])]
    assert found["observed_inclusion"] == pytest.approx(expected, rel=1e-4)
    expected = [np.mean(variances[20]), np.mean(variances[40])]
    assert found["observed_weight_variance"] == pytest.approx(expected, rel=1e-4)


def test_the_law_is_the_designs_own(two_panels: Results) -> None:
    """Multinomial sampling: 1 - (1 - p)^m and p (1 - p) / m, with p = 20 / 300 and 40 / 300."""
    found = law_points(two_panels, two_panels.folder.experiment.panels[0])["designs"]["multinomial"]

    shares = [20 / 300, 40 / 300]
    assert found["inclusion"] == pytest.approx([1 - (1 - p) ** 3 for p in shares], rel=1e-4)
    assert found["weight_variance"] == pytest.approx([p * (1 - p) / 3 for p in shares], rel=1e-4)


def test_many_sizes_become_groups_of_like_size() -> None:
    sizes = np.random.default_rng(0).permutation(np.arange(1, 2001))

    groups, middle = _groups(sizes)

    assert len(middle) == 40
    assert np.bincount(groups).tolist() == pytest.approx([50] * 40, abs=1)
    for group in (0, 17, 39):
        assert middle[group] == pytest.approx(sizes[groups == group].mean())
    assert (np.diff(middle) > 0).all()


def test_the_map_shows_the_commonest_class_of_each_distribution(two_panels: Results) -> None:
    found = cluster_map(two_panels, SIMILARITY)

    assert found is not None
    assert found["rounds"] == [1, 4, 7, 10]
    counts = two_panels.class_counts("alpha = 0.01", 0)
    main = counts.argmax(axis=1)
    lines = two_panels.of("rows", SIMILARITY).to_pylist()
    for time, round_ in enumerate((0, 3, 6, 9)):
        row_of = {line["client"]: line["row"] for line in lines if line["round"] == round_}
        for place, client in enumerate(found["clients"]):
            sharing = [main[other] for other in row_of if row_of[other] == row_of[client]]
            commonest = max(set(sharing), key=lambda label: (sharing.count(label), -label))
            assert found["classes"][time][place] == commonest
        agreeing = [
            found["classes"][time][place] == main[client]
            for place, client in enumerate(found["clients"])
        ]
        assert found["agreeing"][time] == sum(agreeing)
    assert found["main"] == sorted(found["main"])


def test_clients_without_samples_have_no_class_and_the_purest_come_first() -> None:
    counts = np.array([[0, 5], [3, 2], [0, 0], [4, 0]])

    assert main_classes(counts, 5).tolist() == [1, 0, -1, 0, -1]
    order = main_class_order(counts).tolist()
    assert [client for client in order if client != 2] == [3, 1, 0]


def below(merges: list[dict[str, int]], node: int) -> list[int]:
    """Return the clients of a node, from left to right, of a tree of 10."""
    if node < 10:
        return [node]
    merge = merges[node - 10]
    return below(merges, merge["left"]) + below(merges, merge["right"])


def test_the_tree_joins_all_clients_without_crossings(two_panels: Results) -> None:
    found = dendrogram(two_panels, SIMILARITY)

    assert found is not None
    merges = two_panels.of("trees", SIMILARITY).to_pylist()
    main = two_panels.class_counts("alpha = 0.01", 0).argmax(axis=1)
    assert found["leaves"] == below(merges, 18)
    assert found["classes"] == main[found["leaves"]].tolist()
    for node, link in enumerate(found["links"], start=10):
        left, low, right, other, top, label = link
        classes = {int(main[client]) for client in below(merges, node)}
        assert left < right
        assert top == pytest.approx(merges[node - 10]["height"], rel=1e-4)
        assert top >= max(low, other)
        assert label == (classes.pop() if len(classes) == 1 else -1)


def test_a_large_tree_is_cut_and_what_is_below_is_counted(
    two_panels: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedcohort.report.page_data.MOST_MERGES", 3)

    found = dendrogram(two_panels, SIMILARITY)

    assert found is not None
    assert (len(found["links"]), len(found["leaves"])) == (3, 4)
    assert sum(found["members"]) == 10


def test_a_panel_is_plain_json_with_all_its_parts(two_panels: Results) -> None:
    panel = two_panels.folder.experiment.panels[1]

    content = panel_data(two_panels, panel, most_points=500)

    json.dumps(content, allow_nan=False)
    assert [each["label"] for each in content["designs"]] == [
        "multinomial",
        "size",
        "similarity",
        "similarity l2",
    ]
    assert [each["label"] for each in content["clusters"]] == ["similarity", "similarity l2"]
    assert content["designs"][0]["error"]["x"] == [1, 4, 7, 10]
    raw, smoothed = (content["designs"][0]["curves"]["loss"][kind] for kind in ("raw", "smoothed"))
    assert raw["x"] == list(range(1, 13))
    assert content["half_life"] == 1
    weights = 0.5 ** np.arange(12)[::-1]
    assert smoothed["mean"][-1] == pytest.approx(np.average(raw["mean"], weights=weights), rel=1e-4)


def test_the_loss_stands_against_what_was_spent_until_then(two_panels: Results) -> None:
    panel = two_panels.folder.experiment.panels[0]

    found = panel_data(two_panels, panel, most_points=500)["designs"][1]

    smoothed = found["curves"]["loss"]["smoothed"]
    assert set(found["costs"]) == {"bytes", "client_seconds", "simulated_seconds"}
    for name in ("client_seconds", "simulated_seconds"):
        each = [
            two_panels.column("rounds", PlannedRun(panel.label, "size", s), name) for s in (0, 1)
        ]
        spent = np.cumsum(np.mean(each, axis=0))
        assert found["costs"][name]["mean"] == smoothed["mean"]
        assert found["costs"][name]["x"] == pytest.approx(spent.tolist(), rel=1e-4)


def test_training_time_is_shared_by_the_runs_that_train_together(two_panels: Results) -> None:
    content = panel_data(two_panels, two_panels.folder.experiment.panels[0], most_points=500)

    totals = []
    for seed in (0, 1):
        planned = PlannedRun("alpha = 0.01", "size", seed)
        unit = next(unit for unit in two_panels.folder.units if planned in unit.runs)
        seconds = two_panels.column("rounds", planned, "train_seconds")
        totals.append(seconds.mean() / len(unit.runs))
    assert content["designs"][1]["seconds"]["train_seconds"] == pytest.approx(
        np.mean(totals), rel=1e-4
    )


def test_an_unfinished_run_has_curves_but_no_law(unfinished: Results) -> None:
    content = panel_data(unfinished, unfinished.folder.experiment.panels[0], most_points=500)

    assert content["designs"][0]["curves"]["loss"]["raw"]["x"] == [1, 2, 3, 4, 5]
    clients = client_data(unfinished, unfinished.folder.experiment.panels[0], most_rows=1000)
    found = clients["laws"]["designs"]["multinomial"]
    assert found["inclusion"] == [None, None]
    assert None not in found["observed_inclusion"]


NO_FORMULA = f"""
rounds = 4
cohort_size = 3
{DATA}{TRAINING}
[server]
oracle_every = 2
[[design]]
recipe = "multinomial"
[[design]]
recipe = "balanced"
"""


def test_a_design_without_a_formula_shows_what_was_drawn_but_no_expectation(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    results = read_results(make_run("formula", NO_FORMULA))
    (panel,) = results.folder.experiment.panels
    table = results.of("rounds", PlannedRun(panel.label, "balanced", 0))

    content = panel_data(results, panel, most_points=100)
    write_table(tmp_path / "rounds.csv", table)

    multinomial, balanced = (each["error"] for each in content["designs"])
    assert multinomial["x"] == balanced["x"] == [1, 3]
    assert len(balanced["squared_error"]) == len(balanced["multinomial_variance"]) == 2
    assert (len(multinomial["design_variance"]), balanced["design_variance"]) == (2, [])
    assert all(floor > 0 for each in (multinomial, balanced) for floor in each["design_floor"])
    assert table["design_variance"].null_count == 4
    assert table["multinomial_variance"].null_count == 2
    assert "nan" not in (tmp_path / "rounds.csv").read_text().lower()
    json.dumps(content, allow_nan=False)


def test_a_floor_that_is_missing_in_a_round_is_a_gap(two_panels: Results) -> None:
    """The second training of a seed's round was not finite."""
    panel = two_panels.folder.experiment.panels[0]
    table = two_panels.tables["rounds"]
    lines = zip(table["seed"].to_pylist(), table["round"].to_pylist(), strict=True)
    floors = [
        None if line == (1, 3) else floor
        for line, floor in zip(lines, table["design_floor"].to_pylist(), strict=True)
    ]
    at = table.column_names.index("design_floor")
    column = pa.array(floors, pa.float64())
    rounds = table.set_column(at, "design_floor", column)

    whole, gap = (
        panel_data(each, panel, most_points=500)["designs"][0]["error"]
        for each in (
            two_panels,
            replace(two_panels, tables={**two_panels.tables, "rounds": rounds}),
        )
    )

    assert whole["x"] == gap["x"] == [1, 4, 7, 10]
    assert gap["design_variance"] == whole["design_variance"]
    expected = [None if at == 1 else floor for at, floor in enumerate(whole["design_floor"])]
    assert gap["design_floor"] == expected


def test_the_table_of_clients_equals_plain_loops(two_panels: Results) -> None:
    panel = two_panels.folder.experiment.panels[0]

    found = client_tables(two_panels, panel, most_rows=1000)

    assert (found["n_clients"], found["rounds"], found["left_out"]) == (10, 12, 0)
    assert [each["seed"] for each in found["seeds"]] == [0, 1]
    for seed in (0, 1):
        own = found["seeds"][seed]["designs"]["size"]
        run = PlannedRun(panel.label, "size", seed)
        lines = two_panels.of("cohorts", run).to_pylist()
        last = {line["client"]: line for line in two_panels.of("laws", run).to_pylist()}
        assert "client" not in own  # all clients are there, in order
        for client in range(10):
            weights = [line["weight"] for line in lines if line["client"] == client]
            assert own["drawn"][client] == len(weights)
            assert own["weight"][client] == pytest.approx(sum(weights) / 12, rel=1e-4)
            assert own["loss"][client] == pytest.approx(last[client]["loss"], rel=1e-4)
            assert own["accuracy"][client] == pytest.approx(last[client]["accuracy"], rel=1e-4)


def test_a_page_of_many_clients_keeps_fewer_seeds_and_then_the_worst_served(
    two_panels: Results,
) -> None:
    panel = two_panels.folder.experiment.panels[0]

    one_seed = client_tables(two_panels, panel, most_rows=50)  # 4 designs of 10 clients
    three_clients = client_tables(two_panels, panel, most_rows=12)

    assert (len(one_seed["seeds"]), one_seed["left_out"], one_seed["most"]) == (1, 1, 10)
    assert three_clients["most"] == 3
    for label, all_ in one_seed["seeds"][0]["designs"].items():
        kept = three_clients["seeds"][0]["designs"][label]
        assert kept["accuracy"] == [all_["accuracy"][client] for client in kept["client"]]
        assert sorted(kept["accuracy"]) == sorted(all_["accuracy"])[:3]


def test_the_accuracies_of_clients_go_from_the_lowest_to_the_highest(two_panels: Results) -> None:
    panel = two_panels.folder.experiment.panels[0]

    served = client_data(two_panels, panel, most_rows=1000)["served"]["size"]

    each = [
        two_panels.column("laws", PlannedRun(panel.label, "size", seed), "accuracy")
        for seed in (0, 1)
    ]
    assert (served["x"][0], served["x"][-1]) == (0, 1)
    assert served["mean"][0] == pytest.approx(np.mean([own.min() for own in each]), abs=1e-5)
    assert served["mean"][-1] == pytest.approx(np.mean([own.max() for own in each]), abs=1e-5)
    assert served["mean"][25] == pytest.approx(np.mean([np.median(own) for own in each]), abs=1e-5)


def test_a_run_that_diverged_is_not_called_old(two_panels: Results) -> None:
    rounds, laws = two_panels.tables["rounds"], emptied(two_panels.tables["laws"], "loss")
    at, marks = rounds.column_names.index("diverged"), [[True] * rounds.num_rows]
    own = {"laws": laws, "rounds": rounds.set_column(at, "diverged", marks)}
    broken = replace(two_panels, tables={**two_panels.tables, **own})
    assert missing_note(broken, two_panels.folder.experiment.panels[0]) == ""


def test_what_is_missing_about_clients_is_explained(
    two_panels: Results, unfinished: Results
) -> None:
    older = replace(
        two_panels,
        tables={
            **two_panels.tables,
            "laws": emptied(two_panels.tables["laws"], "loss", "accuracy", "bias"),
            "rounds": emptied(two_panels.tables["rounds"], "worst_accuracy"),
        },
    )
    panel, stopped = (each.folder.experiment.panels[0] for each in (two_panels, unfinished))

    assert missing_note(two_panels, panel) == ""
    assert "are measured when its run ends" in missing_note(unfinished, stopped)
    assert missing_note(older, panel) == (
        "An older version of fedcohort made this run. It did not record each client's loss and "
        "accuracy and the accuracy of the worst tenth of clients: run the experiment again to see "
        "them."
    )
    json.dumps(client_data(older, panel, most_rows=1000), allow_nan=False)


def test_distinct_clients_are_a_share_of_the_draws(two_panels: Results) -> None:
    panel = two_panels.folder.experiment.panels[0]

    content = panel_data(two_panels, panel, most_points=500)["designs"][1]["curves"]

    counts = [
        two_panels.column("rounds", PlannedRun(panel.label, "size", seed), "distinct_clients")
        for seed in (0, 1)
    ]
    expected = (np.mean(counts, axis=0) / 3).tolist()
    assert content["distinct_share"]["raw"]["mean"] == pytest.approx(expected, rel=1e-4)


def test_axes_have_the_unit_that_fits(two_panels: Results) -> None:
    axes = panel_data(two_panels, two_panels.folder.experiment.panels[0], most_points=500)["axes"]

    assert axes["bytes"] == ("data down and up (megabytes)", 1e-6)
    assert axes["client_seconds"] == ("client work (seconds)", 1)
    assert axes["seconds"][0].endswith("seconds a round")
