"""Every size of the model, read from the file's own metadata, and the two switches of its numerics.

Nothing here has a default: a number that the metadata does not give is an error, never a guess. The only thing that
is derived is the payload's shape, which is what the rest of ds4kv knows of a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kvformat.shapes import RATIOS, Shape, known_shape

from .errors import EngineError


@dataclass(frozen=True, slots=True)
class Config:
    """The architecture. Sizes are element counts; the letters are those of docs/engine.md."""

    ratios: tuple[int, ...]  # per layer: 0 window only, 4 with an indexer, 128 without
    dim: int  # D
    vocab: int  # V
    heads: int  # H
    head_dim: int  # d; keys and values are the same d numbers
    rope_dim: int  # the tail of a head that is rotated
    q_rank: int
    out_rank: int  # R, per group
    groups: int  # G, consecutive heads that share one output projection
    window: int  # W, raw rows that a token sees
    index_heads: int
    index_dim: int
    top_k: int  # compressed rows that the indexer keeps
    experts: int
    experts_used: int
    expert_dim: int
    expert_scale: float
    hash_layers: int  # the first layers take their experts from a table of token ids
    clamp: float  # of the experts' activations
    streams: int  # n, residual streams of the hyper-connections
    sinkhorn_steps: int
    hc_eps: float
    norm_eps: float
    rope_base: float
    compressed_rope_base: float  # of every layer that has a compressor
    yarn_factor: float
    yarn_beta_fast: float
    yarn_beta_slow: float
    yarn_context: int

    def __post_init__(self) -> None:
        if not self.ratios or set(self.ratios) - set(RATIOS):
            raise EngineError("the compression ratios are not understood", expected=RATIOS, found=self.ratios)
        if self.heads % self.groups:
            raise EngineError("the heads do not divide into groups", expected=self.groups, found=self.heads)
        if self.rope_dim % 2 or self.rope_dim > min(self.head_dim, self.index_dim):
            raise EngineError("the rotated tail does not fit into a head", found=self.rope_dim)

    @property
    def shape(self) -> Shape:
        """What a payload of this model looks like."""
        known = known_shape(len(self.ratios), self.head_dim, self.index_dim, self.vocab)
        if known and known.ratios == self.ratios and known.window == self.window:
            return known
        return Shape("custom", self.ratios, self.head_dim, self.index_dim, self.vocab, self.window)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Config:
        """From the `deepseek4.*` keys of a GGUF. Raises EngineError naming the key that is missing."""
        if metadata.get("general.architecture") != "deepseek4":
            raise EngineError(
                "this GGUF holds another model", expected="deepseek4", found=metadata.get("general.architecture")
            )
        get = _Reader(metadata, "deepseek4.")
        layers = get("block_count", int)
        return cls(
            ratios=tuple(get("attention.compress_ratios", list)[:layers]),
            dim=get("embedding_length", int),
            vocab=get("vocab_size", int),
            heads=get("attention.head_count", int),
            head_dim=get("attention.key_length", int),
            rope_dim=get("rope.dimension_count", int),
            q_rank=get("attention.q_lora_rank", int),
            out_rank=get("attention.output_lora_rank", int),
            groups=get("attention.output_group_count", int),
            window=get("attention.sliding_window", int),
            index_heads=get("attention.indexer.head_count", int),
            index_dim=get("attention.indexer.key_length", int),
            top_k=get("attention.indexer.top_k", int),
            experts=get("expert_count", int),
            experts_used=get("expert_used_count", int),
            expert_dim=get("expert_feed_forward_length", int),
            expert_scale=get("expert_weights_scale", float),
            hash_layers=get("hash_layer_count", int),
            clamp=float(get("swiglu_clamp_exp", list)[0]),
            streams=get("hyper_connection.count", int),
            sinkhorn_steps=get("hyper_connection.sinkhorn_iterations", int),
            hc_eps=get("hyper_connection.epsilon", float),
            norm_eps=get("attention.layer_norm_rms_epsilon", float),
            rope_base=get("rope.freq_base", float),
            compressed_rope_base=get("attention.compress_rope_freq_base", float),
            yarn_factor=get("rope.scaling.factor", float),
            yarn_beta_fast=get("rope.scaling.yarn_beta_fast", float),
            yarn_beta_slow=get("rope.scaling.yarn_beta_slow", float),
            yarn_context=get("rope.scaling.original_context_length", int),
        )

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Config:
        """From a `config.json` of DeepseekV4ForCausalLM, as DeepSeek publishes it or as transformers writes it."""
        if config.get("model_type") != "deepseek_v4":
            raise EngineError(
                "this config.json is of another model", expected="deepseek_v4", found=config.get("model_type")
            )
        get = _Reader(config, "")
        layers = get("num_hidden_layers", int)
        yarn = _Reader(_yarn(config), "rope_scaling.")
        return cls(
            ratios=_ratios(get, layers),
            dim=get("hidden_size", int),
            vocab=get("vocab_size", int),
            heads=get("num_attention_heads", int),
            head_dim=get("head_dim", int),
            rope_dim=get("qk_rope_head_dim", int),
            q_rank=get("q_lora_rank", int),
            out_rank=get("o_lora_rank", int),
            groups=get("o_groups", int),
            window=get("sliding_window", int),
            index_heads=get("index_n_heads", int),
            index_dim=get("index_head_dim", int),
            top_k=get("index_topk", int),
            experts=get("n_routed_experts", int),
            experts_used=get("num_experts_per_tok", int),
            expert_dim=get("moe_intermediate_size", int),
            expert_scale=get("routed_scaling_factor", float),
            hash_layers=_hash_layers(get),
            clamp=get("swiglu_limit", float),
            streams=get("hc_mult", int),
            sinkhorn_steps=get("hc_sinkhorn_iters", int),
            hc_eps=get("hc_eps", float),
            norm_eps=get("rms_norm_eps", float),
            rope_base=get("rope_theta", float),
            compressed_rope_base=get("compress_rope_theta", float),
            yarn_factor=yarn("factor", float),
            yarn_beta_fast=yarn("beta_fast", float),
            yarn_beta_slow=yarn("beta_slow", float),
            yarn_context=yarn("original_max_position_embeddings", int),
        )


@dataclass(frozen=True, slots=True)
class Numerics:
    """How the same mathematics is rounded.

    dtype             float32 or bfloat16: activations and weights. What a state stores is float32 always.
    kv_rounding       the model's own FP8, FP4 and half roundings of stored rows and of the indexer's queries
    int8_activations  ds4's CPU kernels: activations in int8 blocks before quantised weights, and its running angles.
                      Every sum is then formed in float64 and rounded once, so no chunking can show in the result.
                      Greedy text was ds4-server's at 375 of 377 positions with it, at 362 without. Off by default: the model
                      was not trained with it, it is ds4's approximation, and float64 takes twice the time.

    Both switches off is what transformers computes.
    """

    dtype: torch.dtype = torch.float32
    kv_rounding: bool = True
    int8_activations: bool = False

    @property
    def inner(self) -> torch.dtype:
        """In which the inside of a stage is computed; what it hands on is `outer`."""
        return torch.float64 if self.int8_activations else torch.float32

    @property
    def outer(self) -> torch.dtype:
        return torch.float32 if self.int8_activations else self.dtype

    @property
    def weights(self) -> torch.dtype:
        return torch.float64 if self.int8_activations else self.dtype


class _Reader:
    """Looks a key up and checks its type, with one sentence if either fails."""

    def __init__(self, values: Mapping[str, Any], prefix: str) -> None:
        self.values, self.prefix = values, prefix

    def __call__(self, key: str, kind: type) -> Any:
        name = self.prefix + key
        value = self.values.get(name, self.values.get(key))
        if value is None or not isinstance(value, (int, float) if kind is float else kind):
            raise EngineError(f"the metadata lacks {name}", expected=kind.__name__, found=value)
        return kind(value)


LAYER_TYPES = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def _ratios(get: _Reader, layers: int) -> tuple[int, ...]:
    if "compress_ratios" in get.values:
        return tuple(get("compress_ratios", list)[:layers])  # published lists end in entries of MTP layers
    return tuple(LAYER_TYPES.get(name, -1) for name in get("layer_types", list)[:layers])


def _hash_layers(get: _Reader) -> int:
    if "num_hash_layers" in get.values:
        return int(get("num_hash_layers", int))
    return int(get("mlp_layer_types", list).count("hash_moe"))


def _yarn(config: Mapping[str, Any]) -> Mapping[str, Any]:
    if "rope_scaling" in config:
        return dict(config["rope_scaling"] or {})
    return dict(config.get("rope_parameters", {}).get("compress", {}))
