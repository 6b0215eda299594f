"""What to delete when room is needed: three policies over headers alone.

Pure functions; `now` is always a parameter. Knows no directory: whoever holds the files builds the candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from kvformat.policy import Reason

EvictionPolicy = Literal["ours", "upstream", "lru"]

HOUR = 3600.0
DAY = 24 * HOUR
UPSTREAM_HALF_LIFE = 6 * HOUR  # fixed since 2026-05-15 (FORMAT 3.5)

# Ours, chosen with bench/bench_policy.py. Hits live for weeks, so that weekly use counts (CASES 40).
SLACK = 1 / 16  # of the budget, freed beyond what is needed
LARGE = 1 / 4  # of the budget: a file above it is not deleted for the slack alone
HIT = 0.5  # further uses that one past hit promises
HITS_HALF_LIFE = 28 * DAY
HOPE = 1.0  # uses that a file promises before its first hit: its conversation will come back
HOPE_PASSED_TURN = 0.5  # the conversation went on, but its user may go back to the end of a turn
HOPE_WAYPOINT = 0.0  # it went on, and nobody goes back to the middle of a prefill
HOPE_HALF_LIFE = 6 * HOUR


@dataclass(frozen=True, slots=True)
class Candidate:
    """One file, as its header and its neighbours describe it. Times are unix seconds, sizes bytes of the whole file."""

    key: str
    tokens: int
    bytes: int
    hits: int
    created: float
    last_used: float  # 0: never touched, `created` counts
    reason: int
    covered: bool = False  # a longer file of the same conversation is on disk, or the incoming one extends it
    superseded: bool = False  # the incoming one extends it, same model, context not larger: all that upstream looks at
    pinned: bool = False

    @property
    def used(self) -> float:
        return self.last_used or self.created


def may_score(c: Candidate, now: float) -> float:
    """ds4 of 2026-05-21: (decayed hits + 1) * tokens / bytes."""
    return (_upstream_hits(c, now) + 1) * c.tokens / c.bytes if c.bytes else 0.0


def upstream_score(c: Candidate, now: float) -> float:
    """ds4 since 2026-05-26: May's score, doubled for whole states, cut to 5..50 % for superseded waypoints."""
    score = may_score(c, now)
    if c.reason in (Reason.COLD, Reason.EVICT, Reason.SHUTDOWN):
        return 2 * score
    if c.superseded and c.reason == Reason.CONTINUED:
        hits = _upstream_hits(c, now)
        return score * (0.05 + 0.45 * hits / (hits + 1))
    return score


def last_used(c: Candidate, now: float) -> float:
    """Plain least recently used."""
    return c.used


def expected_savings(c: Candidate, now: float) -> float:
    """Ours: tokens per byte that the file will still save, were every use it promises to come.

    No hits is no verdict: until 2026-08-04 ds4 deleted a file longer than cold_max on its first hit, so such files never
    have any. Of the hits of a covered file one was its own conversation moving on; a cold file is shared from the start.
    """
    moved_on = c.covered and c.reason != Reason.COLD
    hits = max(0, c.hits - 1) if moved_on else c.hits
    hope = HOPE if not moved_on else HOPE_WAYPOINT if c.reason == Reason.CONTINUED else HOPE_PASSED_TURN
    idle = max(0.0, now - c.used)
    uses = HIT * hits * 0.5 ** (idle / HITS_HALF_LIFE) + hope * 0.5 ** (idle / HOPE_HALF_LIFE)
    return uses * c.tokens / c.bytes if c.bytes else 0.0


VALUES: dict[EvictionPolicy, Callable[[Candidate, float], float]] = {
    "ours": expected_savings,
    "upstream": upstream_score,
    "lru": last_used,
}


def eviction_order(candidates: Iterable[Candidate], now: float, policy: EvictionPolicy = "ours") -> list[Candidate]:
    """All candidates, the first to go first: lowest value, then least recently used, then shortest."""
    value = VALUES[policy]
    return sorted(candidates, key=lambda c: (value(c, now), c.used, c.tokens, c.key))


def victims(
    candidates: Iterable[Candidate],
    *,
    budget: int,
    incoming_bytes: int,
    now: float,
    policy: EvictionPolicy = "ours",
    protected: Collection[str] = (),
) -> list[Candidate]:
    """What to delete, in this order, so that `incoming_bytes` more bytes fit into `budget`.

    `budget` is what remains for the candidates: bytes of files that are none come off before. Pinned files and the
    `protected` keys (prefixes of the waiting request, the incoming key) count but never go. If even deleting all the
    rest made no room for the incoming file, nothing is deleted for it; without an incoming file all the rest goes.

    Ours goes on until `SLACK` of the budget is free as well: the next saves then need no pass, and what goes last of a full
    directory is hardly ever asked for.
    """
    everything = list(candidates)
    excess = sum(c.bytes for c in everything) + incoming_bytes - budget
    evictable = [c for c in everything if not c.pinned and c.key not in protected]
    if incoming_bytes and excess > sum(c.bytes for c in evictable):
        return []
    slack = int(budget * SLACK) if policy == "ours" and excess > 0 else 0
    chosen: list[Candidate] = []
    for c in eviction_order(evictable, now, policy):
        if excess <= 0 and (excess + slack <= 0 or c.bytes > LARGE * budget):
            break
        chosen.append(c)
        excess -= c.bytes
    return chosen


def _upstream_hits(c: Candidate, now: float) -> float:
    """Hits halved every 6 h since the last use; below 0.01 they are none, as they are without any time."""
    if not c.used:
        return 0.0
    hits: float = c.hits * 2 ** (-max(0.0, now - c.used) / UPSTREAM_HALF_LIFE)
    return hits if hits >= 0.01 else 0.0
