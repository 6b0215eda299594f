"""The optimiser: orthogonalised momentum (Muon) for matrices and stacks of them, Adam for everything else.

    M <- m·M + g        U = the orthogonal matrix nearest to g + m·M, by five Newton-Schulz steps        W <- W - lr·U·size

Stacks of experts are the reason for not taking torch's: it knows single matrices only.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

MOMENTUM = 0.95


class Muon(torch.optim.Optimizer):
    """For parameters [..., out, in]."""

    def __init__(self, params: list[Tensor], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                momentum = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                momentum.mul_(MOMENTUM).add_(weight.grad)
                out, into = weight.shape[-2:]
                update = orthogonal(weight.grad + MOMENTUM * momentum)
                weight.sub_(update * max(1, out / into) ** 0.5, alpha=group["lr"])


def orthogonal(g: Tensor) -> Tensor:
    """The matrix with g's singular vectors and singular values near one."""
    tall = g.shape[-2] > g.shape[-1]
    x = g.mT if tall else g
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if tall else x


def optimisers(weights: Mapping[str, Tensor]) -> tuple[Muon, torch.optim.Adam]:
    """One for the matrices inside the layers, one for embeddings, head, norms, routers and mixers."""
    trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
    inside = [weight for name, weight in trained.items() if _is_inside(name)]
    others = [weight for name, weight in trained.items() if not _is_inside(name)]
    return Muon(inside, lr=0.02), torch.optim.Adam(others, lr=4e-3, betas=(0.9, 0.95))


def _is_inside(name: str) -> bool:
    kinds = ("attn_q_", "attn_kv.", "attn_output_", "compressor_kv", "compressor_gate", "_exps", "_shexp")
    return any(kind in name for kind in kinds) and "norm" not in name
