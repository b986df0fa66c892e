"""Secure aggregation by SecAgg+: the weights of the design, and nothing of a single client."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.common import bytes_to_ndarray, ndarray_to_bytes
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    Strategy,
)

import laws
from fedcohort import Multinomial, Poisson, Population, SimilarityClustered, SizeClustered, Uniform
from fedcohort.designs import Design, SizeClusteredDesign, UniformDesign
from fedcohort.errors import FlowerError
from fedcohort.flower import CohortStrategy, SecureAggregation, Waits, secure_aggregation_mod
from fedcohort.flower.grid import RoundClock
from fedcohort.flower.secure import SecureSum, levels_for
from flower.federation import (
    DIMENSION,
    client_app,
    failed,
    flat,
    grid_of,
    layers,
    model,
    node_of,
    one_round,
    slow_grid,
    update_of,
)
from flower.in_process import Clock, InProcessGrid

STAGES = ("setup", "share_keys", "collect_masked_vectors", "unmask")
SIZES = [50, 30, 20, 70, 10, 40]
#: The norm that updates are clipped to for differential privacy: below that of each.
CLIPPING = 1.0


class StageGrid(InProcessGrid):
    """Loses ``lost`` nodes from a stage of the protocol on, and keeps all replies.

    With ``spoil`` they answer instead, in that stage, with what it makes of their replies.
    """

    stage, lost = "", frozenset[int]()
    spoil: Callable[[RecordDict], object] | None = None

    def _answer(self, message: Message) -> list[Message]:
        configs: Mapping[str, Any] = message.content.config_records.get(RECORD_KEY_CONFIGS) or {}
        is_hit = message.metadata.dst_node_id in self.lost and configs.get(Key.STAGE) == self.stage
        if is_hit and self.spoil is None:
            self.fails = lambda node, kind: node in self.lost and kind == "train"
        replies = super()._answer(message)
        if is_hit and self.spoil is not None:
            self.spoil(replies[0].content)
        self.__dict__.setdefault("replies", []).extend(replies)
        return replies


def secure_app(**more: Any) -> Any:
    return client_app(sizes=SIZES, mods=[secure_aggregation_mod], **more)


def secure_grid(**more: Any) -> StageGrid:
    plain = grid_of(app=secure_app(**more))
    return StageGrid(plain.app, plain.partitions)


def strategy_of(recipe: Any = None, inner: Strategy | None = None, **more: Any) -> CohortStrategy:
    more = {"secure": SecureAggregation(clip=4.0), **more}
    inner = FedAvg(fraction_evaluate=0.0) if inner is None else inner
    return CohortStrategy(inner, recipe or SizeClustered(5), seed=3, **more)


def bound(weights: list[float], clip: float = 4.0) -> float:
    """Return the largest error of a sum: each client's entries and weight are rounded once.

    An entry of a share is rounded to a multiple of 2 clip / levels, the largest weight's being 1;
    a weight by half a unit, which moves an entry of at most 4 by as many half units.
    """
    levels = levels_for(len(weights))
    return len(weights) * max(weights) * (2 * clip / levels + 4.0 / levels)


def played(grid: InProcessGrid, weights: dict[int, float], **settings: float) -> SecureSum:
    """Play the protocol with these nodes and weights."""
    content = RecordDict({"arrays": model(0.0), "config": ConfigRecord()})  # exact updates
    messages = [Message(content, node, "train") for node in weights]
    clock = RoundClock(Waits(), more_follows=False)
    clock.begin(0)
    found = SecureSum(SecureAggregation(clip=4.0, **settings), messages, weights, clock)
    found.play(grid, 1, DIMENSION)
    return found


def was_unmasked(grid: InProcessGrid) -> bool:
    """Whether the nodes were asked for their shares."""
    return any("unmask" in str(each.content) for each in grid.sent)


@pytest.mark.parametrize(
    "design",
    [
        UniformDesign(Population([5, 4, 3, 2, 2]), 3, unbiased=True),
        SizeClusteredDesign(Population([5, 4, 3, 2, 2]), 4, rng=0),
    ],
    ids=repr,
)
def test_the_secure_sum_is_unbiased_by_enumeration_of_the_cohorts(design: Design) -> None:
    grid = secure_grid()
    nodes = list(grid.partitions)[:5]
    updates = np.array([update_of(client) for client in range(5)], dtype=np.float64)
    per_draw, mean, largest = design.weight_per_draw(), np.zeros(DIMENSION), 0.0

    for counts, chance in laws.law(design).items():
        weights = np.array(counts) * per_draw
        drawn = np.flatnonzero(weights).tolist()
        found = played(grid, {nodes[k]: float(weights[k]) for k in drawn}).mean
        assert found is not None
        aggregate, most = weights.sum() * found, bound(weights[drawn].tolist())
        assert np.abs(aggregate - weights @ updates).max() <= most
        mean, largest = mean + float(chance) * aggregate, largest + float(chance) * most

    assert np.abs(mean - design.population.importance @ updates).max() <= largest


@pytest.mark.parametrize("inner", [FedAvg, FedAdam])
@pytest.mark.parametrize("recipe", [SizeClustered(5), Poisson(5), Uniform(5, unbiased=True)])
def test_rounds_are_those_without_masks(inner: type[FedAvg], recipe: Any) -> None:
    plain = CohortStrategy(inner(fraction_evaluate=0.0), recipe, seed=3)
    secure = strategy_of(recipe, inner(fraction_evaluate=0.0))

    shown = plain.start(grid_of(app=client_app(sizes=SIZES)), model(), num_rounds=3)
    hidden = secure.start(secure_grid(), model(), num_rounds=3)

    assert secure.selections.summary() == plain.selections.summary()
    # Models are float32; Adam divides steps by their size, so an error grows where steps are small.
    most = 3 * bound([1.0] * 5) + 1e-6 if inner is FedAvg else 1e-3
    assert np.abs(flat(hidden.arrays) - flat(shown.arrays)).max() <= most
    for number, metrics in shown.train_metrics_clientapp.items():
        assert hidden.train_metrics_clientapp[number]["loss"] == pytest.approx(metrics["loss"])
        assert hidden.train_metrics_clientapp[number]["clipped-entries"] == 0


@pytest.mark.parametrize("rule", ["keep", "renormalise"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_node_that_is_lost_in_a_stage_is_a_failed_client(
    stage: str, rule: Any, tmp_path: Path
) -> None:
    """After the masked updates have come, it counts as one that answered."""
    log = tmp_path / "selections.jsonl"
    recipe, grid = Uniform(6, unbiased=True), secure_grid()
    lost = next(node for node, client in grid.partitions.items() if client == 2)
    secure = strategy_of(recipe, on_failure=rule, log_file=log)
    grid.stage, grid.lost = stage, frozenset({lost})

    found = secure.start(grid, model(0.0), num_rounds=1)

    sizes = np.array(SIZES, dtype=float)
    sizes[2] *= stage == "unmask"
    weights = sizes / (sum(SIZES) if rule == "keep" else sizes.sum())
    (line,) = [json.loads(each) for each in log.read_text().splitlines()]
    expected = weights @ np.array([update_of(client) for client in range(6)])
    assert np.abs(flat(found.arrays) - expected).max() <= bound(weights.tolist()) + 1e-6
    assert list(line["failed"]) == ([] if stage == "unmask" else ["2"])
    assert "2" not in line["weights"] or stage == "unmask"


@pytest.mark.parametrize("stage", STAGES[:3])
def test_shares_among_some_survive_a_loss(stage: str) -> None:
    grid = secure_grid()
    nodes = list(grid.partitions)
    grid.stage, grid.lost = stage, frozenset(nodes[:1])

    found = played(grid, dict.fromkeys(nodes, 0.1), shares=5, threshold=3)

    assert found.mean is not None
    assert set(found.metrics) == set(nodes[1:])
    updates = np.array([update_of(grid.partitions[node]) for node in nodes[1:]], dtype=np.float64)
    assert np.abs(0.5 * found.mean - 0.1 * updates.sum(axis=0)).max() <= bound([0.1] * 6)


def with_configs(**changed: Any) -> Callable[[RecordDict], object]:
    """Return what replaces entries of the protocol's record in a reply; None removes them."""

    def change(content: RecordDict) -> None:
        configs = dict(content.config_records[RECORD_KEY_CONFIGS])
        configs |= {getattr(Key, name): value for name, value in changed.items()}
        kept = {name: value for name, value in configs.items() if value is not None}
        content.config_records[RECORD_KEY_CONFIGS] = ConfigRecord(kept)

    return change


@pytest.mark.parametrize(
    ("stage", "spoil", "reason"),
    [
        ("setup", lambda content: content.clear(), "cannot be read: KeyError"),
        ("setup", with_configs(PUBLIC_KEY_1=None), "cannot be read: KeyError"),
        ("setup", with_configs(PUBLIC_KEY_2=[1, 2]), "has no bytes under 'pk1' and 'pk2'"),
        ("share_keys", with_configs(DESTINATION_LIST=[7]), "has lists of different lengths"),
        ("share_keys", with_configs(CIPHERTEXT_LIST="all"), "has no list under 'dsts' and 'ctxts'"),
        (
            "collect_masked_vectors",
            with_configs(MASKED_PARAMETERS=[b"no array"]),
            "cannot be read: ValueError",
        ),
        (
            "collect_masked_vectors",
            with_configs(MASKED_PARAMETERS=[ndarray_to_bytes(np.zeros(3))]),
            "has no masked vector of 11 numbers",
        ),
        (
            "collect_masked_vectors",
            lambda content: content.pop("fitres.status"),
            "cannot be read: KeyError",
        ),
    ],
)
def test_a_reply_that_cannot_be_read_fails_its_client_alone(
    stage: str, spoil: Any, reason: str
) -> None:
    grid = secure_grid()
    nodes = list(grid.partitions)
    grid.stage, grid.lost, grid.spoil = stage, frozenset(nodes[:1]), spoil

    found = played(grid, dict.fromkeys(nodes, 0.1))

    assert set(found.metrics) == set(nodes[1:])
    assert list(found.failed) == nodes[:1]
    assert found.failed[nodes[0]].startswith(reason)
    assert found.mean is not None


@pytest.mark.parametrize(
    "spoil",
    [
        with_configs(SHARE_LIST=[b"shares"] * 6),
        with_configs(NODE_ID_LIST=[1] * 6),
        lambda content: content.config_records[RECORD_KEY_CONFIGS][Key.SHARE_LIST].reverse(),
    ],
    ids=["no shares", "of nobody", "of others"],
)
def test_wrong_shares_leave_the_model_as_it_is(
    spoil: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The last spoils the sum, which only the entry that every client adds shows."""
    grid = secure_grid()
    grid.stage, grid.lost, grid.spoil = "unmask", frozenset(list(grid.partitions)[:1]), spoil
    secure = strategy_of(Uniform(6, unbiased=True))

    found = secure.start(grid, model(), num_rounds=1)

    assert was_unmasked(grid)
    assert (flat(found.arrays) == 1.0).all()
    assert failed(secure) == dict.fromkeys("012345", 1)
    assert "no secure sum: the masks could not be removed" in caplog.text


def test_a_masked_vector_of_another_round_spoils_no_model() -> None:
    grid = secure_grid()
    grid.stage, grid.lost = "collect_masked_vectors", frozenset(list(grid.partitions)[:1])
    grid.spoil = lambda content: None
    first: list[RecordDict] = []
    grid.spoil = lambda content: first.append(content) if not first else content.update(first[0])
    secure = strategy_of(Uniform(6, unbiased=True))

    once = secure.start(grid, model(), num_rounds=1).arrays
    twice = secure.start(grid, once, num_rounds=1).arrays

    assert (flat(once) != 1.0).all()
    assert (flat(twice) == flat(once)).all()
    assert failed(secure) == dict.fromkeys("012345", 1)


def test_a_share_of_nothing_hides_nobody() -> None:
    """Weights are rounded to units: two that become 0 leave one update alone in the sum."""
    grid = secure_grid()
    nodes = list(grid.partitions)[:3]

    found = played(grid, dict(zip(nodes, (1.0, 1e-12, 1e-12), strict=True)))

    assert found.mean is None
    assert not grid.sent


@pytest.mark.parametrize("n", [3, 4, 7, 8, 1023, 1024, 1025, 10**6])
def test_no_sum_of_shares_exceeds_the_modulus(n: int) -> None:
    levels = levels_for(n)

    assert n * levels < 2**32  # all weights equal, all entries at the clip
    assert 2 * n * levels >= 2**31  # and no finer levels are wasted but one bit


def test_two_answers_make_no_sum_even_if_the_threshold_is_two() -> None:
    grid = secure_grid()
    nodes = list(grid.partitions)[:3]
    grid.stage, grid.lost = "collect_masked_vectors", frozenset(nodes[:1])

    found = played(grid, dict.fromkeys(nodes, 0.1), shares=3, threshold=2)

    assert found.mean is None
    assert not was_unmasked(grid)


def test_a_round_with_fewer_than_three_answers_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "selections.jsonl"
    grid = secure_grid()
    secure = strategy_of(Multinomial(3), log_file=log)
    grid.stage, grid.lost = "collect_masked_vectors", frozenset(list(grid.partitions)[:4])

    found = secure.start(grid, model(), num_rounds=4)

    lines = [json.loads(each) for each in log.read_text().splitlines()]
    skipped = [line for line in lines if len(set(line["drawn"]) - set(line["failed"])) == 0]
    assert len(lines) == len(skipped) == 4
    assert (flat(found.arrays) == 1.0).all()
    reasons = {reason.partition(":")[0] for line in lines for reason in line["failed"].values()}
    assert reasons <= {"too few others", "error 6"}
    assert not was_unmasked(grid)


def test_clipped_entries_are_counted_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    large = np.zeros(DIMENSION, dtype=np.float32)
    large[:3] = 20.0
    secure = strategy_of(Uniform(6, unbiased=True), secure=SecureAggregation(clip=8.0))
    grid = secure_grid(update=lambda client: large if client == 3 else update_of(client))

    with caplog.at_level(logging.WARNING, logger="flwr.fedcohort"):
        found = secure.start(grid, model(0.0), num_rounds=1)

    assert found.train_metrics_clientapp[1]["clipped-entries"] == 3
    assert "round 1: 3 of 60 entries were clipped, which biases the sum" in caplog.text
    shares = np.array(SIZES) / sum(SIZES)
    exact = shares @ [large if k == 3 else update_of(k) for k in range(6)]
    gap = exact - flat(found.arrays)
    assert gap[:3] == pytest.approx(shares[3] * 12.0, abs=1e-4)  # the client has the largest weight
    assert np.abs(gap[3:]).max() <= bound(shares.tolist(), 8.0) + 1e-6


def test_the_server_gets_no_update() -> None:
    grid = secure_grid()
    strategy_of(Uniform(6, unbiased=True)).start(grid, model(), num_rounds=2)

    masked = 0
    for reply in grid.__dict__["replies"]:
        assert not any(record for record in reply.content.array_records.values())
        for record in reply.content.metric_records.values():
            assert all(np.isscalar(value) for value in record.values())
        configs = reply.content.config_records.get(RECORD_KEY_CONFIGS, {})
        if Key.MASKED_PARAMETERS not in configs:
            continue
        client = grid.partitions[reply.metadata.src_node_id]
        _, vector = (bytes_to_ndarray(each) for each in configs[Key.MASKED_PARAMETERS])
        entries = update_of(client) * (SIZES[client] / max(SIZES))
        plain = (entries + 4.0) * levels_for(6) / 8.0
        # A mask hits a value within 2 of the plain one with a chance of 2^-30.
        assert (np.abs(vector[:-1] - plain) > 2).all()
        assert len(np.unique(vector)) == DIMENSION + 1
        masked += 1
    assert masked == 12


def spoiled(part: str) -> Callable[[int, RecordDict], RecordDict]:
    """Let client 1 send what cannot be summed."""

    def change(client: int, content: RecordDict) -> RecordDict:
        arrays = dict(content.array_records["arrays"].items())
        name = next(iter(arrays))
        if client == 1 and part == "nan":
            arrays[name] = Array(arrays[name].numpy() * np.nan)
        elif client == 1 and part == "shape":
            arrays[name] = Array(np.zeros(7, dtype=np.float32))
        elif client == 1 and part == "missing":
            del arrays[name]
        return RecordDict({**content, "arrays": ArrayRecord(arrays)})

    return change


@pytest.mark.parametrize("part", ["nan", "shape", "missing"])
def test_an_update_that_cannot_be_summed_does_not_leave_its_client(part: str) -> None:
    app = secure_app(change=spoiled(part))
    grid = secure_grid(change=spoiled(part))
    grid.app = lambda message, context: answer(app, message, context)  # type: ignore[assignment]
    secure = strategy_of(Uniform(6, unbiased=True))

    found = secure.start(grid, model(0.0), num_rounds=1)

    weights = np.array(SIZES) / sum(SIZES)
    weights[1] = 0.0
    expected = weights @ [update_of(client) for client in range(6)]
    assert failed(secure) == {"1": 1}
    assert np.abs(flat(found.arrays) - expected).max() <= bound(weights.tolist()) + 1e-6


def answer(app: Any, message: Message, context: Any) -> Message:
    """Answer as a SuperNode does: an exception of the app becomes an error."""
    from flwr.app import Error

    try:
        reply: Message = app(message, context)
    except Exception as error:
        return Message(Error(code=2, reason=str(error)), reply_to=message)
    return reply


def test_a_client_with_the_mod_gives_no_plain_update() -> None:
    strategy = CohortStrategy(FedAvg(), SizeClustered(4), seed=0)

    with pytest.raises(Exception, match="the server asked for a plain one"):
        strategy.start(secure_grid(), model(), num_rounds=1)


def test_a_silent_node_costs_the_wait_for_a_question(clock: Clock) -> None:
    grid = slow_grid(
        clock,
        lambda client, kind: float("inf") if (client, kind) == (2, "train") else 0.0,
        app=secure_app(),
    )
    secure = strategy_of(Uniform(6, unbiased=True), waits=Waits(query=30.0, round=600.0))

    secure.start(grid, model(), num_rounds=1)

    assert failed(secure) == {"2": 1}
    assert 25.0 <= clock.now <= 32.0


def test_a_node_that_is_silent_in_training_leaves_time_to_remove_the_masks(clock: Clock) -> None:
    """By default the replies of a round have all the time that it has."""
    grid = slow_grid(clock, lambda client, kind: 0.0, app=secure_app())
    keys, late = {"at": 0}, node_of(grid, 2)

    def delay(node: int, kind: str) -> float:
        keys["at"] += node == late and kind == "train"
        return float("inf") if node == late and keys["at"] == 3 else 0.0

    grid.delay = delay
    secure = strategy_of(Uniform(6, unbiased=True), waits=Waits(round=600.0))

    found = secure.start(grid, model(), num_rounds=1)

    assert failed(secure) == {"2": 1}
    assert (flat(found.arrays) != 1.0).all()
    assert clock.now <= 301.0


def test_a_restarted_server_draws_the_same_cohorts(tmp_path: Path) -> None:
    def log_of(folder: str, rounds: list[int]) -> list[tuple[Any, Any]]:
        for last in rounds:
            secure = strategy_of(
                Poisson(5),
                log_file=tmp_path / f"{folder}.jsonl",
                checkpoint=tmp_path / folder,
                every=1,
            )
            models[folder] = secure.start(secure_grid(), model(), last, resume=last > 2).arrays
        lines = (tmp_path / f"{folder}.jsonl").read_text().splitlines()
        return [(each["drawn"], each["weights"]) for each in map(json.loads, lines)]

    models: dict[str, ArrayRecord] = {}
    whole, stopped = log_of("whole", [2, 4]), log_of("stopped", [4])

    assert whole == stopped
    # Shares are rounded at random, and models to 32 bits, to 2^-21 below 8.
    most = sum(2 * bound(list(weights.values())) + 2.0**-21 for _, weights in whole)
    assert np.abs(flat(models["whole"]) - flat(models["stopped"])).max() <= most


def test_clients_evaluate_without_masks() -> None:
    app: ClientApp = secure_app()

    @app.evaluate()
    def evaluate(message: Message, context: Any) -> Message:
        metrics = MetricRecord({"num-examples": 1, "loss": 0.5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    secure = strategy_of(inner=FedAvg(), evaluate=3)

    found = secure.start(grid_of(app=app), model(), num_rounds=1)

    assert found.evaluate_metrics_clientapp[1]["loss"] == 0.5


@pytest.mark.parametrize(
    ("recipe", "more", "words"),
    [
        (SimilarityClustered(4), {}, "recipe 'similarity' reads clients' single answers"),
        (SizeClustered(4), {"estimator": "difference"}, "remembers updates"),
        (SizeClustered(4), {"on_failure": "redraw"}, "asks others after the keys were shared"),
        (SizeClustered(4), {"extra": 1}, "masks need all"),
        (SizeClustered(4), {"max_norm": 1.0}, "max_norm scales single updates"),
        (SizeClustered(4), {"decode": lambda content, sent: content}, "decode reads single"),
        (SizeClustered(4), {"secure": True}, r"secure must be SecureAggregation\(...\)"),
        (SizeClustered(2), {}, "secure skips rounds with fewer than 3 answers; got a cohort of 2"),
    ],
)
def test_what_needs_single_updates_is_refused(
    recipe: Any, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(FlowerError, match=words):
        strategy_of(recipe, **more)


def wrapped(wrapper: type[Any], strategy: Strategy, noise: float = 0.0) -> Any:
    return wrapper(strategy, noise_multiplier=noise, clipping_norm=CLIPPING, num_sampled_clients=6)


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        (DifferentialPrivacyServerSideFixedClipping, "ServerSideFixedClipping clips or counts"),
        (
            lambda inner, **more: DifferentialPrivacyClientSideFixedClipping(
                wrapped(DifferentialPrivacyServerSideFixedClipping, inner), **more
            ),
            "ClientSideFixedClipping clips or counts single updates",
        ),
    ],
    ids=["server", "both"],
)
def test_wrappers_that_clip_are_refused(wrapper: Any, words: str) -> None:
    with pytest.raises(FlowerError, match=words):
        strategy_of(inner=wrapped(wrapper, FedAvg()))


@pytest.mark.parametrize("place", ["around", "around, by clients"])
def test_wrappers_around_are_refused(place: str) -> None:
    kinds = DifferentialPrivacyServerSideFixedClipping, DifferentialPrivacyClientSideFixedClipping
    around = wrapped(kinds[place != "around"], strategy_of())

    with pytest.raises(FlowerError, match="secure needs its own start"):
        one_round(around, secure_grid())


@pytest.mark.parametrize("recipe", [Uniform(6, unbiased=True), Poisson(5)])
def test_clients_can_clip_before_they_mask(
    recipe: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Flower's mod clips inside ours, and its wrapper adds the noise to the sum."""
    log = tmp_path / "selections.jsonl"
    inner = wrapped(DifferentialPrivacyClientSideFixedClipping, FedAvg(fraction_evaluate=0.0))
    grid = secure_grid(train_mods=[fixedclipping_mod])

    found = strategy_of(recipe, inner, log_file=log).start(grid, model(0.0), num_rounds=1)

    (line,) = [json.loads(each) for each in log.read_text().splitlines()]
    weights = {int(key): weight for key, weight in line["weights"].items()}
    updates = {k: np.asarray(update_of(k), dtype=np.float64) for k in weights}
    clipped = {k: u * min(1.0, CLIPPING / float(np.linalg.norm(u))) for k, u in updates.items()}
    assert all(np.linalg.norm(update) > CLIPPING for update in updates.values())
    expected = sum(weights[k] * clipped[k] for k in weights)
    # Clients clip in 32 bits, and models have as many: a few roundings of numbers below 1.
    assert np.abs(flat(found.arrays) - expected).max() <= bound(list(weights.values())) + 5e-7
    assert "number of clients returning parameters" not in caplog.text


def test_integer_arrays_are_refused() -> None:
    arrays = ArrayRecord([*layers(np.ones(DIMENSION, dtype=np.float32)), np.array([1, 2])])

    with pytest.raises(FlowerError, match="secure sums floating-point arrays alone; got 2 of"):
        strategy_of().start(secure_grid(), arrays, num_rounds=1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"shares": 2}, "shares must be a share up to 1, or a whole number of at least 3; got 2"),
        ({"threshold": 1.5}, "threshold must be a share up to 1, or a whole number of at least 2"),
        ({"clip": 0}, "clip must be a number above 0"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(FlowerError, match=words):
        SecureAggregation(**settings)


@pytest.mark.parametrize("n", range(3, 30))
def test_shares_fit_what_flower_can_use(n: int) -> None:
    for settings in (
        SecureAggregation(),
        SecureAggregation(shares=0.5, threshold=1.0),
        SecureAggregation(shares=4, threshold=9),
    ):
        shares, threshold = settings.numbers(n)

        assert shares == n or shares % 2 == 1
        assert 3 <= shares <= n
        assert 2 <= threshold < shares


def test_metrics_stay_means_over_the_weights() -> None:
    strategy = strategy_of(Uniform(6, unbiased=True))

    found = strategy.start(secure_grid(), model(), num_rounds=1)

    loss = np.arange(6) @ np.array(SIZES) / sum(SIZES)
    assert isinstance(found.train_metrics_clientapp[1], MetricRecord)
    assert found.train_metrics_clientapp[1]["loss"] == pytest.approx(loss)
