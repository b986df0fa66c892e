"""Chains of convolutions and linear layers, all lanes at once, without ``torch.func``.

Activations lie as (groups, channels, batch, height, width): a convolution is then one batched
matrix product, of the groups' kernels with the groups' patches, and its output lies right for the
next one. Every lane's batch is split into groups: the gradient of a kernel is a small product with
a long sum, and in one piece a GPU would work on one product per lane.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d, relu

from fedcohort.simulation.engine.convolution_stages import stages_of
from fedcohort.simulation.engine.models import Stacked
from fedcohort.simulation.engine.stacked_layers import is_plain_chain, keyed_dropout, layers_of

#: Products at once that keep a GPU busy.
FULL = 256


@final
class StackedConvolutionGradients:
    """Gradients of ``nn.Sequential`` chains such as the paper's CNN; see ``gradients.Gradients``.

    On an H200 it takes three quarters of the time of the grouped convolutions that ``vmap`` makes
    of many clients' convolutions.
    """

    def __init__(self, model: nn.Sequential, *, dropout: bool = True) -> None:
        self._layers = layers_of(model)
        self._dropout = dropout
        middle = [type(module) for _, module in self._layers].index(nn.Flatten)
        self._stages = stages_of(self._layers[:middle], dropout=dropout)
        self._middle = middle
        self.n_keys = sum(type(module) is nn.Dropout for _, module in self._layers)

    @staticmethod
    def fits(model: nn.Module) -> bool:
        """Whether the model is convolutions, then a flattening, then linear layers."""
        if not is_plain_chain(model):
            return False
        modules = [module for _, module in layers_of(model)]  # type: ignore[arg-type]
        kinds = [type(module) for module in modules]
        if kinds.count(nn.Flatten) != 1 or nn.Conv2d not in kinds:
            return False
        middle = kinds.index(nn.Flatten)
        head, tail = modules[:middle], modules[middle + 1 :]
        return all(map(_is_spatial, head)) and all(
            type(module) in (nn.Linear, nn.ReLU, nn.Dropout) for module in tail
        )

    def __call__(
        self, parameters: Stacked, x: Tensor, y: Tensor, weights: Tensor, keys: Tensor
    ) -> Stacked:
        """Return the gradients, stacked as the parameters are."""
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in parameters.items()}
        with torch.enable_grad():
            outputs = self._outputs(leaves, x, keys)
            losses = cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="none")
            loss = losses @ weights.flatten()
        found = torch.autograd.grad(loss, list(leaves.values()))
        return dict(zip(leaves, found, strict=True))

    def _outputs(self, parameters: Stacked, x: Tensor, keys: Tensor) -> Tensor:
        """Return the models' outputs, shape (lanes, batch, classes)."""
        lanes, batch = x.shape[:2]
        groups = _groups(lanes, batch)
        hidden = x.reshape(lanes * groups, batch // groups, *x.shape[2:]).transpose(1, 2)
        n_dropouts, layers = 0, self._layers
        if self._stages is not None:
            for stage in self._stages:
                hidden = stage(hidden, parameters, keys, groups)
            layers = layers[self._middle :]
            n_dropouts = self.n_keys - sum(type(module) is nn.Dropout for _, module in layers)
        for name, module in layers:
            if isinstance(module, nn.Conv2d):
                hidden = _convolved(hidden, parameters, name, groups)
            elif isinstance(module, nn.Linear):
                kernel = parameters[f"{name}.weight"].transpose(1, 2)
                hidden = torch.bmm(hidden, kernel)
                if f"{name}.bias" in parameters:
                    hidden = hidden + parameters[f"{name}.bias"].unsqueeze(1)
            elif isinstance(module, nn.ReLU):
                hidden = relu(hidden)
            elif isinstance(module, nn.MaxPool2d):
                hidden = _pooled(hidden, module)
            elif isinstance(module, nn.Flatten):
                hidden = hidden.transpose(1, 2).reshape(lanes, batch, -1)
            elif isinstance(module, nn.Dropout) and self._dropout:
                hidden = _dropped(hidden, module.p, keys[:, n_dropouts])
                n_dropouts += 1
        return hidden


def _groups(lanes: int, batch: int) -> int:
    """Return into how many groups a lane's batch is split: no more than fill a GPU."""
    divisors = [n for n in (1, 2, 4, 5, 8, 10) if batch % n == 0]
    return next((n for n in divisors if lanes * n >= FULL), divisors[-1])


def _is_spatial(module: nn.Module) -> bool:
    """Whether a module before the flattening is one that is written down here."""
    if isinstance(module, nn.Conv2d):
        plain = (module.stride, module.padding, module.dilation, module.groups)
        return plain == ((1, 1), (0, 0), (1, 1), 1)
    if isinstance(module, nn.MaxPool2d):
        return (module.padding, module.dilation, module.ceil_mode) == (0, 1, False)
    return type(module) in (nn.ReLU, nn.Dropout)


def _dropped(hidden: Tensor, p: float, keys: Tensor) -> Tensor:
    """Apply every lane's mask, which numbers entries by (batch, channels, ...)."""
    if hidden.dim() == 3:
        return keyed_dropout(hidden, p, keys.view(-1, 1, 1))
    by_lane = hidden.transpose(1, 2).unflatten(0, (len(keys), -1))
    dropped = keyed_dropout(by_lane, p, keys.view(-1, *[1] * 5))
    return dropped.flatten(0, 1).transpose(1, 2)


def _pooled(hidden: Tensor, module: nn.MaxPool2d) -> Tensor:
    pool = _DisjointMaxPool.apply if module.kernel_size == module.stride else max_pool2d
    pooled: Tensor = pool(hidden.flatten(0, 1), module.kernel_size, module.stride)
    return pooled.view(*hidden.shape[:3], *pooled.shape[-2:])


class _DisjointMaxPool(torch.autograd.Function):
    """Max-pooling of windows that do not overlap: backwards, every slope has its own place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: Any, stride: Any) -> Tensor:
        pooled, places = max_pool2d(x, size, stride, return_indices=True)
        ctx.save_for_backward(places)
        ctx.input_shape = x.shape
        return pooled

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        of_x = slopes[0].new_zeros(ctx.input_shape)
        of_x.flatten(2).scatter_(2, places.flatten(2), slopes[0].flatten(2))
        return of_x, None, None


def _convolved(x: Tensor, parameters: Stacked, name: str, groups: int) -> Tensor:
    kernel = parameters[f"{name}.weight"].repeat_interleave(groups, dim=0)
    out: Tensor = _Convolution.apply(x, kernel)
    if f"{name}.bias" in parameters:
        bias = parameters[f"{name}.bias"].repeat_interleave(groups, dim=0)
        out = out + bias.view(*bias.shape, 1, 1, 1)
    return out


class _Convolution(torch.autograd.Function):
    """Convolve (groups, channels, batch, h, w) with (groups, out, channels, a, b)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor) -> Tensor:
        patches = x.unfold(3, kernel.shape[3], 1).unfold(4, kernel.shape[4], 1)
        groups, _, batch, height, width = patches.shape[:5]
        patches = patches.permute(0, 1, 5, 6, 2, 3, 4).reshape(groups, -1, batch * height * width)
        ctx.save_for_backward(patches, kernel)
        ctx.input_shape = x.shape
        return torch.bmm(kernel.flatten(2), patches).view(groups, -1, batch, height, width)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, Tensor]:
        patches, kernel = ctx.saved_tensors
        batch, height, width = slopes[0].shape[2:]
        slope = slopes[0].reshape(*kernel.shape[:2], -1)
        of_kernel = torch.bmm(slope, patches.transpose(1, 2)).view(kernel.shape)
        if not ctx.needs_input_grad[0]:
            return None, of_kernel
        of_patches = torch.bmm(kernel.flatten(2).transpose(1, 2), slope).view(
            kernel.shape[0], *kernel.shape[2:], batch, height, width
        )
        of_x = slope.new_zeros(ctx.input_shape)
        for a in range(kernel.shape[3]):
            for b in range(kernel.shape[4]):
                of_x[..., a : a + height, b : b + width] += of_patches[:, :, a, b]
        return of_x, of_kernel
