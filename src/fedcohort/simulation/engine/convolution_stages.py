"""Stages of convolution, activation and pooling, for many models at once."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any, final

import torch
from torch import Tensor, nn

from fedcohort.simulation.engine.models import Stacked

#: Rows of products are multiples of so many floats, 16 bytes.
ALIGNMENT = 4


@final
@dataclass(frozen=True)
class StageShape:
    """The sizes of a stage's arrays; see ``convolution_kernels`` for the layouts."""

    groups: int
    groups_per_lane: int
    images: int
    channels: int
    height: int
    width: int
    kernel_height: int
    kernel_width: int
    out_channels: int
    pool: int

    @classmethod
    def of(cls, x: Tensor, kernel: Tensor, *, groups: int, pool: int) -> StageShape:
        """Read the sizes off (groups, channels, images, h, w) and (lanes, out, channels, a, b)."""
        n_groups, channels, images, height, width = x.shape
        out_channels, _, rows, columns = kernel.shape[1:]
        image = (images, channels, height, width)
        return cls(n_groups, groups, *image, rows, columns, out_channels, pool)

    @cached_property
    def conv_height(self) -> int:
        """Rows of the convolution's output."""
        return self.height - self.kernel_height + 1

    @cached_property
    def conv_width(self) -> int:
        """Columns of the convolution's output."""
        return self.width - self.kernel_width + 1

    @cached_property
    def out_height(self) -> int:
        """Rows after pooling."""
        return self.conv_height // self.pool

    @cached_property
    def out_width(self) -> int:
        """Columns after pooling."""
        return self.conv_width // self.pool

    @cached_property
    def k(self) -> int:
        """Entries of a patch."""
        return self.channels * self.kernel_height * self.kernel_width

    @cached_property
    def k_padded(self) -> int:
        """Rows of the patches: with the row of ones, and padding."""
        return -(-(self.k + 1) // ALIGNMENT) * ALIGNMENT

    @cached_property
    def n(self) -> int:
        """Patches of a group."""
        return self.images * self.conv_height * self.conv_width

    @cached_property
    def n_padded(self) -> int:
        """Columns of the patches, with padding."""
        return -(-self.n // ALIGNMENT) * ALIGNMENT

    @property
    def out(self) -> tuple[int, int, int, int, int]:
        """The shape of what a stage gives."""
        return (self.groups, self.out_channels, self.images, self.out_height, self.out_width)


log = logging.getLogger(__name__)


@final
@dataclass(frozen=True)
class Stage:
    """A convolution (stride 1, no padding), then ReLU, max-pooling and dropout where there are.

    Attributes
    ----------
    name
        The convolution's, among the parameters.
    relu
        Whether a ReLU follows.
    pool
        The side of pooling windows, which do not overlap; 1 for no pooling.
    dropout
        The chance of an entry to be dropped; 0 for no dropout.
    key
        Which of a lane's keys the dropout uses.
    """

    name: str
    relu: bool = False
    pool: int = 1
    dropout: float = 0.0
    key: int = 0

    def __call__(self, x: Tensor, parameters: Stacked, keys: Tensor, groups: int) -> Tensor:
        """Map (groups, channels, images, height, width) to the same of the next stage."""
        kernel = parameters[f"{self.name}.weight"]
        shape = StageShape.of(x, kernel, groups=groups, pool=self.pool)
        flat = kernel.flatten(2)
        bias = parameters.get(f"{self.name}.bias", torch.zeros_like(flat[..., 0])).unsqueeze(2)
        spare = flat.new_zeros(*flat.shape[:2], shape.k_padded - shape.k - 1)
        kernels = torch.cat([flat, bias, spare], dim=2).repeat_interleave(groups, dim=0)
        out: Tensor = _Stage.apply(x, kernels, keys, self, shape)
        return out


def stages_of(layers: list[tuple[str, nn.Module]], *, dropout: bool) -> list[Stage] | None:
    """Divide the layers before the flattening into stages.

    Returns None where they do not fit, or where there is no Triton.
    """
    if not _kernels_work():
        return None
    stages: list[Stage] = []
    n_dropouts = 0
    last: type | None = None
    order = (nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.Dropout)
    for name, module in layers:
        kind = type(module)
        if kind is nn.Conv2d:
            stages.append(Stage(name))
        elif last is None or order.index(kind) <= order.index(last):
            return None
        elif isinstance(module, nn.MaxPool2d):
            size = module.kernel_size
            if type(size) is not int or module.stride != size or size > 15:
                return None
            stages[-1] = replace(stages[-1], pool=size)
        elif isinstance(module, nn.Dropout):
            if dropout and 0 < module.p < 1:
                stages[-1] = replace(stages[-1], dropout=module.p, key=n_dropouts)
            elif dropout and module.p == 1:
                return None
            n_dropouts += 1
        else:
            stages[-1] = replace(stages[-1], relu=True)
        last = kind
    return stages


@cache
def _kernels_work() -> bool:
    """Try Triton once: it is not everywhere, and it needs a C compiler where it is."""
    if find_spec("triton") is None:
        return False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, kernel = torch.ones(1, 1, 1, 2, 2, device=device), torch.ones(1, 1, 1, 2, 2)
    try:
        patches = _patches(x, StageShape.of(x, kernel, groups=1, pool=1))
        return bool((patches[0, :5, 0] == 1).all())
    except Exception as error:  # whatever it lacks, the slower way does without
        log.warning("Triton does not work here, so convolutions are slower: %s", error)
        return False


class _Stage(torch.autograd.Function):
    """Two products forth and back, and kernels between them."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kernels: Tensor, keys: Tensor, stage: Stage, shape: StageShape
    ) -> Tensor:
        patches = _patches(x, shape)
        product = torch.bmm(kernels, patches)
        out, codes = _finished(product, keys, stage, shape)
        ctx.save_for_backward(patches, kernels, codes)
        ctx.stage, ctx.shape = stage, shape
        return out

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, Tensor, None, None, None]:
        patches, kernels, codes = ctx.saved_tensors
        of_product = _unfinished(slopes[0].contiguous(), codes, ctx.stage, ctx.shape)
        of_kernels = torch.bmm(of_product, patches.transpose(1, 2))
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = _gathered(torch.bmm(kernels.transpose(1, 2), of_product), ctx.shape)
        return of_x, of_kernels, None, None, None


def _grid(entries: int, groups: int, rows: int = 1) -> tuple[int, int, int]:
    from fedcohort.simulation.engine.convolution_kernels import BLOCK, ROWS

    return (-(-entries // BLOCK), groups, -(-rows // ROWS))


def _patches(x: Tensor, shape: StageShape) -> Tensor:
    from fedcohort.simulation.engine import convolution_kernels as kernels

    patches = x.new_empty(shape.groups, shape.k_padded, shape.n_padded)
    group, channel, image, row, column = x.stride()
    if (row, column) != (shape.width, 1):
        x = x.contiguous()
        group, channel, image = x.stride()[:3]
    kernels.lay_out_patches[_grid(shape.n_padded, shape.groups, shape.k_padded)](
        x,
        patches,
        group,
        image,
        channel,
        WIDTH=shape.width,
        KERNEL_HEIGHT=shape.kernel_height,
        KERNEL_WIDTH=shape.kernel_width,
        OUT_HEIGHT=shape.conv_height,
        OUT_WIDTH=shape.conv_width,
        K=shape.k,
        K_PADDED=shape.k_padded,
        N=shape.n,
        N_PADDED=shape.n_padded,
        ROWS=kernels.ROWS,
        BLOCK=kernels.BLOCK,
    )
    return patches


def _gathered(slopes: Tensor, shape: StageShape) -> Tensor:
    from fedcohort.simulation.engine import convolution_kernels as kernels

    of_x = slopes.new_empty(shape.groups, shape.channels, shape.images, shape.height, shape.width)
    kernels.gather_patches[_grid(of_x[0].numel(), shape.groups)](
        slopes,
        of_x,
        CHANNELS=shape.channels,
        IMAGES=shape.images,
        HEIGHT=shape.height,
        WIDTH=shape.width,
        KERNEL_HEIGHT=shape.kernel_height,
        KERNEL_WIDTH=shape.kernel_width,
        OUT_HEIGHT=shape.conv_height,
        OUT_WIDTH=shape.conv_width,
        K_PADDED=shape.k_padded,
        N_PADDED=shape.n_padded,
        BLOCK=kernels.BLOCK,
    )
    return of_x


def _finished(
    product: Tensor, keys: Tensor, stage: Stage, shape: StageShape
) -> tuple[Tensor, Tensor]:
    from fedcohort.simulation.engine import convolution_kernels as kernels

    out = product.new_empty(shape.out)
    codes = torch.empty(shape.out, dtype=torch.uint8, device=out.device)
    kernels.finish[_grid(out[0].numel(), shape.groups)](
        product,
        keys,
        out,
        codes,
        keys.shape[1],
        stage.key,
        CHANNELS=shape.out_channels,
        IMAGES=shape.images,
        GROUPS=shape.groups_per_lane,
        HEIGHT=shape.conv_height,
        WIDTH=shape.conv_width,
        OUT_HEIGHT=shape.out_height,
        OUT_WIDTH=shape.out_width,
        POOL=stage.pool,
        RELU=stage.relu,
        DROPS=stage.dropout > 0,
        THRESHOLD=round(stage.dropout * 2**32) - 2**31,
        SCALE=1 / (1 - stage.dropout),
        N_PADDED=shape.n_padded,
        BLOCK=kernels.BLOCK,
    )
    return out, codes


def _unfinished(slopes: Tensor, codes: Tensor, stage: Stage, shape: StageShape) -> Tensor:
    from fedcohort.simulation.engine import convolution_kernels as kernels

    of_product = slopes.new_empty(shape.groups, shape.out_channels, shape.n_padded)
    kernels.unfinish[_grid(shape.n_padded, shape.groups, shape.out_channels)](
        slopes,
        codes,
        of_product,
        CHANNELS=shape.out_channels,
        IMAGES=shape.images,
        HEIGHT=shape.conv_height,
        WIDTH=shape.conv_width,
        OUT_HEIGHT=shape.out_height,
        OUT_WIDTH=shape.out_width,
        POOL=stage.pool,
        SCALE=1 / (1 - stage.dropout),
        N=shape.n,
        N_PADDED=shape.n_padded,
        ROWS=kernels.ROWS,
        BLOCK=kernels.BLOCK,
    )
    return of_product
