"""What `kvtool prune` says, for people and for programs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

from kvformat.eviction import EvictionPolicy
from kvtools.deleting import Outcome
from kvtools.output import age, iso, mib, safe
from kvtools.pruning import Plan, Victim, hits_mean_nothing

COLUMNS = ("name", "why", "value", "hits", "used", "prefill", "MiB")
RIGHT = frozenset(range(2, len(COLUMNS)))


def victim_fields(victim: Victim, outcome: Outcome | None = None) -> dict[str, Any]:
    """One entry for programs."""
    entry, header = victim.entry, victim.entry.header
    return {
        "name": entry.name,
        "kind": entry.kind.value,
        "why": list(victim.why),
        "bytes": entry.size,
        "value": victim.value,
        "rebuild_tokens": victim.rebuild,
        "covered_by": victim.covered_by,
        "tokens": header.tokens if header else None,
        "hits": header.hits if header else None,
        "hits_mean_nothing": bool(header and hits_mean_nothing(header)),
        "last_used": header.used if header else None,
        "last_used_iso": iso(header.used) if header else None,
        "outcome": outcome,
    }


def plan_fields(plan: Plan, outcomes: Sequence[Outcome], applied: bool) -> dict[str, Any]:
    """The whole for programs; there are no `outcomes` in a dry run."""
    told = outcomes if applied else [None] * len(plan.victims)
    return {
        "directory": str(plan.directory),
        "applied": applied,
        "victims": [victim_fields(victim, outcome) for victim, outcome in zip(plan.victims, told, strict=True)],
        "victim_bytes": plan.bytes,
        "rebuild_tokens": plan.rebuild,
        "directory_bytes": plan.bytes_before,
        "over_bytes": plan.over,
        "notes": list(plan.notes),
    }


def row(victim: Victim, policy: EvictionPolicy, now: float) -> tuple[object, ...]:
    """One line of the table. The value is in tokens saved per MiB, but for `lru`, which only knows when."""
    entry, header = victim.entry, victim.entry.header
    name, why, size = safe(os.fsencode(entry.name)), ", ".join(victim.why), f"{entry.size / (1 << 20):.2f}"
    if header is None or victim.value is None:
        return name, why, "", "", "", "", size
    value = "" if policy == "lru" else f"{victim.value * (1 << 20):.3g}"
    hits = "unknown" if hits_mean_nothing(header) else header.hits
    return name, why, value, hits, age(header.used, now), victim.rebuild, size


def summary(plan: Plan, outcomes: Sequence[Outcome], applied: bool) -> list[str]:
    """A few sentences under the table."""
    lines = list(plan.notes)
    if not plan.victims:
        return [*lines, "nothing to delete"]
    if not applied:
        total = f"{len(plan.victims)} of its entries, {mib(plan.bytes)} of {mib(plan.bytes_before)}"
        return [
            *lines,
            f"would delete {total}, {plan.rebuild} tokens to prefill if all are wanted again; --apply does it",
        ]
    told = ", ".join(f"{count} {outcome}" for outcome, count in Counter(outcomes).items())
    return [*lines, f"{len(plan.victims)} entries: {told}"]
