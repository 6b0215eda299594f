"""Live sessions, and the points of each to which a request can return.

A point is a position of a session together with the text by which a client comes back to it. Compressed rows are append-only,
so a point costs one mark of fixed size, and going back to it is exact. Marks live within one memory budget for all slots;
the least recently used goes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvengine import Lease, Mark, Session
from kvprompt.conversation import Dialect

from .returning import Return, returns_as


@dataclass(slots=True, eq=False)
class Point:
    """A place to return to: `length` tokens, reached by whoever sends `text`; `certain` if that is every client."""

    length: int
    text: bytes
    mark: Mark
    certain: bool = True
    used: int = 0


@dataclass(slots=True, eq=False)
class Slot:
    """One session and its points, shortest first.

    `asked` is the longest position that was read from a file or given to be saved, whatever became of it: from there the
    next continued frontier counts.
    """

    number: int
    session: Session
    points: list[Point] = field(default_factory=list)
    call_ids: frozenset[str] = frozenset()  # of the last turn, whose results the next request brings
    asked: int = 0
    used: int = 0
    dialect: Dialect = Dialect.CHAT  # of the last request

    def __len__(self) -> int:
        return len(self.session)

    @property
    def end(self) -> Point | None:
        """The longest point: what the client of this conversation will send next begins with its text."""
        return self.points[-1] if self.points else None

    @property
    def savable(self) -> Point | None:
        """The longest point that is worth a file: any client of this conversation will find it."""
        return next((point for point in reversed(self.points) if point.certain), None)

    def best(self, prompt: bytes) -> Point | None:
        """The longest point whose text the prompt begins with."""
        return next((point for point in reversed(self.points) if prompt.startswith(point.text)), None)

    def returns(self, prompt: bytes, point: Point) -> Return:
        """What a prompt that begins with this point's text is to the conversation here."""
        return returns_as(prompt, self.end.text if self.end else point.text, len(point.text))

    def rewind(self, point: Point) -> None:
        """Return to a point; what came after it is gone."""
        self.session.rewind(point.mark)
        self.points = [p for p in self.points if p.length <= point.length]
        self.asked = min(self.asked, point.length)

    def clear(self) -> None:
        self.session.clear()
        self.forget()

    def forget(self) -> None:
        """The session was replaced: no point of it is left."""
        self.points.clear()
        self.call_ids = frozenset()
        self.asked = 0


class Slots:
    """`count` main slots and one scratch slot for short requests that share nothing with a conversation."""

    def __init__(self, sessions: list[Session], mark_bytes: int) -> None:
        self.slots = [Slot(number, session) for number, session in enumerate(sessions)]
        self.scratch = self.slots[-1]
        self.mark_bytes = mark_bytes
        self._tick = 0

    def __iter__(self) -> Iterator[Slot]:
        return iter(self.slots)

    @property
    def main(self) -> list[Slot]:
        return [slot for slot in self.slots if slot is not self.scratch]

    def oldest(self) -> Slot:
        """The main slot that a new conversation takes: an empty one, else the least recently used."""
        return min(self.main, key=lambda slot: (len(slot) > 0, slot.used))

    def touch(self, slot: Slot, point: Point | None = None) -> None:
        self._tick += 1
        slot.used = self._tick
        if point is not None:
            point.used = self._tick

    def promote(self, slot: Slot) -> None:
        """A side conversation has become a real one: another slot serves as scratch from now on."""
        if slot is self.scratch:
            self.scratch = self.oldest()

    def add(self, slot: Slot, text: bytes, *, certain: bool = True) -> Point:
        """Remember where the slot's session stands now as the place that `text` leads to."""
        point = Point(len(slot), text, slot.session.mark(), certain)
        slot.points = [
            p for p in slot.points if p.length < point.length or (p.text != text and p.length == point.length)
        ]
        slot.points.append(point)
        self.touch(slot, point)
        self._fit()
        return point

    def lease(self, slot: Slot, point: Point) -> Lease:
        """The complete state at a point, for a writer in the background."""
        return slot.session.lease(point.mark)

    def copy(self, source: Slot, point: Point, target: Slot) -> None:
        """Put the state of a point into another slot, which loses its own; the source stays as it is."""
        with source.session.lease(point.mark) as state:
            target.session.restore(state)
        target.forget()
        self.add(target, point.text)
        target.asked = min(source.asked, point.length)

    def _fit(self) -> None:
        """Drop the least recently used points beyond the budget, but never a slot's end."""
        total = sum(point.mark.nbytes for slot in self for point in slot.points)
        spare = sorted((point.used, slot.number, point) for slot in self for point in slot.points[:-1])
        for _, number, point in spare:
            if total <= self.mark_bytes:
                return
            self.slots[number].points.remove(point)
            total -= point.mark.nbytes
