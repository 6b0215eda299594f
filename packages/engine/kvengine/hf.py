"""Weights of DeepseekV4ForCausalLM: a folder of safetensors, as DeepSeek publishes it or as transformers saves it.

    FP8   w[i, j] = E4M3[i, j] · scale[i/128, j/128]              scales are powers of two (E8M0)
    FP4   w[i, j] = E2M1[i, j] · scale[i, j/32]                   two codes a byte, the even column in the low nibble

Everything else is F32, BF16 or F16 and stays mapped. One table turns the published names into ds4's.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .config import Config
from .errors import EngineError
from .weights import Packed, Weights

NAMES = {
    "embed.weight": "token_embd.weight",
    "embed_tokens.weight": "token_embd.weight",
    "head.weight": "output.weight",
    "norm.weight": "output_norm.weight",
    "hc_head_fn": "output_hc_fn.weight",
    "hc_head_base": "output_hc_base.weight",
    "hc_head_scale": "output_hc_scale.weight",
    "hc_head.hc_fn": "output_hc_fn.weight",
    "hc_head.hc_base": "output_hc_base.weight",
    "hc_head.hc_scale": "output_hc_scale.weight",
}
LAYER_NAMES = {
    "hc_attn_fn": "hc_attn_fn.weight",
    "hc_attn_base": "hc_attn_base.weight",
    "hc_attn_scale": "hc_attn_scale.weight",
    "hc_ffn_fn": "hc_ffn_fn.weight",
    "hc_ffn_base": "hc_ffn_base.weight",
    "hc_ffn_scale": "hc_ffn_scale.weight",
    "attn_norm.weight": "attn_norm.weight",
    "ffn_norm.weight": "ffn_norm.weight",
    "attn.wq_a.weight": "attn_q_a.weight",
    "attn.q_norm.weight": "attn_q_a_norm.weight",
    "attn.wq_b.weight": "attn_q_b.weight",
    "attn.wkv.weight": "attn_kv.weight",
    "attn.kv_norm.weight": "attn_kv_a_norm.weight",
    "attn.norm.weight": "attn_kv_a_norm.weight",  # transformers saves it so
    "attn.attn_sink": "attn_sinks.weight",
    "attn.wo_a.weight": "attn_output_a.weight",
    "attn.wo_b.weight": "attn_output_b.weight",
    "attn.compressor.wkv.weight": "attn_compressor_kv.weight",
    "attn.compressor.wgate.weight": "attn_compressor_gate.weight",
    "attn.compressor.ape": "attn_compressor_ape.weight",
    "attn.compressor.norm.weight": "attn_compressor_norm.weight",
    "attn.indexer.wq_b.weight": "indexer.attn_q_b.weight",
    "attn.indexer.weights_proj.weight": "indexer.proj.weight",
    "attn.indexer.compressor.wkv.weight": "indexer_compressor_kv.weight",
    "attn.indexer.compressor.wgate.weight": "indexer_compressor_gate.weight",
    "attn.indexer.compressor.ape": "indexer_compressor_ape.weight",
    "attn.indexer.compressor.norm.weight": "indexer_compressor_norm.weight",
    "ffn.gate.weight": "ffn_gate_inp.weight",
    "ffn.gate.bias": "exp_probs_b.bias",
    "ffn.gate.tid2eid": "ffn_gate_tid2eid.weight",
    "ffn.shared_experts.w1.weight": "ffn_gate_shexp.weight",
    "ffn.shared_experts.w3.weight": "ffn_up_shexp.weight",
    "ffn.shared_experts.w2.weight": "ffn_down_shexp.weight",
}
EXPERT_NAMES = {"w1": "ffn_gate_exps.weight", "w3": "ffn_up_exps.weight", "w2": "ffn_down_exps.weight"}

FP8_BLOCK, FP4_BLOCK = 128, 32
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@dataclass(frozen=True, slots=True)
class Plain:
    """A tensor that is stored as numbers."""

    data: Tensor
    grid = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    def __getitem__(self, index: int | Tensor) -> Plain:
        return Plain(self.data[index])

    def unpack(self, dtype: torch.dtype) -> Tensor:
        return self.data.to(dtype, copy=True)  # aligned memory: products must depend on values alone


@dataclass(frozen=True, slots=True)
class Scaled:
    """An FP8 or FP4 matrix and its block scales."""

    data: Tensor  # float8_e4m3fn [out, in], or two FP4 codes a byte [out, in/2]
    scale: Tensor
    grid = None

    @property
    def packs_two(self) -> bool:
        return self.data.element_size() == 1 and not self.data.dtype.is_floating_point

    @property
    def shape(self) -> tuple[int, ...]:
        rows, columns = self.data.shape
        return rows, columns * (2 if self.packs_two else 1)

    def __getitem__(self, index: int | Tensor) -> Packed:
        raise TypeError("a block-scaled matrix is unpacked whole")

    def unpack(self, dtype: torch.dtype) -> Tensor:
        rows, columns = self.shape
        if not self.packs_two:
            scale = self.scale.float().repeat_interleave(FP8_BLOCK, 0).repeat_interleave(FP8_BLOCK, 1)
            return (self.data.float() * scale[:rows, :columns]).to(dtype)
        codes = self.data.view(torch.uint8).int()
        values = E2M1[torch.stack([codes & 15, codes >> 4], -1).flatten(1)]
        return (values * self.scale.float().repeat_interleave(FP4_BLOCK, 1)).to(dtype)


@dataclass(frozen=True, slots=True)
class Stack:
    """Matrices that the file holds one by one, as if they lay behind each other: the experts of a layer."""

    parts: tuple[Packed, ...]
    grid = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.parts), *self.parts[0].shape)

    def __getitem__(self, index: int | Tensor) -> Packed:
        return self.parts[int(index)]

    def unpack(self, dtype: torch.dtype) -> Tensor:
        return torch.stack([part.unpack(dtype) for part in self.parts])


def open_safetensors(folder: Path) -> Weights:
    """Map every safetensors file of the folder. Raises EngineError if a file is broken or there is none."""
    try:
        config = Config.from_hf(json.loads((folder / "config.json").read_text()))
    except (OSError, ValueError) as error:
        raise EngineError(f"no readable config.json beside the safetensors: {error}", path=folder) from error
    raw: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt") as opened:
                raw |= {name.removeprefix("model."): opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise EngineError(f"not a sound safetensors file: {error}", path=file) from error
    return Weights(folder, config, dict(_translate(raw)))


def _translate(raw: dict[str, Tensor]) -> Iterator[tuple[str, Packed]]:
    stacks: dict[str, dict[int, Packed]] = defaultdict(dict)
    for name, data in raw.items():
        scale = raw.get(name.removesuffix("weight") + "scale") if name.endswith(".weight") else None
        if scale is None and data.element_size() == 1 and not name.endswith(".scale"):
            raise EngineError(f"{name} has one byte per value and no {name.removesuffix('weight')}scale")
        packed = Plain(data) if scale is None else Scaled(data, scale)
        layer = re.fullmatch(r"layers\.(\d+)\.(.+)", name)
        if layer is None:
            if name in NAMES:
                yield NAMES[name], packed
            continue
        number, rest = layer.groups()
        expert = re.fullmatch(r"ffn\.experts\.(\d+)\.(w[123])\.weight", rest)
        if expert is not None:
            stacks[f"blk.{number}.{EXPERT_NAMES[expert[2]]}"][int(expert[1])] = packed
        elif rest in LAYER_NAMES:
            yield f"blk.{number}.{LAYER_NAMES[rest]}", packed
    for name, parts in stacks.items():
        if len({part.shape for part in parts.values()}) > 1:
            raise EngineError(f"the experts of {name} are of different sizes")
        yield name, Stack(tuple(parts[e] for e in sorted(parts)))
