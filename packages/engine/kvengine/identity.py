"""Which checkpoints are a model's, told from its GGUF alone: what the server writes into its files and asks of them."""

from __future__ import annotations

from pathlib import Path

import xxhash
from gguf import GGMLQuantizationType as Type

from kvformat.identity import Identity
from kvprompt.gguf_header import GGUF, read_gguf

from .config import Config
from .errors import EngineError

SAMPLES, SAMPLE_BYTES = 64, 1 << 16

# FORMAT 1.1: quant bits come from the routed experts' tensor type; newer builds count MXFP4 as 4.
TWO_BITS = {Type.IQ2_XXS, Type.IQ2_XS, Type.IQ2_S, Type.Q2_K, Type.TQ2_0}
FOUR_BITS = {Type.Q4_0, Type.Q4_1, Type.Q4_K, Type.IQ4_NL, Type.IQ4_XS, Type.MXFP4}


def identify(path: Path) -> Identity:
    """The identity of a GGUF in ds4's layout. Raises EngineError, BadModelFile or OSError; reads a few MiB of any model."""
    header = read_gguf(path)
    return Identity(Config.from_gguf(header.metadata).shape, _quant_bits(header), _fingerprint(path))


def _quant_bits(header: GGUF) -> int:
    """2 or 4, by the first routed experts of the file."""
    name, info = next(((n, t) for n, t in header.tensors.items() if n.endswith("ffn_gate_exps.weight")), (None, None))
    if info is None:
        raise EngineError("the model has no routed experts", expected="blk.*.ffn_gate_exps.weight", found=None)
    kind = Type(info.type)
    if kind in TWO_BITS:
        return 2
    if kind in FOUR_BITS:
        return 4
    raise EngineError(
        f"{name} is {kind.name}; a .kv file knows experts of 2 and 4 bits only", remedy="requantise the routed experts"
    )


def _fingerprint(path: Path) -> str:
    """A name for these weights: of the header, the size, and samples all over the file. Another fine-tune has another."""
    digest = xxhash.xxh3_128()
    size = path.stat().st_size
    digest.update(str(size).encode())
    with path.open("rb") as file:
        for at in range(0, size, max(size // SAMPLES, SAMPLE_BYTES)):
            file.seek(at)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
