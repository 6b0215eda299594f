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

from .returning import Return
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
    """Start at token `start`, which is byte `start_bytes` of the prompt, from `source`; go on in slot `target`.

    `displaces` says that someone may come back for what the target holds beyond that.
    """

    source: Source
    start: int
    start_bytes: int
    target: Slot
    displaces: bool
    origin: Slot | None = None
    point: Point | None = None
    match: Match | None = None
    considered: tuple[Considered, ...] = ()
    disk: str = ""  # the document's words about the disk, "" where there is none


def decide(prompt: bytes, slots: Slots, store: Store | None) -> Plan:
    """The plan for a rendered prompt."""
    live = [(slot, point, slot.returns(prompt, point)) for slot in slots if (point := slot.best(prompt))]
    best = max(live, key=lambda found: (found[1].length, -found[2], -found[0].used), default=None)
    matches = list(store.candidates(prompt)) if store else []
    match = next((match for match in matches if match.usable), None)
    considered = tuple(
        [Considered(f"live {slot.number}", point.length, "usable") for slot, point, _ in live]
        + [Considered(match.path.name, match.tokens, match.why or match.verdict) for match in matches]
    )
    if match is not None and (best is None or match.tokens > best[1].length):
        assert match.entry.header is not None
        words = f"KV cache: hit for sha1={match.entry.key} (loaded {match.tokens} tokens)"
        parts = best is None or not best[2].same
        target = _room(slots, prompt) if best is None or parts else best[0]  # the same conversation, less far
        nbytes = match.entry.header.text_bytes
        return Plan("disk", match.tokens, nbytes, target, parts, match=match, considered=considered, disk=words)
    if best is not None:
        return _from_live(slots, *best, prompt, considered)
    words = _miss(prompt, matches, store) if store else ""
    return Plan("none", 0, 0, _room(slots, prompt), True, considered=considered, disk=words)


def _from_live(
    slots: Slots, slot: Slot, point: Point, returns: Return, prompt: bytes, considered: tuple[Considered, ...]
) -> Plan:
    """Go on at the end of a slot, or back to a point of it; another conversation gets a copy in a slot of its own."""
    target = slot if returns.same else _room(slots, prompt)
    source: Source = "branch" if target is not slot else "rewind" if point is not slot.end else "live"
    return Plan(source, point.length, len(point.text), target, not returns.same, slot, point, None, considered)


def _room(slots: Slots, prompt: bytes) -> Slot:
    """Where a conversation goes that no slot holds, or only its beginning. A short one displaces nobody."""
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
