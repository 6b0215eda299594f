"""Two lines and a caret: where two runs of bytes part."""

from __future__ import annotations

from collections.abc import Iterator

from kvformat.nearmiss import CONTEXT
from kvtools.output import safe


def picture(first: str, a: bytes, second: str, b: bytes, byte: int) -> Iterator[str]:
    """Three lines: both sides with their names, and a caret under the first byte that differs.

    `a` and `b` start at most 20 bytes before offset `byte`. Bytes are escaped where a terminal could not show them; a
    character of which only a part differs stands behind the caret on both sides.
    """
    from rich.cells import cell_len

    lead = min(CONTEXT, byte)
    while lead and any(lead < len(side) and side[lead] & 0xC0 == 0x80 for side in (a, b)):
        lead -= 1  # inside a character
    width = max(len(first), len(second))
    dots = "…" if byte > CONTEXT else ""
    before = dots + safe(_whole(a[:lead]))
    for name, side in ((first, a), (second, b)):
        rest = safe(side[lead:])
        yield f"  {name:<{width}}  {before}{rest or '(end)'}"
    yield f"  {'':<{width}}  {' ' * cell_len(before)}^ byte {byte}"


def _whole(data: bytes) -> bytes:
    """Without the continuation bytes of a character that began before."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]
