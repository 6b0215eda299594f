"""The 13 words at the start of a DSV4 payload: decode them, and say where they contradict their header or each other.

A directory scan decodes them for every file, so this is a named tuple over one `struct.Struct`, as the header is.
"""

from __future__ import annotations

from typing import NamedTuple

from kvformat import layout
from kvformat.errors import Damaged
from kvformat.header import Header, struct_of
from kvformat.shapes import MAX_LAYERS

_WORDS = struct_of(layout.WORDS)
WORDS_BYTES = _WORDS.size


class Words(NamedTuple):
    """As declared in `layout.WORDS`."""

    magic: bytes
    version: int
    ctx: int
    prefill_chunk: int
    raw_cap: int
    raw_window: int
    comp_cap: int
    tokens: int
    layers: int
    head_dim: int
    indexer_dim: int
    vocab: int
    raw_live: int

    @classmethod
    def decode(cls, data: bytes) -> Words:
        """From the first 52 bytes of a payload."""
        return cls._make(_WORDS.unpack_from(data))

    def check(self, header: Header) -> None:
        """Raise Damaged for what ds4 refuses by the words alone (FORMAT 2.4), but for what depends on the reader's context."""

        def at(index: int) -> int:
            return header.payload_offset + 4 * index

        if not 0 < self.layers <= MAX_LAYERS:
            raise Damaged("implausible number of layers", offset=at(8), expected=f"1..{MAX_LAYERS}", found=self.layers)
        if self.tokens != header.tokens:
            raise Damaged(
                "header and payload disagree on the tokens", offset=at(7), expected=header.tokens, found=self.tokens
            )
        room = max(header.ctx, self.ctx) // 4 + 2
        if self.comp_cap > room:
            raise Damaged(
                "the compressed cache is larger than its context", offset=at(6), expected=room, found=self.comp_cap
            )
        live = min(self.raw_window, self.tokens)
        if self.raw_live != live or self.raw_live > self.raw_cap:
            raise Damaged(
                "the raw ring contradicts itself",
                offset=at(12),
                expected=f"min(window {self.raw_window}, tokens {self.tokens}) live rows within a ring of {self.raw_cap}",
                found=self.raw_live,
            )
