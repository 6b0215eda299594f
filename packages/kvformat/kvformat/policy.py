"""Where a session is saved: the cold save points of a prompt and the continued ones of a long run.

Pure arithmetic on token counts: knows no file and no clock. What to delete is in `eviction`, what is worth a write in
`governor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

BoundaryOrder = Literal["align-then-trim", "trim-then-align"]


class Reason(IntEnum):
    """Why a file was written: header byte 5 (FORMAT 1.1)."""

    UNKNOWN = 0
    COLD = 1
    CONTINUED = 2
    EVICT = 3
    SHUTDOWN = 4
    AGENT_SYSTEM = 5
    AGENT_SESSION = 6


@dataclass(frozen=True, slots=True)
class Knobs:
    """The `--kv-cache-*` options in tokens, with ds4's defaults (FORMAT 5). All but the minimum are off at 0."""

    min_tokens: int = 512
    cold_max: int = 30000
    interval: int = 10000
    trim: int = 32
    align: int = 2048
    order: BoundaryOrder = "align-then-trim"

    @property
    def step(self) -> int:
        """Distance of the continued frontiers: the interval rounded up to the alignment, 10,240 by default."""
        return _align_down(self.interval + self.align - 1, self.align) if self.align else self.interval

    @property
    def apart(self) -> int:
        """Two cold save points closer than this are one: a boundary lies less than this below the end of its prompt."""
        return self.align + self.trim


@dataclass(frozen=True, slots=True)
class Skipped:
    """A save that was not made: `kv cache skipped tokens={tokens} reason={reason} because {because} ({knob})`."""

    tokens: int
    reason: Reason
    because: str
    knob: str


@dataclass(frozen=True, slots=True)
class ColdPlan:
    """Positions, ascending, at which a prefill pauses to save, and those at which it does not, with the reason."""

    saves: tuple[int, ...] = ()
    skipped: tuple[Skipped, ...] = ()


def store_len(tokens: int, knobs: Knobs) -> int:
    """How many of a prompt's tokens a boundary save covers; all of them when the cut would fall below the minimum.

    The trimmed tail is what a client's next prompt may split into other tokens.
    """
    if knobs.order == "align-then-trim":
        cut = _align_down(tokens, knobs.align) - knobs.trim
    elif tokens > knobs.min_tokens + knobs.trim:
        cut = _align_down(tokens - knobs.trim, knobs.align)
    else:
        return tokens
    return cut if cut >= max(knobs.min_tokens, 1) else tokens


def cold_saves(prompt_tokens: int, knobs: Knobs, *, anchor: int = 0, cached: int = 0) -> ColdPlan:
    """Where the prefill of a prompt saves, given its chat anchor (0: none) and the tokens already restored.

    A hit at the anchor or past it needs no cold file. A hit below it means that the old anchor no longer matches, so
    it is written anew (CASES 24). Each point is gated by its own length, never by the prompt's (CASES 25).
    """
    if cached >= max(anchor, 1) or not knobs.cold_max:
        return ColdPlan()
    boundary = store_len(prompt_tokens, knobs)
    saves: list[int] = []
    skipped: list[Skipped] = []
    for point in (anchor, boundary) if anchor else (boundary,):
        refusal = _cold_refusal(point, saves, knobs)
        if refusal:
            skipped.append(refusal)
        elif point > cached:
            saves.append(point)
    return ColdPlan(tuple(saves), tuple(skipped))


def continued_due(length: int, stored: int, knobs: Knobs) -> bool:
    """Whether a run of `length` tokens stands at the first reachable position at or past a new frontier.

    `stored` is the longest position of this run that was restored or given to be saved, whatever became of it.
    Frontiers are absolute, so a run from an odd position, or in odd chunks, keeps making restart points (CASES 27).
    """
    step = knobs.step
    return step > 0 and length >= knobs.min_tokens and length // step > stored // step


def upstream_continued_due(length: int, stored: int, knobs: Knobs) -> bool:
    """ds4's rule (FORMAT 3.3): only on exact multiples of the step, which a run from an odd position may never meet."""
    step = knobs.step
    return step > 0 and length > stored and length >= knobs.min_tokens and length % step == 0


def _cold_refusal(tokens: int, saves: Sequence[int], knobs: Knobs) -> Skipped | None:
    if tokens < knobs.min_tokens:
        return Skipped(tokens, Reason.COLD, f"the minimum is {knobs.min_tokens}", "--kv-cache-min-tokens")
    if tokens > knobs.cold_max:
        return Skipped(tokens, Reason.COLD, f"cold saves end at {knobs.cold_max}", "--kv-cache-cold-max-tokens")
    if saves and tokens - saves[-1] < knobs.apart:
        because = f"the anchor at {saves[-1]} is less than {knobs.apart} away"
        return Skipped(tokens, Reason.COLD, because, "--kv-cache-boundary-align-tokens")
    return None


def _align_down(tokens: int, align: int) -> int:
    return tokens - tokens % align if align else tokens
