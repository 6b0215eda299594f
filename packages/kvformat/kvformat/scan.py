"""What is in a directory: one stat and two or three small reads per file, and no entry left out.

The directory is the index, and another process may change it at any moment: what vanishes under the scan was never there.
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from construct import ConstructError

from kvformat.dialects import GENERATIONS, Dialect
from kvformat.durable import LOCK_NAME
from kvformat.errors import KVError, NotACheckpoint, OtherDialect, Truncated, Unreadable
from kvformat.header import FRONT_BYTES, Header
from kvformat.payload import find_payload
from kvformat.prefix import key_of_name
from kvformat.recognition import recognise
from kvformat.shapes import KNOWN

RELATIVES = (".seg", ".ckpt")  # how other programs name what lies beside checkpoints
_TEMP = re.compile(r".+\.kv(?:\.json)?\.tmp\.(\w+)(?:\..*)?")
SIDECAR_SUFFIX = ".kv.json"
DAY = 86400.0
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not stop a scan


class Kind(StrEnum):
    """What an entry is, as far as its name, its header and the words of its payload tell."""

    GOOD = "good"  # a checkpoint of ours
    STRIPPED = "stripped"  # the same with its payload removed: text only
    OTHER_DIALECT = "other-dialect"  # recognised as another program's, or newer: counted, named and kept
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
    dialect: Dialect | None = None

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
    is_checkpoint = name.endswith(".kv")
    if not is_checkpoint and not name.endswith(RELATIVES):
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
        entry = _classify(name, fd, info)
        if not is_checkpoint and entry.kind is not Kind.OTHER_DIALECT:
            return entry._replace(kind=Kind.FOREIGN)
        if visit and entry.header and entry.kind is Kind.GOOD:
            visit(name, fd, info, entry.header)
    except OSError as error:
        return Entry(name, Kind.UNREADABLE, problem=os.strerror(error.errno or 0).lower())
    finally:
        os.close(fd)
    return entry


_KINDS: dict[type[KVError], Kind] = {
    OtherDialect: Kind.OTHER_DIALECT,
    Truncated: Kind.TRUNCATED,
    NotACheckpoint: Kind.FOREIGN,
    Unreadable: Kind.UNREADABLE,
}


def _kind_of_name(name: str) -> Kind:
    if _TEMP.fullmatch(name):
        return Kind.TEMP
    if name.endswith(SIDECAR_SUFFIX):
        return Kind.SIDECAR
    return Kind.LOCK if name == LOCK_NAME else Kind.FOREIGN


def _classify(name: str, fd: int, info: os.stat_result) -> Entry:
    header = dialect = problem = None
    try:
        header = Header.decode(os.pread(fd, FRONT_BYTES, 0))
        dialect = _dialect(header, fd, info.st_size)
        if not dialect.ours:
            raise OtherDialect(dialect)
        kind = Kind.GOOD if header.payload_bytes else Kind.STRIPPED
    except KVError as error:
        kind, problem = _KINDS.get(type(error), Kind.DAMAGED), str(error)
        if isinstance(error, OtherDialect):
            dialect = error.dialect
    return Entry(name, kind, info.st_size, info.st_mtime, info.st_ino, header, problem, dialect)


def _dialect(header: Header, fd: int, size: int) -> Dialect:
    """Whose the file is; reads the row counts where nothing less tells."""
    dialect = recognise(header, size, partial(os.pread, fd))
    if dialect is None:
        try:
            find_payload(io.FileIO(fd, closefd=False), header, KNOWN)
        except ConstructError:
            raise Unreadable("changed while it was read") from None
        return GENERATIONS[header.payload_abi]
    return dialect


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
