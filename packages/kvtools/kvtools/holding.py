"""Change a directory that a server is using: under its lock, and only files that are still what was looked at."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvformat.durable import owned
from kvformat.scan import Entry

_MODEL_DIRECTORY = re.compile(r"model\d+-q\d+-\d+x\d+x\d+(-.+)?")  # `Identity.name`


@dataclass(frozen=True, slots=True)
class Stamp:
    """What tells that a file is still the same: another inode was renamed into its place, another time or size was written."""

    inode: int
    mtime: float
    size: int

    @classmethod
    def of(cls, path: Path) -> Stamp | None:
        """The stamp of a file; None if it is gone."""
        try:
            info = path.stat(follow_symlinks=False)
        except OSError:
            return None
        return cls(info.st_ino, info.st_mtime, info.st_size)

    @classmethod
    def seen(cls, entry: Entry) -> Stamp:
        """The stamp that a scan saw."""
        return cls(entry.inode, entry.mtime, entry.size)


@contextlib.contextmanager
def held(directory: Path) -> Iterator[None]:
    """Hold the lock that a store of ours takes for this directory: its own, or its parent's for a model's subdirectory."""
    with owned(directory.parent if _MODEL_DIRECTORY.fullmatch(directory.resolve().name) else directory):
        yield
