"""Where a request starts: decided once, in one frozen value that the log, the trace and the usage numbers all print.

Every live point and every file whose text the prompt begins with is a candidate; the one that saves most tokens wins, the live
one on a tie. Nothing is changed here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from kvformat.nearmiss import NearMiss
from kvformat.store import Match, Store

from .slots import Point, Slot, Slots

Source = Literal["live", "rewind", "branch", "disk", "none"]

SHORT = 8192  # bytes up to which a prompt that shares nothing is taken for a side request: a title, a summary


@dataclass(frozen=True, slots=True)
class Considered:
    """One candidate: where it lies, how many tokens it would have saved, and what was decided about it."""

    where: str
    tokens: int
    verdict: str


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Start at token `start`, which is byte `start_bytes` of the prompt, from `source`; go on in slot `target`."""

    source: Source
    start: int
    start_bytes: int
    target: Slot
    origin: Slot | None = None
    point: Point | None = None
    match: Match | None = None
    considered: tuple[Considered, ...] = ()
    disk: str = ""  # the document's words about the disk, "" where there is none


def decide(prompt: bytes, slots: Slots, store: Store | None) -> Plan:
    """The plan for a rendered prompt."""
    live = [(slot, point) for slot in slots if (point := slot.best(prompt))]
    slot, point = max(live, key=lambda pair: pair[1].length, default=(None, None))
    matches = list(store.candidates(prompt)) if store else []
    match = next((match for match in matches if match.usable), None)
    considered = tuple(
        [Considered(f"live {s.number}", p.length, "usable") for s, p in live]
        + [Considered(match.path.name, match.tokens, match.why or match.verdict) for match in matches]
    )
    if match is not None and (point is None or match.tokens > point.length):
        assert match.entry.header is not None
        words = f"KV cache: hit for sha1={match.entry.key} (loaded {match.tokens} tokens)"
        stale = slot is not None and point is slot.end  # the same conversation, less far
        target = slot if slot is not None and stale else _room(slots, prompt)
        return Plan("disk", match.tokens, match.entry.header.text_bytes, target, None, None, match, considered, words)
    if slot is not None and point is not None:
        return _from_live(slots, slot, point, prompt, considered)
    words = _miss(prompt, matches, store) if store else ""
    return Plan("none", 0, 0, _room(slots, prompt), considered=considered, disk=words)


def _from_live(slots: Slots, slot: Slot, point: Point, prompt: bytes, considered: tuple[Considered, ...]) -> Plan:
    """Go on at the end of a slot, or back to a point of it; where much would be lost by going back, branch off a copy."""
    target = slot
    source: Source = "rewind" if slot.beyond(point) else "live"
    if slot.parts_at(point):
        empty = next((other for other in slots.main if not len(other)), None)
        target = empty or (slots.scratch if len(prompt) <= SHORT else slot)
        source = "branch" if target is not slot else source
    return Plan(source, point.length, len(point.text), target, slot, point, None, considered)


def _room(slots: Slots, prompt: bytes) -> Slot:
    """Where a conversation goes that no slot holds. A short one displaces nobody."""
    if len(prompt) <= SHORT and all(len(slot) for slot in slots.main):
        return slots.scratch
    return slots.oldest()


def _miss(prompt: bytes, matches: list[Match], store: Store) -> str:
    key = hashlib.sha1(prompt, usedforsecurity=False).hexdigest()
    return f"KV cache: miss for sha1={key} (reason: {_reason(matches, store.nearest_miss(prompt))})"


def _reason(matches: list[Match], near: NearMiss | None) -> str:
    if matches:
        return matches[0].verdict
    return f"prefix mismatch at byte {near.byte}" if near else "no checkpoint"
