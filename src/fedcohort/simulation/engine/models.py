"""Models, their parameters as flat rows, and the data on the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedcohort.errors import SimulationError
from fedcohort.simulation.data.datasets import Dataset
from fedcohort.streams import Stream, stream

#: One tensor per parameter of the model, shape (lanes, *shape).
Stacked = dict[str, Tensor]


@final
class ResidentData:
    """Inputs and labels as tensors; inputs become float32 when they are taken."""

    def __init__(self, dataset: Dataset, device: torch.device) -> None:
        self.x = torch.from_numpy(dataset.x.copy()).to(device)
        self.y = torch.from_numpy(dataset.y.copy()).to(device)
        self.test_x = torch.from_numpy(dataset.test_x.copy()).to(device)
        self.test_y = torch.from_numpy(dataset.test_y.copy()).to(device)
        self._scale, self._shift = dataset.scale, dataset.shift

    def take(self, x: Tensor, positions: Tensor, into: Tensor | None = None) -> Tensor:
        """Return the samples at ``positions`` (any shape), ready for a model.

        ``into`` is a float32 buffer with enough rows; reusing it is faster than new memory.
        """
        found = x.index_select(0, positions.reshape(-1))
        rows = found.float() if into is None else into[: len(found)].copy_(found)
        if self._scale != 1.0:
            rows *= self._scale
        if self._shift != 0.0:
            rows += self._shift
        return rows.view(*positions.shape, *x.shape[1:])


@final
class Layout:
    """Where each trained parameter of a model lies in a flat row."""

    def __init__(self, model: nn.Module) -> None:
        self.shapes = {
            name: tuple(parameter.shape)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        self.size = sum(math.prod(shape) for shape in self.shapes.values())

    def views(self, flat: Tensor) -> Stacked:
        """Return views by name into flat rows, shape (lanes, size)."""
        start, found = 0, {}
        for name, shape in self.shapes.items():
            end = start + math.prod(shape)
            found[name] = flat[:, start:end].view(len(flat), *shape)
            start = end
        return found

    def stacked(self, flat: Tensor) -> Stacked:
        """Copy flat rows into one contiguous tensor per parameter.

        Batched products need contiguous tensors; into views of a row they go lane by lane.
        """
        return {name: view.contiguous().clone() for name, view in self.views(flat).items()}

    def flat(self, parameters: Stacked) -> Tensor:
        """Put stacked parameters end to end, shape (lanes, size)."""
        rows = [parameters[name].reshape(len(parameters[name]), -1) for name in self.shapes]
        return torch.cat(rows, dim=1)


ModelSource = nn.Module | Callable[[], nn.Module]


def mlp(inputs: int = 784, hidden: int = 50, classes: int = 10) -> nn.Sequential:
    """Return the paper's model for MNIST: one hidden layer, 39,760 parameters."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


def cnn(classes: int = 10) -> nn.Sequential:
    """Return the paper's model for CIFAR-10: three convolutions, 122,570 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.2),
        nn.Conv2d(64, 64, 3),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(1024, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


def make_model(source: ModelSource, *, seed: int) -> nn.Module:
    """Return a checked model: the given module, or a new one from the seed.

    A function that makes a model is called with torch's generator set from the seed; the generator
    is restored. A module keeps its parameters.
    """
    if isinstance(source, nn.Module):
        model = source
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(stream(seed, use=Stream.MODEL).integers(2**63)))
            model = source()
    if not isinstance(model, nn.Module):
        raise SimulationError(
            f"model: needs an nn.Module or a function that makes one; got {type(model).__name__}."
        )
    _check_model(model)
    return model


def _check_model(model: nn.Module) -> None:
    for name, module in model.named_modules():
        batch_norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
        if batch_norm or getattr(module, "track_running_stats", False):
            raise SimulationError(
                f"model: {name or type(module).__name__} is "
                f"{'batch norm' if batch_norm else 'a norm with running means'}, whose running "
                f"means have no unbiased average over clients. Use nn.GroupNorm or nn.LayerNorm."
            )
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise SimulationError(
            "model: has a lazy layer, whose parameters are not made yet. Give its size, as "
            "nn.Linear(64, 10) does."
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SimulationError("model: has no parameters to train. Pass an nn.Module with layers.")


def flat_parameters(model: nn.Module) -> Tensor:
    """Return the model's trainable parameters end to end, in float32."""
    parts = [p.detach().reshape(-1).float() for p in model.parameters() if p.requires_grad]
    return torch.cat(parts)


def check_untrained_parts(models: list[nn.Module]) -> None:
    """Refuse seeds with different untrained parts: all runs share one copy."""
    parts = [_untrained(model) for model in models]
    for part in parts[1:]:
        if any(not torch.equal(part[name], parts[0][name]) for name in part):
            raise SimulationError(
                "model: frozen parameters or buffers differ between seeds. Make them the same in "
                "every model, train them, or make a simulation for each seed."
            )


def check_outputs(model: nn.Module, data: ResidentData, n_classes: int) -> None:
    """Try the model on one sample: it must return a number for every class."""
    was_training = model.training
    try:
        sample = torch.zeros(1, dtype=torch.int64, device=data.x.device)
        with torch.no_grad():
            shape = tuple(model.eval()(data.take(data.x, sample)).shape)
    except Exception as error:
        raise SimulationError(
            f"model: does not take inputs of shape {tuple(data.x.shape[1:])} "
            f"({str(error).splitlines()[0]}). Fit its first layers to the data."
        ) from error
    finally:
        model.train(was_training)
    if len(shape) != 2 or shape[1] < n_classes:
        raise SimulationError(
            f"model: must give (batch, {n_classes}) outputs, one per class; got shape {shape}. "
            f"Fit its last layer to the data."
        )


def architecture(model: nn.Module) -> list[object]:
    """Return layers, shapes and untrained numbers, for a fingerprint."""
    shapes = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
    return [repr(model), shapes, *(part.cpu().numpy() for part in _untrained(model).values())]


def _untrained(model: nn.Module) -> dict[str, Tensor]:
    frozen = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    return {**frozen, **dict(model.named_buffers())}
