"""Chains of convolutions and linear layers, all lanes at once, without ``torch.func``.

Activations have the shape (groups, channels, images, height, width). A convolution is then one
batched matrix product of the groups' kernels with the groups' patches, and its output has the
right layout for the next one. Every lane's batch is split into groups, because the gradient of a
kernel is a small product with a long sum: in one piece a GPU would work on one product per lane.

With Triton, a convolution and the layers that follow it are one :class:`Stage`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d, relu

from fedcohort.simulation.engine.models import Stacked, keyed_dropout, plain_layers

#: Products at once that keep a GPU busy.
FULL = 256
#: Rows of products are multiples of this many floats, 16 bytes.
ALIGNMENT = 4

log = logging.getLogger(__name__)


@final
class StackedConvolutionGradients:
    """Gradients of ``nn.Sequential`` chains such as the paper's CNN; see ``gradients.Gradients``.

    On an H200 it takes three quarters of the time of the grouped convolutions that ``vmap`` makes
    of many clients' convolutions.
    """

    def __init__(self, model: nn.Sequential, *, dropout: bool = True) -> None:
        self.layers: list[tuple[str, nn.Module | Stage, int]] = []
        self.n_keys = 0
        for name, module in plain_layers(model):
            key = self.n_keys
            self.n_keys += type(module) is nn.Dropout
            if dropout or type(module) is not nn.Dropout:
                self._add(name, module, key)

    def _add(self, name: str, module: nn.Module, key: int) -> None:
        """Add a layer: to the last stage if it fits, otherwise after it."""
        if type(module) is nn.Conv2d and _kernels_work():
            self.layers.append((name, Stage(), key))
            return
        before, stage, _ = self.layers[-1] if self.layers else ("", None, 0)
        joined = stage.joined(module, key) if isinstance(stage, Stage) else None
        if joined is None:
            self.layers.append((name, module, key))
        else:
            self.layers[-1] = (before, joined, key)

    @staticmethod
    def fits(model: nn.Module) -> bool:
        """Whether the model is convolutions, then a flattening, then linear layers."""
        modules = [module for _, module in plain_layers(model)]
        kinds = [type(module) for module in modules]
        if kinds.count(nn.Flatten) != 1 or nn.Conv2d not in kinds:
            return False
        middle = kinds.index(nn.Flatten)
        return all(map(_is_spatial, modules[:middle])) and all(
            kind in (nn.Linear, nn.ReLU, nn.Dropout) for kind in kinds[middle + 1 :]
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
        for name, layer, key in self.layers:
            weight, bias = f"{name}.weight", parameters.get(f"{name}.bias")
            if isinstance(layer, Stage):
                hidden = layer(hidden, parameters[weight], bias, keys)
            elif isinstance(layer, nn.Conv2d):
                hidden = _convolved(hidden, parameters[weight], bias)
            elif isinstance(layer, nn.Linear):
                hidden = torch.bmm(hidden, parameters[weight].transpose(1, 2))
                hidden = hidden if bias is None else hidden + bias.unsqueeze(1)
            elif isinstance(layer, nn.ReLU):
                hidden = relu(hidden)
            elif isinstance(layer, nn.MaxPool2d):
                hidden = _pooled(hidden, layer)
            elif isinstance(layer, nn.Flatten):
                hidden = hidden.transpose(1, 2).reshape(lanes, batch, -1)
            elif isinstance(layer, nn.Dropout):
                hidden = _dropped(hidden, layer.p, keys[:, key])
        return hidden


def _groups(lanes: int, batch: int) -> int:
    """Return into how many groups a lane's batch is split: no more than fill a GPU."""
    divisors = [n for n in (1, 2, 4, 5, 8, 10) if batch % n == 0]
    return next((n for n in divisors if lanes * n >= FULL), divisors[-1])


def _is_spatial(module: nn.Module) -> bool:
    """Whether a module before the flattening is supported here."""
    if type(module) is nn.Conv2d:
        plain = (module.stride, module.padding, module.dilation, module.groups)
        return plain == ((1, 1), (0, 0), (1, 1), 1)
    if type(module) is nn.MaxPool2d:
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
    """Max-pooling of disjoint windows: going back, each slope has one place."""

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


def _convolved(x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve the groups of every lane with its kernel, shape (lanes, out, channels, a, b)."""
    groups = len(x) // len(kernel)
    out: Tensor = _Convolution.apply(x, kernel.repeat_interleave(groups, dim=0))
    if bias is None:
        return out
    return out + bias.repeat_interleave(groups, dim=0)[..., None, None, None]


class _Convolution(torch.autograd.Function):
    """Convolve (groups, channels, images, h, w) with (groups, out, channels, a, b)."""

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


@final
@dataclass(frozen=True)
class Stage:
    """A convolution (stride 1, no padding), then ReLU, max-pooling and dropout, each optional.

    ``pool`` is the side of the pooling windows, which do not overlap. ``dropout`` is the chance
    that an entry is dropped, and ``key`` says which of a lane's keys the dropout uses.
    """

    relu: bool = False
    pool: int = 1
    dropout: float = 0.0
    key: int = 0

    def joined(self, module: nn.Module, key: int) -> Stage | None:
        """Return the stage with one more layer; None where it does not fit."""
        if isinstance(module, nn.ReLU) and self == Stage():
            return replace(self, relu=True)
        if isinstance(module, nn.MaxPool2d) and self == Stage(self.relu):
            side = module.kernel_size
            if isinstance(side, int) and module.stride == side and side <= 15:
                return replace(self, pool=side)
        if isinstance(module, nn.Dropout) and self.dropout == 0 and module.p < 1:
            return replace(self, dropout=module.p, key=key)
        return None

    def __call__(self, x: Tensor, kernel: Tensor, bias: Tensor | None, keys: Tensor) -> Tensor:
        """Map (groups, channels, images, height, width) to the same of the next stage."""
        groups, flat = len(x) // len(kernel), kernel.flatten(2)
        sizes = self.sizes(x, kernel)
        column = torch.zeros_like(flat[..., 0]) if bias is None else bias
        spare = flat.new_zeros(*flat.shape[:2], sizes["K_PADDED"] - sizes["K"] - 1)
        kernels = torch.cat([flat, column.unsqueeze(2), spare], dim=2)
        kernels = kernels.repeat_interleave(groups, dim=0)
        out: Tensor = _FusedConvolution.apply(x, kernels, keys.contiguous(), self.key, sizes)
        return out

    def sizes(self, x: Tensor, kernel: Tensor) -> dict[str, Any]:
        """Return the constants of ``convolution_kernels``, where the layouts are explained."""
        _, channels, images, height, width = x.shape
        out_channels, _, kernel_height, kernel_width = kernel.shape[1:]
        conv_height, conv_width = height - kernel_height + 1, width - kernel_width + 1
        k, n = channels * kernel_height * kernel_width, images * conv_height * conv_width
        return {
            "GROUPS": len(x) // len(kernel),
            "CHANNELS": channels,
            "IMAGES": images,
            "HEIGHT": height,
            "WIDTH": width,
            "KERNEL_HEIGHT": kernel_height,
            "KERNEL_WIDTH": kernel_width,
            "CONV_CHANNELS": out_channels,
            "CONV_HEIGHT": conv_height,
            "CONV_WIDTH": conv_width,
            "OUT_HEIGHT": conv_height // self.pool,
            "OUT_WIDTH": conv_width // self.pool,
            "K": k,
            "K_PADDED": -(-(k + 1) // ALIGNMENT) * ALIGNMENT,
            "N": n,
            "N_PADDED": -(-n // ALIGNMENT) * ALIGNMENT,
            "POOL": self.pool,
            "RELU": self.relu,
            "DROPS": self.dropout > 0,
            "THRESHOLD": round(self.dropout * 2**32) - 2**31,
            "SCALE": 1 / (1 - self.dropout),
        }


@cache
def _kernels_work() -> bool:
    """Try Triton once: it may be missing, or lack a C compiler."""
    if find_spec("triton") is None:
        return False
    x = torch.ones(1, 1, 1, 2, 2, device="cuda" if torch.cuda.is_available() else "cpu")
    try:
        return bool((_patches(x, Stage().sizes(x, x))[0, :5, 0] == 1).all())
    except Exception as error:  # whatever it lacks, the slower way does without
        log.warning("Triton does not work here, so convolutions are slower: %s", error)
        return False


class _FusedConvolution(torch.autograd.Function):
    """Convolve with two matrix products in each direction, and kernels between them."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kernels: Tensor, keys: Tensor, key: int, sizes: dict[str, Any]
    ) -> Tensor:
        patches = _patches(x, sizes)
        product = torch.bmm(kernels, patches)
        shape = (*product.shape[:2], x.shape[2], sizes["OUT_HEIGHT"], sizes["OUT_WIDTH"])
        out = product.new_empty(shape)
        codes = torch.empty(shape, dtype=torch.uint8, device=out.device)
        _launch("finish", out[0].numel(), 1, sizes, product, keys, out, codes, keys.shape[1], key)
        ctx.save_for_backward(patches, kernels, codes)
        ctx.sizes, ctx.input_shape = sizes, x.shape
        return out

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, Tensor, None, None, None]:
        patches, kernels, codes = ctx.saved_tensors
        groups, channels = kernels.shape[:2]
        columns, slope = patches.shape[2], slopes[0].contiguous()
        of_product = slope.new_empty(groups, channels, columns)
        _launch("unfinish", columns, channels, ctx.sizes, slope, codes, of_product)
        of_kernels = torch.bmm(of_product, patches.transpose(1, 2))
        if not ctx.needs_input_grad[0]:
            return None, of_kernels, None, None, None
        of_patches = torch.bmm(kernels.transpose(1, 2), of_product)
        of_x = of_patches.new_empty(ctx.input_shape)
        _launch("gather_patches", of_x[0].numel(), 1, ctx.sizes, of_patches, of_x)
        return of_x, of_kernels, None, None, None


def _patches(x: Tensor, sizes: dict[str, Any]) -> Tensor:
    rows, columns = sizes["K_PADDED"], sizes["N_PADDED"]
    patches = x.new_empty(len(x), rows, columns)
    if x.stride()[3:] != (x.shape[4], 1):
        x = x.contiguous()
    group, channel, image = x.stride()[:3]
    _launch("lay_out_patches", columns, rows, sizes, x, patches, group, image, channel)
    return patches


def _launch(name: str, entries: int, rows: int, sizes: dict[str, Any], *arguments: Any) -> None:
    """Start a kernel for every group; pass the sizes that it declares as constants."""
    from fedcohort.simulation.engine import convolution_kernels as kernels

    kernel, groups = getattr(kernels, name), len(arguments[0])
    grid = (-(-entries // kernels.BLOCK), groups, -(-rows // kernels.ROWS))
    known = {**sizes, "BLOCK": kernels.BLOCK, "ROWS": kernels.ROWS}
    kernel[grid](*arguments, **{name: known[name] for name in kernel.fn.__annotations__})
