"""`kvtool inspect --hex`: the first bytes of any file, with the fields that stand there."""

from __future__ import annotations

from pathlib import Path

from kvformat import layout
from kvformat.envelope import open_regular
from kvformat.errors import KVError
from kvformat.header import FRONT_BYTES, Header
from kvtools.output import safe

COLUMNS = ("offset", "bytes", "field", "value", "meaning")
TEXT_SHOWN = 32
PAYLOAD_SHOWN = layout.WORDS.sizeof()


def annotated(path: Path) -> list[tuple[str, str, str, str, str]]:
    """(offset, bytes, field, value, meaning) for the header, the start of the text and the 13 words, as far as they are there.

    Knows only where fields lie, so that it also shows what is damaged or another dialect's.
    """
    with open_regular(path) as file:
        front = file.read(FRONT_BYTES)
        rows = _rows(layout.HEADER, front, 0) + _rows(layout.TEXT, front[layout.HEADER_BYTES :], layout.HEADER_BYTES)
        try:
            header = Header.decode(front)
        except KVError:
            return rows
        if header.magic != layout.KVC_MAGIC:
            return rows
        text = file.read(min(TEXT_SHOWN, header.text_bytes))
        rows += [_row(FRONT_BYTES, text, "text", safe(text), f"first {len(text)} of {header.text_bytes} bytes")]
        file.seek(header.payload_offset)
        return rows + _rows(layout.WORDS, file.read(PAYLOAD_SHOWN), header.payload_offset)


def _rows(declaration: object, data: bytes, base: int) -> list[tuple[str, str, str, str, str]]:
    rows = []
    offset = 0
    for field in declaration.subcons:  # type: ignore[attr-defined]
        if not hasattr(field.subcon, "length") and not hasattr(field.subcon, "fmtstr"):
            break  # a tensor: its size depends on what is read
        piece = data[offset : offset + field.sizeof()]
        if not piece:
            break
        value = int.from_bytes(piece, "little") if hasattr(field.subcon, "fmtstr") else safe(piece)
        rows.append(_row(base + offset, piece, field.name, str(value), field.docs))
        offset += len(piece)
    return rows


def _row(offset: int, data: bytes, name: str, value: str, meaning: str) -> tuple[str, str, str, str, str]:
    return f"{offset:08x}", data[:8].hex(" ") + (" …" if len(data) > 8 else ""), name, value, meaning
