"""The late reach into kvprompt and kvengine, for the options that need a request, a tokenizer or a model read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kvformat.errors import Unreadable
from kvformat.identity import Identity
from kvformat.shapes import Shape

if TYPE_CHECKING:
    from kvengine import Model
    from kvprompt.tokenizer import Tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a GGUF, of a tokenizer.json, or of a folder that holds one."""
    path = path / "tokenizer.json" if path.is_dir() else path
    with usable_as("a tokenizer", path):
        from kvprompt.gguf_header import read_gguf
        from kvprompt.tokenizer import Tokenizer

        return Tokenizer.from_file(path) if path.suffix == ".json" else Tokenizer.from_gguf(read_gguf(path))


def load_shape(path: Path) -> Shape:
    """What payloads of this model look like, from the GGUF's header or the folder's config.json alone."""
    with usable_as("a model", path):
        from kvengine import Config
        from kvprompt.gguf_header import read_gguf

        if path.is_dir():
            return Config.from_hf(json.loads((path / "config.json").read_bytes())).shape
        return Config.from_gguf(read_gguf(path).metadata).shape


def load_identity(path: Path) -> Identity:
    """Which files a server of this GGUF takes."""
    with usable_as("a model", path):
        from kvengine import identify

        return identify(path)


def load_model(path: Path) -> Model:
    """The model of a GGUF or of a folder with safetensors, on the CPU."""
    with usable_as("a model", path):
        from kvengine import load

        return load(path)


@contextmanager
def usable_as(what: str, path: Path) -> Iterator[None]:
    """Whatever kvprompt and kvengine say against a given file, or lack to read it, is one kind of refusal: Unreadable."""
    try:
        yield
    except Exception as error:
        theirs = type(error).__module__ in ("kvprompt.errors", "kvengine.errors")
        if not theirs and not isinstance(error, OSError | ValueError | ModuleNotFoundError):
            raise
        raise Unreadable(f"cannot be used as {what}: {error}", path=path) from None
