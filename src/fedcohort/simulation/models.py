"""The paper's models, and what a model must be to train in a batch of clients."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedcohort.errors import SimulationError
from fedcohort.streams import Stream, stream

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
    """Return a model that can be trained here: a given one, or a new one from the seed.

    A function that makes a model is called with torch's generator set from the seed, and the
    generator put back; a module is taken with the parameters that it has.
    """
    if isinstance(source, nn.Module):
        model = source
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(stream(seed, use=Stream.MODEL).integers(2**63)))
            model = source()
    _check_model(model)
    return model


def _check_model(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise SimulationError(
                f"model: {name or type(module).__name__} is batch norm, whose running means have "
                f"no unbiased average over clients. Use nn.GroupNorm or nn.LayerNorm."
            )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SimulationError("model: has no parameters to train. Pass an nn.Module with layers.")


def flat_parameters(model: nn.Module) -> Tensor:
    """Return the model's trainable parameters end to end, in float32."""
    parts = [p.detach().reshape(-1).float() for p in model.parameters() if p.requires_grad]
    return torch.cat(parts)
