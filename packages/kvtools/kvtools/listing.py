"""`kvtool ls`: every entry of a directory, what it is and whose, from a few small reads each."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from kvformat import layout
from kvformat.dialects import HEADER_FIELDS, Dialect, flag_names, reason_name
from kvformat.header import Header
from kvformat.scan import Entry, Kind, scan
from kvtools.output import age, iso, mib, progress, safe_name

COLUMNS = ("name", "what", "dialect", "key", "tokens", "ctx", "hits", "quant", "abi", "used", "MiB")
RIGHT = frozenset(range(4, len(COLUMNS)))
NEVER = 1 << 64
PLACES = {  # what is derived from a header field, and from which
    "reason_byte": "reason",
    "flags": "ext_flags",
    "key_kind": "ext_flags",
    "created_iso": "created",
    "last_used_iso": "last_used",
}


def fields_of(header: Header, dialect: Dialect | None) -> frozenset[str]:
    """The header fields that mean what their names say: all of a damaged KVC 1 file, none of what is no KVC file."""
    if dialect is not None:
        return dialect.fields
    return HEADER_FIELDS if (header.magic, header.version) == (layout.KVC_MAGIC, layout.KVC_VERSION) else frozenset()


def header_fields(header: Header, dialect: Dialect | None) -> dict[str, Any]:
    """The header for programs; times as unix seconds and as ISO 8601 (null when 0 or impossible).

    A field is null where the dialect has something else at its place.
    """
    known = fields_of(header, dialect)
    described = {
        "version": header.version,
        "quant_bits": header.quant_bits,
        "reason": reason_name(header, dialect),
        "reason_byte": header.reason,
        "ext_flags": header.ext_flags,
        "flags": flag_names(header, dialect),
        "key_kind": header.key_kind,
        "model_id": header.model_id,
        "tokens": header.tokens,
        "hits": header.hits,
        "ctx": header.ctx,
        "payload_abi": header.payload_abi,
        "reserved": header.reserved.hex(),
        "created": header.created,
        "created_iso": iso(header.created),
        "last_used": header.last_used,
        "last_used_iso": iso(header.last_used),
        "payload_bytes": header.payload_bytes,
        "text_bytes": header.text_bytes,
    }
    return {name: value if PLACES.get(name, name) in known else None for name, value in described.items()}


def entry_fields(entry: Entry) -> dict[str, Any]:
    """One `ls` entry for programs."""
    return {
        "name": entry.name,
        "kind": entry.kind.value,
        "dialect": entry.dialect and entry.dialect.code,
        "bytes": entry.size,
        "problem": entry.problem,
        "header": header_fields(entry.header, entry.dialect) if _described(entry) and entry.header else None,
    }


def list_directory(directory: Path) -> list[Entry]:
    """Every entry, longest unused first, then what is not a checkpoint."""
    return sorted(progress(scan(directory), "reading headers"), key=_last_use)


def _described(entry: Entry) -> frozenset[str]:
    return fields_of(entry.header, entry.dialect) if entry.header else frozenset()


def _last_use(entry: Entry) -> int:
    """What has no last use comes last; `scan` gives names in order and sorting keeps that."""
    return entry.header.used if entry.header and "last_used" in _described(entry) else NEVER


def row(entry: Entry, now: float) -> tuple[object, ...]:
    """One line of the table: why a checkpoint was written, or what an entry is that none can be loaded from."""
    name, size = safe_name(entry.name), f"{entry.size / (1 << 20):.2f}"
    h, known = entry.header, _described(entry)
    code = entry.dialect.code if entry.dialect else ""
    if h is None or not known:
        return (name, entry.kind.value, code, *[""] * 7, size)
    key = h.key_kind.removesuffix("-visible").removeprefix("token-")
    cells = {
        "ext_flags": key,
        "tokens": h.tokens,
        "ctx": h.ctx,
        "hits": h.hits,
        "quant_bits": h.quant_bits,
        "payload_abi": h.payload_abi,
        "last_used": age(h.used, now),
    }
    return (
        name,
        _what(entry, h, known),
        code,
        *(cell if field in known else "" for field, cell in cells.items()),
        size,
    )


def _what(entry: Entry, header: Header, known: frozenset[str]) -> str:
    reason = reason_name(header, entry.dialect) if "reason" in known else ""
    if entry.kind in (Kind.GOOD, Kind.OTHER_DIALECT):
        return reason or entry.kind.value
    return f"{reason}, {entry.kind.value}"


def totals(entries: list[Entry]) -> dict[str, Any]:
    """Counts per kind, and all bytes: also those that no reader counts."""
    return {
        "entries": len(entries),
        "bytes": sum(entry.size for entry in entries),
        "kinds": dict(sorted(Counter(entry.kind.value for entry in entries).items())),
    }


def summary(entries: list[Entry]) -> str:
    """One sentence under the table."""
    sums = totals(entries)
    if not entries:
        return "empty directory"
    kinds = ", ".join(f"{count} {kind}" for kind, count in sums["kinds"].items())
    return f"{sums['entries']} entries ({kinds}), {mib(sums['bytes'])}"
