"""The mixture of experts: a few small gated networks per token, and one that every token passes.

    p = sqrt(softplus(W_g·x))
    S = the table's experts of the token id (hash layers), else the top k of p + bias (the bias only selects)
    w_e = p_e / Σ_S p · scale
    f(x; w) = W2·(silu(min(W1·x, c)) · clamp(W3·x, -c, c) · w)
    y = Σ_S f_e(x; w_e) + f_shared(x; 1)

Routed experts stay in the file, packed; one that is used is unpacked into a cache that forgets the least recently used,
so that memory follows the cache's limit and not the file's size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .linear import Linear


@dataclass(frozen=True, slots=True)
class Expert:
    """One gated network."""

    gate_up: Linear  # W1, then W3 [2*F, D]
    down: Linear  # W2 [D, F]
    clamp: float
    inner: torch.dtype

    def __call__(self, x: Tensor, weight: Tensor | None = None) -> Tensor:  # [T, D], [T] -> [T, D]
        gate, up = self.gate_up(x).to(self.inner).chunk(2, -1)
        hidden = F.silu(gate.clamp(max=self.clamp)) * up.clamp(-self.clamp, self.clamp)
        if weight is not None:
            hidden = hidden * weight[:, None]
        return self.down(hidden.to(x.dtype))

    @property
    def nbytes(self) -> int:
        return self.gate_up.weight.nbytes + self.down.weight.nbytes


class ExpertCache:
    """Unpacked experts of all layers, at most `limit` bytes of them (and always the one in use)."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self.experts: OrderedDict[tuple[int, int], Expert] = OrderedDict()

    def get(self, key: tuple[int, int], unpack: Callable[[], Expert]) -> Expert:
        """The expert of (layer, number), unpacked now if it is not here."""
        expert = self.experts.pop(key, None)
        if expert is None:
            expert = unpack()
            self.nbytes += expert.nbytes
        self.experts[key] = expert
        while self.nbytes > self.limit and len(self.experts) > 1:
            self.nbytes -= self.experts.popitem(last=False)[1].nbytes
        return expert


@dataclass(frozen=True, slots=True)
class Router:
    """Which experts a token uses, and how much of each."""

    gate: Linear  # [E, D]
    bias: Tensor  # [E], zero on hash layers
    table: Tensor | None  # [V, k]: the fixed experts of each token id, on hash layers
    used: int
    scale: float
    inner: torch.dtype

    def __call__(self, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Expert numbers and weights [S, k] of tokens x [S, D]."""
        p = F.softplus(self.gate(x).to(self.inner)).float().sqrt()
        if self.table is not None:
            chosen = self.table[tokens].long()
        else:
            chosen = (p + self.bias).sort(dim=-1, descending=True, stable=True).indices[:, : self.used]
        weights = p.gather(-1, chosen)
        return chosen, weights / weights.sum(-1, keepdim=True).clamp_min(2.0**-14) * self.scale


@dataclass(frozen=True, slots=True)
class MoE:
    """One layer's experts. `routed(e)` is expert e."""

    router: Router
    routed: Callable[[int], Expert]
    shared: Expert
    inner: torch.dtype

    def __call__(self, x: Tensor, tokens: Tensor) -> Tensor:  # [S, D], [S] -> [S, D]
        chosen, weights = self.router(x, tokens)
        order = chosen.flatten().argsort(stable=True)  # one expert's tokens behind each other, experts ascending
        counts = chosen.flatten().bincount().tolist()
        rows = order // chosen.shape[1]
        parts = zip(x[rows].split(counts), weights.flatten()[order].split(counts), strict=True)
        answers = [self.routed(e)(part, weight) for e, (part, weight) in enumerate(parts) if len(part)]
        y = self.shared(x).to(self.inner).index_add_(0, rows, torch.cat(answers).to(self.inner))
        return y.to(x.dtype)
