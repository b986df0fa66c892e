"""Gradients of many clients' losses at once: the two ways to compute a step.

Both map parameters (lanes, size), inputs (lanes, batch, ...), labels (lanes, batch) and sample
weights (lanes, batch) to the gradients (lanes, size) of

    sum_b weight_b * cross_entropy(model(x_b), y_b),

lane by lane.
"""

from typing import Protocol, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from fedcohort.simulation.dropout import with_keyed_dropout
from fedcohort.simulation.parameters import Layout


def gradients_of(model: nn.Module, *, dropout: bool = True) -> "Gradients":
    """Return the fastest way for this model."""
    if StackedLinearGradients.fits(model):
        return StackedLinearGradients(model)  # type: ignore[arg-type]
    return VmappedGradients(model, dropout=dropout)


class Gradients(Protocol):
    """A way to compute all lanes' gradients."""

    #: Random words that a lane needs in a step.
    n_keys: int

    def __call__(self, flat: Tensor, x: Tensor, y: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
        """Return the gradients, shape (lanes, size)."""


@final
class VmappedGradients:
    """Any module, by ``torch.func``: one batch dimension more in every operation."""

    def __init__(self, model: nn.Module, *, dropout: bool = True) -> None:
        self._model, self._key_names = with_keyed_dropout(model)
        self._model.train(dropout)
        self._layout = Layout(model)
        self.n_keys = len(self._key_names)
        # Modules that draw for themselves get another number in every lane.
        self._gradients = vmap(grad(self._loss), randomness="different")

    def _loss(
        self, parameters: dict[str, Tensor], x: Tensor, y: Tensor, weights: Tensor, keys: Tensor
    ) -> Tensor:
        words = dict(zip(self._key_names, keys.unbind(), strict=True)) if self.n_keys else {}
        outputs = functional_call(self._model, {**parameters, **words}, (x,))
        return (cross_entropy(outputs, y, reduction="none") * weights).sum()

    def __call__(self, flat: Tensor, x: Tensor, y: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
        """Return the gradients, shape (lanes, size)."""
        return self._layout.flat(self._gradients(self._layout.views(flat), x, y, weights, keys))


@final
class StackedLinearGradients:
    """Chains of linear layers and ReLUs: batched matrix products, gradients by hand.

    On a CPU this takes two thirds of autograd's time for the paper's MLP.
    """

    n_keys = 0

    def __init__(self, model: nn.Sequential) -> None:
        self._layout = Layout(model)
        self._layers = [
            (name, module)
            for name, module in model.named_children()
            if isinstance(module, (nn.Linear, nn.ReLU))
        ]

    @staticmethod
    def fits(model: nn.Module) -> bool:
        """Whether the model is such a chain: flatten, then layers, the last one linear."""
        if type(model) is not nn.Sequential or len(model) < 2:
            return False
        first, *rest = model
        return (
            isinstance(first, nn.Flatten)
            and (first.start_dim, first.end_dim) == (1, -1)
            and all(type(module) in (nn.Linear, nn.ReLU) for module in rest)
            and type(rest[-1]) is nn.Linear
            and all(p.requires_grad and p.dtype == torch.float32 for p in model.parameters())
        )

    def __call__(self, flat: Tensor, x: Tensor, y: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
        """Return the gradients, shape (lanes, size)."""
        parameters = self._layout.views(flat)
        gradients = torch.empty_like(flat)
        into = self._layout.views(gradients)
        hidden, inputs = x.flatten(2), []
        for name, module in self._layers:
            inputs.append(hidden)
            if isinstance(module, nn.Linear):
                kernel = parameters[f"{name}.weight"].transpose(1, 2)
                bias = parameters.get(f"{name}.bias")
                hidden = (
                    torch.bmm(hidden, kernel)
                    if bias is None
                    else torch.baddbmm(bias.unsqueeze(1), hidden, kernel)
                )
            else:
                hidden = hidden.clamp_min(0)
        slope = _cross_entropy_slope(hidden, y, weights)
        for number in range(len(self._layers) - 1, -1, -1):
            name, module = self._layers[number]
            if isinstance(module, nn.Linear):
                torch.bmm(slope.transpose(1, 2), inputs[number], out=into[f"{name}.weight"])
                if f"{name}.bias" in into:
                    torch.sum(slope, dim=1, out=into[f"{name}.bias"])
                if number > 0:
                    slope = torch.bmm(slope, parameters[f"{name}.weight"])
            else:
                slope = slope.mul_(inputs[number] > 0)
        return gradients


def _cross_entropy_slope(outputs: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Return the derivative of the weighted cross entropy: (softmax - one hot) * weight."""
    slope = outputs - outputs.amax(dim=2, keepdim=True)
    slope.exp_()
    slope /= slope.sum(dim=2, keepdim=True)
    slope.scatter_add_(2, y.unsqueeze(2), torch.full_like(slope[..., :1], -1.0))
    return slope.mul_(weights.unsqueeze(2))
