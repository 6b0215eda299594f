"""The decoder, top to bottom.

    X = embedding of the token, in each of n streams
    each layer:   x, post, C = read(X);  X = write(X, attention(rms(x)), post, C)
                  x, post, C = read(X);  X = write(X, experts(rms(x)),   post, C)
    logits = W_out · rms(collapse(X))

One path for a prompt and for a single step: a chunk of S tokens goes through, whatever S is, and leaves its rows in the
Memory. `load` builds the model from a file: dense weights are unpacked now, routed experts when they are used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from .attention import Attention
from .compressor import Compressor
from .config import Config, Numerics
from .errors import EngineError
from .experts import Expert, ExpertCache, MoE, Router
from .hf import open_safetensors
from .hyper import Collapse, HyperConnection, Mixer
from .indexer import Indexer
from .linear import Grid, Grouped, Linear, Norm
from .memory import Memory
from .rotary import Rotary
from .rounding import Rounding
from .weights import Packed, Weights, open_gguf


@dataclass(frozen=True, slots=True)
class Layer:
    """Attention half, then expert half."""

    attn_wrap: HyperConnection
    attn_norm: Norm
    attention: Attention
    ffn_wrap: HyperConnection
    ffn_norm: Norm
    experts: MoE


@dataclass(frozen=True, slots=True)
class Model:
    """Weights and numerics. It keeps nothing between calls; that is in the Memory."""

    config: Config
    numerics: Numerics
    device: torch.device
    embedding: Packed  # [V, D]
    plain_rotary: Rotary
    compressed_rotary: Rotary
    layers: tuple[Layer, ...]
    collapse: Collapse
    norm: Norm
    head: Linear  # [V, D]

    @torch.inference_mode()
    def forward(self, tokens: Tensor, memory: Memory) -> Tensor:
        """Process tokens [S] after those in `memory`; return the last streams [S, n, D].

        If it raises, the memory is half written and must be reset.
        """
        start = memory.length
        positions = torch.arange(start, start + len(tokens), device=self.device)
        plain, compressed = self.plain_rotary.turns(positions), self.compressed_rotary.turns(positions)
        x = self.embedding[tokens.cpu()].unpack(self.numerics.outer).to(self.device)
        streams = x[:, None].expand(-1, self.config.streams, -1)
        for layer, mine in zip(self.layers, memory.layers, strict=True):
            x, post, mix = layer.attn_wrap.read(streams)
            y = layer.attention(layer.attn_norm(x), compressed if mine.ratio else plain, start, mine)
            streams = layer.attn_wrap.write(streams, y, post, mix)
            x, post, mix = layer.ffn_wrap.read(streams)
            y = layer.experts(layer.ffn_norm(x), tokens)
            streams = layer.ffn_wrap.write(streams, y, post, mix)
        memory.length += len(tokens)
        return streams

    @torch.inference_mode()
    def logits(self, streams: Tensor) -> Tensor:
        """[S, n, D] -> [S, V], float32."""
        return self.head(self.norm(self.collapse(streams))).float()


def load(
    path: str | PathLike[str],
    numerics: Numerics = Numerics(),  # noqa: B008  (frozen)
    *,
    device: str = "cpu",
    expert_cache_bytes: int = 4 << 30,
) -> Model:
    """A model from a GGUF file or from a folder with config.json and safetensors.

    Raises EngineError if the weights are wrong or incomplete, BadModelFile or OSError if they cannot be read at all.
    """
    path = Path(path)
    weights = open_safetensors(path) if path.is_dir() else open_gguf(path)
    return _Builder(weights, numerics, torch.device(device), ExpertCache(expert_cache_bytes)).model()


@dataclass(frozen=True, slots=True)
class _Builder:
    """Takes the weights out of the file by ds4's names; every shape follows from the config."""

    weights: Weights
    numerics: Numerics
    device: torch.device
    cache: ExpertCache

    def model(self) -> Model:
        c, numerics = self.weights.config, self.numerics
        plain, compressed = (Rotary.of(c, numerics, kind, self.device) for kind in (False, True))
        return Model(
            c,
            numerics,
            self.device,
            self.weights.get("token_embd.weight", (c.vocab, c.dim)),
            plain,
            compressed,
            tuple(self.layer(f"blk.{i}.", i, compressed) for i in range(len(c.ratios))),
            Collapse(self.mixer("output_hc", (c.streams,)), c.hc_eps, numerics.outer),
            self.norm("output_norm", c.dim),
            self.linear(c.dim, ("output.weight", c.vocab)),
        )

    def layer(self, at: str, number: int, rotary: Rotary) -> Layer:
        c = self.weights.config
        parts = (c.streams, c.streams, c.streams**2)
        return Layer(
            HyperConnection.of(self.mixer(at + "hc_attn", parts), c, self.numerics),
            self.norm(at + "attn_norm", c.dim),
            self.attention(at, c.ratios[number], rotary),
            HyperConnection.of(self.mixer(at + "hc_ffn", parts), c, self.numerics),
            self.norm(at + "ffn_norm", c.dim),
            self.experts(at, number),
        )

    def attention(self, at: str, ratio: int, rotary: Rotary) -> Attention:
        c = self.weights.config
        rounding = Rounding.of(c, self.numerics)
        return Attention(
            self.linear(c.dim, (at + "attn_q_a.weight", c.q_rank)),
            self.norm(at + "attn_q_a_norm", c.q_rank),
            self.linear(c.q_rank, (at + "attn_q_b.weight", c.heads * c.head_dim)),
            Norm(None, c.norm_eps, self.numerics.inner, self.numerics.outer),
            self.linear(c.dim, (at + "attn_kv.weight", c.head_dim)),
            self.norm(at + "attn_kv_a_norm", c.head_dim),
            self.tensor(at + "attn_sinks.weight", (c.heads,), self.numerics.inner),
            self.out_groups(at + "attn_output_a.weight"),
            self.linear(c.groups * c.out_rank, (at + "attn_output_b.weight", c.dim)),
            self.compressor(at + "attn_compressor", ratio, c.head_dim, rotary, rounding.kv_row) if ratio else None,
            self.indexer(at, rotary, rounding) if ratio == 4 else None,
            rounding,
            self.numerics.inner,
        )

    def out_groups(self, name: str) -> Grouped:
        c = self.weights.config
        packed = self.weights.get(name, (c.groups * c.out_rank, c.heads * c.head_dim // c.groups))
        weight = packed.unpack(self.numerics.weights).to(self.device)
        return Grouped(by_columns(weight.unflatten(0, (c.groups, -1))), self.numerics.outer, self.grid(packed))

    def indexer(self, at: str, rotary: Rotary, rounding: Rounding) -> Indexer:
        c = self.weights.config
        return Indexer(
            self.linear(c.q_rank, (at + "indexer.attn_q_b.weight", c.index_heads * c.index_dim)),
            self.linear(c.dim, (at + "indexer.proj.weight", c.index_heads)),
            self.compressor(at + "indexer_compressor", 4, c.index_dim, rotary, rounding.index_row),
            c.index_heads,
            c.index_dim,
            c.top_k,
            rounding,
            self.numerics.inner,
        )

    def compressor(
        self, at: str, ratio: int, dim: int, rotary: Rotary, rounding: Callable[[Tensor], Tensor]
    ) -> Compressor:
        c = self.weights.config
        width = dim * (2 if ratio == 4 else 1)
        return Compressor(
            ratio,
            self.precise(c.dim, (at + "_kv.weight", width), (at + "_gate.weight", width)),
            self.tensor(at + "_ape.weight", (ratio, width), torch.float32),
            Norm(
                self.tensor(at + "_norm.weight", (dim,), torch.float32), c.norm_eps, self.numerics.inner, torch.float32
            ),
            rotary,
            rounding,
            self.numerics.inner,
        )

    def experts(self, at: str, number: int) -> MoE:
        c, inner = self.weights.config, self.numerics.inner
        gates, ups = (
            self.weights.get(f"{at}ffn_{part}_exps.weight", (c.experts, c.expert_dim, c.dim)) for part in ("gate", "up")
        )
        downs = self.weights.get(at + "ffn_down_exps.weight", (c.experts, c.dim, c.expert_dim))

        def unpack(e: int) -> Expert:
            return Expert(self.projection(gates[e], ups[e]), self.projection(downs[e]), c.clamp, inner)

        def routed(e: int) -> Expert:
            return self.cache.get((number, e), partial(unpack, e))

        shared = Expert(
            self.linear(
                c.dim, (at + "ffn_gate_shexp.weight", c.expert_dim), (at + "ffn_up_shexp.weight", c.expert_dim)
            ),
            self.linear(c.expert_dim, (at + "ffn_down_shexp.weight", c.dim)),
            c.clamp,
            inner,
        )
        return MoE(self.router(at, number < c.hash_layers), routed, shared, inner)

    def router(self, at: str, hashed: bool) -> Router:
        c = self.weights.config
        bias, table = torch.zeros(c.experts, device=self.device), None
        if not hashed:
            bias = self.tensor(at + "exp_probs_b.bias", (c.experts,), torch.float32)
        else:
            table = self.tensor(at + "ffn_gate_tid2eid.weight", (c.vocab, c.experts_used), torch.int32)
            if not 0 <= int(table.min()) <= int(table.max()) < c.experts:
                raise EngineError(f"the expert table {at}ffn_gate_tid2eid names an expert that does not exist")
        gate = self.precise(c.dim, (at + "ffn_gate_inp.weight", c.experts))
        return Router(gate, bias, table, c.experts_used, c.expert_scale, self.numerics.inner)

    def mixer(self, at: str, parts: tuple[int, ...]) -> Mixer:
        c, inner = self.weights.config, self.numerics.inner
        scale = self.tensor(at + "_scale.weight", (len(parts),), inner)
        return Mixer(
            self.precise(c.streams * c.dim, (at + "_fn.weight", sum(parts))),
            scale.repeat_interleave(torch.tensor(parts, device=self.device)),
            self.tensor(at + "_base.weight", (sum(parts),), inner),
            c.norm_eps,
            inner,
        )

    def norm(self, name: str, size: int) -> Norm:
        weight = self.tensor(name + ".weight", (size,), torch.float32)
        return Norm(weight, self.weights.config.norm_eps, self.numerics.inner, self.numerics.outer)

    def linear(self, into: int, *parts: tuple[str, int]) -> Linear:
        """One product for the named weights, each with its number of outputs."""
        return self.projection(*(self.weights.get(name, (out, into)) for name, out in parts))

    def precise(self, into: int, *parts: tuple[str, int]) -> Linear:
        """The same in float32 (or better) when the others are bfloat16, as in the published model."""
        packed = [self.weights.get(name, (out, into)) for name, out in parts]
        return self.projection(*packed, dtype=self.numerics.inner, out=torch.float32)

    def projection(self, *packed: Packed, dtype: torch.dtype | None = None, out: torch.dtype | None = None) -> Linear:
        grids = {self.grid(part) for part in packed}
        if len(grids) > 1:
            raise EngineError("weights that are multiplied with the same activations are quantised differently")
        weight = torch.cat([part.unpack(dtype or self.numerics.weights) for part in packed])
        return Linear(by_columns(weight.to(self.device)), out or self.numerics.outer, grids.pop())

    def grid(self, packed: Packed) -> Grid | None:
        return packed.grid if self.numerics.int8_activations else None

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self.weights.get(name, shape).unpack(dtype).to(self.device)


def by_columns(weight: Tensor) -> Tensor:
    """The same [..., out, in], laid out column by column: a single token's product then runs a third faster on a CPU."""
    return weight.mT.contiguous().mT
