"""fedcohort.compare: what each design would do for these clients."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from command_line import run
from fedcohort import (
    Comparison,
    Multinomial,
    Population,
    Recipe,
    Selector,
    SizeClustered,
    UpdateMemory,
    compare,
    comparison,
    diagnostics,
    recipe,
)
from fedcohort.comparison.shown import in_seconds, numbers
from fedcohort.designs import Design, Knowledge, MultinomialDesign
from fedcohort.errors import DesignError, FedcohortError, InputError, MissingExtraError
from fedcohort.streams import Stream, stream
from fedcohort.synthetic import clustered_updates
from populations import CIFAR_SIZES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CITIES = {"Nice": 5, "Lyon": 3, "Brest": 2}
#: Recipes that a selector without signals builds.
BUILT = (
    "uniform,cohort-mean,multinomial,poisson,size,similarity,tournament,auto,balanced,stratified"
)


@dataclass(frozen=True)
class Counted(Recipe):
    """Multinomial sampling that counts how often it is built."""

    name: ClassVar[str] = "counted"
    learns: ClassVar[bool] = True
    builds: ClassVar[list[int]] = []

    shift: int = 0

    def design(self, population: Population, known: Knowledge) -> Design:
        self.builds.append(0 if known.memory is None else known.memory.updates.shape[1])
        return MultinomialDesign(population, self.cohort_size)


def whole(found: Comparison) -> str:
    """Return the text with all columns and their meaning."""
    return repr(found.shown(all_columns=True, explain=True))


@pytest.fixture
def updates() -> NDArray[np.float32]:
    return clustered_updates(len(CIFAR_SIZES), seed=0)


def test_the_numbers_are_those_of_the_diagnostics(updates: NDArray[np.float32]) -> None:
    found = compare(CIFAR_SIZES, 10, designs="uniform,multinomial,size,tournament", updates=updates)

    multinomial = found.rows["multinomial"].design
    for row in found.rows.values():
        weights = diagnostics.weight_variance(row.design).sum()
        assert row.unbiased is row.design.unbiased
        assert row.bias == np.abs(diagnostics.bias(row.design)).sum()
        assert row.weight_variance == weights
        assert row.weight_variance_ratio == (
            weights / diagnostics.weight_variance(multinomial).sum()
        )
        chances = diagnostics.inclusion_probability(row.design)
        assert row.smallest_inclusion == chances.min()
        assert row.mean_inclusion == found.population.importance @ chances
        assert row.expected_distinct == diagnostics.expected_distinct(row.design)
        assert row.max_count == diagnostics.max_count(row.design).max()
        variance = diagnostics.aggregate_variance(row.design, updates)
        assert row.aggregate_variance == variance
        assert row.aggregate_variance_ratio == (
            variance / diagnostics.aggregate_variance(multinomial, updates)
        )
        assert (row.aggregate_variance_exact, row.aggregate_variance_standard_error) == (True, 0.0)
        assert min(row.build_seconds, row.draw_seconds) > 0


def test_what_has_no_formula_is_marked_as_estimated(updates: NDArray[np.float32]) -> None:
    found = compare(CIFAR_SIZES, 10, designs="balanced", updates=updates)

    row = found.rows["balanced"]
    assert row.aggregate_variance_exact is False
    assert row.aggregate_variance is not None
    assert row.aggregate_variance_standard_error is not None
    assert 0 < row.aggregate_variance_standard_error < row.aggregate_variance
    assert numbers([row.aggregate_variance], exact=[False])[0] in whole(found)
    assert f"V from 200 drawn cohorts, ± {row.aggregate_variance_standard_error:.2g}" in " ".join(
        whole(found).split()
    )
    assert "by about 7" in found.answer


@pytest.mark.parametrize("name", BUILT.split(","))
def test_each_design_is_the_first_round_of_a_selector(name: str) -> None:
    groups = [k % 4 for k in range(len(CIFAR_SIZES))]

    row = compare(CIFAR_SIZES, 10, designs=name, groups=groups, seed=5).rows[name]

    selector = Selector(row.recipe, CIFAR_SIZES, groups=groups, seed=5)
    drawn, own = selector.draw(), row.design.draw(stream(5, use=Stream.COHORT))
    assert drawn.clients.tolist() == own.clients.tolist()
    assert drawn.weights.tolist() == own.weights.tolist()
    assert selector.design is not None
    expected = selector.design.inclusion_probability()
    assert row.design.inclusion_probability().tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["similarity", "tournament", "auto", "balanced", "divfl"])
def test_with_updates_it_is_what_a_selector_that_remembers_them_builds(
    name: str, updates: NDArray[np.float32]
) -> None:
    memory = UpdateMemory(*updates.shape)
    memory.record(range(len(updates)), updates, round_=0)

    row = compare(CIFAR_SIZES, 10, designs=name, updates=updates, seed=5).rows[name]

    design = Selector(row.recipe, CIFAR_SIZES, seed=5).next_design(memory=memory)
    rounds = [each.draw(stream(5, use=Stream.COHORT)) for each in (row.design, design)]
    assert rounds[0].clients.tolist() == rounds[1].clients.tolist()
    assert row.max_count == design.max_count().max()


def test_norms_of_the_updates_answer_a_recipe_that_asks_for_them() -> None:
    """Norms 3 and 1, equal sizes, one draw: chances 3/4 and 1/4."""
    row = compare([1, 1], 1, designs="norm-optimal", updates=[[3.0], [-1.0]]).rows["norm-optimal"]

    assert row.design.inclusion_probability().tolist() == [0.75, 0.25]


def test_a_recipe_of_ones_own_is_built_once_and_on_the_updates() -> None:
    Counted.builds.clear()

    found = compare([5, 3, 2], 2, designs=[Counted(2), "size"], updates=np.eye(3))

    assert Counted.builds == [3]
    assert list(found.rows) == ["counted", "size"]
    assert found.rows["counted"].weight_variance_ratio == 1.0


def test_a_recipe_made_from_a_function_is_marked_as_estimated() -> None:
    @recipe
    def largest(population: Population, known: Knowledge, rng: np.random.Generator) -> list[int]:
        return [int(np.argmax(population.sizes))]

    found = compare([5, 3, 2], 1, designs=[largest(1), "size"])

    assert [row.weights_exact for row in found.rows.values()] == [False, True]
    line = next(line for line in whole(found).splitlines() if line.startswith("largest"))
    assert line.split()[:6] == ["largest", "~1.000", "~0.000", "~0.000", "~0.000", "~1.00"]
    assert "largest: weights from 1,000 drawn cohorts" in " ".join(whole(found).split())
    assert "~" not in repr(compare([5, 3, 2], 1, designs="size"))


def test_recipes_are_labelled_as_the_command_line_writes_them() -> None:
    recipes = [SizeClustered(2, whole_rows_first=True), Counted(2, shift=3), Multinomial(1)]

    found = compare([5, 3, 2], 2, designs=recipes)

    assert list(found.rows) == [
        "size:whole_rows_first",
        "counted:shift=3",
        "multinomial (m=1)",
    ]
    assert [row.recipe for row in found.rows.values()] == recipes
    assert found.rows["multinomial (m=1)"].weight_variance_ratio == pytest.approx(2.0)


def test_a_mapping_gives_designs_their_labels() -> None:
    found = compare([5, 3, 2], 2, designs={"mine": Counted(2), "theirs": "size:whole_rows_first"})

    assert list(found.rows) == ["mine", "theirs"]
    assert found.rows["theirs"].recipe == SizeClustered(2, whole_rows_first=True)


@pytest.mark.parametrize(
    "designs", ["size,multinomial", " size , multinomial", ("size", "multinomial")]
)
def test_names_are_taken_as_on_the_command_line(designs: str | tuple[str, ...]) -> None:
    assert list(compare([5, 3, 2], 2, designs=designs).rows) == ["size", "multinomial"]


def test_one_recipe_needs_no_list() -> None:
    assert list(compare([5, 3, 2], 2, designs=SizeClustered(2)).rows) == ["size"]


@pytest.mark.parametrize(
    "sizes",
    [[5, 3, 2], np.array([5, 3, 2]), CITIES, Population([5, 3, 2], ids=["Nice", "Lyon", "Brest"])],
)
def test_sizes_are_a_list_an_array_a_mapping_or_a_population(
    sizes: list[int] | NDArray[np.int64] | dict[str, int] | Population,
) -> None:
    found = compare(sizes, 2, designs="size")

    assert found.population.total == 10
    assert found.rows["size"].weight_variance == pytest.approx(0.12)


@pytest.mark.parametrize("by_id", [True, False])
def test_updates_belong_to_the_clients_in_the_order_of_the_sizes(by_id: bool) -> None:
    """Ids are sorted inside; one draw and one odd client: V is p (1 - p) of that client."""
    sizes, rows = {"b": 5, "a": 1, "7": 2}, [[1.0], [0.0], [0.0]]
    updates = dict(zip(sizes, rows, strict=True)) if by_id else rows

    row = compare(sizes, 1, designs="multinomial", updates=updates).rows["multinomial"]

    assert row.aggregate_variance == 15 / 64


def test_an_update_by_id_may_be_a_list_of_arrays() -> None:
    found = compare(
        {"a": 1, "b": 1}, 1, designs="multinomial",
        updates={"b": [np.ones((2, 2)), np.zeros(1)], "a": [np.zeros((2, 2)), np.zeros(1)]},
    )  # fmt: skip

    assert found.dimension == 5
    assert found.rows["multinomial"].aggregate_variance == 1.0


@pytest.mark.parametrize("groups", [["s", "n", "n"], {"Lyon": "n", "Brest": "n", "Nice": "s"}])
def test_with_groups_the_designs_that_need_them_join(groups: list[str] | dict[str, str]) -> None:
    found = compare(CITIES, 2, groups=groups)

    assert list(found.rows)[-2:] == ["stratified", "target"]
    assert dict(zip(found.population.ids, found.population.groups or (), strict=True)) == {
        "Nice": "s",
        "Lyon": "n",
        "Brest": "n",
    }


def test_a_design_that_cannot_be_built_is_left_out_with_a_reason() -> None:
    found = compare([5, 3, 2], 4)

    assert list(found.rows) == ["multinomial", "size", "size:whole_rows_first"]
    assert list(found.left_out) == ["poisson", "uniform:unbiased", "uniform", "cohort-mean"]
    assert found.left_out["poisson"].startswith("draws without replacement, so cohort_size must")


def test_a_design_that_was_named_among_others_is_a_row_with_a_reason() -> None:
    found = compare([5, 3, 2], 4, designs="poisson,size,power-of-choice")

    assert list(found.rows) == ["size"]
    assert list(found.left_out) == ["poisson", "power-of-choice"]
    lines = repr(found).splitlines()
    row = next(line for line in lines if line.startswith("poisson"))
    assert row.split()[:4] == ["poisson", "left", "out:", "draws"]
    assert max(map(len, lines)) <= 80
    assert '<td>poisson</td><td colspan="3">left out: draws without' in found._repr_html_()


def test_if_no_design_can_be_built_the_error_says_why() -> None:
    with pytest.raises(DesignError, match="at most the 3 clients of positive size; got 4"):
        compare([5, 3, 2], 4, designs="poisson")
    with pytest.raises(DesignError, match="none of these 2 designs can be built; poisson: draws"):
        compare([5, 3, 2], 4, designs="poisson,uniform")


def test_the_same_seed_gives_the_same_numbers() -> None:
    def inclusion(seed: int | np.random.Generator | None) -> float:
        return (
            compare(CIFAR_SIZES, 7, designs="similarity", seed=seed)
            .rows["similarity"]
            .mean_inclusion
        )

    assert inclusion(1) == inclusion(1) != inclusion(2)
    assert inclusion(np.random.default_rng(3)) == inclusion(np.random.default_rng(3))
    assert 0 < inclusion(None) < 1


GAIN = (
    "it draws each client as often as its size says and cuts the variance of the weights by 61 % "
    "against multinomial sampling."
)


@pytest.mark.parametrize(
    ("designs", "answer"),
    [
        ("multinomial,size", f"Use size: {GAIN}"),
        ("size", f"size, the only design compared, {GAIN.removeprefix('it ')}"),
        (
            "size,size:whole_rows_first,target,multinomial",
            f"Use size (size:whole_rows_first is equal): {GAIN}",
        ),
        ("size,uniform", f"Use size: {GAIN} uniform has a smaller weight variance, but is biased"),
        (
            "size,cohort-mean",
            f"Use size: {GAIN} cohort-mean, the FedAvg of most frameworks, is biased by 0.11 and "
            f"has 1.6 times this weight variance.",
        ),
        ("uniform", "uniform is biased by 0.33. Compare size as well, which is unbiased."),
        (
            "uniform,cohort-mean",
            "None of these designs is unbiased. Compare size as well, which is.",
        ),
        (
            "poisson",
            "poisson is unbiased and cuts the variance of the weights by 61 % against multinomial "
            "sampling, but its cohort size is random: 2 ± 0.69 clients. Compare size as well",
        ),
        ("multinomial", "multinomial, the only design compared, is the baseline itself. Compare"),
        (
            "uniform:unbiased,multinomial",
            "Use uniform:unbiased: it is unbiased and cuts the variance of the weights by 39 % "
            "against multinomial sampling. tournament, which learns from updates who is alike,",
        ),
    ],
)
def test_the_answer_says_what_to_use_and_why(designs: str, answer: str) -> None:
    assert compare(CITIES, 2, designs=designs).answer.startswith(answer)


@pytest.mark.parametrize(
    ("sizes", "m", "answer"),
    [
        ([5], 1, "Any unbiased design will do: one client has all samples, and multinomial's"),
        ([5, 3, 2], 1, "Use multinomial: none of these unbiased designs lowers the variance"),
        ([7] * 100, 10, "Use size (size:whole_rows_first, uniform:unbiased and cohort-mean are"),
        ([10**6] + [1] * 20, 3, "by only 0.0021 % against multinomial sampling, as one client "),
        ([10**6] + [1] * 20, 3, "poisson would cut it by 99.999 %, but its cohort size is random"),
        ([10**6] + [1] * 20, 3, "is biased by 1.7 and has 28,000 times this weight variance."),
        (CIFAR_SIZES, 10, "poisson would cut it by 12 %, but its cohort size is random: 10 ± 2.9"),
    ],
)
def test_the_answer_is_honest_where_there_is_little_to_gain(
    sizes: list[int], m: int, answer: str
) -> None:
    assert answer in compare(sizes, m).answer


def test_a_design_that_needs_updates_wins_with_the_cheapest_alternative_beside_it(
    updates: NDArray[np.float32],
) -> None:
    found = compare(CIFAR_SIZES, 10, designs="multinomial,size,tournament,auto", updates=updates)

    gains = [
        1 - (found.rows[name].aggregate_variance_ratio or 0) for name in ("tournament", "size")
    ]
    assert found.answer == (
        f"Use tournament (auto is equal): it draws each client as often as its size says and cuts "
        f"V, the mean squared distance of its aggregate from that of all clients, by "
        f"{100 * gains[0]:.2g} % against multinomial sampling. size does it with "
        f"{100 * gains[1]:.2g} % and needs no updates."
    )


def test_groups_do_not_win_by_a_hair() -> None:
    """A design that needs more than sizes must gain a percentage point more."""
    sizes = np.arange(1, 1001)
    found = compare(sizes, 3, groups=[k % 2 for k in range(1000)], designs="target,size")

    size, target = (found.rows[name].weight_variance for name in ("size", "target"))
    assert target < size * (1 - 1e-9)
    assert found.answer.startswith("Use size: ")


def test_equal_updates_leave_nothing_to_gain_if_weights_sum_to_one() -> None:
    designs = "size,multinomial,poisson,uniform:unbiased"
    found = compare(CITIES, 2, designs=designs, updates=np.ones((3, 2)))

    noise = [found.rows[name].aggregate_variance for name in designs.split(",")]
    assert [value is not None and value > 1e-12 for value in noise] == [False, False, True, True]
    assert found.answer == (
        "Any unbiased design whose weights sum to 1 will do: all updates are equal, and "
        "multinomial's V is 0."
    )


def test_biased_designs_come_last_and_are_set_apart() -> None:
    found = compare(CIFAR_SIZES, 10, designs="uniform,size,cohort-mean,multinomial")

    lines = repr(found).splitlines()
    names = [line.partition(" ")[0] for line in lines[6:12]]
    assert names == ["size", "multinomial", "", "biased", "uniform", "cohort-mean"]
    assert list(found.rows) == ["uniform", "size", "cohort-mean", "multinomial"]


def test_a_random_cohort_size_has_its_exact_deviation() -> None:
    """Chances 1, 1/2 and 1/2: a deviation of the square root of 2/4."""
    found = compare([8, 1, 1], 2, designs="poisson,size")

    assert found.rows["poisson"].size_deviation == 0.5**0.5
    assert found.rows["size"].size_deviation == 0
    assert "2.00 ± 0.71" in repr(found)


def test_large_cohorts_are_written_without_an_exponent() -> None:
    answer = compare(np.arange(1, 3000), 2000, designs="poisson").answer

    assert "but its cohort size is random: 2,000 ± 18 clients." in answer


def test_numbers_of_a_column_have_equal_decimals_and_long_names_are_wrapped() -> None:
    name = "a-name-of-thirty-characters-00"
    found = compare(CIFAR_SIZES, 10, designs={name: "size", "md": "multinomial", "p": "poisson"})

    lines = whole(found).splitlines()
    assert max(map(len, lines)) <= 80
    table = lines[6:10]
    assert "".join(line.split()[0] for line in table[:2]) == name
    cells = [line.split()[-7 if "±" not in line else -9 :] for line in table[1:]]
    assert {len(line[1].partition(".")[2]) for line in cells} == {4}
    assert {len(line[2].partition(".")[2]) for line in cells} == {3}


def test_the_cohort_mean_is_compared_over_its_law_with_standard_errors() -> None:
    row = compare(CIFAR_SIZES, 10).rows["cohort-mean"]

    assert not row.weights_exact
    assert row.bias_standard_error is not None
    assert 0 < row.bias_standard_error < 0.01 * row.bias
    assert row.smallest_inclusion == 0.1
    again = compare(CIFAR_SIZES, 10, designs="cohort-mean", seed=9).rows["cohort-mean"]
    assert (again.bias, again.weight_variance) == (row.bias, row.weight_variance)


def test_round_robin_is_compared_over_its_cycle() -> None:
    found = compare(CIFAR_SIZES, 10, designs="round-robin,uniform:unbiased")

    row, uniform = found.rows["round-robin"], found.rows["uniform:unbiased"]
    assert (row.unbiased, row.bias, row.weights_exact) == (False, 0.0, True)
    assert row.weight_variance == pytest.approx(uniform.weight_variance, rel=1e-12)
    assert "a random round of its cycle of 10" in " ".join(repr(found).split())


def test_the_repr_is_the_table_at_80_columns(updates: NDArray[np.float32]) -> None:
    found = compare(CIFAR_SIZES, 10, updates=updates)

    lines = repr(found).splitlines()
    assert lines[0] == "10 draws from 100 clients, 48,500 samples, updates of 64 numbers"
    assert max(map(len, lines)) <= 80
    assert found.answer in " ".join(lines)
    tournament, row = found.rows["tournament"], next(x for x in lines if x.startswith("tournam"))
    values = [f"{tournament.aggregate_variance:.4f}", f"{tournament.aggregate_variance_ratio:.3f}"]
    assert row.split()[:4] == ["tournament", *values, "none"]


def test_labels_are_not_markup() -> None:
    label = "[red]:warning:[/]"

    found = compare(CITIES, 2, designs={label: "size", "fedavg": "uniform"})

    assert f"\n{label} " in repr(found)
    assert f"Use {label}: " in repr(found)


def test_a_notebook_shows_an_escaped_table() -> None:
    found = compare(CITIES, 2, designs={"<b>": "size", "fedavg": "uniform"})

    html = found._repr_html_()
    assert html.count("<tr") == 3
    assert "<tr><td>&lt;b&gt;</td><td>none</td><td>0.387</td>" in html
    assert '<tr style="opacity:0.6"><td>fedavg</td>' in html
    assert "Use &lt;b&gt;: it draws each client" in html


def test_the_frame_has_a_row_per_design_and_nan_for_no_number() -> None:
    pytest.importorskip("pandas")

    frame = compare([5], 1, designs="multinomial,size").to_frame()

    assert frame["design"].tolist() == ["multinomial", "size"]
    assert frame["weight_variance"].tolist() == [0.0, 0.0]
    assert frame["weight_variance_ratio"].isna().all()
    assert not [name for name in frame.columns if name.startswith("aggregate")]


def test_without_pandas_the_frame_is_a_dict_of_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    found = compare(CITIES, 2, designs="multinomial,size", updates=np.eye(3))

    columns = found.to_frame()

    assert list(columns) == [
        "design",
        "unbiased",
        "bias",
        "weight_variance",
        "smallest_inclusion",
        "mean_inclusion",
        "expected_distinct",
        "size_deviation",
        "max_count",
        "weight_variance_ratio",
        "weights_exact",
        "bias_standard_error",
        "weight_variance_standard_error",
        "aggregate_variance",
        "aggregate_variance_exact",
        "aggregate_variance_standard_error",
        "aggregate_variance_ratio",
        "build_seconds",
        "draw_seconds",
    ]
    assert columns["design"].tolist() == ["multinomial", "size"]
    assert columns["max_count"].tolist() == [2, 1]
    assert columns["aggregate_variance"][0] == found.rows["multinomial"].aggregate_variance


def test_progress_sees_every_design_in_turn() -> None:
    seen = []

    def progress(labels: list[str]) -> Iterator[str]:
        for label in labels:
            seen.append(label)
            yield label

    compare([5, 3, 2], 2, designs="size,multinomial", progress=progress)

    assert seen == ["size", "multinomial"]


def test_comparing_needs_neither_rich_nor_matplotlib_and_prints_nothing() -> None:
    program = (
        "import sys, fedcohort; fedcohort.compare([5, 3, 2], 2).answer; "
        "assert not {'rich', 'typer', 'matplotlib', 'pandas'} & set(sys.modules)"
    )

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clients": "x"}, "x: cannot be read"),
        ({"clients": 5}, "sizes must be a flat list of whole numbers"),
        ({"clients": {}}, "sizes must be a flat list of whole numbers.*got nothing"),
        ({"clients": {(1, 2): 5}}, r"compare: ids must be strings or integers; got \(1, 2\)"),
        ({"cohort_size": "three"}, "compare: cohort_size must be a whole number.*'three'"),
        ({"cohort_size": 0}, "compare: cohort_size must be a whole number of at least 1; got 0"),
        ({"seed": -1}, "compare: seed must be a whole number of at least 0"),
        ({"designs": "siz"}, "unknown design 'siz'.*Did you mean 'size'?"),
        ({"designs": ["size:rows=1"]}, "unknown key 'rows'"),
        ({"designs": []}, "compare: designs must name at least one design; got none"),
        ({"designs": {}}, "compare: designs must name at least one design; got none"),
        ({"designs": 3}, "compare: designs must be recipes or their names; got 3"),
        ({"designs": [SizeClustered]}, "compare: designs must be recipes or their names; got"),
        ({"designs": {1: "size"}}, "compare: labels of designs must be strings; got 1"),
        ({"designs": "size,size"}, "compare: 'size' appears twice in designs"),
        ({"designs": "target"}, "needs the group of every client"),
        ({"designs": "power-of-choice"}, "needs the signal 'loss'"),
        ({"updates": [[1.0], [np.nan], [2.0]]}, "updates must be finite.*client 1"),
        ({"updates": [1.0, 2.0, 3.0]}, r"shape \(3, dimension\)"),
        ({"updates": np.zeros((2, 4))}, r"shape \(3, dimension\).*of shape \(2, 4\)"),
        ({"updates": ["a", "b", "c"]}, r"compare: updates must be real numbers"),
        ({"updates": "abc"}, r"abc: cannot be read"),
        ({"updates": {0: [1.0], 1: [2.0]}}, "must have one for every client; 1 are missing.*of 2"),
        ({"updates": {0: [1.0], 1: [2.0], 7: [0.0]}}, "updates has an entry for 7, which is not a"),
        ({"updates": {0: [1.0], 1: [np.inf], 2: [0.0]}}, "finite; that of client 1 is not"),
        ({"updates": {0: [1.0], 1: [1.0, 2.0], 2: [0.0]}}, "shape"),
        ({"groups": ["a", "b"]}, "groups must be one label per client, 3; got 2"),
        ({"groups": {5: "a"}}, "groups has an entry for 5, which is not a client's id"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_sentence(
    arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(FedcohortError, match=message) as refusal:
        compare(**{"clients": [5, 3, 2], "cohort_size": 2, **arguments})  # type: ignore[arg-type]

    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("as_series", [False, True])
def test_names_of_totals_and_names_that_look_alike_are_noted(as_series: bool) -> None:
    sizes: Any = {"Nice": 5, "Lyon": 3, "NICE": 2, "Total": 10}
    if as_series:
        sizes = pytest.importorskip("pandas", reason="pandas is not installed").Series(sizes)

    found = compare(sizes, 2, designs="size,multinomial")

    assert found.population.ids == ["Lyon", "NICE", "Nice", "Total"]
    assert found.row_notes == (
        "clients, client 3: 'Total' is the name of a total. It counts as a client; drop it if it "
        "is none.",
        "clients, client 2: 'NICE' and 'Nice' on client 0 differ only in case, accents, spaces or "
        "punctuation. If they are one client, add up their sizes.",
    )
    assert "'Total' is the name of a total" in repr(found)
    assert compare(CITIES, 2, designs="size,multinomial").row_notes == ()


def test_a_series_has_names_unless_its_index_only_counts() -> None:
    series = pytest.importorskip("pandas", reason="pandas is not installed").Series

    plain = compare(series([5, 3, 2]), 2, designs="size")
    some = compare(series([5, 3, 2])[[0, 2]], 2, designs="size")

    assert plain.population.ids == range(3)
    assert list(some.population.ids) == [0, 2]
    with pytest.raises(FedcohortError, match="ids must be distinct; 'Nice' appears"):
        compare(series([5, 3], index=["Nice", "Nice"]), 2)


def test_the_room_suggests_names_as_the_top_level_does() -> None:
    with pytest.raises(TypeError, match=r"unknown argument 'm'.* Did you mean 'cohort_size'"):
        comparison.compare(CITIES, m=2)  # type: ignore[call-arg]


def test_one_draw_from_one_client_is_no_plural() -> None:
    assert repr(compare({"Nice": 1}, 1, designs="size")).startswith("1 draw from 1 client, 1 sam")


def test_short_numbers_and_times() -> None:
    assert numbers([0, 1.2345, 1.0, 9.9721, None]) == ["0.00", "1.23", "1.00", "9.97", "-"]
    assert numbers([0.5, 123456.7], places=3) == ["0.500", "1.23e5"]
    assert numbers([1.23e-5, 1e-3, 0.25], places=3) == ["<0.001", "0.001", "0.250"]
    assert numbers([1.26e-12, 4.1e-9]) == ["1.26e-12", "4.10e-9"]
    assert numbers([0.5, 409999990.055]) == ["5.00e-1", "4.10e8"]
    assert [in_seconds(s) for s in (2.0, 1.0, 5e-3, 0.181, 5e-6, 9.9996e-4, 123.4)] == [
        "2 s",
        "1 s",
        "5 ms",
        "181 ms",
        "5 us",
        "1 ms",
        "123 s",
    ]


class TestPlot:
    """Comparison.plot: the chance to be in the cohort against the client's size."""

    @pytest.fixture(autouse=True)
    def _needs_matplotlib(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")
        monkeypatch.setenv("MPLBACKEND", "agg")

    def test_chances_are_drawn_against_sizes_for_each_design(self, tmp_path: Path) -> None:
        found = compare([*CIFAR_SIZES, 0], 10, designs={"md": "multinomial", "fedavg": "uniform"})

        axes = found.plot(tmp_path / "chances.png")

        assert [line.get_label() for line in axes.lines] == ["md", "fedavg"]
        sizes, chances = map(np.asarray, axes.lines[0].get_data())
        assert sizes.tolist() == [100, 250, 500, 750, 1000]
        inclusion = diagnostics.inclusion_probability(found.rows["md"].design)
        assert chances.tolist() == [inclusion[CIFAR_SIZES.index(size)] for size in sizes]
        assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "linear")
        assert [file.name for file in tmp_path.iterdir()] == ["chances.png"]
        assert (tmp_path / "chances.png").read_bytes().startswith(b"\x89PNG")

    def test_the_figure_has_a_title_and_a_bar_for_each_ratio(self, tmp_path: Path) -> None:
        found = compare(CIFAR_SIZES, 10, designs="uniform,multinomial,size")

        figure = found.plot(tmp_path / "x.svg").figure

        bars = figure.axes[-1]
        assert figure.get_suptitle() == "10 draws from 100 clients, 48,500 samples"
        names = [label.get_text() for label in bars.get_yticklabels()]
        assert names == ["multinomial", "size", "uniform"]
        widths = [patch.get_width() for patch in bars.patches]  # type: ignore[attr-defined]
        ratios = [found.rows[name].weight_variance_ratio for name in names]
        assert widths == pytest.approx(ratios, rel=1e-12)
        assert [text.get_text() for text in bars.texts] == ["1.00", "0.89", "0.01  biased"]

    def test_drawing_again_gives_the_same_bytes(self, tmp_path: Path) -> None:
        found = compare(CIFAR_SIZES, 10, designs="multinomial,size")

        for suffix in (".png", ".svg", ".pdf"):
            found.plot(tmp_path / f"a{suffix}")
            found.plot(tmp_path / f"b{suffix}")
            assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()

    def test_designs_that_coincide_share_a_line(self) -> None:
        axes = _drawn(compare(CIFAR_SIZES, 10, designs="uniform,cohort-mean,multinomial"))

        assert [line.get_label() for line in axes.lines] == ["uniform, cohort-mean", "multinomial"]

    def test_many_sizes_are_a_line_and_a_band_without_markers(self) -> None:
        """Clients of similar size differ by the draws of their group."""
        rng = np.random.default_rng(0)
        sizes, groups = rng.integers(1000, 1100, size=2000), rng.integers(5, size=2000).tolist()

        axes = _drawn(compare(sizes, 8, designs="stratified", groups=groups))

        (line,) = axes.lines
        assert len(np.asarray(line.get_xdata())) <= 40
        assert line.get_marker() in ("", "None")
        assert len(axes.collections) == 1

    def test_small_sizes_have_whole_numbers_on_the_axis(self) -> None:
        axes = _drawn(compare([5, 3, 2], 2, designs="multinomial"))

        assert all(tick == int(tick) for tick in axes.get_xticks())

    def test_sizes_of_many_orders_get_a_logarithmic_axis(self) -> None:
        axes = _drawn(compare([1, 10, 1000], 2, designs="multinomial"))

        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")

    def test_small_chances_are_not_rounded_away(self) -> None:
        axes = _drawn(compare(np.arange(1, 50_001), 10, designs="multinomial"))

        sizes, chances = map(np.asarray, axes.lines[0].get_data())
        assert chances == pytest.approx(10 * sizes / (25_000 * 50_001), rel=0.01)

    def test_a_client_that_is_never_drawn_has_chance_0(self) -> None:
        updates = [[1.0], [1.0], [0.0]]
        axes = _drawn(compare([5000, 3, 2], 1, designs="norm-optimal", updates=updates))

        _, chances = map(np.asarray, axes.lines[0].get_data())
        assert chances[0] == 0
        assert axes.get_yscale() == "linear"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"ax": 3}, "Comparison.plot: ax must be axes of matplotlib; got 3"),
            ({"path": 3}, "Comparison.plot: path must be a file name that ends in .png, .svg"),
            ({"path": ""}, "Comparison.plot: path must end in .png, .svg, .pdf; got ''"),
            ({"path": "\ud800.png"}, "Comparison.plot: path must be a path; got"),
        ],
    )
    def test_nonsense_is_refused_in_one_sentence(
        self, arguments: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(InputError, match=message):
            compare([5, 3, 2], 1).plot(**arguments)

    def test_without_axes_a_new_figure_is_shown(self) -> None:
        from matplotlib import pyplot

        axes = compare([5, 3, 2], 1).plot()

        assert axes.figure is pyplot.gcf()
        pyplot.close()

    def test_another_suffix_is_refused_before_anything_is_drawn(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"Comparison.plot: path must end in .png, .svg, .pdf"):
            compare([5, 3, 2], 1).plot(tmp_path / "x.gif")

        assert not list(tmp_path.iterdir())


def test_without_matplotlib_a_plot_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(MissingExtraError, match=r"Comparison.plot: needs matplotlib.*\[report\]"):
        compare([5, 3, 2], 1).plot()


def _drawn(found: Comparison) -> "Axes":
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    assert found.plot(ax=axes) is axes
    return axes


def test_masked_updates_are_refused() -> None:
    updates = np.ma.array([[1.0], [2.0], [3.0]], mask=[[False], [True], [False]])

    with pytest.raises(DesignError, match="updates must be known of every client"):
        compare([5, 3, 2], 1, updates=updates)


def test_tensors_are_updates_with_and_without_gradients() -> None:
    torch = pytest.importorskip("torch")
    updates = [[1.0], [2.0], [4.0]]

    found = compare([5, 3, 2], 1, designs="size", updates=torch.tensor(updates, requires_grad=True))

    plain = compare([5, 3, 2], 1, designs="size", updates=np.array(updates, dtype=np.float32))
    assert found.rows["size"].aggregate_variance == plain.rows["size"].aggregate_variance


class Columns:
    """What a data frame of any library has: names of columns, and the columns."""

    def __init__(self, **columns: list[object]) -> None:
        self.columns = list(columns)
        self._columns = columns

    def __getitem__(self, name: str) -> list[object]:
        return self._columns[name]


class TestFilesAndFrames:
    """compare("file.csv", 10) and compare(frame, 10), through the reader of the command line."""

    @pytest.mark.parametrize("kind", [str, Path])
    def test_clients_may_be_a_file(self, kind: type[str] | type[Path], tmp_path: Path) -> None:
        file = tmp_path / "hospitals.csv"
        file.write_text("hospital;region;n\nNice;S;5\nLyon;S;3\nBrest;N;1\n")

        found = compare(kind(file), 2, designs="size")

        assert list(found.population.ids) == ["Brest", "Lyon", "Nice"]
        assert found.population.sizes.tolist() == [1, 3, 5]
        assert found.population.groups == ("N", "S", "S")
        assert found.notes == []

    def test_the_numbers_are_those_of_the_command_line(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file, updates = tmp_path / "hospitals.csv", tmp_path / "updates.npy"
        file.write_text("hospital,n\nNice,5\nLyon,3\nBrest,1\nTotal,9\n")
        np.save(updates, np.eye(3))

        found = compare(file, 2, designs="size", updates=updates)

        options = ("-m", 2, "-d", "size", "--updates", updates, "--json")
        printed = json.loads(run(capsys, "compare", file, *options).out)
        assert printed["notes"] == found.notes
        assert printed["designs"][0]["aggregate_variance"] == found.rows["size"].aggregate_variance

    def test_a_total_is_left_out_and_named_in_the_log_the_notes_and_the_table(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        file = tmp_path / "a.csv"
        file.write_text("hospital,n\nNice,5\nLyon,3\nBrest,1\nTotal,9\n")

        found = compare(file, 2, designs="size")

        note = f"{file}: left out 1 total: 'Total, 9' (line 5)."
        assert found.population.n_clients == 3
        assert found.notes == [note]
        assert [record.message for record in caplog.records if record.levelno > 20] == [note]
        assert note in " ".join(repr(found).split())

    def test_any_object_with_columns_is_a_frame(self) -> None:
        frame = Columns(site=["Nice", "Lyon", "Brest"], beds=[9, 9, 9], n_samples=[5, 3, "1"])

        found = compare(frame, 2, designs="size")

        assert dict(zip(found.population.ids, found.population.sizes.tolist(), strict=True)) == {
            "Nice": 5,
            "Lyon": 3,
            "Brest": 1,
        }

    def test_a_frame_of_pandas(self) -> None:
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame({"n": [5, 3, 1], "group": ["S", "S", None]})

        found = compare(frame, 2, designs="size")

        assert found.population.ids == range(3)
        assert found.population.sizes.tolist() == [5, 3, 1]
        assert found.population.groups == ("S", "S", "unlabelled")

    def test_a_table_of_pyarrow(self) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        table = pyarrow.table({"client": ["a", "b", "c"], "count": [5, 3, 1]})

        assert list(compare(table, 2, designs="size").population.ids) == ["a", "b", "c"]

    @pytest.mark.parametrize("has_column", [True, False])
    def test_an_index_of_pandas_has_ids_and_totals(self, has_column: bool) -> None:
        """``frame.loc["Total"] = frame.sum()`` also adds up the names."""
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame({"site": ["a", "b", "c"], "n": [5, 3, 1]})
        if not has_column:
            frame = frame.set_index("site")
        frame.loc["Total"] = frame.sum()

        found = compare(frame, 2, designs="size")

        assert list(found.population.ids) == ["a", "b", "c"]
        assert "left out 1 total: 'Total, " in found.notes[0]

    def test_every_level_of_an_index_is_a_column(self) -> None:
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(
            {"region": ["N", "N", "S"], "site": ["a", "b", "c"], "n": [5, 3, 1]}
        )

        found = compare(frame.groupby(["region", "site"]).sum(), 2, designs="size")

        assert list(found.population.ids) == ["a", "b", "c"]
        assert found.population.groups == ("N", "N", "S")

    @pytest.mark.parametrize(
        ("frame", "message"),
        [
            (
                Columns(beds=[5, 3], staff=[1, 9]),
                r"Columns: needs a column of sizes.*read_clients\(..., size_column='beds' or 'sta",
            ),
            (Columns(n=[5, 3], count=[5, 3]), "Columns: needs one column of sizes; got count, n"),
            (Columns(n=[5, 1.5]), "Columns, row 1: n must be a whole number; got 1.5"),
            (Columns(n=[5, float("nan")]), "Columns, row 1: n must be a whole number; it is empty"),
            (Columns(n=[]), "Columns: needs at least one client; got none"),
            (Columns(), "Columns: needs a column of sizes"),
        ],
    )
    def test_a_frame_without_sizes_is_refused_in_one_sentence(
        self, frame: Columns, message: str
    ) -> None:
        with pytest.raises(InputError, match=message):
            compare(frame, 2)

    def test_two_columns_of_one_name_are_refused(self) -> None:
        pandas = pytest.importorskip("pandas")

        with pytest.raises(InputError, match="DataFrame: needs distinct names of columns; 'x'"):
            compare(pandas.DataFrame([[5, 1, 2]], columns=["n", "x", "x"]), 1)


def test_the_index_of_groups_and_updates_names_the_clients() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    sizes = {"a": 4, "b": 3, "c": 2, "d": 1}
    labels = {"d": "x", "c": "x", "b": "y", "a": "y"}
    updates = {"d": [0.0, 1], "c": [0.0, 2], "b": [3.0, 0], "a": [4.0, 0]}

    frame = pandas.DataFrame.from_dict(updates, orient="index")
    by_index = compare(sizes, 2, groups=pandas.Series(labels), updates=frame)
    by_id = compare(sizes, 2, groups=labels, updates=updates)
    population = Population(pandas.Series(sizes), groups=pandas.Series(labels))

    assert by_index.population.groups == by_id.population.groups == ("y", "y", "x", "x")
    assert population.groups == ("y", "y", "x", "x")
    seconds = ["build_seconds", "draw_seconds"]
    assert by_index.to_frame().drop(columns=seconds).equals(by_id.to_frame().drop(columns=seconds))
