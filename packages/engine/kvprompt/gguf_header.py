"""The header of a GGUF file: metadata and tensor directory, read once, front to back. No weights, no torch.

No count or length is trusted before it is compared with the bytes that are left, so a hostile file costs a sentence
and not memory. gguf-py's own reader needs ten seconds for the 129,280 tokens of DeepSeek V4; only its table of types
is used.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from math import prod
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from .errors import BadModelFile, prompt_extra

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
HEADER_LIMIT = 64 << 20  # the header of a real model is about 10 MB, nearly all of it vocabulary
MAX_ENTRIES = 1 << 16  # of metadata, and of tensors; Flash has some 1,300
MAX_DIMS = 4

STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies. `shape` is in torch order (slowest first), `offset` counts from the start of the file."""

    name: str
    type: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GGUF:
    """One file's header. Arrays in `metadata` are lists; strings that are not UTF-8 keep their bytes as surrogates."""

    path: Path
    version: int
    metadata: dict[str, object]
    tensors: dict[str, TensorInfo]


def read_gguf(path: str | PathLike[str]) -> GGUF:
    """Read the header of `path`. Raises BadModelFile if it is not a sound GGUF, OSError if it cannot be read."""
    path = Path(path)
    with path.open("rb") as file:
        header = _Header(file, path)
        version = header.preamble()
        tensor_count, pair_count = header.entries(), header.entries()
        metadata = header.metadata(pair_count)
        tensors = header.tensors(tensor_count, metadata)
    return GGUF(path, version, metadata, tensors)


class _Header:
    """A forward-only reader that knows how many bytes may still follow."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file = file
        self.path = path
        self.size = os.fstat(file.fileno()).st_size
        self.left = min(self.size, HEADER_LIMIT)

    def fault(self, problem: str) -> BadModelFile:
        return BadModelFile(f"{self.path}: {problem} at byte {self.file.tell()}; this is not a sound GGUF file")

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise self.fault(f"{count} bytes are announced where at most {self.left} can follow")
        self.left -= count
        data = self.file.read(count)
        if len(data) != count:
            raise self.fault("the file ends early")
        return data

    def scalar(self, code: str) -> int:
        return int(self.numbers(code, 1)[0])

    def numbers(self, code: str, count: int) -> tuple[int | float | bool, ...]:
        data = self.take(struct.calcsize(f"<{code}") * count)
        return struct.unpack(f"<{count}{code}", data)

    def string(self) -> str:
        length = int.from_bytes(self.take(8), "little")
        return self.take(length).decode("utf-8", "surrogateescape")

    def preamble(self) -> int:
        if self.take(4) != MAGIC:
            raise BadModelFile(f"{self.path} does not start with GGUF; give a model in GGUF form")
        version = self.scalar("I")
        if version not in VERSIONS:
            raise BadModelFile(
                f"{self.path} is GGUF version {version}; versions 2 and 3, little-endian, are understood"
            )
        return version

    def entries(self) -> int:
        count = self.scalar("Q")
        if count > MAX_ENTRIES:
            raise self.fault(f"{count} entries are announced, more than {MAX_ENTRIES}")
        return count

    def metadata(self, count: int) -> dict[str, object]:
        pairs: dict[str, object] = {}
        for _ in range(count):
            key = self.string()
            if key in pairs:
                raise self.fault(f"the key {key!r} comes twice")
            pairs[key] = self.value(self.scalar("I"))
        return pairs

    def value(self, kind: int) -> object:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array(self.scalar("I"), self.scalar("Q"))
        return self.numbers(self.code(kind), 1)[0]

    def array(self, kind: int, count: int) -> list[object]:
        if kind == STRING:
            return [self.string() for _ in range(count)]
        return list(self.numbers(self.code(kind), count))

    def code(self, kind: int) -> str:
        if kind not in SCALARS:
            raise self.fault(f"value type {kind} is unknown")
        return SCALARS[kind]

    def tensors(self, count: int, metadata: dict[str, object]) -> dict[str, TensorInfo]:
        entries = [self.entry() for _ in range(count)]
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise self.fault(f"the alignment is {alignment}")
        data_start = -(-self.file.tell() // alignment) * alignment
        tensors = {name: self.placed(name, kind, shape, data_start + offset) for name, kind, shape, offset in entries}
        if len(tensors) != count:
            raise self.fault("a tensor's name comes twice")
        return tensors

    def entry(self) -> tuple[str, int, tuple[int, ...], int]:
        name, rank = self.string(), self.scalar("I")
        if rank > MAX_DIMS:
            raise self.fault(f"tensor {name!r} has {rank} dimensions")
        dims = self.numbers("Q", rank)
        return name, self.scalar("I"), tuple(int(dim) for dim in reversed(dims)), self.scalar("Q")

    def placed(self, name: str, kind: int, shape: tuple[int, ...], offset: int) -> TensorInfo:
        with prompt_extra():
            from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
        try:
            block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except (ValueError, KeyError):
            raise self.fault(f"tensor {name!r} has the unknown type {kind}") from None
        elements = prod(shape)
        if shape and shape[-1] % block:
            raise self.fault(f"tensor {name!r} has rows of {shape[-1]} values, not a multiple of {block}")
        nbytes = elements // block * block_bytes
        if offset + nbytes > self.size:
            raise self.fault(f"tensor {name!r} would end at byte {offset + nbytes} of {self.size}")
        return TensorInfo(name, kind, shape, offset, nbytes)
