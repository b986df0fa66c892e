"""The sizes of a convolution stage's arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

from torch import Tensor

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
        out_channels, _, kernel_height, kernel_width = kernel.shape[1:]
        return cls(
            n_groups,
            groups,
            images,
            channels,
            height,
            width,
            kernel_height,
            kernel_width,
            out_channels,
            pool,
        )

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
