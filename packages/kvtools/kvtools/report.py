"""`kvtool inspect` for people: the header with its meanings, and a map of the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from kvformat import layout
from kvformat.checkpoint import Checkpoint
from kvformat.dialects import flag_names, reason_name
from kvformat.errors import KVError
from kvformat.scan import examine
from kvformat.shapes import Shape
from kvformat.spans import Span
from kvtools.inspecting import owner, readers, sections, text_edges
from kvtools.listing import header_fields
from kvtools.opening import open_settled
from kvtools.output import iso, mib, print_fields, print_table, safe

MAP_COLUMNS = ("section", "offset", "bytes", "dtype", "shape")


def show(path: Path, hint: Shape | tuple[int, ...] | None, with_map: bool, full_map: bool) -> KVError | None:
    """Print one file; returns the error that stopped it, after printing what can be said all the same."""
    click.echo(safe(os.fsencode(path)))
    try:
        with open_settled(path, hint) as checkpoint:
            print_fields(fields(checkpoint))
            if with_map:
                click.echo()
                print_table(MAP_COLUMNS, map_rows(checkpoint, full_map), frozenset({1, 2}))
    except KVError as error:
        error.path = None  # it stands above
        print_fields([(error.code, error), *_recognised(path)])
        return error
    return None


def _recognised(path: Path) -> Iterator[tuple[str, object]]:
    """What a file that cannot be opened as ours still shows."""
    entry = examine(str(path.parent), path.name)
    if entry is None or entry.header is None:
        return
    if entry.dialect:
        yield "dialect", f"{entry.dialect.code}; read by {readers(entry.header, entry.dialect)}"
    described = header_fields(entry.header, entry.dialect)
    yield from ((name, value) for name, value in described.items() if value is not None and value != [])


def fields(checkpoint: Checkpoint) -> list[tuple[str, str]]:
    """The header and its neighbours with their meanings."""
    h, payload = checkpoint.header, checkpoint.payload
    first, last = text_edges(checkpoint)
    key = checkpoint.text_key()
    named = "the name is its SHA1" if key == checkpoint.name_key else f"the name is NOT its SHA1 {key}"
    pairs = [
        ("size", f"{mib(checkpoint.size)} ({checkpoint.size} bytes)"),
        (
            "generation",
            f"payload ABI {h.payload_abi}, DSV4 version {layout.GENERATIONS[h.payload_abi]}: {readers(h, owner(checkpoint))}",
        ),
        ("model", _model(checkpoint)),
        ("reason", f"{reason_name(h, checkpoint.dialect)} ({h.reason})"),
        ("tokens", f"{h.tokens} of ctx {h.ctx}"),
        ("hits", f"{h.hits}, last used {iso(h.last_used) or 'never'}, created {iso(h.created) or 'unknown'}"),
        ("key", f"{h.key_kind}, {h.text_bytes} bytes; {named}"),
        ("first line", first),
        ("last line", last),
    ]
    if payload is None:
        pairs.append(("payload", "none: stripped, text only"))
    if h.ext_flags & ~layout.EXT_KNOWN:
        pairs.append(("flags", f"{h.ext_flags:#04x}: {', '.join(flag_names(h, checkpoint.dialect))}"))
    if any(h.reserved):
        pairs.append(("reserved", h.reserved.hex()))
    if checkpoint.tools is not None:
        pairs.append(("tools", _tools(checkpoint)))
    if checkpoint.title is not None:
        pairs.append(("title", safe(b"".join(map(bytes, checkpoint.pieces(checkpoint.title))))))
    if checkpoint.trailer_problem:
        pairs.append(("trailer", checkpoint.trailer_problem))
    if checkpoint.identity:
        pairs.append(("identity", f"{checkpoint.identity.hex()} (ds4-dfm's name of the model)"))
    if checkpoint.leftover:
        pairs.append(("leftover", f"{checkpoint.leftover} bytes behind the last trailer, ignored by every reader"))
    return pairs


def _model(checkpoint: Checkpoint) -> str:
    h, payload = checkpoint.header, checkpoint.payload
    quant = f"routed experts at {h.quant_bits} bits"
    if payload is None:
        return f"model byte {h.model_id}, {quant}"
    w = payload.words
    dims = f"{w.layers} layers, head {w.head_dim}, indexer {w.indexer_dim}, vocabulary {w.vocab}, window {w.raw_window}"
    if payload.shape is None:
        return f"ambiguous: several layer patterns fit {w.tokens} tokens, give --shape; {dims}, {quant}"
    return f"{payload.shape.name}: {dims}, {quant}"


def _tools(checkpoint: Checkpoint) -> str:
    entries = checkpoint.tools.entries if checkpoint.tools else ()
    blocks = {block for _, block in checkpoint.tool_pairs()}
    names = ", ".join(safe(entry.id) for entry in entries[:4]) + (", …" if len(entries) > 4 else "")
    return f"{len(entries)} ids of {len(blocks)} blocks: {names}" if entries else "none"


def map_rows(checkpoint: Checkpoint, full: bool) -> list[tuple[object, ...]]:
    """(section, offset, bytes, dtype, shape); a layer is one line unless `full`."""
    rows: dict[str, list[tuple[str, Span]]] = {}
    for name, span in sections(checkpoint):
        layer, _, tensor = name.partition(".")
        rows.setdefault(name if full or not tensor else layer, []).append((tensor, span))
    return [_map_row(section, parts, checkpoint) for section, parts in rows.items()]


def _map_row(section: str, parts: list[tuple[str, Span]], checkpoint: Checkpoint) -> tuple[object, ...]:
    first = parts[0][1]
    dims = ", ".join((f"{name} " if len(parts) > 1 else "") + "x".join(map(str, span.shape)) for name, span in parts)
    if len(parts) > 1 or parts[0][0]:
        shape = checkpoint.shape.ratios[int(section.removeprefix("layer").partition(".")[0])]
        section = f"{section} (ratio {shape})"
    return section, first.offset, sum(span.nbytes for _, span in parts), first.dtype, dims
