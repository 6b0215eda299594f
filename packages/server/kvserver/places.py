"""Where a prefill pauses: to leave a point for a client that comes back, and to save. Arithmetic on bytes and tokens only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvformat.policy import ColdPlan, Knobs, cold_saves
from kvprompt.markers import ASSISTANT, BOS, USER
from kvprompt.render import RenderedPrompt

from .track import Track

TURNS = 2  # a client that edits one of its last turns starts there again


def returns(prompt: RenderedPrompt, track: Track) -> Iterator[int]:
    """Positions to which a client may return: the prompt's end, before its answer is opened, before its last user turns.

    An answer is opened in two ways, with thinking and without, and not at all when the client adds to its question.
    """
    yield track.tokens
    end = len(prompt.text)
    for marker in (ASSISTANT, *[USER] * TURNS):
        end = prompt.text.rfind(marker.encode(), 0, end)
        if end > len(BOS.encode()) and (position := track.position(end)):  # every prompt has the first marker
            yield position


def cold_points(text: bytes, track: Track, knobs: Knobs, *, cached: int) -> ColdPlan:
    """The cold saves of a prompt of which `cached` tokens were restored.

    A short prompt is saved whole, but not with the opened answer: with thinking, no next request begins with that.
    """
    plan = cold_saves(track.tokens, knobs, anchor=_anchor(text, track), cached=cached)
    opened = text.rfind(ASSISTANT.encode())
    end = track.position(opened) if opened > 0 else None
    if end is None or end < max(knobs.min_tokens, cached + 1):
        return plan
    return replace(plan, saves=tuple(dict.fromkeys(min(save, end) for save in plan.saves)))


def frontiers(start: int, end: int, knobs: Knobs) -> Iterator[int]:
    """The continued frontiers that a prefill from `start` to `end` reaches."""
    if knobs.step:
        first = (start // knobs.step + 1) * knobs.step
        yield from (position for position in range(first, end + 1, knobs.step) if position >= knobs.min_tokens)


def _anchor(text: bytes, track: Track) -> int:
    """Position of the last user marker before the first assistant marker; 0 if it is cached already or there is none."""
    first = text.find(ASSISTANT.encode())
    at = text.rfind(USER.encode(), 0, first if first >= 0 else len(text))
    return (track.position(at) or 0) if at > 0 else 0
