"""The late reach into kvprompt and kvengine, for the options that need a tokenizer or a model. Refusals are one sentence."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kvformat.errors import Unreadable
from kvformat.shapes import Shape

if TYPE_CHECKING:
    from kvengine import Model
    from kvprompt.tokenizer import Tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a GGUF, of a tokenizer.json, or of a folder that holds one."""
    path = path / "tokenizer.json" if path.is_dir() else path
    with _one_sentence("a tokenizer", path, "prompt"):
        from kvprompt.gguf_header import read_gguf
        from kvprompt.tokenizer import Tokenizer

        return Tokenizer.from_file(path) if path.suffix == ".json" else Tokenizer.from_gguf(read_gguf(path))


def load_shape(path: Path) -> Shape:
    """What payloads of this model look like, from the GGUF's header or the folder's config.json alone."""
    with _one_sentence("a model", path, "engine"):
        from kvengine import Config
        from kvprompt.gguf_header import read_gguf

        if path.is_dir():
            return Config.from_hf(json.loads((path / "config.json").read_bytes())).shape
        return Config.from_gguf(read_gguf(path).metadata).shape


def load_model(path: Path) -> Model:
    """The model of a GGUF or of a folder with safetensors, on the CPU."""
    with _one_sentence("a model", path, "engine"):
        from kvengine import load

        return load(path)


@contextlib.contextmanager
def _one_sentence(what: str, path: Path, extra: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as missing:
        raise Unreadable(
            f"{what} needs the package {missing.name!r}", path=path, remedy=f"pip install 'ds4kv[{extra}]'"
        ) from None
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot be used as {what}: {error}", path=path) from None
    except Exception as error:
        if type(error).__module__ not in ("kvprompt.errors", "kvengine.errors"):
            raise
        raise Unreadable(f"cannot be used as {what}: {error}", path=path) from None
