"""`kvtool prune`: what should go from one directory, why, and what it would cost. Decides only; `deleting` deletes.

Never chosen: what is pinned. Chosen by name only: other dialects, unreadable and foreign files, and what ds4-agent saved,
which is no cache but somebody's conversation.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from kvformat.eviction import VALUES, EvictionPolicy, victims
from kvformat.header import Header
from kvformat.policy import Knobs, Reason
from kvformat.scan import Entry
from kvtools.orphans import why_orphan
from kvtools.output import mib
from kvtools.surveying import Standing, Survey

# Until then ds4 deleted a file longer than cold_max on its first hit.
CONSUMED_UNTIL = datetime(2026, 8, 4, tzinfo=UTC).timestamp()


@dataclass(frozen=True, slots=True)
class Criteria:
    """What should go, as on the command line; sizes in bytes, ages in seconds. A file goes if any of them says so."""

    max_size: int | None = None
    max_age: float | None = None
    min_hits: int | None = None
    superseded: bool = False
    orphans: bool = False
    damaged: bool = False
    names: tuple[str, ...] = ()
    policy: EvictionPolicy = "ours"

    @property
    def any(self) -> bool:
        return self != Criteria(policy=self.policy)


@dataclass(frozen=True, slots=True)
class Victim:
    """One entry that should go. `value` is the policy's; `rebuild` the tokens that a prefill has to make again;
    `covered_by` the longer file that does for a superseded one."""

    entry: Entry
    why: tuple[str, ...]
    value: float | None = None
    rebuild: int = 0
    covered_by: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """All that should go, the cheapest loss first. `over` is how many bytes remain above the wished size; `rebuild` how many
    tokens make all of it again, counting once what several of its files begin with."""

    directory: Path
    victims: tuple[Victim, ...]
    bytes_before: int
    over: int
    rebuild: int
    notes: tuple[str, ...]

    @property
    def bytes(self) -> int:
        return sum(victim.entry.size for victim in self.victims)


def hits_mean_nothing(header: Header) -> bool:
    """Whether ds4 of the time would have deleted the file instead of counting a hit."""
    old = header.payload_abi == 0 or header.created < CONSUMED_UNTIL
    return old and header.hits == 0 and header.tokens > Knobs().cold_max


def plan(seen: Survey, criteria: Criteria) -> Plan:
    """What should go. Superseded files go only for one that stays, and room is made last, from what is left."""
    chosen = {name: why for name, entry in seen.entries.items() if (why := tuple(_reasons(seen, entry, criteria)))}
    covers = dict(_superseded(seen, chosen)) if criteria.superseded else {}
    for name, cover in covers.items():
        chosen[name] = (*chosen.get(name, ()), f"superseded by {cover}")
    left = seen.used - sum(seen.entries[name].size for name in chosen)
    if criteria.max_size is not None:
        for name in _too_much(seen, criteria, chosen, left):
            chosen[name] = (f"over {mib(criteria.max_size)}",)
            left -= seen.entries[name].size
    over = max(0, left - criteria.max_size) if criteria.max_size is not None else 0
    found = (Victim(seen.entries[name], why, covered_by=covers.get(name)) for name, why in chosen.items())
    gone = [_valued(seen, victim, chosen, criteria) for victim in found]
    gone.sort(key=lambda victim: (victim.value is not None, victim.value, victim.entry.name))
    together = sum(_tokens_behind(seen, victim.entry, ()) for victim in gone)
    return Plan(seen.directory, tuple(gone), seen.used, over, together, tuple(_notes(seen, criteria, over)))


def _reasons(seen: Survey, entry: Entry, criteria: Criteria) -> Iterator[str]:
    """What speaks against one entry by itself."""
    header = entry.header
    if entry.name in seen.pinned:
        return
    if entry.name in criteria.names:
        yield "named"
    if criteria.orphans and (why := why_orphan(seen.directory, entry, seen.now)):
        yield why
    if criteria.damaged and seen.standing[entry.name] is Standing.BROKEN and seen.settled(entry):
        yield "damaged" if entry.problem is None else entry.problem
    if header is None or seen.standing[entry.name] is not Standing.CACHE:
        return
    if criteria.max_age is not None and seen.now - header.used > criteria.max_age:
        yield "not used for longer"
    if criteria.min_hits is not None and header.hits < criteria.min_hits and not hits_mean_nothing(header):
        yield f"fewer than {criteria.min_hits} hits"


def _superseded(seen: Survey, chosen: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """(waypoint, longer file that stays and serves every reader of the waypoint). One hit was its own conversation going on."""
    free = {candidate.key: candidate for candidate in seen.candidates(chosen)}
    for longer in sorted(free, key=lambda name: -free[name].tokens):
        for name in seen.shorter.get(longer, ()):
            candidate = free.get(name)
            if candidate is None or candidate.pinned or candidate.reason != Reason.CONTINUED or candidate.hits > 1:
                continue
            if _serves(seen.entries[longer].header, seen.entries[name].header):
                free.pop(name)
                yield name, longer


def _serves(longer: Header | None, shorter: Header | None) -> bool:
    assert longer is not None and shorter is not None
    alike = all(getattr(longer, f) == getattr(shorter, f) for f in ("model_id", "quant_bits", "payload_abi"))
    return alike and longer.ctx <= shorter.ctx


def _too_much(seen: Survey, criteria: Criteria, chosen: Mapping[str, object], left: int) -> list[str]:
    assert criteria.max_size is not None
    candidates = seen.candidates(chosen)
    room = criteria.max_size - (left - sum(c.bytes for c in candidates))
    gone = victims(candidates, budget=room, incoming_bytes=0, now=seen.now, policy=criteria.policy)
    return [candidate.key for candidate in gone]


def _valued(seen: Survey, victim: Victim, chosen: Mapping[str, object], criteria: Criteria) -> Victim:
    entry = victim.entry
    if seen.standing[entry.name] is not Standing.CACHE:
        return victim
    value = VALUES[criteria.policy](seen.candidate(entry), seen.now)
    return replace(victim, value=value, rebuild=_tokens_behind(seen, entry, chosen))


def _tokens_behind(seen: Survey, entry: Entry, gone: Container[str]) -> int:
    """Tokens of a checkpoint behind those of the longest other that it begins with and that is not gone."""
    if entry.header is None or seen.standing[entry.name] is not Standing.CACHE:
        return 0
    kept = (seen.entries[name].header for name in seen.shorter.get(entry.name, ()) if name not in gone)
    return max(0, entry.header.tokens - max((header.tokens for header in kept if header), default=0))


def _notes(seen: Survey, criteria: Criteria, over: int) -> Iterator[str]:
    """What a person should know who sees only what goes."""
    if seen.pinned:
        yield f"{len(seen.pinned)} pinned files stay; `kvtool unpin FILE` frees one"
    unknown = sum(bool(entry.header and hits_mean_nothing(entry.header)) for entry in seen.of(Standing.CACHE))
    if unknown and criteria.min_hits is not None:
        yield (
            f"the hits of {unknown} files mean nothing, and --min-hits leaves them: "
            "before 2026-08-04 ds4 deleted a file of more than 30000 tokens on its first hit"
        )
    fresh = sum(not seen.settled(entry) for entry in seen.of(Standing.BROKEN))
    if criteria.damaged and fresh:
        yield f"{fresh} damaged files stay: they were written in the last ten minutes, perhaps a copy is still under way"
    unchosen = sum(entry.name not in criteria.names for entry in seen.of(Standing.DIALECT, Standing.AGENT))
    if unchosen:
        yield f"{unchosen} files of other dialects or of ds4-agent stay; `--file NAME` chooses one"
    if over:
        yield f"{mib(over)} remain above --max-size: nothing else may go"
