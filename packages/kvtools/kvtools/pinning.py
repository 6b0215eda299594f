"""`kvtool pin` and `unpin`: a person's word that a file stays, in its sidecar, so that its own bytes stay as they are."""

from __future__ import annotations

from pathlib import Path

from kvformat.errors import Unreadable
from kvformat.scan import Kind, examine
from kvformat.sidecar import update_sidecar
from kvtools.holding import held

WITHOUT = (Kind.TEMP, Kind.SIDECAR, Kind.LOCK, Kind.DIRECTORY, Kind.FOREIGN)


def set_pin(path: Path, pin: bool) -> None:
    """Raises Unreadable for what is no checkpoint, Damaged for a sidecar that cannot be read, NotWritten."""
    entry = examine(str(path.parent), path.name)
    if entry is None:
        raise Unreadable("cannot be pinned: no such file", path=path)
    if entry.kind in WITHOUT:
        raise Unreadable(f"cannot be pinned: {entry.kind.value}, no checkpoint", path=path)
    with held(path.parent):
        update_sidecar(path, pin=pin)
