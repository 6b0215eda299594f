"""Sampled bytes that have come and are not yet understood. Its steps pause, by yielding, wherever more must come first.

A step's outcome never depends on where the bytes were cut: it decides only when no further byte could change its mind.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from .markers import WHITESPACE

MAX_TAG = 4096
"""A tag with its attributes is no longer than this."""

SPACE = WHITESPACE.encode()

T = TypeVar("T")
Steps = Generator[None, None, T]


class NotABlock(Exception):
    """What looked like tool markup is none, for the reason that is its text."""


class CutOff(NotABlock):
    """The stream ended where a tag was due."""


@dataclass(frozen=True, slots=True)
class Stops:
    """Strings that end a run of bytes. Each begins with a `<` or a `&`, and has no other of either."""

    tags: tuple[bytes, ...]
    pattern: re.Pattern[bytes]

    def begun(self, data: bytearray) -> int:
        """How many bytes at the end of `data` may be the beginning of a stop."""
        at = max(data.rfind(b"<"), data.rfind(b"&"))
        return len(data) - at if at >= 0 and any(tag.startswith(data[at:]) for tag in self.tags) else 0


@cache
def stops(*tags: bytes) -> Stops:
    """The stops of these tags, of which none begins another."""
    return Stops(tags, re.compile(b"|".join(re.escape(tag) for tag in tags) or b"(?!)"))


class Stream:
    """The bytes that wait, whether more can come, and, if it was asked for, a record of all that was taken."""

    def __init__(self) -> None:
        self.waiting = bytearray()
        self.ended = False
        self.record: bytearray | None = None

    def take(self, count: int) -> bytes:
        """The next bytes, which are thereby understood."""
        taken = bytes(self.waiting[:count])
        del self.waiting[:count]
        if self.record is not None:
            self.record += taken
        return taken

    def until(self, stops: Stops, put: Callable[[bytes], None]) -> Steps[bytes | None]:
        """Put what comes before a stop, piece by piece, and take the stop. None if the stream ends first."""
        while (found := stops.pattern.search(self.waiting)) is None:
            put(self.take(len(self.waiting) - (0 if self.ended else stops.begun(self.waiting))))
            if self.ended:
                return None
            yield
        start, end = found.span()
        put(self.take(start))
        return self.take(end - start)

    def optional(self, tag: bytes) -> Steps[bool]:
        """Take `tag` if it is what comes next."""
        while tag.startswith(self.waiting) and len(self.waiting) < len(tag) and not self.ended:
            yield
        return bool(self.waiting.startswith(tag) and self.take(len(tag)))

    def one_of(self, *tags: bytes) -> Steps[bytes]:
        """Take one of these tags, and the white space before it. Raises NotABlock if something else comes."""
        while True:
            self.take(len(self.waiting) - len(self.waiting.lstrip(SPACE)))
            for tag in tags:
                if self.waiting.startswith(tag):
                    return self.take(len(tag))
            if not any(tag.startswith(self.waiting) for tag in tags):
                raise NotABlock(f"{' or '.join(tag.decode() for tag in tags)} was due, and something else came")
            if self.ended:
                raise CutOff("it was cut off between its tags")
            yield

    def follows(self, tag: bytes) -> Steps[bool]:
        """Whether `tag` comes next, white space aside. Takes nothing."""
        while tag.startswith(rest := self.waiting.lstrip(SPACE)) and len(rest) < len(tag) and not self.ended:
            yield
        return rest.startswith(tag)

    def attributes(self) -> Steps[bytes]:
        """Take the rest of a tag, up to its first `>`."""
        while (end := self.waiting.find(b">", 0, MAX_TAG)) < 0:
            if self.ended or len(self.waiting) >= MAX_TAG:
                raise NotABlock("a tag does not end")
            yield
        return self.take(end + 1)

    def only_space_follows(self) -> Steps[bool]:
        """Take white space; whether the stream ends behind it."""
        while not self.waiting.lstrip(SPACE):
            self.take(len(self.waiting))
            if self.ended:
                return True
            yield
        return False


class Prose:
    """A run of speech. Space at its end is kept back: before a block it belongs to the block."""

    def __init__(self, put: Callable[[str], None]) -> None:
        self._put = put
        self._space = bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def say(self, data: bytes) -> None:
        """More of it."""
        spoken = data.rstrip(SPACE)
        if spoken:
            self._decode(bytes(self._space) + spoken)
            self._space.clear()
        self._space += data[len(spoken) :]

    def pause(self) -> bytes:
        """The space kept back, which is no longer part of the run."""
        self._decode(b"", final=True)
        space = bytes(self._space)
        self._space.clear()
        return space

    def end(self) -> None:
        """All of it, space included."""
        self._decode(bytes(self._space), final=True)
        self._space.clear()

    def _decode(self, data: bytes, *, final: bool = False) -> None:
        if text := self._decoder.decode(data, final):
            self._put(text)
