"""Which sampled block every tool call came from, so that the call can be replayed byte for byte. Bounded, oldest use out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from .conversation import ToolCall
from .markers import SPELLINGS, WHITESPACE

MAX_IDS = 100_000
MAX_BYTES = 512 << 20
MAX_ID_LENGTH = 256

_SPACE = WHITESPACE.encode()
_TAGS = tuple((f"<{spelling}tool_calls>".encode(), f"</{spelling}tool_calls>".encode()) for spelling in SPELLINGS)


class Source(StrEnum):
    """Where a remembered block comes from."""

    RAM = "mem"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class Recall:
    """What the memory has for one message: its block, or how many of its ids it does not know."""

    block: bytes | None
    source: Source = Source.DISK
    missing_ids: int = 0


class ToolMemory:
    """Tool call id to sampled block. Ids of one turn share one copy; one id more than fits pushes out the oldest use."""

    def __init__(self, max_ids: int = MAX_IDS, max_bytes: int = MAX_BYTES) -> None:
        self._max_ids = max_ids
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, tuple[bytes, Source]] = OrderedDict()
        self._ids_of: dict[bytes, set[str]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id: str) -> bool:
        return id in self._entries

    @property
    def nbytes(self) -> int:
        """Bytes held: every distinct block once, and the ids."""
        return self._bytes

    def remember(self, ids: Iterable[str], block: bytes, source: Source = Source.RAM) -> None:
        """Bind ids to a block. The same block from RAM outranks one from disk; another block replaces the old one."""
        if not block:
            return
        for id in ids:
            if not 0 < len(id.encode("utf-8", "surrogateescape")) <= MAX_ID_LENGTH:
                continue
            known = self._entries.get(id)
            if known is not None and known[0] == block:
                self._entries[id] = (block, Source.RAM if Source.RAM in (known[1], source) else Source.DISK)
                self._entries.move_to_end(id)
                continue
            self._forget(id)
            self._add(id, block, source)
        while len(self._entries) > self._max_ids or self._bytes > self._max_bytes:
            self._forget(next(iter(self._entries)))

    def recall(self, calls: Iterable[ToolCall]) -> Recall:
        """The block that all these calls came from. Names, order and arguments are the client's affair."""
        ids = [call.id for call in calls]
        known = [id for id in ids if id in self._entries]
        for id in known:
            self._entries.move_to_end(id)
        found = [self._entries[id] for id in known]
        if len(found) < len(ids) or len({block for block, _ in found}) != 1:
            return Recall(None, missing_ids=len(ids) - len(found))
        from_ram = any(source is Source.RAM for _, source in found)
        return Recall(found[0][0], Source.RAM if from_ram else Source.DISK)

    def bindings_in(self, text: bytes) -> Iterator[tuple[str, bytes]]:
        """Every id whose block stands in `text`: what a checkpoint of that text should carry along."""
        for start, end in _blocks(text):
            for first in range(start - _space_before(text, start), start + 1):
                block = text[first:end]
                yield from ((id, block) for id in sorted(self._ids_of.get(block, ())))

    def _add(self, id: str, block: bytes, source: Source) -> None:
        ids = self._ids_of.setdefault(block, set())
        self._bytes += len(id) + (0 if ids else len(block))
        ids.add(id)
        self._entries[id] = (block, source)

    def _forget(self, id: str) -> None:
        if id not in self._entries:
            return
        block, _ = self._entries.pop(id)
        ids = self._ids_of[block]
        ids.remove(id)
        self._bytes -= len(id) + (0 if ids else len(block))
        if not ids:
            del self._ids_of[block]


def _blocks(text: bytes) -> Iterator[tuple[int, int]]:
    """From the beginning of each opening tag to the end of the closing tag that follows it."""
    for opening, closing in _TAGS:
        end = 0
        while (start := text.find(opening, end)) >= 0 and (close := text.find(closing, start)) >= 0:
            end = close + len(closing)
            yield start, end


def _space_before(text: bytes, at: int) -> int:
    first = at
    while first and text[first - 1] in _SPACE:
        first -= 1
    return at - first
