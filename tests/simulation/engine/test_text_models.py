"""Text models, Adam, batch norms and adapters against one client after the other."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

import torch
from torch import Tensor, nn

from fedcohort import Multinomial
from fedcohort.errors import DataError, SimulationError
from fedcohort.simulation import (
    Dataset,
    FederatedData,
    LocalTraining,
    Options,
    Run,
    Simulation,
    dirichlet_clients,
    dirichlet_disjoint,
    dirichlet_parts,
    dirichlet_unbalanced,
    gru,
    lora,
    lstm,
    one_class_shards,
    small_transformer,
)
from fedcohort.simulation.engine import evaluation, gradients, text_models
from fedcohort.simulation.engine.gradients import (
    LanewiseGradients,
    ParameterLayout,
    ResidentData,
    VmappedGradients,
    label_weights,
)
from fedcohort.simulation.engine.local_training import Lane, LocalTrainer
from fedcohort.simulation.engine.models import initial_models, make_model
from populations import rng
from simulation_twin import plain_update

CPU = torch.device("cpu")
TOKENS, LENGTH = 11, 7
#: At most 6 steps of a few hundred sums each, 6e-8 relative rounding per number, on gradients and
#: parameters of order 1: about 2e-5 relative, and 1e-6 where terms cancel.
RTOL, ATOL = 1e-4, 1e-6

small = partial(small_transformer, TOKENS, TOKENS, length=LENGTH, width=8, layers=2, heads=2)
TEXT: dict[str, Callable[..., nn.Module]] = {
    "transformer": small,
    "gru": partial(gru, TOKENS, TOKENS, embedding=4, hidden=6),
    "lstm": partial(lstm, TOKENS, TOKENS, embedding=4, hidden=6),
}


class NormedPositions(nn.Module):
    """A batch norm over the features of all positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(TOKENS, 6), nn.Linear(6, TOKENS)
        self.norm = nn.BatchNorm1d(6, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, length, tokens)."""
        hidden: Tensor = self.norm(self.embedding(x).transpose(1, 2)).transpose(1, 2)
        outputs: Tensor = self.output(hidden)
        return outputs


def adapted() -> nn.Module:
    """An adapter on one base for all seeds."""
    return lora(make_model(small, seed=7), rank=2)


MODELS: dict[str, Callable[[], nn.Module]] = {
    **TEXT,
    "dropout": partial(small, dropout=0.3),
    "batch norm": NormedPositions,
    "adapter": adapted,
}
TRAININGS = {
    "steps": LocalTraining(steps=3, batch_size=4, lr=0.5),
    # A larger rate makes adapters diverge, and with them any two roundings.
    "epochs": LocalTraining(epochs=2, batch_size=4, lr=0.1, momentum=0.9, mu=0.1),
    # A larger eps: where a gradient is near 0, Adam's direction is its rounding error over eps.
    "adam": LocalTraining(
        epochs=2, batch_size=4, lr=0.02, optimizer="adam", eps=1e-3, mu=0.1, weight_decay=0.01
    ),
}


def sentences(n: int = 40, *, one_label: bool = False) -> Dataset:
    """Random sequences, labelled by their next token; some end early, and one has no label."""
    whole = rng(1).integers(TOKENS, size=(n, LENGTH + 1))
    x, y = whole[:, :-1].astype(np.uint8), whole[:, 1:].copy()
    y[np.arange(LENGTH) >= rng(2).integers(1, LENGTH + 1, size=(n, 1))] = -1
    y[5] = -1
    if one_label:
        y = whole[:, -1]
    return Dataset(x, y, x[:9], y[:9], n_classes=TOKENS)


def federation(sizes: Sequence[int] = (2, 4, 11, 1, 7)) -> FederatedData:
    """Clients of unequal sizes; the fourth has only the sample without labels."""
    data = sentences()
    parts = [rng(k).choice(len(data.y), size, replace=False) for k, size in enumerate(sizes)]
    parts[3][:] = 5
    return FederatedData(data, tuple(parts), tuple(part % 9 for part in parts))


def updates_and_plain_ones(
    source: Callable[[], nn.Module], data: Dataset, training: LocalTraining
) -> tuple[Tensor, Tensor]:
    """Train clients with fewer samples than a batch, exactly one batch, several, no label."""
    model, starts = initial_models(source, (0, 1))
    lanes = [Lane(k % 2, k % 2, k, own) for k, own in enumerate(federation().train)]
    trainer = LocalTrainer(model, training, ResidentData(data, CPU, integers=True))
    plain = [
        plain_update(model, starts[lane.model], lane, training, data, 3, integers=True)
        for lane in lanes
    ]
    return trainer.updates(starts, lanes, round_=3), torch.stack(plain)


@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS)
@pytest.mark.parametrize("source", MODELS.values(), ids=MODELS)
def test_text_models_train_as_one_client_after_the_other(
    source: Callable[[], nn.Module], training: LocalTraining
) -> None:
    updates, plain = updates_and_plain_ones(source, sentences(), training)

    torch.testing.assert_close(updates, plain, rtol=RTOL, atol=ATOL)
    assert (plain[[0, 1, 2, 4]].abs().amax(dim=1) > 1e-3).all()


@pytest.mark.parametrize("source", TEXT.values(), ids=TEXT)
def test_models_of_the_last_position_train_on_one_label_per_sample(
    source: Callable[..., nn.Module],
) -> None:
    data, training = sentences(one_label=True), TRAININGS["epochs"]

    updates, plain = updates_and_plain_ones(partial(source, last=True), data, training)

    torch.testing.assert_close(updates, plain, rtol=RTOL, atol=ATOL)
    assert (plain.abs().amax(dim=1) > 1e-3).all()


@pytest.mark.parametrize("name", ["transformer", "dropout", "batch norm", "adapter", "gru", "lstm"])
def test_all_lanes_at_once_give_the_gradients_of_one_after_the_other(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where padding stays and attention is computed by its formula."""
    model, starts = initial_models(MODELS[name], (0, 1))
    parameters = ParameterLayout(model).stacked(starts)
    data = ResidentData(sentences(), CPU, integers=True)
    rows = torch.tensor([[1, 2, 3, 5], [4, 9, 0, 0]])
    weights = torch.tensor([[0.25] * 4, [0.5, 0.5, 0, 0]])
    step = (parameters, data.take(data.x, rows), data.y[rows], weights)
    lanewise = LanewiseGradients(model)
    keys = torch.from_numpy(rng(3).integers(2**31, size=(2, lanewise.n_keys), dtype=np.int32))
    one_by_one = lanewise(*step, keys)

    monkeypatch.setattr(text_models, "causal_attention", text_models.plain_causal_attention)
    at_once = VmappedGradients(model)(*step, keys[:, :-1])

    for own, other in zip(at_once.values(), one_by_one.values(), strict=True):
        torch.testing.assert_close(own, other, rtol=RTOL, atol=ATOL)
    assert all(gradient.isfinite().all() for gradient in at_once.values())


@pytest.mark.parametrize("name", ["batch norm", "transformer"])
def test_a_lane_that_rests_has_zero_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA graphs pad lanes too: all their sample weights are 0."""
    monkeypatch.setattr(text_models, "causal_attention", text_models.plain_causal_attention)
    model, starts = initial_models(MODELS[name], (0,))
    data = ResidentData(sentences(), CPU, integers=True)
    rows = torch.zeros((1, 4), dtype=torch.int64)
    step = (ParameterLayout(model).stacked(starts), data.take(data.x, rows), data.y[rows])

    found = VmappedGradients(model)(*step, torch.zeros(1, 4), torch.empty(1, 0, dtype=torch.int32))

    assert all((gradient == 0).all() for gradient in found.values())


class Halting(nn.Module):
    """A module that reads a number: all lanes at once are not possible."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(TOKENS, 4), nn.Linear(4, TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, length, tokens)."""
        hidden = self.embedding(x)
        outputs: Tensor = self.output(hidden) + 0 * hidden.sum().item()
        return outputs


@pytest.mark.parametrize("source", [Halting, TEXT["gru"]], ids=["reads a number", "gru"])
def test_what_cannot_be_vectorised_goes_one_by_one_and_says_so_once(
    source: Callable[[], nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    gradients.say_once.cache_clear()
    model, starts = initial_models(source, (0, 1))
    data = ResidentData(sentences(), CPU, integers=True)
    rows = torch.tensor([[1, 2], [4, 0]])
    weights = torch.tensor([[0.5, 0.5], [1.0, 0]])
    step = (ParameterLayout(model).stacked(starts), data.take(data.x, rows), data.y[rows], weights)

    with caplog.at_level(logging.WARNING):
        fallback = VmappedGradients(model)
        found = [fallback(*step, torch.empty(2, 0, dtype=torch.int32)) for _ in range(2)]
        VmappedGradients(model)(*step, torch.empty(2, 0, dtype=torch.int32))
    one_by_one = LanewiseGradients(model)(*step, torch.zeros(2, 1, dtype=torch.int32))

    for own, again, other in zip(*(part.values() for part in (*found, one_by_one)), strict=True):
        torch.testing.assert_close(own, other, rtol=RTOL, atol=ATOL)
        assert (own == again).all()
    (said,) = caplog.messages
    assert said.startswith("model: its clients train one after the other (")


class HaltingAtRandom(Halting):
    """And it draws random numbers of its own."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, length, tokens)."""
        outputs = super().forward(x)
        return outputs + torch.rand(())


@pytest.mark.parametrize(
    "source", [HaltingAtRandom, lambda: nn.GRU(4, 4, 2, dropout=0.5)], ids=["own", "gru"]
)
def test_random_numbers_that_a_gpu_cannot_repeat_are_refused(
    source: Callable[[], nn.Module],
) -> None:
    model, starts = initial_models(source, (0,))
    x = y = torch.zeros((1, 1, LENGTH), dtype=torch.int64)
    keys = torch.empty(1, 0, dtype=torch.int32)

    with pytest.raises(SimulationError, match="draws random numbers other than"):
        VmappedGradients(model)(
            ParameterLayout(model).stacked(starts), x, y, torch.ones(1, 1), keys
        )


def test_label_weights_are_the_mean_over_the_labels_that_count() -> None:
    y = torch.tensor([[[3, -1], [2, 2]], [[-1, -1], [-1, -1]]])
    weights = torch.tensor([[0.5, 0.5], [0.5, 0.5]])

    found = label_weights(y, weights)

    third = 1 / 3
    assert torch.allclose(found[0], torch.tensor([[third, 0], [third, third]]))
    assert (found[1] == 0).all()


def simulated(
    source: Callable[[], nn.Module], training: LocalTraining, **options: object
) -> Simulation:
    runs = [Run(Multinomial(3), federation(), 5), Run(Multinomial(2), federation(), 6)]
    runs[1] = replace(runs[1], data=runs[0].data)
    own: Options = Options(device="cpu", **options)  # type: ignore[arg-type]
    return Simulation(runs, source, training, own)


def plain_quality(model: nn.Module, data: FederatedData) -> tuple[float, float]:
    """Judge a model client by client: the mean loss and accuracy of the labels that count."""
    found = []
    whole = data.dataset
    for x, y, parts in (
        (whole.x, whole.y, data.train),
        (whole.test_x, whole.test_y, data.test),
    ):
        for part in parts:
            with torch.no_grad():
                outputs = model.eval()(torch.from_numpy(x[part].astype(np.int64)))
            labels = torch.from_numpy(y[part])
            counted = labels >= 0
            loss = nn.functional.cross_entropy(outputs[counted], labels[counted])
            hits = (outputs.argmax(dim=-1) == labels)[counted].double().mean()
            found.append((float(loss), float(hits), bool(counted.any())))
    p = data.population.importance
    n = len(p)
    tested = p * [each[2] for each in found[n:]]
    losses = sum(own * each[0] for own, each in zip(p, found[:n], strict=True) if each[2])
    hits = sum(own * each[1] for own, each in zip(tested, found[n:], strict=True) if own)
    return losses, hits / tested.sum()


@pytest.mark.parametrize("name", ["transformer", "lstm", "batch norm", "adapter"])
def test_quality_is_the_mean_over_the_labels_that_count(name: str) -> None:
    """The client without a label has loss 0 and no accuracy."""
    simulation = simulated(MODELS[name], TRAININGS["steps"])
    simulation.run(2)
    model = make_model(MODELS[name], seed=5)
    trained = [p for p in model.parameters() if p.requires_grad]
    nn.utils.vector_to_parameters(torch.from_numpy(simulation.models[0]), trained)

    loss, accuracy = plain_quality(model, simulation.runs[0].data)

    quality = simulation.histories[0].last_quality
    assert quality is not None
    assert quality.loss == pytest.approx(loss, rel=RTOL)
    assert quality.accuracy == pytest.approx(accuracy, abs=1e-12)
    alone = simulation.client_quality()[0]
    assert np.isnan(alone.loss).tolist() == [False, False, False, True, False]


class NeverPadding(nn.Module):
    """Gives token 0, with which sequences are filled up, a chance of 0."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(TOKENS, 4), nn.Linear(4, TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, length, tokens)."""
        outputs: Tensor = self.output(self.embedding(x))
        return outputs.masked_fill(torch.arange(TOKENS) == 0, float("-inf"))


def test_an_ignored_label_counts_nothing_whatever_the_model_gives_there() -> None:
    x = np.ones((4, 3), dtype=np.int64)
    data = FederatedData.from_arrays(x, [[10, 2, -1], [3, 4, -1]] * 2, [0, 0, 1, 1])
    training = TRAININGS["steps"]
    simulation = Simulation(
        [Run(Multinomial(1), data, 0)], NeverPadding, training, Options(device="cpu")
    )

    simulation.run(1)

    assert np.isfinite(simulation.client_quality()[0].loss).all()


def test_a_batch_norm_over_other_rows_than_samples_gets_one_sentence() -> None:
    class Flat(NormedPositions):
        def forward(self, x: Tensor) -> Tensor:
            hidden = self.embedding(x)
            outputs: Tensor = self.output(self.norm(hidden.flatten(0, 1)).view(hidden.shape))
            return outputs

    with pytest.raises(SimulationError, match="needs one row for each of the"):
        simulated(Flat, TRAININGS["steps"]).run(4)


@pytest.mark.parametrize("labels_at_once", [20_000, 3 * LENGTH])
def test_the_gradients_of_full_participation_are_those_of_whole_clients(
    labels_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a client's samples do not fit into one step."""
    monkeypatch.setattr(evaluation, "LABELS_AT_ONCE", labels_at_once)
    simulation = simulated(small, TRAININGS["steps"], oracle_every=1)
    model = make_model(small, seed=5)
    data = simulation.runs[0].data
    gradients = []
    for part in data.train:
        outputs = model(torch.from_numpy(data.dataset.x[part].astype(np.int64)))
        labels = torch.from_numpy(data.dataset.y[part])
        loss = nn.functional.cross_entropy(
            outputs.flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="sum"
        )
        model.zero_grad()
        (loss / (labels >= 0).sum().clamp(min=1)).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]).numpy())  # type: ignore[union-attr]
    p = data.population.importance
    squares = p @ np.square(gradients).sum(axis=1)
    of_mean = np.square(p @ gradients).sum()

    simulation.run(1)

    stick = simulation.histories[0].rounds[0].yardstick
    assert stick is not None
    assert stick.beta_squared == pytest.approx(squares / of_mean, rel=RTOL)
    assert stick.kappa_squared == pytest.approx(squares - of_mean, rel=RTOL)


@pytest.mark.parametrize("name", ["transformer", "gru", "adapter", "batch norm"])
def test_a_resumed_run_with_adam_ends_bit_for_bit_as_an_uninterrupted_one(
    name: str, tmp_path: Path
) -> None:
    training = LocalTraining(epochs=1, batch_size=4, lr=0.01, optimizer="adam")
    whole = simulated(MODELS[name], training)
    whole.run(4)
    begun = simulated(MODELS[name], training)
    begun.run(2, checkpoint=tmp_path / "state")
    resumed = simulated(MODELS[name], training)

    resumed.resume(tmp_path / "state")
    resumed.run(2)

    assert (resumed.models == whole.models).all()
    kept = [[h.as_dicts(times=False) for h in each.histories] for each in (resumed, whole)]
    assert kept[0] == kept[1]


def test_adams_moments_are_fresh_in_every_round() -> None:
    """A client's update does not depend on the rounds before."""
    training = TRAININGS["adam"]
    model, starts = initial_models(small, (0,))
    trainer = LocalTrainer(model, training, ResidentData(sentences(), CPU, integers=True))
    lanes = [Lane(0, 0, 2, federation().train[2])]

    first, again = (trainer.updates(starts, lanes, round_=3) for _ in range(2))

    assert (first == again).all()


def test_all_clients_and_runs_share_the_frozen_base_of_an_adapter() -> None:
    base = make_model(small, seed=7)
    simulation = simulated(lambda: lora(base, rank=2), TRAININGS["steps"], oracle_every=1)
    simulation.run(1)

    frozen = {parameter.data_ptr() for parameter in base.parameters()}
    everyone = simulation._everyone._gradients
    assert isinstance(everyone, LanewiseGradients)
    trainer = simulation._trainer.gradients
    assert isinstance(trainer, LanewiseGradients)
    keyed = [trainer._model, everyone._model, *(run.evaluator._model for run in simulation._live)]
    for own in keyed:
        held = [p for p in own._model.parameters() if not p.requires_grad]
        assert {p.data_ptr() for p in held} == frozen
    assert all(parameter.requires_grad for parameter in base.parameters())


def test_only_what_trains_counts_in_models_messages_and_memory() -> None:
    base = make_model(small, seed=7)
    linear = [m for m in base.modules() if isinstance(m, nn.Linear)]
    d = sum(2 * (layer.in_features + layer.out_features) for layer in linear)
    data = federation()
    run = Run(Multinomial(3), data, 5, estimator="difference")

    simulation = Simulation(
        [run], lambda: lora(base, rank=2), TRAININGS["steps"], Options(device="cpu")
    )
    history = simulation.run(1)[0]

    assert simulation.models.shape == (1, d)
    cost = history.rounds[0].cost
    assert cost is not None
    asked = len(history.rounds[0].clients)
    assert cost.bytes_down == cost.bytes_up == asked * 4 * d
    assert simulation._live[0].selector.nbytes < 4 * d * (data.n_clients + 2)


def test_an_adapted_model_starts_as_the_given_one() -> None:
    base = make_model(small, seed=7)
    x = torch.from_numpy(sentences().x.astype(np.int64))

    adapted = lora(base, rank=2, layers=["up", "blocks.0.merge"])

    assert torch.equal(adapted(x), base(x))
    trained = [name for name, p in adapted.named_parameters() if p.requires_grad]
    assert trained == [
        f"blocks.{layer}.{part}"
        for layer in ("0.merge", "0.up", "1.up")
        for part in ("first", "second")
    ]


def test_a_layer_in_two_places_is_adapted_in_both() -> None:
    layer = nn.Linear(3, 3)

    model = lora(nn.Sequential(layer, nn.ReLU(), layer), rank=2)

    assert isinstance(model, nn.Sequential)
    assert model[0] is model[2]
    assert ParameterLayout(model).size == 2 * (3 + 3)


def test_a_base_that_differs_between_seeds_is_refused() -> None:
    with pytest.raises(SimulationError, match="frozen parameters or buffers differ between seeds"):
        simulated(lambda: lora(small(), rank=2), TRAININGS["steps"])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: lora(nn.Sequential(nn.Conv2d(1, 1, 3))), "lora: needs linear layers to adapt"),
        (lambda: lora(small(), layers=["head"]), "lora: needs linear layers to adapt"),
        (lambda: lora(small(), rank=0), "lora: rank must be"),
        (lambda: lora(3), "lora: model must be a Module; got 3"),  # type: ignore[arg-type]
        (lambda: small_transformer(width=6, heads=4), "width must be a multiple of heads"),
        (lambda: small_transformer(dropout=1.0), "small_transformer: dropout must be"),
        (lambda: gru(hidden=0), "gru: hidden must be"),
        (lambda: LocalTraining(steps=1, optimizer="adma"), "Did you mean 'adam'?"),
        (
            lambda: LocalTraining(steps=1, optimizer="adam", momentum=0.9),
            "momentum is not a setting of optimizer 'adam'; got 0.9. Leave it out.",
        ),
        (lambda: LocalTraining(steps=1, beta1=0.5), "beta1 is not a setting of optimizer 'sgd'"),
        (lambda: LocalTraining(steps=1, optimizer="adam", eps=0.0), "LocalTraining: eps must be"),
    ],
)
def test_invalid_settings_get_one_sentence(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(SimulationError) as caught:
        make()

    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            lambda: small_transformer(10, TOKENS, length=LENGTH, width=8, heads=2),
            "model: does not take integers from 0 to 10 of shape (7,) (index out of range",
        ),
        (
            lambda: small_transformer(TOKENS, TOKENS, length=5, width=8, heads=2),
            "model: does not take integers from 0 to 10",
        ),
        (partial(small, last=True), f"must give (batch, {LENGTH}, {TOKENS}) outputs"),
        (lambda: gru(TOKENS, 4), f"must give (batch, {LENGTH}, {TOKENS}) outputs"),
        (
            lambda: lora(make_model(small, seed=7).bfloat16()),
            "(expected m1 and m2 to have the same",
        ),
    ],
    ids=["token", "length", "last", "classes", "type"],
)
def test_a_model_that_does_not_fit_the_sequences_gets_one_sentence(
    source: Callable[[], nn.Module], sentence: str
) -> None:
    with pytest.raises(SimulationError) as caught:
        simulated(source, TRAININGS["steps"])

    assert sentence in str(caught.value)


def test_labels_below_the_ignored_one_are_refused() -> None:
    x = np.zeros((2, 3), dtype=np.int64)

    with pytest.raises(DataError, match="or -1 where a position does not count; got -2"):
        FederatedData.from_arrays(x, [[0, 1, -2], [0, 0, 0]], ["a", "b"])
    with pytest.raises(DataError, match="labels must be 0 or more; got -1"):
        FederatedData.from_arrays(x, [0, -1], ["a", "b"])
    with pytest.raises(DataError, match="as many labels as a training sample"):
        Dataset(x, x, x, np.zeros((2, 4), dtype=np.int64), n_classes=2)


@pytest.mark.parametrize(
    "divide",
    [
        one_class_shards,
        partial(dirichlet_clients, alpha=1.0, n_clients=3),
        partial(dirichlet_disjoint, alpha=1.0, n_clients=3),
        partial(dirichlet_parts, alphas=[1.0], clients_per_part=3),
        partial(dirichlet_unbalanced, alpha=1.0),
    ],
)
def test_sequences_are_not_divided_by_their_class(divide: Callable[..., FederatedData]) -> None:
    with pytest.raises(DataError, match=f"got sequences of {LENGTH} labels. Use iid or natural."):
        divide(sentences(), seed=0)


def test_classes_of_sequences_are_counted_without_the_ignored_ones() -> None:
    data = federation()

    counts = data.class_counts()

    for own, part in zip(counts, data.train, strict=True):
        labels = data.dataset.y[part]
        assert own.tolist() == [(labels == each).sum() for each in range(TOKENS)]


def test_integers_become_floats_for_a_model_that_needs_floats() -> None:
    """Counts of hospital stays, for example: neither an embedding nor a cast is needed."""
    x = rng(0).integers(5, size=(30, 4))
    data = FederatedData.from_arrays(x, x[:, 0] % 2, rng(1).integers(3, size=30))
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))

    whole, floats = (
        Simulation(
            [Run(Multinomial(2), own, 0)],
            lambda: model,
            LocalTraining(steps=2, batch_size=8, lr=0.1),
            Options(device="cpu"),
        )
        for own in (
            data,
            FederatedData(replace(data.dataset, x=x.astype(np.float32)), data.train, data.test),
        )
    )
    whole.run(2)
    floats.run(2)

    assert (whole.models == floats.models).all()


def test_integers_are_not_those_of_training_samples_alone() -> None:
    """Test samples of floats would be cut off to integers."""
    x = np.array([[1, 2], [3, 4]])

    data = FederatedData.from_arrays(x, [0, 1], ["a", "b"], test=(x + 0.5, [0, 1]))

    assert not data.dataset.has_integers
    assert FederatedData.from_arrays(x, [0, 1], ["a", "b"]).dataset.has_integers


def test_batch_norm_with_running_statistics_is_refused_and_without_is_not() -> None:
    with pytest.raises(SimulationError, match="is batch norm, whose running means"):
        make_model(lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), seed=0)

    make_model(
        lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)), seed=0
    )
