"""What crashed or deleted things leave behind: temps of writers that are gone, sidecars whose checkpoint is gone."""

from __future__ import annotations

from pathlib import Path

from kvformat.room import SWEEP_GRACE
from kvformat.scan import SIDECAR_SUFFIX, Entry, Kind, is_dead_temp
from kvformat.sidecar import SUFFIX


def why_orphan(directory: Path, entry: Entry, now: float) -> str | None:
    """Why this entry of a directory belongs to nobody; None if it may still belong to someone.

    Young ones are let alone: a writer in another container looks dead from here, and a sidecar is written before its file.
    """
    age = now - entry.mtime
    if age <= SWEEP_GRACE:
        return None
    if entry.kind is Kind.TEMP and is_dead_temp(entry.name, age):
        return "its writer is gone"
    if entry.kind is Kind.SIDECAR and not (directory / entry.name.removesuffix(SUFFIX)).exists():
        return f"there is no {entry.name.removesuffix(SIDECAR_SUFFIX)}.kv"
    return None
