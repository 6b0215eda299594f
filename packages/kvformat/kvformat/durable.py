"""Nothing is half-written under its final name: temp file, room first, sync, rename, sync of the directory."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from kvformat.errors import NotWritten

try:
    import fcntl
except ImportError:  # no POSIX: neither lock nor full sync to be had
    fcntl = None  # type: ignore[assignment]

BUFFER = 1 << 20
LOCK_NAME = ".ds4kv.lock"
NO_DIRECTORY_SYNC = (errno.EINVAL, errno.ENOTSUP)
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def sync(fd: int) -> None:
    """fsync that reaches the medium: macOS needs F_FULLFSYNC, which not every file system there has."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, full)
            return
    os.fsync(fd)


def sync_directory(directory: Path) -> None:
    """Make a rename or an unlink in `directory` survive a power loss."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync(fd)
    except OSError as error:
        if error.errno not in NO_DIRECTORY_SYNC:  # the file is in place: that its system cannot do more is no failure
            raise
    finally:
        os.close(fd)


def make_room(fd: int, size: int) -> None:
    """Reserve `size` bytes so that a full disk shows before the first byte is written, where the system can do that."""
    reserve = getattr(os, "posix_fallocate", None)
    if reserve is None or not size:
        return
    try:
        reserve(fd, 0, size)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise


def hold(fd: int) -> None:
    """Wait until no other process of ours holds this file; it is ours until it is closed. No lock where there are none."""
    lock = getattr(fcntl, "flock", None)
    if lock is not None:
        with contextlib.suppress(OSError):
            lock(fd, fcntl.LOCK_EX)


@contextlib.contextmanager
def owned(directory: Path) -> Iterator[None]:
    """Hold the directory against our other processes while several steps must belong together.

    Advisory, released by the system when a process dies; where there are no locks, nothing is held.
    """
    fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        hold(fd)
        yield
    finally:
        os.close(fd)


def temp_name(final: Path) -> Path:
    """`<final>.tmp.<pid>.<random>`: ds4 ignores it, and a sweeper can see whether its writer lives."""
    return final.with_name(f"{final.name}.tmp.{os.getpid()}.{secrets.token_hex(4)}")


def replace_durably(final: Path, size: int, write: Callable[[BinaryIO], object], *, durable: bool = True) -> None:
    """Let `write` fill a new file of `size` bytes that then takes the name `final` at once and for good.

    `durable=False` leaves the syncs out, for measurement. Raises NotWritten (with the OS error as its cause) and removes
    the temp file; what stood under `final` is untouched then.
    """
    temp = temp_name(final)
    try:
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise not_written(final, error) from error
    try:
        with os.fdopen(fd, "wb", buffering=BUFFER) as file:
            make_room(fd, size)
            write(file)
            file.flush()
            if durable:
                sync(fd)
        temp.replace(final)
        if durable:
            sync_directory(final.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temp.unlink()
        if isinstance(error, OSError):
            raise not_written(final, error) from error
        raise


def remove_durably(path: Path) -> None:
    """Delete a file, if it is there, for good. Raises NotWritten where the system refuses."""
    try:
        path.unlink(missing_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise not_written(path, error) from error


def not_written(final: Path, error: OSError) -> NotWritten:
    """What the system said, as our error, with the remedy where there is one."""
    full = error.errno in NO_SPACE
    remedy = "free some space or lower the budget" if full else None
    return NotWritten(
        f"not written: {os.strerror(error.errno or 0).lower()}", path=final, remedy=remedy, disk_full=full
    )
