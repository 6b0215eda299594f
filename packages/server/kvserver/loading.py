"""The model file, opened for serving: weights, tokenizer, and what identifies them on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import xxhash
from gguf import GGMLQuantizationType as Type

from kvengine import EngineError, Model
from kvengine import load as load_model
from kvformat.identity import Identity
from kvprompt.gguf_header import GGUF, read_gguf
from kvprompt.tokenizer import Tokenizer

from .settings import Settings

BUILT_IN = Path(__file__).with_name("builtin") / "ds4-mini.gguf"
"""A model of the real architecture that fits into the repository; training/ tells how it was made and what it can do."""

SAMPLES, SAMPLE_BYTES = 64, 1 << 16

# FORMAT 1.1: quant bits come from the routed experts' tensor type; newer builds count MXFP4 as 4.
TWO_BITS = {Type.IQ2_XXS, Type.IQ2_XS, Type.IQ2_S, Type.Q2_K, Type.TQ2_0}
FOUR_BITS = {Type.Q4_0, Type.Q4_1, Type.Q4_K, Type.IQ4_NL, Type.IQ4_XS, Type.MXFP4}


@dataclass(frozen=True, slots=True)
class Loaded:
    """Everything that serving needs of a model. `name` is what /v1/models calls it."""

    name: str
    model: Model
    tokenizer: Tokenizer
    quant_bits: int
    fingerprint: str

    def identity(self, reject_other_quant: bool = False) -> Identity:
        """Which files are this model's."""
        return Identity(self.model.config.shape, self.quant_bits, self.fingerprint, reject_other_quant)


def load(settings: Settings) -> Loaded:
    """The model that the settings name, or the one built in. Raises EngineError, BadModelFile or OSError, each one sentence."""
    return load_gguf(settings.model or BUILT_IN)


def load_gguf(path: Path) -> Loaded:
    """Open a GGUF in ds4's layout."""
    if path.is_dir():
        raise EngineError("is a folder", path=path, remedy="serving needs a GGUF file, which has the tokenizer in it")
    header = read_gguf(path)
    return Loaded(path.stem, load_model(path), Tokenizer.from_gguf(header), quant_bits(header), fingerprint(header))


def quant_bits(header: GGUF) -> int:
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


def fingerprint(header: GGUF) -> str:
    """A name for these weights: of the header, the size, and samples all over the file. Another fine-tune has another."""
    digest = xxhash.xxh3_128()
    size = Path(header.path).stat().st_size
    digest.update(str(size).encode())
    with Path(header.path).open("rb") as file:
        for at in range(0, size, max(size // SAMPLES, SAMPLE_BYTES)):
            file.seek(at)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
