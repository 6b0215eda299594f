"""The indexer of ratio-4 layers: which compressed rows a token may look at.

    q_h = W_iq·q_r per head, rotated, rounded          w = W_iw·x / sqrt(d_I·H_I)
    score_c = Σ_h w_h · relu(q_h · row_c)              keep the K largest, the older row on a tie

Its rows come from a compressor of its own with the same windows. As long as there are no more than K rows nothing is
scored. The work grows with the number of rows, so it is done in blocks of queries that stay in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .compressor import Compressor
from .linear import Linear
from .rotary import rotate_
from .rounding import Rounding

SCORES_AT_ONCE = 1 << 20  # heads * rows * queries: 4 MB of float32


@dataclass(frozen=True, slots=True)
class Indexer:
    """Weights of one indexer."""

    query: Linear  # [H_I*d_I, q_rank]
    weigh: Linear  # [H_I, D]
    compressor: Compressor
    heads: int
    dim: int
    top_k: int
    rounding: Rounding
    inner: torch.dtype

    def queries(self, x: Tensor, q_r: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
        """Queries [S, H_I, d_I] and head weights [S, H_I] of the tokens x [S, D]."""
        q = self.query(q_r).unflatten(-1, (self.heads, self.dim))
        rotate_(q, turn[:, None])
        weights = self.weigh(x).to(self.inner) / (self.dim * self.heads) ** 0.5
        return self.rounding.index_query(q).to(self.inner), weights

    def select(self, q: Tensor, weights: Tensor, rows: Tensor, visible: Tensor) -> Tensor:
        """The K best of rows [C, d_I], C > K, for each query, ascending [S, K]; query i may see the first visible[i].

        Where fewer than K are visible, all of them and some others come back.
        """
        step = max(1, SCORES_AT_ONCE // (self.heads * len(rows)))
        rows = rows.to(self.inner)
        chosen = []
        for part, w, seen in zip(q.split(step), weights.split(step), visible.split(step), strict=True):
            chosen.append(best(self.scores(part, w, rows), seen, self.top_k))
        return torch.cat(chosen)

    def scores(self, q: Tensor, weights: Tensor, rows: Tensor) -> Tensor:  # [S, C]
        return torch.bmm(weights[:, None], (q @ rows.mT).relu_())[:, 0].float()


def best(scores: Tensor, visible: Tensor, k: int) -> Tensor:
    """Column numbers of the k largest of each row of scores [S, C], ascending; on a tie the lower number."""
    if len(scores) > 1:
        future = torch.arange(scores.shape[1], device=scores.device) >= visible[:, None]
        scores = scores.masked_fill_(future, -torch.inf)
    threshold = scores.topk(k, sorted=False).values.amin(-1, keepdim=True)
    keep = scores >= threshold
    if keep.sum() > k * len(scores):
        tied = scores == threshold
        room = k - (scores > threshold).sum(-1, keepdim=True)
        keep = keep & (~tied | (tied.cumsum(-1) <= room))
    return keep.nonzero()[:, 1].view(-1, k)
