"""Attention over the raw window and the compressed rows, with one key that is also the value.

    q_r = rms(W_qa·x; w)      q = rms per head(W_qb·q_r), rotated
    k   = rms(W_kv·x; w), rotated, rounded                              -> appended to the raw window
    a   = softmax over visible rows of q·row/sqrt(d), with a learned sink as one more logit whose value is zero
    o_h = Σ a·row, rotated back;  low_g = W_oa[g]·concat(o_h of group g);  y = W_ob·concat(low)

A token at p sees the raw rows of positions p-W+1..p and the compressed rows c < (p+1)/ratio, of ratio 4 only those that
its indexer selects. Recent tokens are seen twice, raw and compressed. Queries are worked off in short blocks, so that a
block shares one band of raw rows and nothing grows with the square of the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from .compressor import Compressor
from .indexer import Indexer
from .linear import Grouped, Linear, Norm
from .memory import LayerMemory
from .rotary import rotate_
from .rounding import Rounding

BLOCK = 64  # queries


@dataclass(frozen=True, slots=True)
class Attention:
    """Weights of one layer's attention. What is None, the layer's ratio does not have."""

    query_down: Linear  # [q_rank, D]
    query_norm: Norm
    query_up: Linear  # [H*d, q_rank]
    head_norm: Norm
    key: Linear  # [d, D]
    key_norm: Norm
    sinks: Tensor  # [H]
    out_groups: Grouped  # G times [R, H/G*d]
    out: Linear  # [D, G*R]
    compressor: Compressor | None
    indexer: Indexer | None
    rounding: Rounding
    inner: torch.dtype

    def __call__(self, x: Tensor, turn: Tensor, start: int, memory: LayerMemory) -> Tensor:
        """x [S, D] at positions start.. -> y [S, D]; `turn` [S, r] is their rotation."""
        q_r = self.query_norm(self.query_down(x))
        q = self.head_norm(self.query_up(q_r).unflatten(-1, (len(self.sinks), -1)))  # [S, H, d]
        rotate_(q, turn[:, None])
        k = self.key_norm(self.key(x))
        rotate_(k, turn)
        near = memory.window.append(self.rounding.kv_row(k))

        if self.compressor is not None and memory.attn is not None:
            self.compressor(x, start, memory.attn)
        if self.indexer is not None and memory.index is not None:
            self.indexer.compressor(x, start, memory.index)
        o = self.look(q, x, q_r, turn, near, start, memory).to(x.dtype)

        rotate_(o, turn[:, None].conj())
        return self.out(self.out_groups(o.flatten(1)))

    def look(
        self, q: Tensor, x: Tensor, q_r: Tensor, turn: Tensor, near: Tensor, start: int, memory: LayerMemory
    ) -> Tensor:
        """Every query's weighted sum of the rows that it sees [S, H, d]."""
        count, before = len(q), len(near) - len(q)
        q = (q * q.shape[-1] ** -0.5).to(self.inner)
        near = near.to(self.inner)
        index = None
        if self.indexer is not None and (start + count) // memory.ratio > self.indexer.top_k:
            index = self.indexer.queries(x, q_r, turn)

        out = []
        for first in range(0, count, BLOCK):
            block = slice(first, min(first + BLOCK, count))
            band = near[max(0, first + before - memory.window.size + 1) : block.stop + before]
            hidden = outside(block.stop - first, len(band), memory.window.size, q.device)
            far, far_hidden = self.far(block, start, memory, index)
            out.append(attend(q[block], self.sinks, [(band, hidden), (far.to(self.inner), far_hidden)]))
        return torch.cat(out)

    def far(
        self, block: slice, start: int, memory: LayerMemory, index: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """Compressed rows for a block of queries, shared [C, d] or each query's own [B, K, d]; which are hidden [B, C]."""
        if memory.attn is None:
            return self.sinks.new_empty(0, memory.window.buffer.shape[1]), self.sinks.new_empty(1, 0, dtype=torch.bool)
        total = (start + block.stop) // memory.ratio
        visible = (
            torch.arange(start + block.start + 1, start + block.stop + 1, device=self.sinks.device) // memory.ratio
        )
        indexer, index_rows = self.indexer, memory.index
        if indexer is None or index_rows is None or index is None or total <= indexer.top_k:
            columns = torch.arange(total, device=visible.device)
            rows = memory.attn.rows[:total]
        else:
            q, weights = index
            columns = indexer.select(q[block], weights[block], index_rows.rows[:total], visible)
            rows = memory.attn.rows[columns]
        return rows, columns >= visible[:, None]


def attend(q: Tensor, sinks: Tensor, parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """softmax(q·rows, sink)·rows for queries [B, H, d] over parts of (rows [R, d] or [B, R, d], hidden [B, R])."""
    logits = [(q @ rows.mT).masked_fill_(hidden[:, None], -torch.inf) for rows, hidden in parts]
    weights = torch.cat([*logits, sinks.expand(*q.shape[:2])[..., None]], -1).softmax(-1)
    near, far, _ = weights.split([*(part.shape[-1] for part in logits), 1], -1)
    return near @ parts[0][0] + far @ parts[1][0]


@lru_cache(maxsize=64)
def outside(queries: int, rows: int, window: int, device: torch.device) -> Tensor:
    """[B, R], true where a raw row lies after a query or a window before it; the last row is the last query's own."""
    own = torch.arange(rows - queries, rows, device=device)[:, None]
    row = torch.arange(rows, device=device)
    return (row > own) | (row <= own - window)
