"""One tree of errors. Each says which file, at which offset, what was expected, what was found, and what to do."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvformat.dialects import Dialect


class KVError(Exception):
    """Anything that kvformat refuses. `str()` is one sentence for a person; the fields are for a program.

    path      the file, if there is one
    offset    byte offset in that file where the fault shows, if it has a place
    expected  what the format asks for
    found     what stands there
    remedy    what the person can do about it
    """

    code = "error"

    def __init__(
        self,
        problem: str,
        *,
        path: str | PathLike[str] | None = None,
        offset: int | None = None,
        expected: object = None,
        found: object = None,
        remedy: str | None = None,
    ) -> None:
        self.problem = problem
        self.path = None if path is None else Path(path)
        self.offset = offset
        self.expected = expected
        self.found = found
        self.remedy = remedy
        super().__init__(problem)

    def at(self, path: str | PathLike[str]) -> KVError:
        """The same error with the file's name filled in, for code that parses without knowing the name."""
        if self.path is None:
            self.path = Path(path)
        return self

    def __str__(self) -> str:
        text = self.problem if self.path is None else f"{self.path}: {self.problem}"
        if self.offset is not None:
            text += f" at byte {self.offset}"
        if self.expected is not None:
            text += f" (expected {self.expected}, found {self.found})"
        return f"{text}; {self.remedy}" if self.remedy else text


class Unreadable(KVError):
    """The operating system would not give us the bytes: missing, a directory, a pipe, no permission, vanished."""

    code = "unreadable"


class NotACheckpoint(KVError):
    """The bytes do not start like a KVC file."""

    code = "foreign"


class OtherDialect(KVError):
    """A relative of the format that is recognised and named, and therefore neither guessed at nor called damaged."""

    code = "other-dialect"

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        super().__init__(f"another dialect: {dialect.name}", remedy="it is shown and kept, never changed")


class Truncated(KVError):
    """The file ends before something that it announces."""

    code = "truncated"


class Damaged(KVError):
    """The file contradicts itself."""

    code = "damaged"


class Ambiguous(KVError):
    """Sound as far as one can see, but several layer patterns fit; a shape or a longer file settles it."""

    code = "ambiguous"


class Mismatch(KVError):
    """The caller's shape, buffers or expectations do not fit this file."""

    code = "mismatch"


class NotWritten(KVError):
    """A file could not be written; whatever stood under the final name still stands there."""

    code = "not-written"

    def __init__(self, problem: str, *, path: str | PathLike[str], remedy: str | None, disk_full: bool) -> None:
        self.disk_full = disk_full
        super().__init__(problem, path=path, remedy=remedy)
