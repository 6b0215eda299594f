"""From the training state to a GGUF in ds4's layout: python training/export.py FOLDER FILE

Routed experts become MXFP4, other projections Q8_0, what the model computes with in full precision F16 or F32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter
from gguf.quants import quantize
from parameters import MINI
from tokenizer import read
from torch import Tensor

from kvengine.config import Config
from kvengine.rounding import fp4

CONTEXT = 131_072
PRECISE = ("hc_", "compressor", "indexer", "ffn_gate_inp", "token_embd")  # F16 in ds4's files, too


def write(folder: Path, file: Path) -> None:
    """The whole file, from the last saved state of the training."""
    weights = torch.load(folder / "state.pt")["weights"]
    writer = GGUFWriter(file, "deepseek4")
    writer.add_name("ds4-mini")
    for key, value in metadata(MINI).items():
        _add(writer, f"deepseek4.{key}", value)
    vocabulary = read()
    writer.add_token_list(vocabulary["tokens"])
    writer.add_token_merges(vocabulary["merges"])
    writer.add_token_types(vocabulary["token_type"])
    for name, weight in (weights | {"output.weight": weights["token_embd.weight"]}).items():
        data, kind = stored(name, weight)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def stored(name: str, weight: Tensor) -> tuple[np.ndarray, Kind | None]:
    """The tensor as the file holds it, with the type of packed bytes."""
    values = weight.numpy()
    if "_exps" in name:
        return quantize(fp4(weight).numpy(), Kind.MXFP4), Kind.MXFP4  # rounded as in training, which MXFP4 then keeps
    if values.ndim < 2 or values.dtype == np.int32:
        return values, None
    if any(part in name for part in PRECISE):
        return values.astype(np.float16), None
    return quantize(values, Kind.Q8_0), Kind.Q8_0


def metadata(c: Config) -> dict[str, Any]:
    """The `deepseek4.*` keys of a model of these sizes."""
    layers = len(c.ratios)
    return {
        "block_count": layers,
        "context_length": CONTEXT,
        "embedding_length": c.dim,
        "vocab_size": c.vocab,
        "attention.head_count": c.heads,
        "attention.head_count_kv": 1,
        "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim,
        "rope.dimension_count": c.rope_dim,
        "attention.q_lora_rank": c.q_rank,
        "attention.output_lora_rank": c.out_rank,
        "attention.output_group_count": c.groups,
        "expert_count": c.experts,
        "expert_used_count": c.experts_used,
        "expert_feed_forward_length": c.expert_dim,
        "expert_shared_count": 1,
        "expert_weights_norm": True,
        "expert_weights_scale": c.expert_scale,
        "hash_layer_count": c.hash_layers,
        "attention.sliding_window": c.window,
        "attention.indexer.head_count": c.index_heads,
        "attention.indexer.key_length": c.index_dim,
        "attention.indexer.top_k": c.top_k,
        "hyper_connection.count": c.streams,
        "hyper_connection.sinkhorn_iterations": c.sinkhorn_steps,
        "hyper_connection.epsilon": c.hc_eps,
        "attention.compress_ratios": list(c.ratios),
        "swiglu_clamp_exp": [c.clamp] * layers,
        "attention.layer_norm_rms_epsilon": c.norm_eps,
        "rope.freq_base": c.rope_base,
        "rope.scaling.original_context_length": c.yarn_context,
        "rope.scaling.factor": c.yarn_factor,
        "rope.scaling.yarn_beta_fast": c.yarn_beta_fast,
        "rope.scaling.yarn_beta_slow": c.yarn_beta_slow,
        "attention.compress_rope_freq_base": c.compressed_rope_base,
    }


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case list():
            writer.add_array(key, value)
        case float():
            writer.add_float32(key, value)
        case _:
            writer.add_uint32(key, value)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def main(folder: Path, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write(folder, file)


if __name__ == "__main__":
    main()
