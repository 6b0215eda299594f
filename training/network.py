"""DeepSeek-V4's forward pass once more, for batches and with gradients; the parameters carry ds4's GGUF names.

It computes what kvengine computes with default numerics. All sequences of a batch begin with the same tokens (the tool
preamble): these are computed once, as one more sequence, and every other one sees their keys. Roundings (FP8 of the
stored rows, MXFP4 of the experts) are in the forward pass, and the gradient goes through them unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from kvengine.config import Config, Numerics
from kvengine.rotary import Rotary
from kvengine.rounding import Rounding, fp4

BLOCK = 64  # queries that share one band of raw rows


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens that all sequences begin with [P], and how each goes on [B, S], padded with zeros."""

    shared: Tensor
    rest: Tensor

    @property
    def tokens(self) -> Tensor:  # [P + B*S]
        return torch.cat([self.shared, self.rest.flatten()])

    @property
    def positions(self) -> Tensor:
        start, (count, length) = len(self.shared), self.rest.shape
        return torch.cat([torch.arange(start), torch.arange(start, start + length).repeat(count)])

    def whole(self, x: Tensor) -> Tensor:
        """[P + B*S, d] -> [B, P + S, d]."""
        shared, rest = x.split([len(self.shared), self.rest.numel()])
        rest = rest.unflatten(0, self.rest.shape)
        return torch.cat([shared.expand(len(rest), -1, -1), rest], 1)


@dataclass(frozen=True, slots=True)
class Network:
    """Parameters by name, and everything that is computed from them."""

    config: Config
    weights: dict[str, Tensor]

    def streams(self, batch: Batch) -> Tensor:
        """The last residual streams of the sequences' own tokens [B*S, n, D]."""
        c, tokens = self.config, batch.tokens
        turns = [rotary(c, compressed).turns(batch.positions) for compressed in (False, True)]
        streams = F.embedding(tokens, self.weights["token_embd.weight"])[:, None].expand(-1, c.streams, -1)
        for number, ratio in enumerate(c.ratios):
            at = f"blk.{number}."
            x, post, mix = self.read(at + "hc_attn", streams)
            y = self.attention(at, self.norm(x, at + "attn_norm"), turns[bool(ratio)], batch, ratio)
            streams = write(streams, y, post, mix)
            x, post, mix = self.read(at + "hc_ffn", streams)
            y = self.experts(at, self.norm(x, at + "ffn_norm"), tokens)
            streams = write(streams, y, post, mix)
        return streams[len(batch.shared) :]

    def logits(self, streams: Tensor) -> Tensor:  # [T, n, D] -> [T, V]
        weights = self.mixer("output_hc", streams).sigmoid() + self.config.hc_eps
        x = (weights[:, :, None] * streams).sum(1)
        return F.linear(self.norm(x, "output_norm"), self.weights["token_embd.weight"])

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[name + ".weight"])

    def norm(self, x: Tensor, name: str | None) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weights[name + ".weight"] if name else None, self.config.norm_eps)

    # ---- hyper-connections

    def mixer(self, at: str, streams: Tensor) -> Tensor:
        scale, base = self.weights[at + "_scale.weight"], self.weights[at + "_base.weight"]
        n = self.config.streams
        parts = torch.tensor([n, n, n * n][: len(scale)])
        return self.linear(self.norm(streams.flatten(1), None), at + "_fn") * scale.repeat_interleave(parts) + base

    def read(self, at: str, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n, eps = self.config.streams, self.config.hc_eps
        pre, post, mix = self.mixer(at, streams).split([n, n, n * n], -1)
        x = ((pre.sigmoid() + eps)[:, :, None] * streams).sum(1)
        mix = mix.unflatten(-1, (n, n)).softmax(-1) + eps
        mix = mix / (mix.sum(-2, keepdim=True) + eps)
        for _ in range(self.config.sinkhorn_steps - 1):
            mix = mix / (mix.sum(-1, keepdim=True) + eps)
            mix = mix / (mix.sum(-2, keepdim=True) + eps)
        return x, 2 * post.sigmoid(), mix

    # ---- attention

    def attention(self, at: str, x: Tensor, turn: Tensor, batch: Batch, ratio: int) -> Tensor:
        c = self.config
        q_r = self.norm(self.linear(x, at + "attn_q_a"), at + "attn_q_a_norm")
        q = self.norm(self.linear(q_r, at + "attn_q_b").unflatten(-1, (c.heads, c.head_dim)), None)
        q = rotated(q, turn[:, None]) * c.head_dim**-0.5
        keys = batch.whole(
            self.rounded(rotated(self.norm(self.linear(x, at + "attn_kv"), at + "attn_kv_a_norm"), turn))
        )
        rows = self.compressed(at + "attn_compressor", x, batch, ratio) if ratio else keys[:, :0]
        start = len(batch.shared)
        shared = self.look(at, q[:start][None], keys[:1], rows[:1], 0, ratio)
        rest = self.look(at, q[start:].unflatten(0, batch.rest.shape), keys, rows, start, ratio)
        o = rotated(torch.cat([shared.flatten(0, 1), rest.flatten(0, 1)]), turn[:, None].conj())
        groups = self.weights[at + "attn_output_a.weight"].unflatten(0, (c.groups, -1))
        low = torch.bmm(o.flatten(1).unflatten(-1, (c.groups, -1)).transpose(0, 1), groups.mT)
        return self.linear(low.transpose(0, 1).flatten(1), at + "attn_output_b")

    def look(self, at: str, q: Tensor, keys: Tensor, rows: Tensor, start: int, ratio: int) -> Tensor:
        """Queries [B, S, H, d] at positions start.. over raw keys [B, T, d] and compressed rows [B, C, d].

        Blocks of queries lie on multiples of BLOCK, so that the rows that one sees are whole pieces of keys and rows.
        """
        end = start + q.shape[1]
        borders = [start, *range((start // BLOCK + 1) * BLOCK, end, BLOCK), end]
        raw, compressed = keys.split(BLOCK, 1), rows.split(max(1, BLOCK // ratio), 1) if ratio else ()
        out = []
        for (low, high), block in zip(
            pairwise(borders), q.split([b - a for a, b in pairwise(borders)], 1), strict=True
        ):
            last = (high - 1) // BLOCK
            first = max(0, last - self.config.window // BLOCK)
            seen = [*raw[first : last + 1], *compressed[: -(-high // max(BLOCK, ratio))]]
            total = sum(piece.shape[1] for piece in seen)
            near = torch.arange(first * BLOCK, min(keys.shape[1], (last + 1) * BLOCK))
            own, far = torch.arange(low, high)[:, None], torch.arange(total - len(near))
            outside = (near > own) | (near <= own - self.config.window)
            hidden = torch.cat([outside, far >= (own + 1) // max(ratio, 1)], -1)
            out.append(self.attend(at, block, torch.cat(seen, 1), hidden))
        return torch.cat(out, 1)

    def attend(self, at: str, q: Tensor, rows: Tensor, hidden: Tensor) -> Tensor:
        logits = torch.bmm(q.flatten(1, 2), rows.mT).unflatten(1, q.shape[1:3])
        logits = logits.masked_fill(hidden[:, None], -torch.inf)
        sinks = self.weights[at + "attn_sinks.weight"].expand(*q.shape[:3])[..., None]
        weights = torch.cat([logits, sinks], -1).softmax(-1)[..., :-1]
        return torch.bmm(weights.flatten(1, 2), rows).view_as(q)

    def compressed(self, at: str, x: Tensor, batch: Batch, ratio: int) -> Tensor:
        """The rows of all whole windows [B, T // ratio, d]."""
        kv, score = (batch.whole(self.linear(x, at + part)) for part in ("_kv", "_gate"))
        windows = kv.shape[1] // ratio
        kv, score = (part[:, : windows * ratio].unflatten(1, (-1, ratio)) for part in (kv, score))
        score = score + self.weights[at + "_ape.weight"]
        if ratio == 4:
            kv, score = overlapped(kv, 0.0), overlapped(score, -torch.inf)
        row = self.norm((score.softmax(2) * kv).sum(2), at + "_norm")
        turn = rotary(self.config, True).turns(torch.arange(windows) * ratio)
        return self.rounded(rotated(row, turn))

    def rounded(self, row: Tensor) -> Tensor:
        return straight_through(row, Rounding.of(self.config, Numerics()).kv_row(row.detach()))

    # ---- experts

    def experts(self, at: str, x: Tensor, tokens: Tensor) -> Tensor:
        chosen, weights = self.route(at, x, tokens)
        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=self.config.experts).tolist()
        rows = order // chosen.shape[1]
        stacks = [self.quantised(f"{at}ffn_{part}_exps.weight") for part in ("gate", "up", "down")]
        parts = x[rows].split(counts)
        answers = [self.expert(part, *(stack[e] for stack in stacks)) for e, part in enumerate(parts)]
        shared = [self.weights[f"{at}ffn_{part}_shexp.weight"] for part in ("gate", "up", "down")]
        return self.expert(x, *shared).index_add(0, rows, torch.cat(answers) * weights.flatten()[order][:, None])

    def expert(self, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        c = self.config.clamp
        return F.linear(F.silu(F.linear(x, gate).clamp(max=c)) * F.linear(x, up).clamp(-c, c), down)

    def route(self, at: str, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        p = F.softplus(self.linear(x, at + "ffn_gate_inp")).sqrt()
        table = self.weights.get(at + "ffn_gate_tid2eid.weight")
        if table is not None:
            chosen = table[tokens].long()
        else:
            chosen = (p + self.weights[at + "exp_probs_b.bias"]).topk(self.config.experts_used).indices
            self.balance(at, chosen)
        weights = p.gather(-1, chosen)
        return chosen, weights / weights.sum(-1, keepdim=True) * self.config.expert_scale

    def balance(self, at: str, chosen: Tensor) -> None:
        """Busy experts become a little less attractive, idle ones a little more."""
        if torch.is_grad_enabled():
            counts = chosen.flatten().bincount(minlength=self.config.experts).float()
            self.weights[at + "exp_probs_b.bias"] += 1e-3 * (counts.mean() - counts).sign()

    def quantised(self, name: str) -> Tensor:
        weight = self.weights[name]
        return straight_through(weight, fp4(weight.detach()))


def rotary(config: Config, compressed: bool) -> Rotary:
    return Rotary.of(config, Numerics(), compressed, torch.device("cpu"))


def overlapped(tokens: Tensor, empty: float) -> Tensor:
    """[B, C, 4, 2d] -> [B, C, 8, d]: the first lanes of the window before, then the second lanes of this one."""
    first, second = tokens.chunk(2, -1)
    before = torch.cat([torch.full_like(first[:, :1], empty), first[:, :-1]], 1)
    return torch.cat([before, second], 2)


def write(streams: Tensor, y: Tensor, post: Tensor, mix: Tensor) -> Tensor:
    return torch.bmm(mix.mT, streams) + post[:, :, None] * y[:, None]


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    """The last 2r values of each row turned by `turn` [..., r]."""
    body, tail = x.split([x.shape[-1] - 2 * turn.shape[-1], 2 * turn.shape[-1]], -1)
    pairs = torch.view_as_complex(tail.unflatten(-1, (-1, 2)).contiguous())
    return torch.cat([body, torch.view_as_real(pairs * turn).flatten(-2)], -1)


def straight_through(x: Tensor, value: Tensor) -> Tensor:
    return x + (value - x).detach()
