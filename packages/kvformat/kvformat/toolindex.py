"""Which file of a directory holds which tool call ids: each map is read once, and again when its file has changed."""

from __future__ import annotations

import os
from collections.abc import Collection
from functools import partial
from pathlib import Path

from kvformat import layout
from kvformat.envelope import open_regular
from kvformat.errors import KVError
from kvformat.header import Header, read_header
from kvformat.recognition import require_ours
from kvformat.toolmap import find_tool_map, read_tool_map

Stamp = tuple[int, int, int]  # inode, size, modification time in ns


class ToolIndex:
    """The tool call ids of the files that it was shown."""

    def __init__(self) -> None:
        self._stamps: dict[str, Stamp] = {}
        self._ids: dict[str, tuple[bytes, ...]] = {}  # file name → ids, for the files that have a map
        self._names: dict[bytes, list[str]] = {}  # id → file names; the block is the same in all of them

    def knows(self, name: str, info: os.stat_result) -> bool:
        """Whether this state of the file was seen."""
        return self._stamps.get(name) == _stamp(info)

    def show(self, name: str, fd: int, info: os.stat_result, header: Header) -> None:
        """Learn the ids of a sound file that is open as `fd`."""
        if self.knows(name, info):
            return
        self.forget(name)
        self._stamps[name] = _stamp(info)
        if header.ext_flags & layout.EXT_TOOL_MAP:
            with open(fd, "rb", closefd=False) as file:
                entries = find_tool_map(file, header.payload_end, info.st_size).entries
            self._ids[name] = tuple({entry.id.split(b"\0")[0] for entry in entries})
            for i in self._ids[name]:
                self._names.setdefault(i, []).append(name)

    def forget(self, name: str) -> None:
        self._stamps.pop(name, None)
        for i in self._ids.pop(name, ()):
            self._names[i].remove(name)
            if not self._names[i]:
                del self._names[i]

    def find(self, directory: Path, ids: Collection[bytes]) -> dict[bytes, bytes]:
        """id → block of the known ids; opens only files that hold one of them, and the next when one has vanished."""
        found: dict[bytes, bytes] = {}
        for i in ids:
            for name in self._names.get(i, ()):
                if i not in found:
                    found |= {k: block for k, block in _pairs(directory / name) if k in ids and k not in found}
        return found


def _stamp(info: os.stat_result) -> Stamp:
    return info.st_ino, info.st_size, info.st_mtime_ns


def _pairs(path: Path) -> list[tuple[bytes, bytes]]:
    try:
        with open_regular(path) as file:
            header, size = read_header(file), os.fstat(file.fileno()).st_size
            require_ours(header, size, partial(os.pread, file.fileno()))
            return list(read_tool_map(file, find_tool_map(file, header.payload_end, size)))
    except (KVError, OSError):
        return []
