"""The roundings that the model was trained with: what a row loses when it is stored.

    KV rows     dims before the rotated tail, in blocks of 64:  s = 2^ceil(log2(max(amax, 1e-4)/448));  E4M3(v/s)·s
    indexer     x <- H·x/sqrt(d), H the Walsh-Hadamard matrix;  then in blocks of 32:
                s = 2^ceil(log2(max(amax, 6·2^-126)/6));  E2M1(v/s)·s
    stored rows of both kinds then pass through IEEE half

All scales are powers of two, so that multiplying and dividing by them is exact; exponents come from frexp and not from
a rounded logarithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from .config import Config, Numerics
from .errors import EngineError

FP8_MAX, FP8_BLOCK, FP8_FLOOR = 448.0, 64, 1e-4
FP4_MAX, FP4_BLOCK, FP4_FLOOR = 6.0, 32, 6.0 * 2.0**-126


@dataclass(frozen=True, slots=True)
class Rounding:
    """What happens to rows on their way into the state, and to the indexer's queries. Off, all of it is identity."""

    on: bool
    tail: int
    inner: torch.dtype

    @classmethod
    def of(cls, config: Config, numerics: Numerics) -> Rounding:
        if numerics.kv_rounding and ((config.head_dim - config.rope_dim) % FP8_BLOCK or config.index_dim % FP4_BLOCK):
            raise EngineError("the heads do not divide into the blocks of the KV roundings", found=config.head_dim)
        return cls(numerics.kv_rounding, config.rope_dim, numerics.inner)

    def kv_row(self, x: Tensor) -> Tensor:  # [..., d], rotated
        if not self.on:
            return x
        body, tail = x.float().split([x.shape[-1] - self.tail, self.tail], -1)
        return torch.cat([fp8(body), tail], -1).half().float()

    def index_row(self, x: Tensor) -> Tensor:  # [..., index_dim], rotated
        return self.index_query(x).half().float() if self.on else x

    def index_query(self, x: Tensor) -> Tensor:
        if not self.on:
            return x
        return fp4((x.to(self.inner) @ hadamard(x.shape[-1], self.inner, x.device)).float())


def fp8(x: Tensor) -> Tensor:
    """E4M3 round trip of float32, one power-of-two scale for each 64 values of the last axis."""
    blocks = x.unflatten(-1, (-1, FP8_BLOCK))
    scale = _scale(blocks, FP8_MAX, FP8_FLOOR)
    codes = (blocks / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return (codes.float() * scale).flatten(-2)


def fp4(x: Tensor) -> Tensor:
    """E2M1 round trip of float32, one power-of-two scale for each 32 values; ties go to the even code."""
    blocks = x.unflatten(-1, (-1, FP4_BLOCK))
    scale = _scale(blocks, FP4_MAX, FP4_FLOOR)
    v = (blocks / scale).clamp(-FP4_MAX, FP4_MAX)
    size = v.abs()
    step = 0.5 + 0.5 * (size >= 2) + 1.0 * (size >= 4)  # E2M1 is linear in steps of .5 up to 2, 1 up to 4, 2 up to 6
    return ((v / step).round() * step * scale).flatten(-2)


def _scale(blocks: Tensor, top: float, floor: float) -> Tensor:
    fraction, exponent = torch.frexp(blocks.abs().amax(-1, keepdim=True).clamp_min(floor) / top)
    return torch.ldexp(torch.ones_like(fraction), exponent - (fraction == 0.5).int())


@lru_cache
def hadamard(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The symmetric orthogonal Walsh-Hadamard matrix in natural order; `size` is a power of two."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return (matrix / size**0.5).to(device, dtype)
