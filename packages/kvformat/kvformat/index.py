"""An in-memory index of one directory that is always the directory: names are listed anew for every question.

A cold refresh reads 52 bytes per file, a warm one only the names; what is opened later is checked again by whoever opens it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from pathlib import Path

from kvformat import layout
from kvformat.envelope import open_regular
from kvformat.errors import KVError
from kvformat.prefix import prefix_digests
from kvformat.scan import Entry, Kind, examine
from kvformat.toolindex import ToolIndex


class DirectoryIndex:
    """Entries of one directory by name, the good ones also by text length and key, their tool call ids on demand."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._entries: dict[str, Entry] = {}
        self._unsettled: set[str] = set()  # names of checkpoints that are none; perhaps a copy is still under way
        self._by_length: dict[int, dict[bytes, set[str]]] = defaultdict(dict)
        self._tools: ToolIndex | None = None  # from the first question on
        self._prefixes: dict[str, frozenset[bytes]] = {}  # file name → keys of the shorter files that it covers

    def refresh(self) -> None:
        """List the names; examine new ones, forget vanished ones."""
        try:
            names = set(os.listdir(self.directory))  # noqa: PTH208 - a Path per entry would cost more than the lookup
        except FileNotFoundError:
            names = set()
        for name in self._entries.keys() - names:
            self.forget(name)
        for name in sorted(names - self._entries.keys()):
            self.examine(name)
        for name in list(self._unsettled):
            self.current(name)

    def examine(self, name: str) -> Entry | None:
        """Read one entry anew, for example after it was written or touched."""
        known = self._entries.get(name)
        entry = examine(str(self.directory), name, self._tools.show if self._tools else None)
        if entry is None:
            self.forget(name)
            return None
        if known and known.inode != entry.inode:
            self._prefixes.pop(name, None)
        self._unlist(name)
        self._list(entry)
        return entry

    def current(self, name: str) -> Entry | None:
        """The entry as it is now, for the price of a stat while it has not changed."""
        entry = self._entries.get(name)
        return self.examine(name) if entry and self._has_changed(entry) else entry

    def forget(self, name: str) -> None:
        self._prefixes.pop(name, None)
        if self._tools:
            self._tools.forget(name)
        self._unlist(name)

    def entries(self) -> Iterable[Entry]:
        return self._entries.values()

    def get(self, name: str) -> Entry | None:
        return self._entries.get(name)

    def prefixes_of(self, text: bytes) -> Iterator[Entry]:
        """The good files whose key is the SHA1 of a non-empty prefix of `text`, longest first, from one pass over it."""
        digests = prefix_digests(text, (length for length in self._by_length if length))
        for length, digest in reversed(digests.items()):
            for name in sorted(self._by_length[length].get(digest, ())):
                yield self._entries[name]

    def _list(self, entry: Entry) -> None:
        self._entries[entry.name] = entry
        key = entry.key
        if entry.kind is Kind.GOOD and key and entry.header:
            self._by_length[entry.header.text_bytes].setdefault(bytes.fromhex(key), set()).add(entry.name)
        elif entry.kind is not Kind.GOOD and key:
            self._unsettled.add(entry.name)

    def _unlist(self, name: str) -> None:
        self._unsettled.discard(name)
        entry = self._entries.pop(name, None)
        if entry is None or entry.header is None or not entry.key:
            return
        same_length = self._by_length.get(entry.header.text_bytes, {})
        names = same_length.get(bytes.fromhex(entry.key), set())
        names.discard(name)
        if not names:
            same_length.pop(bytes.fromhex(entry.key), None)
        if not same_length:
            self._by_length.pop(entry.header.text_bytes, None)

    def _has_changed(self, entry: Entry) -> bool:
        try:
            info = (self.directory / entry.name).stat()
        except OSError:
            return True
        return (info.st_ino, info.st_size, info.st_mtime) != (entry.inode, entry.size, entry.mtime)

    # ---- tool call ids

    def find_tools(self, ids: Set[bytes]) -> dict[bytes, bytes]:
        """id → block for those ids that some file's tool map holds, as the directory is now.

        Reads each map once, and then only the files that hold the ids; for an id that nobody holds, the changed files.
        """
        if self._tools is None:
            self._tools = ToolIndex()
        self.refresh()
        found = self._tools.find(self.directory, ids)
        if len(found) < len(ids):
            self._show_changed(self._tools)
            found |= self._tools.find(self.directory, ids - found.keys())
        return found

    def _show_changed(self, tools: ToolIndex) -> None:
        directory = str(self.directory)
        for name in [name for name, entry in self._entries.items() if entry.kind is Kind.GOOD]:
            try:
                info = os.stat(f"{directory}/{name}")  # noqa: PTH116 - a Path per file would cost more than the stat
            except OSError:
                continue
            if not tools.knows(name, info):
                self.examine(name)

    # ---- which files a longer one covers

    def covered(self) -> set[str]:
        """Names of the files whose text a longer file's text begins with.

        Each text is read once and then remembered, so a short file that is newer than its cover counts as not covered.
        """
        covered: set[bytes] = set()
        for name, entry in list(self._entries.items()):
            if entry.kind is Kind.GOOD:
                if name not in self._prefixes:
                    self._prefixes[name] = self._prefixes_on_disk(entry)
                covered |= self._prefixes[name]
        return {
            name
            for same_length in self._by_length.values()
            for key in same_length.keys() & covered
            for name in same_length[key]
        }

    def _prefixes_on_disk(self, entry: Entry) -> frozenset[bytes]:
        """Keys of the shorter files that this one covers."""
        assert entry.header is not None
        try:
            with open_regular(self.directory / entry.name) as file:
                file.seek(layout.TEXT_OFFSET)
                text = file.read(entry.header.text_bytes)
        except (KVError, OSError):
            return frozenset()
        digests = prefix_digests(text, self._by_length)
        if entry.key is None or digests.pop(len(text), b"").hex() != entry.key:
            return frozenset()  # not named by its text: an agent's session, or damaged
        return frozenset(digest for length, digest in digests.items() if length and digest in self._by_length[length])
