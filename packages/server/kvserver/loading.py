"""The model file, opened for serving: weights, tokenizer, and what identifies them on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvengine import EngineError, Model, Numerics, identify
from kvengine import load as load_model
from kvformat.identity import Identity
from kvprompt.gguf_header import read_gguf
from kvprompt.tokenizer import Tokenizer

from .settings import Settings

BUILT_IN = Path(__file__).with_name("builtin") / "ds4-mini.gguf"
"""A model of the real architecture that fits into the repository; training/ tells how it was made and what it can do."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Everything that serving needs of a model. `name` is what /v1/models calls it, `identity` which files are its own."""

    name: str
    model: Model
    tokenizer: Tokenizer
    identity: Identity


def load(settings: Settings) -> Loaded:
    """The model that the settings name, or the one built in. Raises EngineError, BadModelFile or OSError, each one sentence."""
    return load_gguf(settings.model or BUILT_IN, int8_activations=settings.int8_activations)


def load_gguf(path: Path, *, int8_activations: bool = False) -> Loaded:
    """Open a GGUF in ds4's layout. `int8_activations` as in `Numerics`."""
    if path.is_dir():
        raise EngineError("is a folder", path=path, remedy="serving needs a GGUF file, which has the tokenizer in it")
    model = load_model(path, Numerics(int8_activations=int8_activations))
    return Loaded(path.stem, model, Tokenizer.from_gguf(read_gguf(path)), identify(path))
