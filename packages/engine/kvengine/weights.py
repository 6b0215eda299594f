"""Weights as they lie in their file: mapped, not read; unpacked when someone asks for them.

Both file kinds become one mapping from ds4's GGUF names to Packed tensors. A Packed knows its shape, can be cut along
its first axis without touching the rest (one expert of a stack, the embeddings of some tokens), and becomes a torch
tensor of a wanted dtype. A GGUF is ds4's own layout, and gguf-py unpacks whatever encoding it knows; safetensors are
in hf.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from kvprompt.gguf_header import TensorInfo, read_gguf

from .config import Config
from .errors import EngineError
from .linear import Grid, int8_blocks_of_32, int8_blocks_of_256


class Packed(Protocol):
    """One tensor, still in its file."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def grid(self) -> Grid | None:
        """The int8 grid on which ds4 puts the activations that this weight is multiplied with."""

    def __getitem__(self, index: int | Tensor) -> Packed:
        """Part of the first axis."""

    def unpack(self, dtype: torch.dtype) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Weights:
    """One model's file or files."""

    path: Path
    config: Config
    tensors: Mapping[str, Packed]

    def get(self, name: str, shape: tuple[int, ...]) -> Packed:
        """The tensor of that name. Raises EngineError if it is missing or has another shape than the metadata implies."""
        if name not in self.tensors:
            raise EngineError(
                f"the weights lack {name}", path=self.path, remedy="the file is incomplete, fetch it again"
            )
        tensor = self.tensors[name]
        if tensor.shape != shape:
            raise EngineError(f"{name} does not fit the metadata", path=self.path, expected=shape, found=tensor.shape)
        return tensor


@dataclass(frozen=True, slots=True)
class Blocks:
    """A tensor in any of ggml's encodings."""

    data: np.ndarray  # [*leading, bytes or elements of one row], mapped
    type: GGMLQuantizationType
    shape: tuple[int, ...]

    @property
    def grid(self) -> Grid | None:
        block, _ = GGML_QUANT_SIZES[self.type]
        if self.type == GGMLQuantizationType.Q8_0:
            return int8_blocks_of_32
        return int8_blocks_of_256 if block == 256 else None

    def __getitem__(self, index: int | Tensor) -> Blocks:
        part = self.data[index.numpy() if isinstance(index, Tensor) else index]
        return Blocks(part, self.type, (*part.shape[:-1], self.shape[-1]))

    def unpack(self, dtype: torch.dtype) -> Tensor:
        if self.type == GGMLQuantizationType.I32:
            return torch.from_numpy(np.array(self.data)).to(dtype)
        values = dequantize(np.ascontiguousarray(self.data), self.type)
        if not values.flags.writeable:  # float32 comes back as a view of the mapped file
            values = values.copy()
        return torch.from_numpy(values).reshape(self.shape).to(dtype)


def open_gguf(path: Path) -> Weights:
    """ds4's layout. Raises EngineError for another model, BadModelFile or OSError for a file that is none."""
    header = read_gguf(path)
    config = Config.from_gguf(header.metadata)
    mapped = np.memmap(path, np.uint8, "r")
    tensors = {name: _blocks(mapped, info) for name, info in header.tensors.items()}
    for kind in {tensor.type for tensor in tensors.values()} - PLAIN.keys():
        try:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
        except NotImplementedError:
            raise EngineError(f"gguf-py cannot unpack {kind.name} weights", path=path) from None
    return Weights(path, config, tensors)


PLAIN = {
    GGMLQuantizationType.F32: np.float32,
    GGMLQuantizationType.F16: np.float16,
    GGMLQuantizationType.I32: np.int32,
}


def _blocks(mapped: np.ndarray, info: TensorInfo) -> Blocks:
    kind = GGMLQuantizationType(info.type)
    data = mapped[info.offset : info.offset + info.nbytes]
    return Blocks(data.view(PLAIN.get(kind, np.uint8)).reshape(*info.shape[:-1], -1), kind, info.shape)
