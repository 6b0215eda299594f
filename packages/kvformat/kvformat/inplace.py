"""The changes that a file undergoes in its place: a few bytes each, and a valid file at every instant.

Raises errors of kvformat.errors only: NotWritten where the system refuses.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from kvformat import layout
from kvformat.durable import hold, not_written, sync
from kvformat.envelope import open_regular
from kvformat.errors import KVError, Mismatch
from kvformat.header import Header, read_header
from kvformat.recognition import require_ours


def touch(path: str | os.PathLike[str], now: int) -> Header:
    """Count one restore: hits + 1 (wrapping) and last_used = now (unix seconds). Exactly 4 + 8 bytes are written."""
    with _changing(Path(path)) as (fd, header):
        touched = header._replace(hits=(header.hits + 1) & 0xFFFFFFFF, last_used=now)
        os.pwrite(fd, touched.hits.to_bytes(4, "little"), layout.HITS_OFFSET)
        os.pwrite(fd, touched.last_used.to_bytes(8, "little"), layout.LAST_USED_OFFSET)
        return touched


def refresh_tool_map(path: str | os.PathLike[str], trailer: bytes, now: int) -> None:
    """Replace the tool map of a file by `trailer` (from `toolmap.encode_tool_map`), leaving a valid file at every instant.

    The bit is cleared, the map written and synced, the bit set; last_used becomes `now`. Raises Mismatch where other
    trailers, which the map's new length would move or overwrite, stand behind the payload.
    """
    path = Path(path)
    with _changing(path) as (fd, header):
        if header.ext_flags & ~(layout.EXT_KNOWN & ~layout.EXT_TITLE):
            raise Mismatch(
                "other trailers stand where the tool map would be written", path=path, offset=header.payload_end
            )
        cleared = header.ext_flags & ~layout.EXT_TOOL_MAP
        os.pwrite(fd, bytes([cleared]), layout.EXT_FLAGS_OFFSET)
        sync(fd)
        os.ftruncate(fd, header.payload_end)
        done = 0
        while done < len(trailer):
            done += os.pwrite(fd, trailer[done:], header.payload_end + done)
        sync(fd)
        if trailer:
            os.pwrite(fd, bytes([cleared | layout.EXT_TOOL_MAP]), layout.EXT_FLAGS_OFFSET)
        os.pwrite(fd, now.to_bytes(8, "little"), layout.LAST_USED_OFFSET)
        sync(fd)


@contextlib.contextmanager
def _changing(path: Path) -> Iterator[tuple[int, Header]]:
    """The descriptor and the header of a sound file that is open for writing."""
    with open_regular(path, os.O_RDWR) as file:
        try:
            hold(file.fileno())  # or two processes that touch at once would count one hit
            header = read_header(file)
            require_ours(header, os.fstat(file.fileno()).st_size, partial(os.pread, file.fileno()))
            yield file.fileno(), header
        except KVError as error:
            raise error.at(path) from None
        except OSError as error:
            raise not_written(path, error) from error
