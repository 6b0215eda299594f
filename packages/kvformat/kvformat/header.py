"""The first 52 bytes of a file: decode them, encode them, and say whether the file is as long as they announce.

This is what a directory scan does per file, so it uses one `struct.Struct` that is derived from the declaration, and named
tuples instead of frozen dataclasses, which take seven times as long to make.
"""

from __future__ import annotations

import struct
from typing import Any, BinaryIO, NamedTuple

from kvformat import layout
from kvformat.errors import Damaged, NotACheckpoint, Truncated


def struct_of(declaration: Any) -> struct.Struct:
    """The `struct.Struct` of a construct Struct of fixed-size fields."""
    codes = (getattr(field.subcon, "fmtstr", f"{field.sizeof()}s").lstrip("<") for field in declaration.subcons)
    return struct.Struct("<" + "".join(codes))


_FRONT = struct.Struct(struct_of(layout.HEADER).format + "I")
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
        """Raise Damaged if it counts no tokens, Truncated if the file is shorter than text and payload. For KVC version 1."""
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


def read_header(file: BinaryIO) -> Header:
    """Read and decode the first 52 bytes of a file that is open at any position."""
    file.seek(0)
    return Header.decode(file.read(FRONT_BYTES))
