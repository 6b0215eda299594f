"""Whether what is written to a directory survives a restart. Where the system does not tell, nothing is claimed."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

MOUNT_TABLE = Path("/proc/self/mounts")  # Linux; absent elsewhere
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
CLEANED = ("/tmp", "/var/tmp", "/private/tmp", "/private/var/tmp", "/dev/shm", "/run")


def why_volatile(directory: Path) -> str | None:
    """One sentence if the directory lies in memory or where the system cleans up by itself, else None."""
    place = directory.resolve()
    if (kind := file_system(place)) in IN_MEMORY:
        return f"it lies on a {kind}, so a restart of the machine empties it"
    for parent in map(Path, (tempfile.gettempdir(), *CLEANED)):
        if place.is_relative_to(parent.resolve()):
            return f"it lies below {parent}, where the system deletes what is old"
    return None


def file_system(place: Path, table: Path = MOUNT_TABLE) -> str | None:
    """The type of the file system of an absolute path; None if the system has no mount table."""
    try:
        lines = table.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    found = None
    longest = -1
    for line in lines:
        _, point, kind, *_ = line.split(" ")
        mounted = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point))
        if place.is_relative_to(mounted) and len(mounted.parts) >= longest:  # a later mount hides an earlier one
            found, longest = kind, len(mounted.parts)
    return found
