"""The tool map (KTM): which sampled block a tool call id stands for. Read like ds4 reads it, written like ds4 writes it.

Reading never fails: a map that ds4 would ignore is empty, a broken entry ends the map and keeps the earlier ones (FORMAT 1.5).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from construct import ConstructError

from kvformat import layout
from kvformat.spans import Span

DEFAULT_MAX_IDS = 100_000
MAX_ID_BYTES = 256
MAX_DSML_BYTES = 512 << 20

# The front of layout.KTM_ENTRY: a full map has 100,000 entries, which take construct seconds and this a fraction of one.
_LENGTHS = struct.Struct("<II")

_BLOCK_STARTS = ("<｜DSML｜tool_calls>", "<DSML｜tool_calls>", "<tool_calls>")


@dataclass(frozen=True, slots=True)
class ToolEntry:
    """One id and where its block lies. The block is read when it is wanted: it may be hundreds of MB."""

    id: bytes
    offset: int
    nbytes: int

    @property
    def dsml(self) -> Span:
        return Span(self.offset, "u1", (self.nbytes,))


@dataclass(frozen=True, slots=True)
class ToolMap:
    """What stands behind the payload: the entries that ds4 would load, where the map ends, and why it ends early if it does."""

    entries: tuple[ToolEntry, ...]
    end: int
    problem: str | None = None


def find_tool_map(file: BinaryIO, offset: int, file_bytes: int, max_ids: int = DEFAULT_MAX_IDS) -> ToolMap:
    """Locate the entries of the map at `offset`. Ids are read, blocks are not."""
    file.seek(offset)
    try:
        head = layout.KTM_HEAD.parse_stream(file)
    except ConstructError:
        return ToolMap((), offset, "the tool map is cut short")
    if (head.magic, head.version) != (layout.KTM_MAGIC, layout.KTM_VERSION):
        return ToolMap((), offset, f"no tool map, {head.magic!r} version {head.version} instead")
    if head.count > 4 * max_ids:
        return ToolMap((), offset, f"the tool map counts {head.count} entries, more than {4 * max_ids}")
    entries: list[ToolEntry] = []
    end = file.tell()
    for number in range(head.count):
        file.seek(end)
        front = file.read(_LENGTHS.size + MAX_ID_BYTES)
        if len(front) < _LENGTHS.size:
            return ToolMap(tuple(entries), end, f"entry {number} of the tool map is cut short")
        id_bytes, dsml_bytes = _LENGTHS.unpack_from(front)
        if not 0 < id_bytes <= MAX_ID_BYTES or not 0 < dsml_bytes <= MAX_DSML_BYTES:
            return ToolMap(tuple(entries), end, f"entry {number} of the tool map has impossible lengths")
        block = end + _LENGTHS.size + id_bytes
        if block + dsml_bytes > file_bytes:
            return ToolMap(tuple(entries), end, f"entry {number} of the tool map is cut short")
        entries.append(ToolEntry(front[_LENGTHS.size : _LENGTHS.size + id_bytes], block, dsml_bytes))
        end = block + dsml_bytes
    return ToolMap(tuple(entries), end)


def read_tool_map(file: BinaryIO, tools: ToolMap) -> Iterator[tuple[bytes, bytes]]:
    """(id, block) of each entry, both cut at an embedded NUL as a C reader sees them; what is then empty is skipped."""
    for entry in tools.entries:
        file.seek(entry.dsml.offset)
        name, dsml = entry.id.split(b"\0")[0], file.read(entry.dsml.nbytes).split(b"\0")[0]
        if name and dsml:
            yield name, dsml


def encode_tool_map(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The trailer of these (id, block) pairs in this order; empty when there are none, since count 0 is never written."""
    entries = [_LENGTHS.pack(len(name), len(dsml)) + name + dsml for name, dsml in pairs]
    if not entries:
        return b""
    return layout.KTM_HEAD.build(
        {"magic": layout.KTM_MAGIC, "version": layout.KTM_VERSION, "count": len(entries)}
    ) + b"".join(entries)


def pairs_in_text(text: bytes, ids_of: Mapping[bytes, Iterable[bytes]]) -> list[tuple[bytes, bytes]]:
    """The (id, block) pairs that belong into the map of a checkpoint with this text.

    `ids_of` is the memory: block → its ids, newest first. A block counts if the text holds it byte for byte; each distinct
    block is taken once, in the order of the text, with every id that maps to it.
    """
    wanted: dict[bytes, None] = {}
    for block in blocks_in_text(text):
        if block in ids_of:
            wanted.setdefault(block)
    return [(name, block) for block in wanted for name in ids_of[block]]


def blocks_in_text(text: bytes) -> Iterator[bytes]:
    """Every tool block of a text, left to right, with the two newlines before it where they are there.

    The search stops at a NUL, as ds4's does; a start without its end tag is skipped.
    """
    text = text.split(b"\0")[0]
    starts = [(prefix + tag).encode() for tag in _BLOCK_STARTS for prefix in ("\n\n", "")]
    position = 0
    while True:
        hits = [(at, rank) for rank, start in enumerate(starts) if (at := text.find(start, position)) >= 0]
        if not hits:
            return
        at, rank = min(hits)
        close = starts[rank].lstrip(b"\n").replace(b"<", b"</", 1)
        end = text.find(close, at + len(starts[rank]))
        if end < 0:
            position = at + len(starts[rank])
            continue
        position = end + len(close)
        yield text[at:position]
