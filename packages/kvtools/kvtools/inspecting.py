"""`kvtool inspect`: all that one file says about itself, without reading its tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvformat import layout
from kvformat.checkpoint import Checkpoint
from kvformat.dialects import GENERATIONS, MAY, Dialect
from kvformat.errors import KVError
from kvformat.header import Header
from kvformat.scan import examine
from kvformat.shapes import Shape
from kvformat.spans import Span
from kvtools.listing import fields_of, header_fields
from kvtools.opening import open_settled
from kvtools.output import safe, shorten

LINE = 100  # characters of a text line that are shown
EDGE = 4096  # bytes at each end of the text in which its first and last line are looked for


def readers(header: Header, dialect: Dialect) -> str:
    """Which programs go on from the file (FORMAT 0 and 9, DIALECTS). Pro came the day before the generation changed."""
    if dialect is MAY and header.model_id == 1:
        return "ds4 of 2026-05-25 only"
    return dialect.readers or "nobody that is known"


def inspect_file(path: Path, hint: Shape | tuple[int, ...] | None = None) -> dict[str, Any]:
    """The report of any path: what an open file says, or the error and as much of the header as can be shown."""
    try:
        with open_settled(path, hint) as checkpoint:
            return describe(checkpoint)
    except KVError as error:
        return {"path": str(path), "error": error_fields(error), **_recognised(path)}


def _recognised(path: Path) -> dict[str, Any]:
    """What a file that cannot be opened as ours still shows."""
    entry = examine(str(path.parent), path.name)
    if entry is None or entry.header is None:
        return {"header": None, "dialect": None}
    dialect = entry.dialect
    return {
        "header": header_fields(entry.header, dialect) if fields_of(entry.header, dialect) else None,
        "dialect": dialect and dialect_fields(entry.header, dialect),
    }


def dialect_fields(header: Header, dialect: Dialect) -> dict[str, Any]:
    """Whose file it is, for programs."""
    return {
        "code": dialect.code,
        "name": dialect.name,
        "origin": dialect.origin.value,
        "readers": readers(header, dialect),
    }


def error_fields(error: KVError) -> dict[str, Any]:
    """An error for programs: a stable code, one sentence, and where."""
    return {"code": error.code, "message": str(error), "offset": error.offset}


def owner(checkpoint: Checkpoint) -> Dialect:
    """The generation of an open file."""
    return checkpoint.dialect or GENERATIONS[checkpoint.header.payload_abi]


def describe(checkpoint: Checkpoint) -> dict[str, Any]:
    """The report for programs."""
    header = checkpoint.header
    first, last = text_edges(checkpoint)
    key = checkpoint.text_key()
    return {
        "path": str(checkpoint.path),
        "bytes": checkpoint.size,
        "header": header_fields(header, checkpoint.dialect),
        "dialect": dialect_fields(header, owner(checkpoint)),
        "text": {"first_line": first, "last_line": last, "sha1": key, "name_is_sha1": key == checkpoint.name_key},
        "payload": _payload_fields(checkpoint),
        "sections": [_section(name, span) for name, span in sections(checkpoint)],
        "tools": None if checkpoint.tools is None else [safe(entry.id) for entry in checkpoint.tools.entries],
        "title": None if checkpoint.title is None else safe(b"".join(map(bytes, checkpoint.pieces(checkpoint.title)))),
        "trailer_problem": checkpoint.trailer_problem,
        "identity": checkpoint.identity and checkpoint.identity.hex(),
        "leftover_bytes": checkpoint.leftover,
    }


def text_edges(checkpoint: Checkpoint) -> tuple[str, str]:
    """First and last non-empty line of the text, escaped and shortened."""
    span = checkpoint.text_span
    head = b"".join(map(bytes, checkpoint.pieces(Span(span.offset, "u1", (min(EDGE, span.nbytes),)))))
    tail_bytes = min(EDGE, span.nbytes)
    tail = b"".join(map(bytes, checkpoint.pieces(Span(span.end - tail_bytes, "u1", (tail_bytes,)))))
    first = next((line for line in head.split(b"\n") if line.strip()), b"")
    last = next((line for line in reversed(tail.split(b"\n")) if line.strip()), b"")
    return shorten(safe(first), LINE), shorten(safe(last), LINE, keep="end")


def sections(checkpoint: Checkpoint) -> list[tuple[str, Span]]:
    """Every part of the file in order: name and span."""
    header, payload = checkpoint.header, checkpoint.payload
    parts = [("header", Span(0, "u1", (layout.HEADER_BYTES,))), ("text", checkpoint.text_span)]
    if payload is not None:
        parts += [
            ("words", Span(header.payload_offset, "u4", (13,))),
            ("token_ids", payload.token_ids),
            ("logits", payload.logits),
            ("counts", payload.counts),
        ]
        if payload.layers is None:
            parts.append(("layers (ambiguous)", payload.body))
        for il, layer in enumerate(payload.layers or ()):
            parts += [
                (f"layer{il}.{name}", getattr(layer, name))
                for name in layer.__dataclass_fields__
                if getattr(layer, name)
            ]
    if checkpoint.tools is not None:
        parts.append(("tool map", Span(header.payload_end, "u1", (checkpoint.tools.end - header.payload_end,))))
    if checkpoint.title is not None:
        parts.append(("title", checkpoint.title))
    footer = layout.FOOTER_BYTES if checkpoint.identity else 0
    if checkpoint.leftover:
        start = checkpoint.size - footer - checkpoint.leftover
        parts.append(("leftover", Span(start, "u1", (checkpoint.leftover,))))
    if footer:
        parts.append(("identity footer", Span(checkpoint.size - footer, "u1", (footer,))))
    return parts


def _section(name: str, span: Span) -> dict[str, Any]:
    return {"name": name, "offset": span.offset, "bytes": span.nbytes, "dtype": span.dtype, "shape": list(span.shape)}


def _payload_fields(checkpoint: Checkpoint) -> dict[str, Any] | None:
    payload = checkpoint.payload
    if payload is None:
        return None
    words = {name: value for name, value in payload.words._asdict().items() if name != "magic"}
    shape = payload.shape
    return {
        "words": words,
        "shape": None if shape is None else shape.name,
        "ratios": None if shape is None else list(shape.ratios),
        "n_comp": list(payload.n_comp),
        "n_index_comp": list(payload.n_index_comp),
    }
