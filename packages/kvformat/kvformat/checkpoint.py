"""One .kv file: open it in constant memory, read its parts into buffers that the caller gives or map them.

Opening checks structure and reads nothing big: a 1 GB file opens in milliseconds. Raises errors of kvformat.errors only.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import os
import stat
import sys
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from construct import ConstructError

from kvformat import layout
from kvformat.errors import Ambiguous, KVError, Mismatch, Truncated, Unreadable
from kvformat.header import read_header
from kvformat.payload import LayerSpans, Payload, find_payload, read_u32
from kvformat.prefix import key_of_name
from kvformat.shapes import KNOWN, Shape
from kvformat.spans import Span
from kvformat.state import LayerState, SessionState
from kvformat.toolmap import ToolMap, find_tool_map, read_tool_map

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = 1 << 20


def open_regular(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Open a regular file unbuffered; raises Unreadable with the reason for anything else, and never blocks on a pipe."""
    try:
        fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Unreadable(f"cannot be opened: {os.strerror(error.errno or 0).lower()}", path=path) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Unreadable("is not a regular file", path=path)
    return io.FileIO(fd, "rb" if flags == os.O_RDONLY else "r+b")


class Checkpoint:
    """A sound checkpoint that is open for reading. Use it as a context manager.

    header    the 48 bytes and the text's length
    payload   where the tensors lie; None in a stripped file (text only)
    tools     the tool map behind the payload; None without ext bit 0
    title     where the session title lies; None without ext bit 3
    leftover  bytes behind the last announced trailer, which belong to nobody
    trailer_problem  why a trailer that the header announces could not be read in full
    """

    def __init__(self, path: Path, file: BinaryIO, shapes: Iterable[Shape]) -> None:
        self.path = path
        self._file = file
        self.size = os.fstat(file.fileno()).st_size
        self.header = read_header(file)
        self.header.check(self.size)
        self.payload = find_payload(file, self.header, shapes) if self.header.payload_bytes else None
        self.tools: ToolMap | None = None
        self.title: Span | None = None
        self.trailer_problem: str | None = None
        self.leftover = self.size - self._find_trailers()

    @classmethod
    def open(cls, path: str | os.PathLike[str], shapes: Iterable[Shape] = KNOWN) -> Checkpoint:
        """Open and check one file. `shapes` settles patterns that the file alone leaves open."""
        path = Path(path)
        file = open_regular(path)
        try:
            return cls(path, file, tuple(shapes))
        except KVError as error:
            file.close()
            raise error.at(path) from None
        except (ConstructError, OSError) as error:
            file.close()
            raise Unreadable(f"changed or failed while it was read: {error}", path=path) from None

    def close(self) -> None:
        """Mapped views stay valid; everything else of this object does not."""
        self._file.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- the key

    def text(self) -> bytes:
        return self._read_bytes(self.text_span)

    @property
    def text_span(self) -> Span:
        return Span(layout.TEXT_OFFSET, "u1", (self.header.text_bytes,))

    def text_key(self) -> str:
        """SHA1 of the text in hex, in constant memory."""
        digest = hashlib.sha1(usedforsecurity=False)
        for piece in self.pieces(self.text_span):
            digest.update(piece)
        return digest.hexdigest()

    @property
    def name_key(self) -> str | None:
        """The key that the file name promises; None for names that ds4 does not look at."""
        return key_of_name(self.path.name)

    # ---- the state

    @property
    def shape(self) -> Shape:
        """The settled shape; raises Ambiguous while several patterns fit, Mismatch for a stripped file."""
        payload = self._payload()
        if payload.shape is None:
            raise Ambiguous(
                f"several layer patterns fit {payload.words.tokens} tokens",
                path=self.path,
                remedy="give --shape, or a longer file of the same model in the same directory",
            )
        return payload.shape

    @property
    def layers(self) -> tuple[LayerSpans, ...]:
        """Per layer, where its tensors lie; raises like `shape`."""
        shape, layers = self.shape, self._payload().layers
        assert layers is not None and len(layers) == shape.layers
        return layers

    def token_ids(self) -> array[int]:
        """The N token ids."""
        return read_u32(self._file, self._payload().token_ids)

    def read_into(self, state: SessionState) -> None:
        """Fill the caller's arrays, which must have exactly this file's shapes. They are undefined after an error."""
        state.check()
        for span, (name, target) in zip(self._spans(), state.arrays(), strict=True):
            if span.shape != tuple(target.shape):
                raise Mismatch(
                    f"{name} does not fit", path=self.path, expected=list(span.shape), found=list(target.shape)
                )
            self._fill(span, target)

    def views(self) -> SessionState:
        """The state as read-only views of the mapped file: nothing is read before it is used."""
        shape, payload = self.shape, self._payload()
        mapped = self.mapped()
        return SessionState(
            shape,
            payload.words.ctx,
            _view(mapped, payload.token_ids),
            _view(mapped, payload.logits),
            tuple(
                LayerState(**{n: _view(mapped, s) for n, s in _named_spans(layer)})
                for layer in self.layers
            ),
            payload.words.prefill_chunk,
        )  # fmt: skip

    def mapped(self) -> mmap.mmap:
        """The whole file, mapped read-only."""
        try:
            return mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise Unreadable(f"cannot be mapped: {error}", path=self.path) from None

    def tool_pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """(id, block) of the tool map, as ds4 would load them."""
        return iter(()) if self.tools is None else read_tool_map(self._file, self.tools)

    def pieces(self, span: Span, chunk: int = CHUNK) -> Iterator[memoryview]:
        """The bytes of a span, a bounded piece at a time; each piece is valid until the next one is asked for."""
        buffer = memoryview(bytearray(min(chunk, span.nbytes)))
        done = 0
        while done < span.nbytes:
            piece = buffer[: min(chunk, span.nbytes - done)]
            self.read_at(span.offset + done, piece)
            yield piece
            done += len(piece)

    # ---- inside

    def _payload(self) -> Payload:
        if self.payload is None:
            raise Mismatch(
                "holds text only (a stripped session)", path=self.path, remedy="it is rebuilt by prefilling its text"
            )
        return self.payload

    def _spans(self) -> Iterator[Span]:
        payload = self._payload()
        yield payload.token_ids
        yield payload.logits
        for layer in self.layers:
            for _, span in _named_spans(layer):
                yield span

    def _find_trailers(self) -> int:
        """Locate what the ext flags announce, in ascending bit order; returns where the last of it ends."""
        end = self.header.payload_end
        if self.header.ext_flags & layout.EXT_TOOL_MAP:
            self.tools = find_tool_map(self._file, end, self.size)
            self.trailer_problem = self.tools.problem
            end = self.tools.end
        if self.header.ext_flags & layout.EXT_TITLE and not self.trailer_problem:
            self._file.seek(end)
            try:
                self.title = layout.TITLE.parse_stream(self._file, limit=self.size).title
                end = self.title.end
            except (ConstructError, Truncated):
                self.trailer_problem = "the title is cut short"
        return end

    def _read_bytes(self, span: Span) -> bytes:
        data = bytearray(span.nbytes)
        self.read_at(span.offset, memoryview(data))
        return bytes(data)

    def _fill(self, span: Span, target: NDArray[Any]) -> None:
        if target.nbytes:
            self.read_at(span.offset, memoryview(cast("Any", target)).cast("B"))
        if sys.byteorder == "big":
            target.byteswap(inplace=True)

    def read_at(self, offset: int, view: memoryview) -> None:
        """Fill `view` from a byte offset. Leaves the file's position alone, so any number of threads may."""
        done = 0
        try:
            while done < len(view):
                count = _pread_into(self._file.fileno(), view[done:], offset + done)
                if not count:
                    raise Truncated("the file became shorter while it was read", path=self.path, offset=offset + done)
                done += count
        except (OSError, ValueError) as error:
            raise Unreadable(f"failed while it was read: {error}", path=self.path) from None


def _pread_into(fd: int, view: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(fd, [view], offset)
    data = os.pread(fd, len(view), offset)  # older macOS
    view[: len(data)] = data
    return len(data)


def _named_spans(layer: LayerSpans) -> Iterator[tuple[str, Span]]:
    for name in LayerState.__dataclass_fields__:
        span = getattr(layer, name)
        if span is not None:
            yield name, span


def _view(mapped: mmap.mmap, span: Span) -> NDArray[Any]:
    import numpy as np

    flat = np.frombuffer(mapped, dtype=f"<{span.dtype}", count=span.nbytes // 4, offset=span.offset)
    return flat.reshape(span.shape)
