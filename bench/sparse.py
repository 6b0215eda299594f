"""Checkpoints of Flash's size that take no room: front, text and payload words are there, all else is a hole in the file."""

from __future__ import annotations

from pathlib import Path

from kvformat import layout
from kvformat.header import Header
from kvformat.shapes import FLASH

TOKENS, CTX = 2_048, 32_768


def write_sparse(path: Path, text: bytes, text_bytes: int) -> None:
    """A file of 2,048 tokens with a text of `text_bytes`, of which `text` is written."""
    payload = FLASH.payload_bytes(TOKENS)
    header = Header(
        layout.KVC_MAGIC, layout.KVC_VERSION, 2, 1, 0, 0, TOKENS, 0, CTX, 2, bytes(3), 1, 1, payload, text_bytes
    )
    window = FLASH.window
    words = (2, CTX, 2048, window, window, CTX // 4 + 2, TOKENS, FLASH.layers, FLASH.head_dim, FLASH.indexer_dim)
    with path.open("wb") as file:
        file.write(header.encode() + text)
        file.seek(header.payload_offset)
        file.write(layout.DSV4_MAGIC + b"".join(word.to_bytes(4, "little") for word in (*words, FLASH.vocab, window)))
        file.truncate(header.payload_end)
