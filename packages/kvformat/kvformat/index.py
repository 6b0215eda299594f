"""An in-memory index of one directory that is always the directory: names are listed anew for every question.

A cold refresh reads 52 bytes per file, a warm one only the names; what is opened later is checked again by whoever opens it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from kvformat import layout
from kvformat.checkpoint import open_regular
from kvformat.errors import KVError
from kvformat.prefix import prefix_digests
from kvformat.scan import Entry, Kind, examine
from kvformat.toolmap import find_tool_map, read_tool_map


class DirectoryIndex:
    """Entries of one directory by name, the good ones also by text length and key, their tool call ids on demand."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._entries: dict[str, Entry] = {}
        self._by_length: dict[int, dict[bytes, set[str]]] = defaultdict(dict)
        self._tool_ids: dict[bytes, str] = {}  # id → file name; the newest listed wins
        self._tool_files: dict[str, tuple[int, int, float]] = {}  # what a map was read from: inode, size, mtime
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

    def examine(self, name: str) -> Entry | None:
        """Read one entry anew, for example after it was written or touched."""
        self.forget(name)
        entry = examine(str(self.directory), name)
        if entry is not None:
            self._entries[name] = entry
            if entry.kind is Kind.GOOD and entry.key and entry.header:
                same_length = self._by_length[entry.header.text_bytes]
                same_length.setdefault(bytes.fromhex(entry.key), set()).add(name)
        return entry

    def forget(self, name: str) -> None:
        entry = self._entries.pop(name, None)
        self._prefixes.pop(name, None)
        if entry is None or entry.header is None or not entry.key:
            return
        same_length = self._by_length.get(entry.header.text_bytes, {})
        names = same_length.get(bytes.fromhex(entry.key), set())
        names.discard(name)
        if not names:
            same_length.pop(bytes.fromhex(entry.key), None)
        if not same_length:
            self._by_length.pop(entry.header.text_bytes, None)

    def entries(self) -> Collection[Entry]:
        return self._entries.values()

    def get(self, name: str) -> Entry | None:
        return self._entries.get(name)

    def prefixes_of(self, text: bytes) -> Iterator[Entry]:
        """The good files whose key is the SHA1 of a non-empty prefix of `text`, longest first, from one pass over it."""
        digests = prefix_digests(text, (length for length in self._by_length if length))
        for length in sorted(digests, reverse=True):
            for name in sorted(self._by_length[length].get(digests[length], ())):
                yield self._entries[name]

    # ---- tool call ids

    def find_tools(self, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        """id → block for those ids that some file's tool map holds; reads only the files that hold them.

        Maps are read once per file and again when the file has changed.
        """
        wanted = set(ids)
        if not wanted <= self._tool_ids.keys():
            self._read_new_tool_maps()
        found: dict[bytes, bytes] = {}
        for name in {self._tool_ids[i] for i in wanted if i in self._tool_ids}:
            pairs = self._tool_pairs(name)
            found.update((i, block) for i, block in pairs if i in wanted)
        return found

    def _read_new_tool_maps(self) -> None:
        for name, entry in list(self._entries.items()):
            if entry.kind is not Kind.GOOD or entry.header is None:
                continue
            try:
                info = (self.directory / name).stat()
            except OSError:
                continue
            stamp = (info.st_ino, info.st_size, info.st_mtime)
            if self._tool_files.get(name) == stamp:
                continue
            fresh = self.examine(name)
            self._tool_files[name] = stamp
            if fresh and fresh.header and fresh.header.ext_flags & layout.EXT_TOOL_MAP:
                self._tool_ids.update((i, name) for i, _ in self._tool_pairs(name))

    def _tool_pairs(self, name: str) -> list[tuple[bytes, bytes]]:
        entry = self._entries.get(name)
        if entry is None or entry.header is None:
            return []
        try:
            with open_regular(self.directory / name) as file:
                tools = find_tool_map(file, entry.header.payload_end, os.fstat(file.fileno()).st_size)
                return list(read_tool_map(file, tools))
        except KVError:
            return []

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
