"""What every file with a KVC 1 envelope shows, whoever wrote its payload: the header, the text, the bytes of any part.

Opening one never blocks, reads a hundred bytes, and leaves the file as it is.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import os
import stat
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from construct import ConstructError

from kvformat import layout
from kvformat.dialects import Dialect
from kvformat.errors import KVError, Mismatch, OtherDialect, Truncated, Unreadable
from kvformat.header import read_header
from kvformat.prefix import key_of_name
from kvformat.recognition import recognise
from kvformat.spans import Span, read_u32
from kvformat.words import WORDS_BYTES

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


class Envelope:
    """A whole file of KVC version 1 that is open for reading. Use it as a context manager.

    header    the 48 bytes and the text's length
    dialect   whose file it is; None where only the row counts can tell an extension from a file of ours
    size      bytes of the whole file
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self._file = file
        self.size = os.fstat(file.fileno()).st_size
        self.header = read_header(file)
        self.dialect: Dialect | None = recognise(self.header, self.size, self._peek)
        if self.dialect is not None and not self._is_whole():
            raise OtherDialect(self.dialect)

    def _is_whole(self) -> bool:
        """Whether text and payload lie where a KVC 1 header says, as far as the file's size tells."""
        is_kvc_1 = (self.header.magic, self.header.version) == (layout.KVC_MAGIC, layout.KVC_VERSION)
        return is_kvc_1 and self.header.payload_end <= self.size

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open and check one file; raises KVError for what has no such envelope."""
        return cls._opened(Path(path))

    @classmethod
    def _opened(cls, path: Path, *more: object) -> Self:
        file = open_regular(path)
        try:
            return cls(path, file, *more)
        except KVError as error:
            file.close()
            raise error.at(path) from None
        except (ConstructError, OSError) as error:
            file.close()
            raise Unreadable(f"changed or failed while it was read: {error}", path=path) from None

    def close(self) -> None:
        """Mapped views stay valid; everything else of this object does not."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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

    @property
    def identity(self) -> bytes | None:
        """The 32 bytes by which ds4-dfm names the model at the very end of a file; None for files without that footer."""
        size = layout.FOOTER_BYTES
        if not self.header.ext_flags & layout.EXT_FOOTER or self.size < self.header.payload_end + size:
            return None
        footer = layout.FOOTER.parse(self._peek(size, self.size - size))
        marks = (footer.magic, footer.end) == (layout.FOOTER_MAGIC, layout.FOOTER_END)
        return footer.identity if marks else None

    def token_ids(self) -> array[int]:
        """The N token ids, of our files and of every dialect that has them where upstream has them. Raises Mismatch elsewhere."""
        return read_u32(self._file, self._ids())

    def _ids(self) -> Span:
        offset, end = self.header.payload_offset + WORDS_BYTES, self.header.payload_end
        if self.dialect is not None and not self.dialect.has_ids:
            raise Mismatch(f"nobody has said where its token ids lie: {self.dialect.name}", path=self.path)
        if not self.header.payload_bytes or offset + 4 * self.header.tokens > end:
            raise self._text_only()
        return Span(offset, "u4", (self.header.tokens,))

    def _text_only(self) -> Mismatch:
        problem, remedy = "holds text only (a stripped session)", "it is rebuilt by prefilling its text"
        return Mismatch(problem, path=self.path, remedy=remedy)

    def mapped(self) -> mmap.mmap:
        """The whole file, mapped read-only."""
        try:
            return mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise Unreadable(f"cannot be mapped: {error}", path=self.path) from None

    def pieces(self, span: Span, chunk: int = CHUNK) -> Iterator[memoryview]:
        """The bytes of a span, a bounded piece at a time; each piece is valid until the next one is asked for."""
        buffer = memoryview(bytearray(min(chunk, span.nbytes)))
        done = 0
        while done < span.nbytes:
            piece = buffer[: min(chunk, span.nbytes - done)]
            self.read_at(span.offset + done, piece)
            yield piece
            done += len(piece)

    def _read_bytes(self, span: Span) -> bytes:
        data = bytearray(span.nbytes)
        self.read_at(span.offset, memoryview(data))
        return bytes(data)

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

    def _peek(self, count: int, offset: int) -> bytes:
        return os.pread(self._file.fileno(), count, offset)


def _pread_into(fd: int, view: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(fd, [view], offset)
    data = os.pread(fd, len(view), offset)  # older macOS
    view[: len(data)] = data
    return len(data)
