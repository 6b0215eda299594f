"""`kvtool tree`: which file extends which, by their texts alone, and what a file repeats of the one that it extends.

The texts of a directory are held in memory; they are a few thousandths of its bytes.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvformat import layout
from kvformat.checkpoint import Checkpoint
from kvformat.dialects import reason_name
from kvformat.envelope import open_regular
from kvformat.errors import KVError
from kvformat.header import Header
from kvformat.scan import Entry, Kind, scan
from kvtools.output import mib, progress, safe

COLUMNS = ("name", "tokens", "text", "reason", "hits", "MiB", "shared MiB", "")
RIGHT = frozenset({1, 2, 4, 5, 6})
F32 = 4


@dataclass(frozen=True, slots=True)
class Node:
    """One file. `parent` is the longest file whose text this one's begins with; `depth` counts its ancestors.

    `covered`: a longer file begins with this one. `shared_bytes` of this file stand in its parent too: the token ids and the
    compressed rows of the parent's tokens, if this file was made of the same tokens; what else a file holds is its own.
    """

    name: str
    parent: str | None
    depth: int
    covered: bool
    size: int
    header: Header
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class Rows:
    """A file's token ids, and the bytes of them and of the compressed rows that they made."""

    ids: array[int]
    nbytes: int


def forest(directory: Path) -> list[Node]:
    """Every readable file, each behind its parent. Raises Unreadable when the directory cannot be listed."""
    entries = [e for e in scan(directory) if e.kind in (Kind.GOOD, Kind.STRIPPED)]
    texts = {}
    for entry in progress(entries, "reading texts", len(entries)):
        text = _text(directory, entry)
        if text:
            texts[entry.name] = text
    found = [entry for entry in entries if entry.name in texts]
    found.sort(key=lambda entry: (texts[entry.name], entry.name))  # a prefix stands right before all that extends it
    return list(_nodes(directory, found, texts))


def _nodes(directory: Path, entries: list[Entry], texts: dict[str, bytes]) -> Iterator[Node]:
    path: list[tuple[str, Rows]] = []  # from a root down to the last entry
    for number, entry in enumerate(progress(entries, "comparing tokens", len(entries))):
        text, header, held = texts[entry.name], entry.header, _rows(directory / entry.name)
        assert header is not None
        while path and not text.startswith(texts[path[-1][0]]):
            path.pop()
        covered = number + 1 < len(entries) and texts[entries[number + 1].name].startswith(text)
        parent, shared = (path[-1][0], _shared(held, path[-1][1])) if path else (None, 0)
        yield Node(entry.name, parent, len(path), covered, entry.size, header, shared)
        path.append((entry.name, held))


def _text(directory: Path, entry: Entry) -> bytes:
    """The text of a file, empty for one that vanished."""
    assert entry.header is not None
    try:
        with open_regular(directory / entry.name) as file:
            file.seek(layout.TEXT_OFFSET)
            return file.read(entry.header.text_bytes)
    except (KVError, OSError):
        return b""


def _rows(path: Path) -> Rows:
    """What a longer file may repeat; nothing of a file that holds text only or cannot be read."""
    try:
        with Checkpoint.open(path) as checkpoint:
            if checkpoint.payload is None:
                return Rows(array("I"), 0)
            words, payload = checkpoint.payload.words, checkpoint.payload
            values = sum(payload.n_comp) * words.head_dim + sum(payload.n_index_comp) * words.indexer_dim
            return Rows(checkpoint.token_ids(), F32 * (words.tokens + values))
    except KVError:
        return Rows(array("I"), 0)


def _shared(longer: Rows, shorter: Rows) -> int:
    """0 where the two were made of other tokens."""
    return shorter.nbytes if longer.ids[: len(shorter.ids)] == shorter.ids else 0


def node_fields(node: Node) -> dict[str, Any]:
    """One file for programs."""
    h = node.header
    return {
        "name": node.name,
        "parent": node.parent,
        "depth": node.depth,
        "covered": node.covered,
        "bytes": node.size,
        "shared_bytes": node.shared_bytes,
        "tokens": h.tokens,
        "text_bytes": h.text_bytes,
        "reason": reason_name(h, None),
        "hits": h.hits,
    }


def row(node: Node) -> tuple[object, ...]:
    """One line of the table, indented below its parent."""
    h = node.header
    name = "  " * node.depth + safe(os.fsencode(node.name))
    sizes = f"{node.size / (1 << 20):.2f}", f"{node.shared_bytes / (1 << 20):.2f}"
    return (name, h.tokens, h.text_bytes, reason_name(h, None), h.hits, *sizes, "covered" if node.covered else "")


def totals(nodes: list[Node]) -> dict[str, int]:
    """Sums over all files."""
    return {
        "files": len(nodes),
        "roots": sum(node.parent is None for node in nodes),
        "covered": sum(node.covered for node in nodes),
        "covered_bytes": sum(node.size for node in nodes if node.covered),
        "bytes": sum(node.size for node in nodes),
        "shared_bytes": sum(node.shared_bytes for node in nodes),
    }


def summary(nodes: list[Node]) -> str:
    """One sentence under the table."""
    if not nodes:
        return "no checkpoints"
    t = totals(nodes)
    return (
        f"{t['files']} files in {t['roots']} trees, {mib(t['bytes'])}; {mib(t['shared_bytes'])} stand in a parent as well; "
        f"{t['covered']} files ({mib(t['covered_bytes'])}) are covered by longer ones"
    )
