"""Hyper-connections: each token carries n residual streams X [n, D]; a layer reads one mix and writes to all.

    m    = fn · rms(flatten X)                         [n + n + n·n], then m·scale + base
    pre  = sigmoid(m_pre) + eps        post = 2·sigmoid(m_post)
    C    = softmax over rows of m_mix + eps, made doubly stochastic by alternating column and row division
    x    = Σ_j pre[j]·X[j]                             what the layer reads
    X'k  = post[k]·y + Σ_j C[j,k]·X[j]                 y is what it answers; C is used transposed

Sinkhorn without touching the matrix: C = diag(1/R)·C0·diag(1/Q), where dividing by (row sum + eps) is
R <- C0·(1/Q) + eps·R and dividing by (column sum + eps) is Q <- C0ᵀ·(1/R) + eps·Q.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .config import Config, Numerics
from .linear import Linear


@dataclass(frozen=True, slots=True)
class Mixer:
    """fn, scale and base: how the streams' own content decides how they are mixed."""

    fn: Linear  # [k, n·D]
    scale: Tensor  # [k], one of the few learned scales repeated for its part
    base: Tensor  # [k]
    eps: float
    inner: torch.dtype

    def __call__(self, streams: Tensor) -> Tensor:  # [S, n, D] -> [S, k]
        flat = streams.flatten(1)
        mean_square = torch.linalg.vector_norm(flat, dim=-1, keepdim=True, dtype=self.inner).square() / flat.shape[1]
        # rms has no weight here, so it can be taken after the product, where it is k numbers instead of n·D
        mixed = self.fn(flat).to(self.inner) * torch.rsqrt(mean_square + self.eps)
        return torch.addcmul(self.base, mixed, self.scale)


@dataclass(frozen=True, slots=True)
class HyperConnection:
    """One wrapping of half a layer."""

    mixer: Mixer
    streams: int
    steps: int
    eps: float
    outer: torch.dtype

    @classmethod
    def of(cls, mixer: Mixer, config: Config, numerics: Numerics) -> HyperConnection:
        return cls(mixer, config.streams, config.sinkhorn_steps, config.hc_eps, numerics.outer)

    def read(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[S, n, D] -> what the layer reads [S, D], post [S, n, 1], C [S, n, n]."""
        n = self.streams
        mix = self.mixer(streams)
        gates = mix[:, : 2 * n].sigmoid()
        pre, post = gates[:, None, :n] + self.eps, 2 * gates[:, n:, None]
        x = torch.bmm(pre, streams.to(pre.dtype))[:, 0]
        return x.to(self.outer), post, self.sinkhorn(mix[:, 2 * n :].unflatten(-1, (n, n)))

    def write(self, streams: Tensor, y: Tensor, post: Tensor, mix: Tensor) -> Tensor:
        """The streams after the layer has answered y [S, D]."""
        mixed = torch.matmul(mix.mT, streams.to(mix.dtype))
        return mixed.addcmul_(post, y[:, None].to(mix.dtype)).to(self.outer)

    def sinkhorn(self, mix: Tensor) -> Tensor:  # [S, n, n]
        start = mix.softmax(-1) + self.eps
        turned = start.mT
        rows = start.new_ones(len(start), self.streams, 1)
        columns = rows.clone().baddbmm_(turned, rows, beta=self.eps)
        for _ in range(self.steps - 1):
            rows.baddbmm_(start, columns.reciprocal(), beta=self.eps)
            columns.baddbmm_(turned, rows.reciprocal(), beta=self.eps)
        return start / rows / columns.mT


@dataclass(frozen=True, slots=True)
class Collapse:
    """The end of the streams: h = Σ_j (sigmoid(m_j) + eps)·X[j]."""

    mixer: Mixer
    eps: float
    outer: torch.dtype

    def __call__(self, streams: Tensor) -> Tensor:  # [S, n, D] -> [S, D]
        weights = self.mixer(streams).sigmoid() + self.eps
        return torch.bmm(weights[:, None], streams.to(weights.dtype))[:, 0].to(self.outer)
