"""`kvtool verify --seal`: record the checksum of what never changes, so that a later `verify --full` sees every flipped bit."""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path

from kvformat.checkpoint import Checkpoint
from kvformat.sidecar import update_sidecar
from kvtools.holding import Stamp, held
from kvtools.sweeping import checksum


def seal(path: Path, verified: Stamp | None, pool: Executor) -> bool:
    """Write the checksum into the sidecar; false if the file is no longer the one that was verified. Raises KVError.

    A touch in between is such a change as well: sealing again is cheap, a seal over other bytes would be wrong for good.
    """
    with Checkpoint.open(path) as checkpoint:
        found = checksum(checkpoint, pool)
    with held(path.parent):
        if Stamp.of(path) != verified:
            return False
        update_sidecar(path, checksum=found)
    return True
