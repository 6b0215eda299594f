"""What is in a directory: one stat and one 52-byte read per file, and no entry left out.

The directory is the index, and another process may change it at any moment: what vanishes under the scan was never there.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NamedTuple

from kvformat.durable import LOCK_NAME
from kvformat.errors import KVError, NotACheckpoint, OtherDialect, Truncated, Unreadable
from kvformat.header import FRONT_BYTES, Header
from kvformat.prefix import key_of_name

_TEMP = re.compile(r".+\.kv(?:\.json)?\.tmp\.(\w+)(?:\..*)?")
SIDECAR_SUFFIX = ".kv.json"
DAY = 86400.0
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not stop a scan


class Kind(StrEnum):
    """What an entry is, as far as its name and its first 52 bytes tell."""

    GOOD = "good"  # a KVC envelope that this package reads
    STRIPPED = "stripped"  # the same with its payload removed: text only
    OTHER_DIALECT = "other-dialect"
    TRUNCATED = "truncated"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"
    TEMP = "temp"  # half-written by a live or a dead writer
    SIDECAR = "sidecar"  # what we know about the checkpoint of the same name
    LOCK = "lock"  # of our own processes, empty
    DIRECTORY = "directory"
    FOREIGN = "foreign"


class Entry(NamedTuple):
    """One directory entry. `size` in bytes and `mtime` in unix seconds are 0 when they could not be had."""

    name: str
    kind: Kind
    size: int = 0
    mtime: float = 0.0
    inode: int = 0
    header: Header | None = None
    problem: str | None = None

    @property
    def key(self) -> str | None:
        """The SHA1 that the name promises; None for names that ds4 does not look at, such as `sysprompt.kv`."""
        return key_of_name(self.name)


def scan(directory: str | os.PathLike[str]) -> Iterator[Entry]:
    """Every entry of the directory in name order; raises Unreadable when the directory itself cannot be listed."""
    directory = os.fspath(directory)
    try:
        names = sorted(os.listdir(directory))  # noqa: PTH208 - a Path per entry would cost more than the read
    except OSError as error:
        raise Unreadable(f"cannot be listed: {os.strerror(error.errno or 0).lower()}", path=directory) from None
    for name in names:
        entry = examine(directory, name)
        if entry is not None:
            yield entry


Visitor = Callable[[str, int, os.stat_result, Header], None]


def examine(directory: str, name: str, visit: Visitor | None = None) -> Entry | None:
    """One entry by name, or None if it is no longer there. `visit` may read on in a good file that is open anyway."""
    path = f"{directory}/{name}"
    if not name.endswith(".kv"):
        return _by_stat(path, name, _kind_of_name(name))
    try:
        fd = os.open(path, _OPEN)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Entry(name, Kind.UNREADABLE, problem=os.strerror(error.errno or 0).lower())
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            is_directory = stat.S_ISDIR(info.st_mode)
            return Entry(name, Kind.DIRECTORY if is_directory else Kind.UNREADABLE, problem="is not a regular file")
        kind, header, problem = _classify(os.read(fd, FRONT_BYTES), info.st_size)
        if visit and header and kind is Kind.GOOD:
            visit(name, fd, info, header)
    except OSError as error:
        return Entry(name, Kind.UNREADABLE, problem=os.strerror(error.errno or 0).lower())
    finally:
        os.close(fd)
    return Entry(name, kind, info.st_size, info.st_mtime, info.st_ino, header, problem)


def _kind_of_name(name: str) -> Kind:
    if _TEMP.fullmatch(name):
        return Kind.TEMP
    if name.endswith(SIDECAR_SUFFIX):
        return Kind.SIDECAR
    return Kind.LOCK if name == LOCK_NAME else Kind.FOREIGN


def _classify(front: bytes, size: int) -> tuple[Kind, Header | None, str | None]:
    header = None
    try:
        header = Header.decode(front)
        header.check(size)
    except KVError as error:
        kind = {OtherDialect: Kind.OTHER_DIALECT, Truncated: Kind.TRUNCATED, NotACheckpoint: Kind.FOREIGN}.get(
            type(error), Kind.DAMAGED
        )
        return kind, header, str(error)
    return (Kind.GOOD if header.payload_bytes else Kind.STRIPPED), header, None


def _by_stat(path: str, name: str, kind: Kind) -> Entry | None:
    try:
        info = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - as above
    except FileNotFoundError:
        return None
    except OSError as error:
        return Entry(name, Kind.UNREADABLE, problem=os.strerror(error.errno or 0).lower())
    return Entry(name, Kind.DIRECTORY if stat.S_ISDIR(info.st_mode) else kind, info.st_size, info.st_mtime, info.st_ino)


def is_dead_temp(name: str, age: float) -> bool:
    """Whether the temp file of this name and age (seconds) was left by a writer that is gone. No save lasts a day."""
    match = _TEMP.fullmatch(name)
    pid = int(match[1]) if match and match[1].isdigit() else 0
    if age > DAY or not pid:
        return age > DAY
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
