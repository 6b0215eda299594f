"""`kvtool ls`: every entry of a directory and what it is, from 52 bytes each."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from kvformat.header import Header
from kvformat.scan import Entry, Kind, scan
from kvtools.output import age, iso, mib, progress, safe_name

COLUMNS = ("name", "what", "key", "tokens", "ctx", "hits", "quant", "abi", "used", "MiB")
RIGHT = frozenset(range(3, len(COLUMNS)))
CHECKPOINTS = (Kind.GOOD, Kind.STRIPPED)
NEVER = 1 << 64


def header_fields(header: Header) -> dict[str, Any]:
    """The header for programs; times as unix seconds and as ISO 8601 (null when 0 or impossible)."""
    return {
        "version": header.version,
        "quant_bits": header.quant_bits,
        "reason": header.reason_name,
        "reason_byte": header.reason,
        "ext_flags": header.ext_flags,
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


def entry_fields(entry: Entry) -> dict[str, Any]:
    """One `ls` entry for programs."""
    return {
        "name": entry.name,
        "kind": entry.kind.value,
        "bytes": entry.size,
        "problem": entry.problem,
        "header": None if entry.header is None or entry.kind is Kind.FOREIGN else header_fields(entry.header),
    }


def list_directory(directory: Path) -> list[Entry]:
    """Every entry, longest unused first, then what is not a checkpoint."""
    return sorted(progress(scan(directory), "reading headers"), key=_last_use)


def _last_use(entry: Entry) -> int:
    """What is no checkpoint comes last; `scan` gives names in order and sorting keeps that."""
    return entry.header.used if entry.header and entry.kind in CHECKPOINTS else NEVER


def row(entry: Entry, now: float) -> tuple[object, ...]:
    """One line of the table: why a checkpoint was written, or what an entry is that none can be loaded from."""
    name, size = safe_name(entry.name), f"{entry.size / (1 << 20):.2f}"
    h = entry.header
    if h is None or entry.kind not in CHECKPOINTS:
        return (name, entry.kind.value, *[""] * 7, size)
    what = h.reason_name if entry.kind is Kind.GOOD else f"{h.reason_name}, stripped"
    key = h.key_kind.removesuffix("-visible").removeprefix("token-")
    return (name, what, key, h.tokens, h.ctx, h.hits, h.quant_bits, h.payload_abi, age(h.used, now), size)


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
