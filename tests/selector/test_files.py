"""Checkpoints of a selector: going on bit for bit, and files that are refused."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcohort import (
    Balanced,
    Cohort,
    Difference,
    Multinomial,
    Oort,
    Poisson,
    Population,
    PowerOfChoice,
    Recipe,
    Regression,
    RoundRobin,
    Selector,
    SimilarityClustered,
    SizeClustered,
    Stratified,
    Tournament,
    Uniform,
    recipe,
)
from fedcohort._archive import write_archive
from fedcohort.designs import Knowledge
from fedcohort.errors import FedcohortError, SelectorError
from fedcohort.selector.files import KIND
from selectors_for_tests import SIZES, Largest, Rotating, drawn, frozen, played, updates_for

ROUNDS = 7
GIVEN = {each: [k, "north" if k % 2 else "south"] for k, each in enumerate(SIZES)}
RUNS: list[tuple[Recipe, dict[str, Any]]] = [
    (SizeClustered(3), {}),
    (Uniform(3), {"estimator": "difference"}),
    (Multinomial(3), {"on_failure": "redraw"}),
    (Poisson(2), {"estimator": Difference(0.5, keep="rank", rank=2)}),
    (SimilarityClustered(3), {"sketch": 2, "estimator": "difference"}),
    (SimilarityClustered(3), {"estimator": "regression"}),
    (Poisson(2), {"estimator": Regression(GIVEN, keep=None)}),
    (SizeClustered(3), {"estimator": Regression(GIVEN, keep="rank", rank=2)}),
    (SimilarityClustered(3), {"overlap": True}),
    (Tournament(3), {"overlap": True, "sketch": 3}),
    (Balanced(3), {}),
    (Stratified(3), {"groups": dict(zip(SIZES, "xyxyxy", strict=True))}),
    (RoundRobin(2), {}),
    (PowerOfChoice(2, candidates=3), {}),
    (Oort(2), {"estimator": "difference"}),
    (Largest(2), {}),
    (Rotating(1), {"importance": dict(zip(SIZES, [0.5, 0.1, 0.1, 0.1, 0.1, 0.1], strict=True))}),
]


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def opened(selector: Selector) -> Cohort:
    """Open a round; who is there, and what they answer, depends on the round alone."""
    away = list(SIZES)[selector.round_ % 7] if selector.round_ % 7 < 6 else None
    request = selector.ask([each for each in selector.clients if each != away])
    signals: dict[str, Any] | None = None
    if request is not None:
        signals = {request.signal: {each: 1.0 + ord(str(each)) % 3 for each in request.ids}}
    return selector.draw(signals=signals)


def end(selector: Selector, cohort: Cohort) -> None:
    """End a round; one client in four fails, and others may stand in for it."""
    fails = list(SIZES)[selector.round_ % 4]
    selector.redraw([fails] if fails in cohort.ids else [])
    answering = [each for each in selector.asked if each != fails]
    losses = np.array([ord(str(each)) % 5 for each in answering], dtype=float)
    rows = losses[:, None] + [0.0, selector.round_, 0.5]
    selector.aggregate(rows, answering, losses=losses, durations=losses)


def uninterrupted(recipe: Recipe, arguments: dict[str, Any]) -> tuple[list[Any], Any]:
    selector = Selector(recipe, SIZES, seed=5, log=True, **arguments)
    cohorts = []
    for _ in range(ROUNDS):
        cohorts.append(opened(selector))
        end(selector, cohorts[-1])
    return drawn(cohorts), frozen(selector)


@pytest.mark.parametrize(("recipe", "arguments"), RUNS, ids=str)
def test_a_run_that_is_loaded_in_every_round_ends_as_if_never_saved(
    recipe: Recipe, arguments: dict[str, Any], tmp_path: Path
) -> None:
    """Between rounds and within: the draw that was open comes again."""
    expected, last = uninterrupted(recipe, arguments)
    own = recipe if isinstance(recipe, (Largest, Rotating)) else None
    path, cohorts = tmp_path / "selector", []
    Selector(recipe, SIZES, seed=5, log=True, **arguments).save(path)
    for _ in range(ROUNDS):
        selector = Selector.load(path, recipe=own, log=True)
        first = opened(selector)
        selector.save(path)
        selector = Selector.load(path, recipe=own, log=True)
        assert selector.cohort is None
        cohorts.append(opened(selector))
        assert drawn([first]) == drawn(cohorts[-1:])
        end(selector, cohorts[-1])
        selector.save(path)

    assert drawn(cohorts) == expected
    assert frozen(Selector.load(path, recipe=own, log=True)) == last


def test_a_round_that_was_prepared_can_be_saved(tmp_path: Path) -> None:
    expected = played(Selector(Tournament(3), SIZES, seed=5, overlap=True), 6)
    selector, cohorts = Selector(Tournament(3), SIZES, seed=5, overlap=True), []
    with ThreadPoolExecutor(1) as pool:
        for _ in range(6):
            selector.draw()
            selector.prepare(pool)
            selector.save(tmp_path / "selector")
            selector = Selector.load(tmp_path / "selector")
            cohorts.append(selector.draw())
            selector.prepare(pool)
            selector.aggregate(updates_for(cohorts[-1]))

    assert drawn(cohorts) == drawn(expected)


def test_a_state_is_a_copy_and_can_be_restored_again() -> None:
    selector = Selector(SimilarityClustered(3), SIZES, seed=5, estimator="difference", log=True)
    played(selector, 3)
    state, before = selector.state(), frozen(selector)

    first = drawn(played(selector, 3))
    selector.restore(state)

    assert frozen(selector) == before
    assert drawn(played(selector, 3)) == first
    selector.restore(state)
    assert frozen(selector) == before


def test_clients_that_have_not_come_yet_keep_their_labels_and_shares(tmp_path: Path) -> None:
    groups = {"a": "x", "late": "y"}
    shares = {"a": 0.5, "late": 0.5}
    Selector(SizeClustered(2), {}, seed=0, groups=groups, importance=shares).save(tmp_path / "s")

    selector = Selector.load(tmp_path / "s")
    selector.clients = {"late": 1, "a": 3}

    assert selector.population.groups == ("x", "y")
    assert selector.population.importance.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("clients", [["a"], list(SIZES)])
def test_what_was_forgotten_can_be_saved(clients: list[str], tmp_path: Path) -> None:
    selector = Selector(SimilarityClustered(2), SIZES, seed=0, estimator="difference", log=True)
    played(selector, 4)
    selector.forget(clients)

    selector.save(tmp_path / "s")

    assert frozen(Selector.load(tmp_path / "s", log=True)) == frozen(selector)


def test_only_the_owner_may_read_a_file(tmp_path: Path) -> None:
    path = tmp_path / "selector"
    path.write_text("older, and open to all")
    path.chmod(0o644)
    (tmp_path / ".selector.part").write_text("left by a process that was killed")

    Selector(SizeClustered(2), SIZES, seed=0).save(path)

    assert path.stat().st_mode & 0o777 == 0o600
    assert files_in(tmp_path) == ["selector"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)

    with pytest.raises(FedcohortError, match="cannot be written"):
        Selector(SizeClustered(2), SIZES, seed=0).save(tmp_path / "selector")
    assert files_in(tmp_path) == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FedcohortError, match=r"none/selector: cannot be written \(no such file"):
        Selector(SizeClustered(2), SIZES, seed=0).save(tmp_path / "none" / "selector")
    assert files_in(tmp_path) == []


def test_what_fails_while_it_is_written_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "selector"
    Selector(SizeClustered(2), SIZES, seed=0).save(path)
    before = path.read_bytes()
    monkeypatch.setattr("fedcohort._whole_file._sync", full)

    with pytest.raises(FedcohortError, match="no space left on device"):
        Selector(SizeClustered(2), SIZES, seed=1).save(path)
    assert path.read_bytes() == before
    assert files_in(tmp_path) == ["selector"]


def damaged(content: bytes, kind: str) -> bytes:
    middle = len(content) // 2
    return {
        "empty": b"",
        "foreign": b"PK\x03\x04" + content,
        "pickle": pickle.dumps([1, 2, 3]),
        "other version": content.replace(b"archive 1", b"archive 9", 1),
        "truncated": content[:middle],
        "one byte less": content[:-1],
        "one byte more": content + b"!",
        "one bit": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "head only": b"fedcohort archive 1\n",
        "earlier layout": b"fedcohort selector 1\n" + content,
    }[kind]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("empty", "it is not an archive of fedcohort"),
        ("foreign", "it is not an archive of fedcohort"),
        ("pickle", "it is not an archive of fedcohort"),
        ("other version", "it is not an archive of fedcohort"),
        ("earlier layout", "it is not an archive of fedcohort"),
        ("truncated", "it is damaged"),
        ("one byte less", "it is damaged"),
        ("one byte more", "it is damaged"),
        ("one bit", "it is damaged"),
        ("head only", "it is damaged"),
    ],
)
def test_a_foreign_or_damaged_file_is_refused_in_a_sentence(
    kind: str, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "selector"
    Selector(SizeClustered(2), SIZES, seed=0).save(path)
    path.write_bytes(damaged(path.read_bytes(), kind))

    with pytest.raises(SelectorError, match=rf"selector cannot be used \({reason}\)\. Load"):
        Selector.load(path)


def test_a_file_whose_state_does_not_fit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "selector"
    state = Selector(SizeClustered(2), SIZES, seed=0).state()
    write_archive(path, KIND, {**state, "roster.sizes": np.array([-1] * 6)})

    with pytest.raises(
        SelectorError, match=r"selector cannot be used \(sizes must not be negative"
    ):
        Selector.load(path)


def test_a_log_of_a_design_without_a_formula_can_be_loaded(tmp_path: Path) -> None:
    @recipe
    def newest(population: Population, known: Knowledge, rng: np.random.Generator) -> Any:
        return np.flatnonzero(population.sizes)[-known.cohort_size :]

    selector = Selector(newest(2), SIZES, seed=5, log=True)
    played(selector, 3)
    selector.save(tmp_path / "selector")
    loaded = Selector.load(tmp_path / "selector", recipe=newest(2), log=True)

    assert frozen(loaded) == frozen(selector)
    assert loaded.selections is not None
    assert np.isnan(loaded.selections.expected).all()
    assert loaded.selections.drawn.sum() == 6


def test_the_summary_of_a_log_takes_unknown_numbers_as_no_surprise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    selector = Selector(SizeClustered(2), SIZES, seed=5, log=True)
    played(selector, 3)
    assert selector.selections is not None
    selector.selections.expected[0] = np.nan
    with caplog.at_level("INFO", logger="fedcohort"):
        selector.selections.log_summary()

    named = [line for line in caplog.messages if line.startswith("client ")]
    assert named[-1].startswith(f"client {selector.population.ids[0]}: ")


def test_a_missing_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SelectorError, match=r"cannot be used \(no such file or directory\)"):
        Selector.load(tmp_path / "none")


#: A state without these is one of another selector: of clients 0 ... n - 1, without labels.
#: Or it is whole: products are computed again, settings are the selector's own.
OPTIONAL: tuple[str, ...] = (
    *("roster.ids", "roster.units", "roster.labels", "roster.coming_"),
    "records.memory.products",
)


def bad_states(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield states of which one array is missing, of another shape, or of nonsense."""
    for name, array in state.items():
        if not name.startswith(OPTIONAL):
            yield {key: each for key, each in state.items() if key != name}
        if array.shape:
            yield {**state, name: array[:-1]}
            if array.dtype != np.uint8:  # a text is the same in every shape
                yield {**state, name: array[None]}
            yield {**state, name: np.full(array.shape, "x")}
            yield {**state, name: np.array(3)}
        if (
            array.size
            and array.dtype.kind == "f"
            and not name.startswith(("records.signal.", "records.own."))
        ):
            bad = np.inf if name == "log.expected" else np.nan
            yield {**state, name: np.full(array.shape, bad)}


@pytest.mark.parametrize(("recipe", "arguments"), RUNS, ids=str)
def test_a_state_that_is_not_whole_is_refused_and_changes_nothing(
    recipe: Recipe, arguments: dict[str, Any]
) -> None:
    selector = Selector(recipe, SIZES, seed=5, log=True, **arguments)
    for _ in range(3):
        end(selector, opened(selector))
    state, before = selector.state(), frozen(selector)

    for bad in bad_states(state):
        with pytest.raises(SelectorError, match="this is not the state of a selector") as found:
            selector.restore(bad)
        assert "\n" not in str(found.value)
        assert frozen(selector) == before


@pytest.mark.parametrize("state", [{}, {"head": np.zeros(3, np.uint8)}, {"head": 3}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(SelectorError, match="this is not the state of a selector"):
        Selector(SizeClustered(2), SIZES, seed=0).restore(state)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("recipe", {"recipe": Tournament(3)}),
        ("recipe", {"recipe": SimilarityClustered(2)}),
        ("recipe", {"recipe": SimilarityClustered(3, measure="l2")}),
        ("recipe", {"recipe": Largest(3)}),
        ("seed", {"seed": 6}),
        ("estimator", {"estimator": "plain"}),
        ("estimator", {"estimator": Difference(0.5)}),
        ("sketch", {"sketch": 3}),
        ("on_failure", {"on_failure": "renormalise"}),
        ("extra", {"extra": 1}),
        ("max_norm", {"max_norm": "auto"}),
        ("overlap", {"overlap": True}),
    ],
    ids=str,
)
def test_the_state_of_another_selector_is_refused(name: str, other: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {
        "recipe": SimilarityClustered(3),
        "clients": SIZES,
        "seed": 5,
        "estimator": "difference",
        "sketch": 2,
    }
    state = Selector(**arguments).state()
    selector = Selector(**{**arguments, **other})
    played(selector, 2)
    before = frozen(selector)

    with pytest.raises(SelectorError, match=rf"written with another {name}, .*Use the same one\."):
        selector.restore(state)
    assert frozen(selector) == before


def test_a_recipe_of_ones_own_must_be_given_again(tmp_path: Path) -> None:
    Selector(Largest(2), SIZES, seed=0).save(tmp_path / "s")

    with pytest.raises(SelectorError, match=r"Largest\(cohort_size=2\)\. Pass it as recipe="):
        Selector.load(tmp_path / "s")
    with pytest.raises(SelectorError, match="written with another recipe"):
        Selector.load(tmp_path / "s", recipe=Largest(3))
    assert Selector.load(tmp_path / "s", recipe=Largest(2)).recipe == Largest(2)


@pytest.mark.parametrize("estimator", [Difference(), Regression(None, keep=None)], ids=repr)
@pytest.mark.parametrize("kind", ["float16", "float64", "torch.float32", "torch.bfloat16"])
def test_the_step_of_an_empty_cohort_keeps_its_kind_and_type(
    kind: str, estimator: Any, tmp_path: Path
) -> None:
    def update(n: int) -> list[Any]:
        if not kind.startswith("torch."):
            return [np.full(n, 1 / 3, dtype=kind), np.array(2)]
        torch = pytest.importorskip("torch", reason="the extra 'sim' is not installed")
        dtype = getattr(torch, kind.removeprefix("torch."))
        return [torch.full((n,), 1 / 3, dtype=dtype), torch.tensor(2)]

    selector = Selector(Poisson(1), [1] * 3, seed=0, estimator=estimator)
    while len(cohort := selector.draw()) or selector.estimator is None:
        selector.aggregate({each: update(4) for each in cohort.ids})
    selector.save(tmp_path / "state")
    loaded = Selector.load(tmp_path / "state")
    loaded.draw()

    before, after = selector.step({}), loaded.step({})
    averaged = [list(each.for_average({})) for each in (selector, loaded)]
    assert [str(own.dtype) for own in after] == [kind, str(update(1)[1].dtype)]
    assert [type(own) for own in after] == [type(own) for own in update(1)]
    assert [own.tolist() for own in after] == [own.tolist() for own in before]
    assert str(averaged[0]) == str(averaged[1])


def test_a_state_of_tensors_can_be_read_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", reason="the extra 'sim' is not installed")
    selector = Selector(Poisson(1), [1] * 3, seed=0, estimator="difference")
    while len(cohort := selector.draw()) or selector.estimator is None:
        selector.aggregate({each: torch.ones(2, dtype=torch.bfloat16) for each in cohort.ids})
    selector.save(tmp_path / "state")
    monkeypatch.setitem(sys.modules, "torch", None)
    loaded = Selector.load(tmp_path / "state")
    loaded.draw()

    step = loaded.step({})
    assert isinstance(step, np.ndarray)
    assert step.dtype == np.float32
