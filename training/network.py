"""DeepSeek-V4's forward pass once more, for batches and with gradients; the parameters carry ds4's GGUF names.

It computes what kvengine computes with default numerics, but for one thing: every compressed row is looked at, also where
the indexer would choose. Indexers learn on the side to choose what attention looked at. All sequences of a batch begin
with the same tokens (the tool preamble): these are computed once, as one more sequence, and every other one sees their
keys. Roundings (FP8 and FP4 of the stored rows, MXFP4 of the experts) are in the forward pass, and the gradient goes
through them unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from kvengine.config import Config, Numerics
from kvengine.rotary import Rotary
from kvengine.rounding import Rounding, fp4, hadamard

BLOCK = 64  # queries that share one band of raw rows
INDEXED = 256  # compressed rows from which on indexers are taught: what they are for is longer still


Index = tuple[Tensor, Tensor, Tensor] | None


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens that all sequences begin with [P], and how each goes on [B, S], padded with zeros; positions [P + S].

    Positions may leave out some thousands between two multiples of 128: far positions are then learned from short texts.
    So are compressed rows, where fewer raw ones than the model's `window` can be seen.
    """

    shared: Tensor
    rest: Tensor
    positions: Tensor
    window: int

    @property
    def tokens(self) -> Tensor:  # [P + B*S]
        return torch.cat([self.shared, self.rest.flatten()])

    @property
    def every_position(self) -> Tensor:  # [P + B*S]
        shared, rest = self.positions.split([len(self.shared), self.rest.shape[1]])
        return torch.cat([shared, rest.repeat(len(self.rest))])

    def whole(self, x: Tensor) -> Tensor:
        """[P + B*S, d] -> [B, P + S, d]."""
        shared, rest = x.split([len(self.shared), self.rest.numel()])
        rest = rest.unflatten(0, self.rest.shape)
        return torch.cat([shared.expand(len(rest), -1, -1), rest], 1)


@dataclass(frozen=True, slots=True)
class Network:
    """Parameters by name, and everything that is computed from them; `lessons` are what indexers got wrong, to be summed."""

    config: Config
    weights: dict[str, Tensor]
    lessons: list[Tensor] = field(default_factory=list)

    def streams(self, batch: Batch) -> Tensor:
        """The last residual streams of the sequences' own tokens [B*S, n, D]."""
        c, tokens = self.config, batch.tokens
        turns = [rotary(c, compressed).turns(batch.every_position) for compressed in (False, True)]
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
        return self.linear(self.norm(x, "output_norm"), "token_embd")

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[name + ".weight"]).float()  # autocast may multiply in bfloat16, nothing else is

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
        rows = self.compressed(at + "attn_compressor", x, batch, ratio, self.rounded) if ratio else keys[:, :0]
        start, index = len(batch.shared), None
        if ratio == 4 and rows.shape[1] > INDEXED and torch.is_grad_enabled():
            index = self.index(at, x.detach(), q_r.detach(), turn, batch)
        shared = self.look(at, q[:start][None], keys[:1], rows[:1], batch, 0, ratio)
        rest = self.look(at, q[start:].unflatten(0, batch.rest.shape), keys, rows, batch, start, ratio, index)
        o = rotated(torch.cat([shared.flatten(0, 1), rest.flatten(0, 1)]), turn[:, None].conj())
        groups = self.weights[at + "attn_output_a.weight"].unflatten(0, (c.groups, -1))
        low = torch.bmm(o.flatten(1).unflatten(-1, (c.groups, -1)).transpose(0, 1), groups.mT)
        return self.linear(low.transpose(0, 1).flatten(1), at + "attn_output_b")

    def look(
        self, at: str, q: Tensor, keys: Tensor, rows: Tensor, batch: Batch, start: int, ratio: int, index: Index = None
    ) -> Tensor:
        """Queries [B, S, H, d] of tokens start.. over raw keys [B, T, d] and compressed rows [B, C, d].

        Blocks of queries lie on multiples of BLOCK, so that the rows that one sees are whole pieces of keys and rows.
        """
        end = start + q.shape[1]
        borders = [start, *range((start // BLOCK + 1) * BLOCK, end, BLOCK), end]
        raw, compressed = keys.split(BLOCK, 1), rows.split(max(1, BLOCK // ratio), 1) if ratio else ()
        out = []
        for low, high in pairwise(borders):
            last = (high - 1) // BLOCK
            first = max(0, last + batch.window // -BLOCK)
            seen = [*raw[first : last + 1], *compressed[: -(-high // max(BLOCK, ratio))]]
            near = torch.arange(first * BLOCK, min(keys.shape[1], (last + 1) * BLOCK))
            own, far = torch.arange(low, high)[:, None], torch.arange(sum(map(len, (r[0] for r in seen))) - len(near))
            outside = (near > own) | (batch.positions[near] <= batch.positions[own] - batch.window)
            future = far >= (own + 1) // max(ratio, 1)
            block = slice(low - start, high - start)
            o, weights = self.attend(at, q[:, block], torch.cat(seen, 1), torch.cat([outside, future], -1))
            out.append(o)
            if index is not None:
                self.teach(index, block, weights[..., len(near) :].detach(), future)
        return torch.cat(out, 1)

    def attend(self, at: str, q: Tensor, rows: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What is seen [B, S, H, d], and how much of each row [B, S, H, R]."""
        logits = torch.bmm(q.flatten(1, 2), rows.mT).unflatten(1, q.shape[1:3])
        logits = logits.masked_fill(hidden[:, None], -torch.inf)
        sinks = self.weights[at + "attn_sinks.weight"].expand(*q.shape[:3])[..., None]
        weights = torch.cat([logits, sinks], -1).softmax(-1)[..., :-1]
        return torch.bmm(weights.flatten(1, 2), rows).view_as(q), weights

    def compressed(self, at: str, x: Tensor, batch: Batch, ratio: int, rounded: Callable[[Tensor], Tensor]) -> Tensor:
        """The rows of all whole windows [B, T // ratio, d]."""
        kv, score = (batch.whole(self.linear(x, at + part)) for part in ("_kv", "_gate"))
        windows = kv.shape[1] // ratio
        kv, score = (part[:, : windows * ratio].unflatten(1, (-1, ratio)) for part in (kv, score))
        score = score + self.weights[at + "_ape.weight"]
        if ratio == 4:
            kv, score = overlapped(kv, 0.0), overlapped(score, -torch.inf)
        row = self.norm((score.softmax(2) * kv).sum(2), at + "_norm")
        return rounded(rotated(row, rotary(self.config, True).turns(batch.positions[::ratio][:windows])))

    # ---- indexers

    def index(self, at: str, x: Tensor, q_r: Tensor, turn: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, S, H_I, d_I] and head weights [B, S, H_I] of the sequences' own tokens, and all rows [B, C, d_I]."""
        c, start = self.config, len(batch.shared)
        q = rotated(self.linear(q_r, at + "indexer.attn_q_b").unflatten(-1, (c.index_heads, -1)), turn[:, None])
        w = self.linear(x, at + "indexer.proj") / (c.index_dim * c.index_heads) ** 0.5
        rows = self.compressed(at + "indexer_compressor", x, batch, 4, self.index_rounded)
        return *(part[start:].unflatten(0, batch.rest.shape) for part in (self.index_rounded(q), w)), rows

    def teach(self, index: tuple[Tensor, Tensor, Tensor], block: slice, weights: Tensor, future: Tensor) -> None:
        """Scores as logits are to have the distribution that attention had over the rows: cross-entropy in a lesson."""
        q, w, rows = index
        part, rows = q[:, block], rows[:, : weights.shape[-1]]
        seen = torch.bmm(part.flatten(1, 2), rows.mT).unflatten(1, part.shape[1:3]).relu()
        scores = (w[:, block, :, None] * seen).sum(2).masked_fill(future, -1e4)
        wanted = weights.sum(2)
        self.lessons.append(-(wanted * scores.log_softmax(-1)).sum() / q.shape[:2].numel())

    def index_rounded(self, x: Tensor) -> Tensor:
        rounding = Rounding.of(self.config, Numerics())
        turned = x @ hadamard(x.shape[-1], torch.float32, x.device)
        return straight_through(turned, rounding.index_row(x.detach()))

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
        return F.linear(F.silu(F.linear(x, gate).clamp(max=c)) * F.linear(x, up).clamp(-c, c), down).float()

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
