"""Matrix products, the norm, and the int8 grids on which ds4's CPU kernels put activations.

    y = W·x                     every projection; W [out, in], no bias anywhere
    rms(x; w) = x / sqrt(mean(x²) + eps) * w

ds4 multiplies a quantised weight with a quantised activation. Before Q8_0 weights, blocks of 32 values become
q·d with d = amax/127 and q = round(x/d); before K- and IQ-quantised weights, blocks of 256 with d = -max/127, where max
is the signed value of largest magnitude. Both are exact in float64, and so are their products with the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Grid = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Linear:
    """One projection. Computes in the dtype of its weight and hands on `out`."""

    weight: Tensor  # [out, in]
    out: torch.dtype
    grid: Grid | None = None

    def __call__(self, x: Tensor) -> Tensor:  # [..., in] -> [..., out]
        if self.grid is not None:
            x = self.grid(x)
        return F.linear(x.to(self.weight.dtype), self.weight).to(self.out)


@dataclass(frozen=True, slots=True)
class Grouped:
    """G projections of as many slices of the input."""

    weight: Tensor  # [G, out, in]
    out: torch.dtype
    grid: Grid | None = None

    def __call__(self, x: Tensor) -> Tensor:  # [S, G*in] -> [S, G*out]
        if self.grid is not None:
            x = self.grid(x)
        slices = x.to(self.weight.dtype).unflatten(-1, (len(self.weight), -1)).transpose(0, 1)
        return torch.bmm(slices, self.weight.mT).transpose(0, 1).flatten(1).to(self.out)


@dataclass(frozen=True, slots=True)
class Norm:
    """rms(x; w) over the last axis; without a weight, w = 1. The mean is formed in `inner`, the rest in float32."""

    weight: Tensor | None  # float32
    eps: float
    inner: torch.dtype
    out: torch.dtype

    def __call__(self, x: Tensor) -> Tensor:
        mean_square = x.to(self.inner).square().mean(-1, keepdim=True).float()
        x = x * (mean_square + self.eps).rsqrt()
        return (x if self.weight is None else x * self.weight).to(self.out)


def int8_blocks_of_32(x: Tensor) -> Tensor:
    blocks = x.unflatten(-1, (-1, 32))
    step = blocks.abs().amax(-1, keepdim=True) / 127
    scale = torch.where(step > 0, 1 / step, 0)
    return ((blocks * scale).round().double() * step.double()).flatten(-2)


def int8_blocks_of_256(x: Tensor) -> Tensor:
    blocks = x.unflatten(-1, (-1, 256))
    peak = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    scale = torch.where(peak != 0, -127 / peak, 0)
    step = torch.where(peak != 0, 1 / scale, 0)
    return ((blocks * scale).round().clamp(max=127).double() * step.double()).flatten(-2)
