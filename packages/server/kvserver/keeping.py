"""What is kept of a session: files on disk, and after each turn the point at which its client will come back."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from kvengine import Mark
from kvformat.policy import Knobs, Reason, continued_due
from kvformat.store import Outcome, Store
from kvprompt.conversation import Dialect
from kvprompt.keys import Key
from kvprompt.tokenizer import Tokenizer

from .prompting import Prompts
from .saving import Save, Saver
from .slots import Point, Slot, Slots
from .track import Track

log = logging.getLogger("kvserver")


@dataclass(frozen=True, slots=True)
class Told:
    """An answer as it was fed: from position `start` these `tokens`, with marks at some positions on the way."""

    start: int
    tokens: list[int]
    marks: list[tuple[int, Mark]]


class Keeper:
    """Saves points of slots in the background, and goes back to where a client will go on."""

    def __init__(self, slots: Slots, store: Store | None, knobs: Knobs, tokenizer: Tokenizer, prompts: Prompts) -> None:
        self.slots = slots
        self.knobs = knobs
        self.outcomes: Counter[tuple[str, str]] = Counter()  # (reason, status)
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._saver = Saver(store) if store else None

    def save(self, slot: Slot, point: Point, reason: Reason, waiting: bytes = b"") -> None:
        """Have the state at a point written, if the store, when its turn comes, finds it new and worth it.

        That is not decided here: an earlier save that is still under way may yet be declined, and is no file.
        `waiting` is the prompt of the request that goes on meanwhile: its files are not evicted for this one.
        """
        if self._saver is None or point.length < self.knobs.min_tokens:
            return
        slot.asked = max(slot.asked, point.length)

        def done(outcome: Outcome) -> None:
            self.outcomes[reason.name.lower(), outcome.status] += 1

        lease = self.slots.lease(slot, point)
        kind = self._key_kind(point.text, lease.state.tokens.tolist(), slot.dialect)
        self._saver.submit(Save(lease, point.text, reason, kind, self._prompts.bindings(point.text), waiting, done))

    def evict(self, slot: Slot, waiting: bytes) -> None:
        """Another conversation is about to take the slot: save what is there. It stays in memory until it is written."""
        if slot.savable is not None:
            self.save(slot, slot.savable, Reason.EVICT, waiting)

    def continued(self, slot: Slot) -> None:
        """Save where the client will come back, if a frontier was passed since the last save."""
        point = slot.savable
        if point is not None and continued_due(point.length, slot.asked, self.knobs):
            self.save(slot, point, Reason.CONTINUED)

    def end_at(self, slot: Slot, certain: Key, keys: Iterable[Key], track: Track, told: Told) -> None:
        """Leave a point at the longest position that each key covers, going back and forth as needed.

        A key that ends before the answer does not count: there, points were left while the prompt was fed.
        """
        ends = {(position, cut) for key in {certain, *keys} if (position := track.position(key.fed)) is not None
                and position >= told.start and (cut := key.cut(track.byte(position)))}  # fmt: skip
        for position, cut in sorted(ends, key=lambda end: (end[0], end[1].text == certain.text)):
            if position != len(slot) and not self._go_to(slot, position, told):
                return
            self.slots.add(slot, cut.text, certain=cut.text == certain.text[: len(cut.text)])

    def _go_to(self, slot: Slot, position: int, told: Told) -> bool:
        """Bring the session to a position within the answer, from the nearest mark before it."""
        if position < len(slot):
            points = [(point.length, point.mark) for point in slot.points]
            before = [place for place in (*told.marks, *points) if place[0] <= position]
            if not before:
                return False
            slot.session.rewind(max(before, key=lambda place: place[0])[1])
        slot.session.feed(told.tokens[len(slot) - told.start : position - told.start])
        return True

    def catch_up(self, prompt: bytes, beyond: int) -> bool:
        """Wait for the file of a conversation that comes back before it is written; whether there was one."""
        if self._saver is None or not self._saver.holds(prompt, beyond):
            return False
        self._saver.flush()
        return True

    def flush(self) -> None:
        """Wait for what is being written."""
        if self._saver is not None:
            self._saver.flush()

    def save_all(self) -> None:
        """Shutdown: every live session's end."""
        for slot in self.slots:
            if slot.savable is not None:
                self.save(slot, slot.savable, Reason.SHUTDOWN)
        if self._saver is not None:
            self._saver.stop()

    def _key_kind(self, text: bytes, tokens: list[int], dialect: Dialect) -> str:
        """FORMAT 1.1: a visible key says that the text is not the rendering of the tokens."""
        if self._tokenizer.decode(tokens) == text:
            return "token-text"
        return "responses-visible" if dialect is Dialect.RESPONSES else "thinking-visible"
