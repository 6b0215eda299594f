"""What is kept of a session: files on disk, and after each turn the point at which its client will come back."""

from __future__ import annotations

import logging
from collections import Counter

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


class Keeper:
    """Saves points of slots in the background, and goes back to where a client will go on."""

    def __init__(self, slots: Slots, store: Store | None, knobs: Knobs, tokenizer: Tokenizer, prompts: Prompts) -> None:
        self.slots = slots
        self.store = store
        self.knobs = knobs
        self.outcomes: Counter[tuple[str, str]] = Counter()  # (reason, status)
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._saver = Saver(store) if store else None

    def save(self, slot: Slot, point: Point, reason: Reason, waiting: bytes = b"") -> None:
        """Have the state at a point written, unless the slot's file on disk is as long.

        `waiting` is the prompt of the request that goes on meanwhile: its files are not evicted for this one.
        """
        if self._saver is None or self.store is None:
            return
        if point.length < self.knobs.min_tokens or point.length <= slot.on_disk:
            return
        before, slot.on_disk = slot.on_disk, point.length

        def done(outcome: Outcome) -> None:
            self.outcomes[reason.name.lower(), outcome.status] += 1
            if outcome.status in ("failed", "declined"):
                slot.on_disk = min(slot.on_disk, before)

        lease = self.slots.lease(slot, point)
        kind = self._key_kind(point.text, lease.state.tokens.tolist(), slot.dialect)
        self._saver.submit(Save(lease, point.text, reason, kind, self._prompts.bindings(point.text), waiting, done))

    def evict(self, slot: Slot, waiting: bytes) -> None:
        """Another conversation is about to take the slot: save what is there. It stays in memory until it is written."""
        if slot.end is not None:
            self.save(slot, slot.end, Reason.EVICT, waiting)

    def continued(self, slot: Slot, point: Point) -> None:
        """Save a point that passed a frontier since the last file."""
        if continued_due(point.length, slot.on_disk, self.knobs):
            self.save(slot, point, Reason.CONTINUED)

    def end_at(
        self, slot: Slot, key: Key, track: Track, answer: list[int], marks: list[tuple[int, Mark]]
    ) -> Point | None:
        """Make the longest position that `key` covers the end of the slot, going back and forth as needed.

        `answer` are the tokens fed after the prompt, `marks` positions on the way. None if the key ends before the prompt
        does: then an earlier point, made while it was prefilled, is where the client will come back.
        """
        prompt_end = track.tokens - len(answer)
        position = track.position(key.fed)
        cut = None if position is None or position < prompt_end else key.cut(track.byte(position))
        if position is None or cut is None:
            return None
        if position < len(slot):
            known = [(length, mark) for length, mark in marks if length <= position]
            points = [(point.length, point.mark) for point in slot.points if point.length <= position]
            if not known + points:
                return None
            length, mark = max(known + points, key=lambda place: place[0])
            slot.session.rewind(mark)
            slot.session.feed(answer[length - prompt_end : position - prompt_end])
        return self.slots.add(slot, cut.text)

    def flush(self) -> None:
        """Wait for what is being written."""
        if self._saver is not None:
            self._saver.flush()

    def save_all(self) -> None:
        """Shutdown: every live session's end."""
        for slot in self.slots:
            if slot.end is not None:
                self.save(slot, slot.end, Reason.SHUTDOWN)
        if self._saver is not None:
            self._saver.stop()

    def _key_kind(self, text: bytes, tokens: list[int], dialect: Dialect) -> str:
        """FORMAT 1.1: a visible key says that the text is not the rendering of the tokens."""
        if self._tokenizer.decode(tokens) == text:
            return "token-text"
        return "responses-visible" if dialect is Dialect.RESPONSES else "thinking-visible"
