"""FLARE's FedAvg with drawn clients: kinds of parameters, sizes, failures, figures, restarts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="the extra 'nvflare' is not installed")

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.workflows.fedavg import FedAvg

from fedcohort import Multinomial, Selector, SizeClustered
from fedcohort.errors import DeploymentError, NvflareError
from fedcohort.nvflare import CohortController, CohortSelection, Limits
from fedcohort.optimizers import Adam
from flare.in_process import Clock, Federation, adding, lines

SIZES = {"a": 30, "b": 20, "c": 10}
STEPS = {"a": np.array([1.0, 0.0]), "b": np.array([0.0, 1.0]), "c": np.array([-1.0, 2.0])}
START = np.array([5.0, 5.0])


def federation(folder: Path, **others: Any) -> Federation:
    clients = {name: adding(SIZES[name], STEPS[name]) for name in SIZES}
    return Federation({**clients, **others}, folder)


def made(**settings: Any) -> CohortController:
    given = {"recipe": SizeClustered(2), "seed": 1, "num_rounds": 3, "log_file": "log"}
    return CohortController(**{**given, **settings})


def by_hand(rounds: int) -> list[Any]:
    """Return the models of a plain loop."""
    selector, model, found = Selector(SizeClustered(2), SIZES, seed=1), START, []
    for _ in range(rounds):
        cohort = selector.draw()
        model = model + selector.aggregate({each: STEPS[each] for each in cohort.ids})
        found.append(model)
    return found


def test_it_draws_weighs_and_moves_as_a_plain_loop(tmp_path: Path) -> None:
    saved = federation(tmp_path).run(made(), {"w": START}).saved

    assert [own["w"].tolist() for own in saved] == [own.tolist() for own in by_hand(3)]


def test_only_drawn_clients_are_asked_and_each_size_once(tmp_path: Path) -> None:
    own = federation(tmp_path)
    own.run(made(), {"w": START})
    drawn = [name for line in lines(tmp_path / "log") for name in line["drawn"]]

    assert [name for task, name in own.asked if task == "train"] == drawn
    assert sorted(name for task, name in own.asked if task == "num_examples") == ["a", "b", "c"]
    assert all(own.timeouts)


def test_given_sizes_are_not_asked_for_and_others_cannot_be_drawn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = federation(tmp_path)
    own.run(made(sizes={"a": 3, "b": 2}), {"w": START})

    assert {task for task, _ in own.asked} == {"train"}
    assert {name for _, name in own.asked} <= {"a", "b"}
    assert "sizes has no entry for ['c']: they cannot be drawn" in caplog.text


def test_differences_are_updates(tmp_path: Path) -> None:
    def differs(task: str, model: FLModel) -> FLModel:
        if task == "num_examples":
            return FLModel(metrics={task: 30})
        return FLModel(params={"w": STEPS["a"]}, params_type=ParamsType.DIFF)

    saved = federation(tmp_path, a=differs).run(made(), {"w": START}).saved

    assert [own["w"].tolist() for own in saved] == [own.tolist() for own in by_hand(3)]


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "bfloat16"])
def test_tensors_stay_tensors_of_their_type(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    start = {"w": torch.tensor([5.0, 5.0], dtype=getattr(torch, kind)), "n": torch.tensor(3)}
    steps = {name: torch.tensor(step, dtype=start["w"].dtype) for name, step in STEPS.items()}

    def client(name: str) -> Any:
        def answer(task: str, model: FLModel) -> FLModel:
            if task == "num_examples":
                return FLModel(metrics={task: SIZES[name]})
            params = {"n": model.params["n"] + 1, "w": model.params["w"] + steps[name]}
            return FLModel(params=params)

        return answer

    own = Federation({name: client(name) for name in SIZES}, tmp_path)
    last = own.run(made(), start).saved[-1]

    assert (last["w"].dtype, last["n"].dtype) == (start["w"].dtype, torch.int64)
    assert last["w"].tolist() == by_hand(3)[-1].tolist()  # halves are exact in every type
    assert last["n"].item() == 6


def test_a_numpy_model_keeps_its_types(tmp_path: Path) -> None:
    start = {"w": START.astype(np.float16)}
    last = federation(tmp_path).run(made(), start).saved[-1]

    assert last["w"].dtype == np.float16
    assert last["w"].tolist() == by_hand(3)[-1].tolist()


def spoiled(params: Mapping[str, Any] | None, **more: Any) -> Any:
    def answer(task: str, model: FLModel) -> FLModel:
        if task == "num_examples":
            return FLModel(metrics={task: 30})
        return FLModel(params=params, **more)

    return answer


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"w": np.array([np.nan, 1.0])}, "is not finite, or too large for its type"),
        ({"w": np.zeros(3)}, "has other arrays than the model: w must be float64 of shape (2,)"),
        ({"w": np.zeros(2, dtype=int)}, "has other arrays than the model: w must be float64"),
        ({"w": np.array(["x", "y"])}, "has other arrays than the model: w must be float64"),
        ({"v": np.zeros(2)}, "has other arrays than the model"),
        ({"w": np.zeros(2), "v": np.zeros(2)}, "has other arrays than the model"),
    ],
)
def test_an_answer_that_cannot_be_used_is_a_failure_with_its_reason(
    params: Mapping[str, Any], reason: str, tmp_path: Path
) -> None:
    own = federation(tmp_path, a=spoiled(params))
    saved = own.run(made(), {"w": START}).saved
    failed = [line["failed"] for line in lines(tmp_path / "log")]

    assert any("a" in each for each in failed)
    assert all(each.get("a", reason).startswith(reason) for each in failed)
    assert np.isfinite(saved[-1]["w"]).all()


def test_an_error_has_flares_code(tmp_path: Path) -> None:
    def breaks(task: str, model: FLModel) -> FLModel:
        if task == "num_examples":
            return FLModel(metrics={task: 30})
        raise RuntimeError("the disk is full")

    federation(tmp_path, a=breaks).run(made(), {"w": START})

    assert {"a": "error: EXECUTION_EXCEPTION"} in [l_["failed"] for l_ in lines(tmp_path / "log")]


def test_rounds_without_an_answer_end_the_job_with_a_sentence(tmp_path: Path) -> None:
    silent = {name: lambda task, model: None for name in SIZES}
    own = Federation(silent, tmp_path)
    controller = made(sizes=SIZES, num_rounds=20, limits=Limits(give_up_after=3))

    message = "CohortController: 3 rounds in a row had no usable reply: 6 times 'no answer: the"
    with pytest.raises(NvflareError, match=message):
        own.run(controller, {"w": START})


def test_too_few_clients_end_the_job_with_a_sentence(tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(NvflareError, match=r"needs 4 clients, .* 3 came and the sizes of 3 are"):
        federation(tmp_path).run(made(min_clients=4, start_timeout=30), {"w": START})

    assert 30 <= clock.now < 40


def test_a_client_that_does_not_say_its_size_is_asked_again_later(
    tmp_path: Path, clock: Clock
) -> None:
    asked: list[float] = []

    def shy(task: str, model: FLModel) -> FLModel:
        asked.append(clock.now)
        return FLModel(metrics={task: 10} if len(asked) > 2 else {"other": 1.0})

    own = federation(tmp_path, c=shy)
    own.before_task = lambda task: clock.sleep(15)
    own.run(made(num_rounds=20, query_timeout=60), {"w": START})
    first, second, third = asked[:3]

    assert 60 <= second - first < 100
    assert 120 <= third - second < 160


def test_disconnected_clients_are_not_drawn_until_they_come_back(tmp_path: Path) -> None:
    own = federation(tmp_path)
    own.disconnected = {"a"}
    own.run(made(recipe=Multinomial(2), num_rounds=4), {"w": START})

    assert all("a" not in line["drawn"] for line in lines(tmp_path / "log"))


def silent_at(client: Any, question: str) -> Any:
    """Make a client that does not answer one kind of task."""
    return lambda task, model: None if task == question else client(task, model)


def test_a_client_that_let_the_deadline_pass_is_not_drawn_until_it_asks_for_a_task(
    tmp_path: Path,
) -> None:
    own = federation(tmp_path)
    own.clients["a"] = silent_at(own.clients["a"], "train")
    own.dead, seen = {"a"}, list[str]()

    def revive(task: Any) -> None:
        seen.append(task.name)
        own.dead = {"a"} if len(seen) < 6 else set()

    own.before_task = revive
    controller = made(sizes=SIZES, num_rounds=8)
    own.run(controller, {"w": START})
    drawn = [set(line["drawn"]) for line in lines(tmp_path / "log")]
    hand = Selector(SizeClustered(2), SIZES, seed=1)
    there = [["a", "b", "c"], *[["b", "c"]] * 5]
    expected = []
    for available in there:
        expected.append(set(hand.draw(available).ids))
        hand.skip()

    assert drawn[:6] == expected
    assert "a" in drawn[0]
    assert any("a" in each for each in drawn[6:])
    assert controller.selector.clients == SIZES


def test_a_client_that_did_not_answer_a_question_is_not_asked_again(tmp_path: Path) -> None:
    own = federation(tmp_path)
    for name in SIZES:
        train = adding_loss(own.clients[name])
        own.clients[name] = silent_at(train, "loss") if name == "a" else train
    own.dead = {"a"}
    recipe = {"name": "power-of-choice", "cohort_size": 1, "candidates": 3}
    own.run(made(recipe=recipe, sizes=SIZES, num_rounds=4), {"w": START})

    assert own.asked.count(("loss", "a")) == 1
    assert own.asked.count(("loss", "b")) == 4


def adding_loss(train: Any) -> Any:
    def answer(task: str, model: FLModel) -> FLModel:
        return FLModel(metrics={"loss": 1.0}) if task == "loss" else train(task, model)

    return answer


def test_the_server_waits_until_a_client_asks_for_a_task_if_all_let_the_deadline_pass(
    tmp_path: Path, clock: Clock
) -> None:
    tasks: list[float] = []

    class Asleep(set[str]):
        """Everybody, until a minute after the first task."""

        def __contains__(self, name: object) -> bool:
            return not tasks or clock.now < tasks[0] + 60

    own = Federation({"a": lambda task, model: None}, tmp_path)
    own.dead = Asleep()
    own.before_task = lambda task: tasks.append(clock.now)
    own.run(made(sizes={"a": 1}, recipe=SizeClustered(1), num_rounds=2), {"w": START})

    assert 60 <= tasks[1] - tasks[0] < 70


def test_a_job_whose_clients_are_all_gone_ends_with_a_sentence(tmp_path: Path) -> None:
    own = Federation({name: lambda task, model: None for name in SIZES}, tmp_path)
    own.dead = set(SIZES)
    controller = made(sizes=SIZES, num_rounds=20, limits=Limits(give_up_after=3))

    with pytest.raises(NvflareError, match="once 'no client with samples was connected'"):
        own.run(controller, {"w": START})


def test_a_round_without_drawn_clients_asks_nobody(tmp_path: Path) -> None:
    """FLARE's own broadcast takes an empty list for all clients."""
    own = federation(tmp_path)
    recipe = {"name": "poisson", "cohort_size": 1}
    saved = own.run(made(recipe=recipe, num_rounds=12), {"w": START}).saved
    empty = [k for k, line in enumerate(lines(tmp_path / "log")) if not line["drawn"]]

    assert empty
    assert all((saved[k]["w"] == (saved[k - 1]["w"] if k else START)).all() for k in empty)


def test_momentum_goes_on_in_a_round_without_drawn_clients(tmp_path: Path) -> None:
    """An empty draw is a draw like any other, as in the simulator: its aggregate is 0."""
    own = federation(tmp_path)
    settings = {"recipe": {"name": "poisson", "cohort_size": 1}, "num_rounds": 12}
    server = {"name": "sgd", "momentum": 0.5}
    saved = own.run(made(**settings, server_optimizer=server), {"w": START}).saved
    steps = np.diff([START, *(each["w"] for each in saved)], axis=0)
    empty = [k for k, line in enumerate(lines(tmp_path / "log")) if not line["drawn"] and k]

    assert empty
    for k in empty:
        np.testing.assert_allclose(steps[k], 0.5 * steps[k - 1], rtol=1e-5, atol=1e-6)
    assert any(steps[k].any() for k in empty)


def test_signals_are_asked_for_with_the_model(tmp_path: Path) -> None:
    seen: list[Any] = []

    def client(name: str) -> Any:
        train = adding(SIZES[name], STEPS[name])

        def answer(task: str, model: FLModel) -> FLModel:
            if task == "loss":
                seen.append(model.params["w"].tolist())
                return FLModel(metrics={"loss": float(SIZES[name])})
            return train(task, model)

        return answer

    own = Federation({name: client(name) for name in SIZES}, tmp_path)
    recipe = {"name": "power-of-choice", "cohort_size": 1, "candidates": 3}
    saved = own.run(made(recipe=recipe, num_rounds=2), {"w": START}).saved

    assert [list(line["drawn"]) for line in lines(tmp_path / "log")] == [["a"], ["a"]]
    assert seen == [START.tolist()] * 3 + [saved[0]["w"].tolist()] * 3


def test_metrics_are_averaged_by_the_weights_and_figures_reported(tmp_path: Path) -> None:
    own, controller = federation(tmp_path), made(num_rounds=1)
    own.run(controller, {"w": START})
    (line,) = lines(tmp_path / "log")
    mean = sum(weight * SIZES[name] for name, weight in line["weights"].items())
    model: Any = controller._current

    assert model.metrics == {"loss": mean}
    sites = model.meta["metrics_aggregation_info"]["site_weights"]
    assert {each["name"]: each["weight"] for each in sites} == line["weights"]
    figures = {each["track_key"]: each["track_value"] for each in own.figures}
    assert figures == {"cohort_clients": 2.0, "failed_clients": 0.0, "residual": 0.0}


def test_flares_events_are_those_of_its_own_fedavg(tmp_path: Path) -> None:
    own, theirs = federation(tmp_path), federation(tmp_path)
    own.run(made(num_rounds=2, sizes=SIZES, recipe=SizeClustered(3)), {"w": START})
    theirs.run(FedAvg(num_clients=3, num_rounds=2), {"w": START})
    kinds = [kind for kind in own.events if kind != "analytix_log_stats"]

    assert set(kinds) == set(theirs.events)


def test_a_checkpoint_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    whole = federation(tmp_path).run(made(num_rounds=6), {"w": START}).saved
    (tmp_path / "log").unlink()
    settings = {"checkpoint": "kept/state", "resume": True}
    first = federation(tmp_path).run(made(num_rounds=4, **settings), {"w": START}).saved
    again = federation(tmp_path)
    second = again.run(made(num_rounds=6, **settings), {"w": np.zeros(2)}).saved

    assert [own["w"].tolist() for own in first + second] == [own["w"].tolist() for own in whole]
    assert {task for task, _ in again.asked} == {"train"}
    assert [line["round"] for line in lines(tmp_path / "log")] == list(range(6))


def test_a_checkpoint_is_not_overwritten_or_misread(tmp_path: Path) -> None:
    settings = {"checkpoint": "state", "num_rounds": 1}
    federation(tmp_path).run(made(**settings), {"w": START})

    with pytest.raises(NvflareError, match=r"exists already. Pass resume=True to continue"):
        federation(tmp_path).run(made(**settings), {"w": START})
    with pytest.raises(NvflareError, match="a model of other arrays than the persistor's"):
        federation(tmp_path).run(made(**settings, resume=True), {"w": np.zeros(3)})
    (tmp_path / "state").write_bytes(b"nonsense")
    with pytest.raises(NvflareError, match=r"cannot be read \(it is not an archive of fedcohort"):
        federation(tmp_path).run(made(**settings, resume=True), {"w": START})


def test_a_controller_of_ones_own_inherits_the_selection(tmp_path: Path) -> None:
    class Mine(CohortSelection, FedAvg):
        """Stops when the loss is low."""

    controller = Mine(
        recipe=SizeClustered(2), seed=1, num_rounds=9, log_file="log", stop_cond="loss <= 100"
    )
    federation(tmp_path).run(controller, {"w": START})

    assert len(lines(tmp_path / "log")) == 1


@pytest.mark.parametrize("given", [Adam(lr=0.5), {"name": "adam", "lr": 0.5}])
def test_the_librarys_optimisers_move_the_model_across_restarts(given: Any, tmp_path: Path) -> None:
    settings = {"checkpoint": "state", "resume": True, "server_optimizer": given}
    federation(tmp_path).run(made(num_rounds=2, **settings), {"w": START})
    saved = federation(tmp_path).run(made(num_rounds=4, **settings), {"w": START}).saved
    model, moments, steps = START, None, np.diff([START, *by_hand(4)], axis=0)
    for step in steps:
        move, moments = Adam(lr=0.5).step(step, moments)
        model = model + move

    assert saved[-1]["w"].tolist() == pytest.approx(model.tolist())
    settings["server_optimizer"] = {"name": "adam", "lr": 0.4}
    with pytest.raises(NvflareError, match="was written with another server_optimizer"):
        federation(tmp_path).run(made(num_rounds=5, **settings), {"w": START})


def test_servers_optimisers_get_the_unbiased_step(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from nvflare.app_opt.pt.fedopt_ctl import FedOpt

    class CohortFedOpt(CohortSelection, FedOpt):
        def build_component(self, config: dict[str, Any]) -> Any:
            kind = (
                torch.optim.SGD if "SGD" in config["path"] else torch.optim.lr_scheduler.ConstantLR
            )
            return kind(**config["args"])

    linear = torch.nn.Linear(2, 1, bias=False)
    linear.load_state_dict({"weight": torch.tensor([START.tolist()])})
    clients = {name: adding_to("weight", name) for name in SIZES}
    controller = CohortFedOpt(
        recipe=SizeClustered(2),
        seed=1,
        num_rounds=3,
        source_model=linear,
        optimizer_args={"path": "SGD", "args": {"lr": 0.5}},
        lr_scheduler_args={"path": "ConstantLR", "args": {"factor": 1.0}},
        device="cpu",
    )
    start = {"weight": START[None].astype(np.float32)}
    saved = Federation(clients, tmp_path).run(controller, start).saved

    expected = START + 0.5 * (by_hand(3)[-1] - START)
    assert saved[-1]["weight"].ravel().tolist() == expected.tolist()


def adding_to(key: str, name: str) -> Any:
    def answer(task: str, model: FLModel) -> FLModel:
        if task == "num_examples":
            return FLModel(metrics={task: SIZES[name]})
        moved = model.params[key] + STEPS[name].astype(np.float32)
        return FLModel(params={key: moved})

    return answer


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"recipe": "size"}, "recipe must be a Recipe, or its name and fields; got 'size'"),
    ({"recipe": {"name": "sise", "cohort_size": 2}}, "unknown design 'sise'"),
    ({"recipe": {"name": "size", "cohort_size": 0}}, "cohort_size must be"),
    ({"estimator": {"cluster": 3}}, "estimator must be its name, or its name and fields"),
    ({"limits": {"max_cuont": 3}}, "limits must be Limits"),
    ({"limits": {"max_count": 0}}, "max_count must be a whole number of at least 1"),
    ({"max_norm": 0}, "max_norm must be a number above 0"),
    ({"overlap": True}, "overlap is not available here; got True"),
    ({"limits": {"min_replies": 3}}, "min_replies must be at most the 2 draws of a round; got 3"),
    ({"sizes": [3, 2]}, "sizes must map clients to samples"),
    ({"timeout": 0}, "timeout must be a number of at least 1"),
    ({"min_clients": 0}, "min_clients must be a whole number of at least 1"),
    ({"aggregation_weights": {"a": 1.0}}, "belong to FedAvg's own aggregation"),
    ({"aggregator": object()}, "an aggregator takes the place of the weights"),
    ({"resume": True}, "resume needs a checkpoint"),
    ({"server_optimizer": "adam"}, "server_optimizer must be one of fedcohort.optimizers"),
    ({"server_optimizer": {"name": "adma"}}, "Names are sgd, adagrad, adam, yogi"),
    ({"server_optimizer": {"name": "adam", "lr": -1}}, "lr must be a number of at least 0"),
    ({"checkpoint": "x", "model": {"w": START}}, "a checkpoint needs a persistor"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_nonsense_is_refused_when_the_job_is_written(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises((DeploymentError, ValueError), match=message):
        made(**settings)


def test_a_server_without_a_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(NvflareError, match="needs a first model, and the server has none"):
        federation(tmp_path).run(made(model={}), {})


def test_another_controller_than_fedavg_is_refused() -> None:
    class Other(CohortSelection):
        """Not FedAvg."""

    with pytest.raises(NvflareError, match="Other must inherit FLARE's FedAvg"):
        Other(recipe=SizeClustered(2))


def test_the_log_says_who_was_drawn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="fedcohort"):
        federation(tmp_path).run(made(num_rounds=1), {"w": START})

    assert "clients are drawn by SizeClustered(cohort_size=2), seed 1" in caplog.text
    assert f"round 0: drawn {lines(tmp_path / 'log')[0]['drawn']}, failed none" in caplog.text


def named(name: str, *, is_reversed: bool) -> Any:
    """Make a client of a model with two arrays, which it sends in the model's order or not."""

    def answer(task: str, model: FLModel) -> FLModel:
        if task == "num_examples":
            return FLModel(metrics={task: SIZES[name]})
        moved = {key: value + STEPS[name][0] for key, value in model.params.items()}
        moved["w"] = moved["w"] + STEPS[name]
        return FLModel(params=dict(reversed(moved.items())) if is_reversed else moved)

    return answer


@pytest.mark.parametrize(
    "settings",
    [{}, {"estimator": "difference"}, {"recipe": {"name": "similarity", "cohort_size": 2}}],
    ids=["plain", "difference", "similarity"],
)
def test_arrays_are_matched_by_name_and_keep_the_models_order(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    start = {"w": START, "a": np.array([3.0, 2.0, 1.0])}
    found = []
    for reversed_ in ((), ("b",), ("a", "b", "c")):
        clients = {name: named(name, is_reversed=name in reversed_) for name in SIZES}
        folder = tmp_path / f"{len(reversed_)}"
        folder.mkdir()
        saved = Federation(clients, folder).run(made(num_rounds=6, **settings), start).saved
        found.append(
            (
                [{key: value.tolist() for key, value in own.items()} for own in saved],
                [line["drawn"] for line in lines(folder / "log")],
            )
        )
        assert all(list(own) == ["w", "a"] for own in saved)

    assert found[0] == found[1] == found[2]


def test_a_checkpoint_goes_on_with_a_model_in_another_order(tmp_path: Path) -> None:
    clients = {name: named(name, is_reversed=False) for name in SIZES}
    start = {"w": START, "a": np.array([3.0, 2.0, 1.0])}
    settings: dict[str, Any] = {"estimator": "difference"}
    whole = Federation(clients, tmp_path).run(made(num_rounds=6, **settings), start).saved
    settings |= {"checkpoint": "state", "resume": True}
    Federation(clients, tmp_path).run(made(num_rounds=3, **settings), start)
    turned = dict(reversed(start.items()))
    last = Federation(clients, tmp_path).run(made(num_rounds=6, **settings), turned).saved[-1]

    assert {key: value.tolist() for key, value in last.items()} == {
        key: value.tolist() for key, value in whole[-1].items()
    }


def test_a_huge_update_is_scaled_and_not_rejected(tmp_path: Path) -> None:
    own = federation(tmp_path, a=spoiled({"w": START + np.array([3e6, 4e6])}))
    own.run(made(max_norm=5.0), {"w": START})
    found = lines(tmp_path / "log")

    assert not any(line["failed"] for line in found)
    assert any(line["scaled"] == ["a"] for line in found)


# Features

LABELS = {"a": [0.5, 0.25, 0.25], "b": [0.0, 1.0, 0.0], "c": [0.125, 0.375, 0.5]}


def telling(folder: Path, **others: Any) -> Federation:
    """Return clients that report their labels and a region with their size."""
    clients = {
        name: adding(
            SIZES[name], STEPS[name], labels=np.array(LABELS[name]), region="ab"[name > "a"]
        )
        for name in SIZES
    }
    return Federation({**clients, **others}, folder)


def regression(features: Any, **more: Any) -> CohortController:
    estimator = {"name": "regression", "features": features, "keep": "float16"}
    return made(estimator=estimator, num_rounds=8, **more)


def test_other_metrics_of_the_size_are_features(tmp_path: Path) -> None:
    by_name = {
        name: {**{f"labels.{k}": own for k, own in enumerate(shares)}, "region": "ab"[name > "a"]}
        for name, shares in LABELS.items()
    }

    told = telling(tmp_path).run(regression("given"), {"w": START}).saved
    given = telling(tmp_path).run(regression(by_name), {"w": START}).saved
    without = telling(tmp_path).run(regression(None), {"w": START}).saved

    assert [own["w"].tolist() for own in told] == [own["w"].tolist() for own in given]
    assert [own["w"].tolist() for own in told] != [own["w"].tolist() for own in without]


def test_features_survive_a_restart(tmp_path: Path) -> None:
    def run(file: str, *parts: int) -> list[float]:
        for last in parts:
            own = regression("given", checkpoint=str(tmp_path / file), resume=True)
            own.num_rounds = last
            saved = telling(tmp_path).run(own, {"w": START}).saved
        return saved[-1]["w"].tolist()  # type: ignore[no-any-return]

    assert run("whole", 8) == run("parts", 3, 8)


@pytest.mark.parametrize(
    ("properties", "log"),
    [
        ({"labels": [0.5, float("nan"), 0.0], "region": "a"}, "'labels.1' must be a finite number"),
        ({"shoe": 43}, "its features are not those of the first clients"),
    ],
)
def test_nonsense_costs_a_client_its_features(
    properties: dict[str, Any], log: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = regression("given")

    telling(tmp_path, c=adding(SIZES["c"], STEPS["c"], **properties)).run(own, {"w": START})

    assert own.selector._records.features.known.tolist() == [True, True, False]
    assert f"1 of 3 clients failed (c): {log}" in caplog.text


def test_properties_that_cannot_be_kept_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = made()

    telling(tmp_path, c=adding(SIZES["c"], STEPS["c"], raw=b"bytes")).run(own, {"w": START})

    assert set(own.selector.clients) == {"a", "b"}
    assert "its properties must be text and numbers; got bytes" in caplog.text
