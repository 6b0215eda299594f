"""Tiny random models: transformers' own, its checkpoint on disk, and that checkpoint as a GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

from kvengine.config import Config
from kvengine.hf import Plain, open_safetensors

VOCAB = 512
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "head_dim": 128,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 64,
    "num_experts_per_tok": 2,
    "n_routed_experts": 8,
    "compress_ratios": [0, 0, 4, 128, 4, 128],
    "num_hash_layers": 3,
    "sliding_window": 128,
    "o_groups": 2,
    "o_lora_rank": 32,
    "index_n_heads": 16,  # with few heads many scores are exactly zero, and ties are broken by shape
    "index_head_dim": 64,
    "index_topk": 16,
    # Without these two, transformers would build another model than the published one.
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 65536,
    },
    "max_position_embeddings": 1048576,
}


def random_model(seed: int = 0, **sizes: Any) -> DeepseekV4ForCausalLM:
    """transformers' model with every parameter and buffer drawn at random, representable in half precision."""
    config = DeepseekV4Config(**SIZES | sizes)
    config._attn_implementation = "eager"
    model = DeepseekV4ForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(seed)

    def draw(name: str, like: torch.Tensor) -> torch.Tensor:
        if name.endswith("tid2eid"):
            return torch.rand(len(like), config.n_routed_experts, generator=generator).argsort(1)[:, : like.shape[1]]
        noise = torch.randn(like.shape, generator=generator)
        if "norm" in name:
            return (1 + 0.1 * noise).half().float()
        if like.ndim == 1 or name.endswith("position_bias"):
            return (0.3 * noise).half().float()
        return (noise * like.shape[-1] ** -0.5).half().float()

    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if not name.endswith("inv_freq"):
                tensor.copy_(draw(name, tensor))
    return model


def random_tokens(count: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(seed))


def write_gguf(
    path: Path, config: Config, tensors: dict[str, np.ndarray | tuple[np.ndarray, GGMLQuantizationType]]
) -> None:
    """A GGUF in ds4's layout. A tensor is plain numbers, or packed bytes with their type."""
    writer = GGUFWriter(path, "deepseek4")
    for key, value in metadata(config).items():
        full = f"deepseek4.{key}"
        if isinstance(value, list):
            writer.add_array(full, value)
        elif isinstance(value, float):
            writer.add_float32(full, value)
        else:
            writer.add_uint32(full, value)
    for name, tensor in tensors.items():
        if isinstance(tensor, tuple):
            writer.add_tensor(name, tensor[0], raw_dtype=tensor[1])
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def metadata(c: Config) -> dict[str, Any]:
    return {
        "block_count": len(c.ratios),
        "embedding_length": c.dim,
        "vocab_size": c.vocab,
        "attention.head_count": c.heads,
        "attention.key_length": c.head_dim,
        "rope.dimension_count": c.rope_dim,
        "attention.q_lora_rank": c.q_rank,
        "attention.output_lora_rank": c.out_rank,
        "attention.output_group_count": c.groups,
        "expert_count": c.experts,
        "expert_used_count": c.experts_used,
        "expert_feed_forward_length": c.expert_dim,
        "hash_layer_count": c.hash_layers,
        "attention.sliding_window": c.window,
        "attention.indexer.head_count": c.index_heads,
        "attention.indexer.key_length": c.index_dim,
        "attention.indexer.top_k": c.top_k,
        "hyper_connection.count": c.streams,
        "hyper_connection.sinkhorn_iterations": c.sinkhorn_steps,
        "attention.compress_ratios": list(c.ratios),
        "swiglu_clamp_exp": [c.clamp] * len(c.ratios),
        "rope.scaling.original_context_length": c.yarn_context,
        "rope.freq_base": c.rope_base,
        "rope.scaling.factor": c.yarn_factor,
        "rope.scaling.yarn_beta_fast": c.yarn_beta_fast,
        "rope.scaling.yarn_beta_slow": c.yarn_beta_slow,
        "attention.compress_rope_freq_base": c.compressed_rope_base,
        "expert_weights_scale": c.expert_scale,
        "attention.layer_norm_rms_epsilon": c.norm_eps,
        "hyper_connection.epsilon": c.hc_eps,
    }


def as_numbers(folder: Path) -> tuple[Config, dict[str, np.ndarray]]:
    """Config and unpacked tensors of a safetensors folder by their GGUF names: F16 matrices, F32 vectors, I32 tables."""
    weights = open_safetensors(folder)

    def numbers(name: str, packed: Any) -> np.ndarray:
        if name.endswith("tid2eid.weight"):
            return packed.unpack(torch.int32).numpy()
        values = packed.unpack(torch.float32)
        return (values.half() if values.ndim > 1 and isinstance(packed, Plain) else values).numpy()

    return weights.config, {name: numbers(name, packed) for name, packed in weights.tensors.items()}
