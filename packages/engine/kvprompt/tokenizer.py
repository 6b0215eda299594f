"""Bytes to token ids and back, exactly, for any bytes.

The vocabulary can be split in two ways: ds4's, which knows ASCII and takes every other byte for a letter, and the official
one of tokenizer.json, which knows Unicode. They differ here and there, so the ids of a saved state are never made again
from its text: only what follows the cached bytes is tokenised (`start`).
"""

from __future__ import annotations

import codecs
import json
import re
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar, cast

from cachetools import LRUCache, cached

from .errors import BadModelFile, TooManyTokens, prompt_extra
from .gguf_header import GGUF
from .markers import SPECIALS
from .splitting import ALPHABET, DS4_PATTERN
from .steps import STEP, steps

if TYPE_CHECKING:
    import tokenizers

_NORMAL = 1  # the type of a GGUF token that is spelled in the byte alphabet
_TO_BYTES = {letter: byte for byte, letter in enumerate(ALPHABET)}
_LETTERS = "".join(ALPHABET)
_INVALID = re.compile("([\udc80-\udcff])")

MEMORY = 32 << 20  # bytes of tokenised text that are remembered
LONG = 1 << 20  # bytes without a border that are tokenised before they are counted
CUT = 16  # of a piece of 64 KiB, far fewer than one token in so many is owed to its cuts

T = TypeVar("T")
EncodePiece = Callable[[bytes], list[int]]


class Tokenizer:
    """One vocabulary with one splitting. `token_bytes[id]` is what a token stands for."""

    def __init__(self, encode_piece: EncodePiece, token_bytes: Sequence[bytes], specials: Mapping[bytes, int]) -> None:
        self.token_bytes = tuple(token_bytes)
        self.longest = max(map(len, self.token_bytes))  # bytes of a token
        self._encode_piece = encode_piece
        # Histories come again with every request, and one thread tokenises ahead of another.
        memory: LRUCache[bytes, array[int]] = LRUCache(MEMORY, getsizeof=_remembered_size)
        remembering = cached(memory, key=bytes, lock=Lock())
        self._encode_step = remembering(lambda step: array("I", encode_piece(step)))
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
            return _encode(engine, codecs.charmap_decode(piece, "strict", _LETTERS)[0])

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
        return [id for step in steps(text) for id in self._encode_step(step)]

    def encode_chat(self, text: bytes, *, start: int = 0, most: int = sys.maxsize) -> list[int]:
        """The ids of rendered text from byte `start` on, in which every control marker is one token.

        Raises TooManyTokens as soon as there are more than `most`: for a text that is long enough, at once.
        """
        if len(text) - start > most * self.longest:
            raise TooManyTokens(-(-(len(text) - start) // self.longest))
        ids: list[int] = []
        for step in self._chat_steps(text[start:] if start else text):
            if len(step) > max(LONG, most - len(ids)):
                self._skim(step, len(ids), most)
            ids += self._chat_ids(step)
            if len(ids) > most:
                raise TooManyTokens(len(ids))
        return ids

    def count_chat(self, text: bytes) -> int:
        """How many tokens rendered text has; where there is no border in a million bytes, the few count that cuts add."""
        return sum(
            sum(self._lengths(step)) if len(step) > LONG else len(self._chat_ids(step))
            for step in self._chat_steps(text)
        )

    def _chat_steps(self, text: bytes) -> Iterator[bytes]:
        """Markers, and plain text step by step."""
        start = 0
        for marker in self._marker.finditer(text):
            if marker.start() > start:
                yield from steps(text[start : marker.start()])
            yield marker[0]
            start = marker.end()
        yield from steps(text[start:])

    def _chat_ids(self, step: bytes) -> Sequence[int]:
        marker = self._specials.get(step)
        return self._encode_step(step) if marker is None else (marker,)

    def _skim(self, step: bytes, counted: int, most: int) -> None:
        """Raise TooManyTokens if that shows without tokenising all of it, which would take a hundred times its memory."""
        for length in self._lengths(step):
            counted += length - length // CUT
            if counted > most:
                raise TooManyTokens(counted)

    def _lengths(self, step: bytes) -> Iterator[int]:
        """The tokens of pieces that are cut anywhere."""
        for at in range(0, len(step), STEP):
            yield len(self._encode_piece(step[at : at + STEP]))

    def decode(self, ids: Iterable[int]) -> bytes:
        """The exact bytes of these tokens. Raises IndexError for an id that is not in the vocabulary."""
        return b"".join([self.token_bytes[id] for id in ids])


def _encode(engine: tokenizers.Tokenizer, text: str) -> list[int]:
    # The batch call is the one that lets other threads run meanwhile.
    return engine.encode_batch_fast([text], add_special_tokens=False)[0].ids


def _remembered_size(ids: Sequence[int]) -> int:
    return 256 + 8 * len(ids)  # two objects; four bytes for the id of a token and about four of its text


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
