"""The compressor: a window of tokens becomes one row, by a softmax over its tokens in every channel.

    kv = W_kv·x        s = W_gate·x + ape[p mod ratio]
    row_c[j] = Σ_i softmax_i(s_i[j]) · kv_i[j],  i over the candidates of window c
    then rms with the learned weight, rotation to position ratio·c, and the rounding of a stored row

Ratio 128: the candidates are the window's 128 tokens. Ratio 4: kv and s have two lanes, and the candidates are the first
lanes of the window before and the second lanes of this one; a missing window before has empty scores. The row is made
while the last token of its window is processed, and that token already sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .linear import Linear, Norm
from .memory import Stream
from .rotary import Rotary, rotate_


@dataclass(frozen=True, slots=True)
class Compressor:
    """The weights of one compressor; the frontier and the rows are in the Stream that it is given."""

    ratio: int
    kv_gate: Linear  # W_kv, then W_gate [2*lanes*d, D]
    ape: Tensor  # [ratio, lanes*d]
    norm: Norm
    rotary: Rotary
    round: Callable[[Tensor], Tensor]
    inner: torch.dtype

    def __call__(self, x: Tensor, start: int, stream: Stream) -> None:
        """Take the tokens x [S, D] at positions start.., and append the rows of all windows that they close."""
        kv, score = self.kv_gate(x).chunk(2, -1)
        score = score + self.ape[torch.arange(start, start + len(x), device=x.device) % self.ratio]
        live = stream.lead + start % self.ratio  # rows of the frontier that still count
        windows = (start % self.ratio + len(x)) // self.ratio
        if not windows:
            stream.kv[live : live + len(x)], stream.score[live : live + len(x)] = kv, score
            return
        kv, score = torch.cat([stream.kv[:live], kv]), torch.cat([stream.score[:live], score])
        stream.put(start // self.ratio, self.rows(kv, score, start // self.ratio, windows))
        for frontier, tokens in ((stream.kv, kv), (stream.score, score)):
            closed = tokens[: stream.lead + windows * self.ratio]
            rest = tokens[windows * self.ratio :]  # the lead of the next window, and that window's tokens
            frontier[stream.lead :] = closed[-self.ratio :]  # slots without a token keep the last that was there
            frontier[: len(rest)] = rest

    def rows(self, kv: Tensor, score: Tensor, first: int, windows: int) -> Tensor:
        """Windows first.. as stored rows [windows, d]."""
        kv, score = self.candidates(kv, windows), self.candidates(score, windows)
        pooled = (score.to(self.inner).softmax(1) * kv).sum(1)
        row = self.norm(pooled)
        positions = torch.arange(first, first + windows, device=row.device) * self.ratio
        rotate_(row, self.rotary.turns(positions))
        return self.round(row)

    def candidates(self, tokens: Tensor, windows: int) -> Tensor:  # [lead + ratio*windows.., lanes*d]
        """[windows, candidates, d]."""
        lead = self.ratio if self.ratio == 4 else 0
        tokens = tokens[: lead + windows * self.ratio].unflatten(0, (-1, self.ratio))
        if not lead:
            return tokens
        first, second = tokens.chunk(2, -1)
        return torch.cat([first[:-1], second[1:]], 1)
