"""All of a file, a bounded piece at a time, on all cores: the checksum of what never changes, and where a number is none.

What may change are hits, last-used, the ext flags and the trailers. The rest is cut into parts, the front (header and text)
and the payload in blocks of 4 MiB, so that threads can share it; the checksum is the xxh3-128 of the parts' digests.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from functools import partial
from itertools import chain

from xxhash import xxh3_128

from kvformat import layout
from kvformat.checkpoint import Checkpoint
from kvformat.spans import Span

SCHEME = "xxh3-128:"
THREADS = os.cpu_count() or 1
BLOCK = 4 << 20
PIECE = 1 << 20
MUTABLE = ((layout.EXT_FLAGS_OFFSET, 1), (layout.HITS_OFFSET, 4), (layout.LAST_USED_OFFSET, 8))

_own = threading.local()


def suspects(checkpoint: Checkpoint, pool: Executor) -> Iterator[Span]:
    """The pieces of the payload that hold a NaN or an infinity if all of it is read as floats: ids and counts are finite too.

    The threads begin at once; the iterator waits for them.
    """
    start, end = checkpoint.header.payload_offset, checkpoint.header.payload_end
    share = max(1, -(-(end - start) // (THREADS * PIECE))) * PIECE  # few tasks: each costs as much as a piece
    return chain.from_iterable(pool.map(partial(_suspects, checkpoint), *_parts(start, end, share)))


def checksum(checkpoint: Checkpoint, pool: Executor) -> str:
    """`xxh3-128:` and 32 hex digits over all that never changes."""
    header = checkpoint.header
    parts = pool.map(partial(_digest, checkpoint), *_parts(header.payload_offset, header.payload_end, BLOCK))
    return SCHEME + xxh3_128(_front(checkpoint) + b"".join(parts)).hexdigest()


def _parts(start: int, end: int, size: int) -> tuple[list[int], list[int]]:
    """Starts and ends."""
    starts = range(start, end, size)
    return [*starts], [min(at + size, end) for at in starts]


def _suspects(checkpoint: Checkpoint, start: int, end: int) -> list[Span]:
    import numpy as np

    return [
        Span(at, "u1", (len(piece),))
        for at, piece in _pieces(checkpoint, start, end)
        if not np.isfinite(np.frombuffer(piece, "<f4", len(piece) // 4)).all()
    ]


def _digest(checkpoint: Checkpoint, start: int, end: int) -> bytes:
    digest = xxh3_128()
    for _, piece in _pieces(checkpoint, start, end):
        digest.update(piece)
    return digest.digest()


def _pieces(checkpoint: Checkpoint, start: int, end: int) -> Iterator[tuple[int, memoryview]]:
    """Offset and bytes, in this thread's own buffer."""
    if not hasattr(_own, "buffer"):
        _own.buffer = memoryview(bytearray(PIECE))
    for at in range(start, end, PIECE):
        piece = _own.buffer[: min(PIECE, end - at)]
        checkpoint.read_at(at, piece)
        yield at, piece


def _front(checkpoint: Checkpoint) -> bytes:
    """The digest of the first 52 bytes, zeros in place of those that change, and the text."""
    front = bytearray(layout.TEXT_OFFSET)
    checkpoint.read_at(0, memoryview(front))
    for offset, count in MUTABLE:
        front[offset : offset + count] = bytes(count)
    digest = xxh3_128(front)
    for piece in checkpoint.pieces(checkpoint.text_span):
        digest.update(piece)
    return digest.digest()
