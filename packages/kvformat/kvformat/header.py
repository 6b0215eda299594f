"""The first 52 bytes of a file: decode them, encode them, and name the relatives of the format by them.

This is what a directory scan does per file, so it uses one `struct.Struct` that is derived from the declaration, and named
tuples instead of frozen dataclasses, which take seven times as long to make.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from kvformat import layout
from kvformat.errors import Damaged, NotACheckpoint, OtherDialect, Truncated


def _struct_of(declaration: Any) -> struct.Struct:
    """The `struct.Struct` of a construct Struct of fixed-size fields."""
    codes = (getattr(field.subcon, "fmtstr", f"{field.sizeof()}s").lstrip("<") for field in declaration.subcons)
    return struct.Struct("<" + "".join(codes))


_FRONT = struct.Struct(_struct_of(layout.HEADER).format + "I")
FRONT_BYTES = layout.TEXT_OFFSET


class Header(NamedTuple):
    """The 48-byte KVC header, field by field as declared in `layout.HEADER`, and the length of the text behind it."""

    magic: bytes
    version: int
    quant_bits: int
    reason: int
    ext_flags: int
    model_id: int
    tokens: int
    hits: int
    ctx: int
    payload_abi: int
    reserved: bytes
    created: int
    last_used: int
    payload_bytes: int
    text_bytes: int

    @classmethod
    def decode(cls, front: bytes) -> Header:
        """From the first 52 bytes of a file; raises Truncated when there are fewer, NotACheckpoint if those are no start of one."""
        if len(front) < FRONT_BYTES:
            if not layout.KVC_MAGIC.startswith(front[:3]):
                raise NotACheckpoint("not a KVC file", offset=0, expected="KVC", found=repr(front[:4]))
            raise Truncated(
                "too short for a header", offset=len(front), expected=f"{FRONT_BYTES} bytes", found=len(front)
            )
        return cls._make(_FRONT.unpack_from(front))

    def encode(self) -> bytes:
        """The 52 bytes again, bit for bit."""
        return _FRONT.pack(*self)

    @property
    def payload_offset(self) -> int:
        return FRONT_BYTES + self.text_bytes

    @property
    def payload_end(self) -> int:
        return self.payload_offset + self.payload_bytes

    @property
    def reason_name(self) -> str:
        """ds4 reads a reason that it does not know as `unknown`."""
        return layout.REASONS[self.reason] if self.reason < len(layout.REASONS) else layout.REASONS[0]

    @property
    def key_kind(self) -> str:
        """What the text is; if both bits are set ds4 says responses-visible."""
        if self.ext_flags & layout.EXT_RESPONSES_VISIBLE:
            return "responses-visible"
        return "thinking-visible" if self.ext_flags & layout.EXT_THINKING_VISIBLE else "token-text"

    @property
    def used(self) -> int:
        """Unix seconds of the last use, or of the creation if there was none."""
        return self.last_used or self.created

    def with_sizes(self, text_bytes: int, payload_bytes: int) -> Header:
        return self._replace(text_bytes=text_bytes, payload_bytes=payload_bytes)

    def check(self, file_bytes: int) -> None:
        """Raise what is wrong with the envelope: foreign, another dialect, damaged, or cut short. Silent if sound."""
        if self.magic != layout.KVC_MAGIC:
            raise _foreign(self)
        for dialect, offset in _other_envelopes(self):
            raise OtherDialect(dialect, offset=offset, remedy="it is shown and kept, never changed")
        if self.tokens == 0:
            raise Damaged("the header counts no tokens", offset=8, expected="at least 1", found=0)
        if self.payload_end > file_bytes:
            part = "text" if self.payload_offset > file_bytes else "payload"
            raise Truncated(
                f"the file ends inside the {part}",
                offset=file_bytes,
                expected=f"{self.payload_end} bytes",
                found=file_bytes,
            )


def _foreign(header: Header) -> NotACheckpoint:
    start = header.encode()[:4]
    bare = {layout.DSV4_MAGIC: "a bare DSV4 payload without its KVC envelope", layout.DSVL_MAGIC: "a DSVL shard"}.get(
        start
    )
    return NotACheckpoint(
        f"not a KVC file{f', but {bare}' if bare else ''}", offset=0, expected="KVC", found=repr(start)
    )


def _other_envelopes(h: Header) -> Iterator[tuple[str, int]]:
    """What makes this the envelope of a relative (FORMAT 1.4, 1.7), and the byte that shows it; the weightiest first."""
    if h.version == 2:
        yield _version_2(h), 3
    if h.version == 3:
        yield "KVC version 3 (longer header with a parent file)", 3
    if h.version != layout.KVC_VERSION:
        yield f"KVC version {h.version}", 3
    if h.payload_abi not in layout.GENERATIONS:
        yield f"payload ABI {h.payload_abi}", 20
    if h.quant_bits not in (2, 4):
        yield f"quant bits {h.quant_bits}", 4
    if h.model_id > 1:
        name = layout.MODELS[h.model_id] if h.model_id < len(layout.MODELS) else "unknown"
        yield f"model {h.model_id} ({name})", 7


def _version_2(h: Header) -> str:
    """At least six formats call themselves version 2 and differ by plausibility only (CASES, format drift)."""
    codec, log2_chunk, _ = h.reserved
    chunk = int.from_bytes(bytes([h.payload_abi]) + h.reserved, "little")
    if h.payload_abi == 3:
        return "KVC version 2, ABI 3 (append-only blocks with a tail index and a .ckpt companion)"
    if h.payload_abi == 2 and codec == 1 and 12 <= log2_chunk <= 26:
        return "KVC version 2, LZ4 chunks (codec in byte 21)"
    if h.model_id <= 1 and chunk >= 4096 and chunk & (chunk - 1) == 0:
        return "KVC version 2, LZ4 chunks (codec in byte 7)"
    return "KVC version 2 (CRC32C, radix or a longer header)"


def read_header(file: BinaryIO) -> Header:
    """Read and decode the first 52 bytes of a file that is open at any position."""
    file.seek(0)
    return Header.decode(file.read(FRONT_BYTES))
