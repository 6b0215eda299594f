"""Where one model's checkpoints lie: the directory itself, and in it a subdirectory of our own for names that are taken.

ds4-server knows only the directory. A name there may belong to another model's file of the same text; that file stays, and
ours goes into the subdirectory that is named by our identity. Lookups read both.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from kvformat.identity import Identity
from kvformat.index import DirectoryIndex
from kvformat.scan import Entry, Kind, is_dead_temp
from kvformat.sidecar import SUFFIX, remove_sidecar

log = logging.getLogger("kvformat.store")

Located = tuple[Path, Entry]


class Catalog:
    """Both places as one. Paths in, paths out; every method sees the directory as it is now once `refresh` was called."""

    def __init__(self, root: Path, identity: Identity) -> None:
        self.root = root
        self.own = root / identity.name
        self.lock = threading.RLock()
        self._indexes = (DirectoryIndex(root), DirectoryIndex(self.own))

    def refresh(self) -> None:
        for index in self._indexes:
            index.refresh()

    def entries(self) -> Iterator[Located]:
        for index in self._indexes:
            yield from ((index.directory / entry.name, entry) for entry in list(index.entries()))

    def good(self) -> Iterator[Located]:
        return ((path, entry) for path, entry in self.entries() if entry.kind is Kind.GOOD)

    def get(self, path: Path) -> Entry | None:
        return self._index(path).get(path.name)

    def current(self, path: Path) -> Entry | None:
        """A known file as it is now; reads its header anew only if it has changed."""
        return self._index(path).current(path.name)

    def examine(self, path: Path) -> Entry | None:
        """Read one file's header anew."""
        return self._index(path).examine(path.name)

    def prefixes_of(self, text: bytes) -> list[Located]:
        """Files whose key is the hash of a prefix of `text`: longest text first, then more tokens."""
        found = [(index.directory / entry.name, entry) for index in self._indexes for entry in index.prefixes_of(text)]
        return sorted(found, key=_length, reverse=True)

    def covered(self) -> set[Path]:
        """The files whose text a longer file beside them begins with."""
        return {index.directory / name for index in self._indexes for name in index.covered()}

    def find_tools(self, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        wanted = set(ids)
        found: dict[bytes, bytes] = {}
        for index in self._indexes:
            found |= index.find_tools(wanted - found.keys())
        return found

    def used(self) -> int:
        """Bytes of all that lies in the directory, readable or not, other models' subdirectories included."""
        return bytes_in(self.root)

    def delete(self, path: Path) -> bool:
        """Delete a checkpoint and its sidecar; false if the system refuses. One that is gone already counts as deleted."""
        try:
            path.unlink(missing_ok=True)
            remove_sidecar(path)
        except OSError as error:
            log.warning("kv cache: %s cannot be deleted: %s", path, os.strerror(error.errno or 0).lower())
            return False
        self._index(path).forget(path.name)
        return True

    def sweep(self, now: float, grace: float) -> None:
        """Remove temps of dead writers and sidecars without a checkpoint that are older than `grace` seconds."""
        self.refresh()
        for path, entry in list(self.entries()):
            age = now - entry.mtime
            orphan = entry.kind is Kind.SIDECAR and not path.with_name(path.name.removesuffix(SUFFIX)).exists()
            dead = entry.kind is Kind.TEMP and is_dead_temp(path.name, age)
            if age > grace and (orphan or dead):
                log.info("kv cache swept %s", path)
                self.delete(path)

    def _index(self, path: Path) -> DirectoryIndex:
        return self._indexes[path.parent != self.root]


def _length(located: Located) -> tuple[int, int]:
    header = located[1].header
    return (header.text_bytes, header.tokens) if header else (0, 0)


def bytes_in(directory: str | os.PathLike[str]) -> int:
    """Bytes of all files below a directory."""
    return sum(_bytes_of(entry) for entry in os.scandir(directory))


def _bytes_of(entry: os.DirEntry[str]) -> int:
    try:
        if entry.is_dir(follow_symlinks=False):
            return bytes_in(entry.path)
        return entry.stat(follow_symlinks=False).st_size
    except OSError:  # vanished meanwhile
        return 0
