"""Bytes to token ids and back, exactly, for any bytes.

The vocabulary can be split in two ways: ds4's, which knows ASCII and takes every other byte for a letter, and the official
one of tokenizer.json, which knows Unicode. They differ here and there, so the ids of a saved state are never made again
from its text: only what follows the cached bytes is tokenised (`start`).
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from .errors import BadModelFile, TooManyTokens, prompt_extra
from .gguf_header import GGUF
from .markers import SPECIALS
from .splitting import ALPHABET, DS4_PATTERN
from .steps import STEP, steps

if TYPE_CHECKING:
    import tokenizers

_NORMAL = 1  # the type of a GGUF token that is spelled in the byte alphabet
_TO_BYTES = {letter: byte for byte, letter in enumerate(ALPHABET)}
_TO_LETTERS = str.maketrans({chr(byte): letter for byte, letter in enumerate(ALPHABET)})
_INVALID = re.compile("([\udc80-\udcff])")

LONG_STEPS = 16  # remembered

T = TypeVar("T")
EncodePiece = Callable[[bytes], list[int]]


class Tokenizer:
    """One vocabulary with one splitting. `token_bytes[id]` is what a token stands for."""

    def __init__(self, encode_piece: EncodePiece, token_bytes: Sequence[bytes], specials: Mapping[bytes, int]) -> None:
        self.token_bytes = tuple(token_bytes)
        self.longest = max(map(len, self.token_bytes))  # bytes of a token
        self._encode_piece = encode_piece
        self._encode_long = lru_cache(LONG_STEPS)(lambda step: array("I", encode_piece(step)))
        self._specials = dict(specials)
        self._marker = re.compile(b"(%s)" % b"|".join(_alternatives(specials)))

    @classmethod
    def from_gguf(cls, gguf: GGUF) -> Tokenizer:
        """ds4's tokenizer, from a model's metadata."""
        return cls.from_vocabulary(
            _array(gguf, "tokens", str), _array(gguf, "merges", str), _array(gguf, "token_type", int)
        )

    @classmethod
    def from_vocabulary(cls, tokens: Sequence[str], merges: Iterable[str], types: Sequence[int]) -> Tokenizer:
        """ds4's tokenizer, from its tables as a GGUF holds them."""
        with prompt_extra():
            import tokenizers
        ids = {token: id for id, token in enumerate(tokens)}
        _check_complete(ids, (*SPECIALS, *ALPHABET))
        if len(tokens) != len(types):
            raise BadModelFile(f"the vocabulary has {len(tokens)} tokens and {len(types)} types")
        pairs = [cast("tuple[str, str]", tuple(merge.split(" ", 1))) for merge in merges]
        try:
            engine = tokenizers.Tokenizer(tokenizers.models.BPE(ids, pairs))
        except Exception as fault:  # the package raises nothing narrower
            raise BadModelFile(f"the vocabulary's merges do not fit its tokens: {fault}") from None
        engine.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(DS4_PATTERN), "isolated")

        def encode_piece(piece: bytes) -> list[int]:
            return _encode(engine, piece.decode("latin-1").translate(_TO_LETTERS))

        spelled = [
            _spelled(token) if type == _NORMAL else token.encode("utf-8", "surrogateescape")
            for token, type in zip(tokens, types, strict=True)
        ]
        return cls(encode_piece, spelled, {marker.encode(): ids[marker] for marker in SPECIALS})

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Tokenizer:
        """The official tokenizer, from its tokenizer.json. All of its added tokens are markers in chat."""
        with prompt_extra():
            import tokenizers
        try:
            spec = json.loads(Path(path).read_bytes())
            added = {token["content"]: token["id"] for token in spec["added_tokens"]}
            ids = spec["model"]["vocab"]
            # Without them the engine leaves markers in plain text alone; in chat we find them ourselves.
            engine = tokenizers.Tokenizer.from_str(json.dumps(spec | {"added_tokens": []}))
            token_bytes = [b""] * (1 + max([*ids.values(), *added.values()]))
        except OSError:
            raise
        except Exception as fault:  # the package raises nothing narrower
            raise BadModelFile(f"{path} is not a byte-level tokenizer.json: {fault}") from None
        _check_complete(ids, ALPHABET)

        def encode_piece(piece: bytes) -> list[int]:
            out: list[int] = []
            for at, run in enumerate(_INVALID.split(piece.decode("utf-8", "surrogateescape"))):
                invalid = at % 2
                out += [ids[ALPHABET[ord(run) - 0xDC00]]] if invalid else _encode(engine, run)
            return out

        for token, id in (ids | added).items():
            token_bytes[id] = token.encode() if token in added else _spelled(token)
        return cls(encode_piece, token_bytes, {token.encode(): id for token, id in added.items()})

    def encode(self, text: bytes) -> list[int]:
        """The ids of plain text, in which control markers are nothing but text."""
        return [id for part in self._plain(text) for id in part]

    def encode_chat(self, text: bytes, *, start: int = 0, most: int | None = None) -> list[int]:
        """The ids of rendered text from byte `start` on, in which every control marker is one token.

        Raises TooManyTokens as soon as it is certain that there are more than `most`: for a text that is long enough, at once.
        """
        if most is not None and len(text) - start > most * self.longest:
            raise TooManyTokens(-(-(len(text) - start) // self.longest))
        ids: list[int] = []
        for part in self._chat(text, start):
            ids += part
            if most is not None and len(ids) > most:
                raise TooManyTokens(len(ids))
        return ids

    def count_chat(self, text: bytes) -> int:
        """How many tokens rendered text has."""
        return sum(map(len, self._chat(text, 0)))

    def _chat(self, text: bytes, start: int) -> Iterator[Sequence[int]]:
        for at, piece in enumerate(self._marker.split(text[start:] if start else text)):
            if at % 2:
                yield (self._specials[piece],)
            elif piece:
                yield from self._plain(piece)

    def _plain(self, text: bytes) -> Iterator[Sequence[int]]:
        """Step by step; long steps are remembered, so that one thread can tokenise ahead of another."""
        for step in steps(text):
            yield self._encode_piece(step) if len(step) < STEP else self._encode_long(step)

    def decode(self, ids: Iterable[int]) -> bytes:
        """The exact bytes of these tokens. Raises IndexError for an id that is not in the vocabulary."""
        return b"".join([self.token_bytes[id] for id in ids])


def _encode(engine: tokenizers.Tokenizer, text: str) -> list[int]:
    # The batch call is the one that lets other threads run meanwhile.
    return engine.encode_batch_fast([text], add_special_tokens=False)[0].ids


def _array(gguf: GGUF, name: str, kind: type[T]) -> list[T]:
    array = gguf.metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(array, list) or not all(isinstance(entry, kind) for entry in array):
        raise BadModelFile(f"{gguf.path} holds no tokenizer: tokenizer.ggml.{name} is missing or of another kind")
    return array


def _check_complete(ids: Mapping[str, int], needed: Iterable[str]) -> None:
    lacking = [token for token in needed if token not in ids]
    if lacking:
        raise BadModelFile(f"the vocabulary lacks {lacking[0]!r} and is not DeepSeek V4's")


def _spelled(token: str) -> bytes:
    """The bytes of a token that is spelled in the byte alphabet."""
    try:
        return bytes(_TO_BYTES[letter] for letter in token)
    except KeyError:
        raise BadModelFile(f"the token {token!r} is not spelled in the byte alphabet") from None


def _alternatives(specials: Iterable[bytes]) -> Iterable[bytes]:
    """The longest first, since one marker may begin another."""
    return (re.escape(special) for special in sorted(specials, key=len, reverse=True))
