"""`kvtool prune --apply`: delete what was planned, one file at a time, beside whoever is using the directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from kvformat.scan import Kind
from kvformat.sidecar import SUFFIX, remove_sidecar
from kvtools.holding import Stamp, held
from kvtools.pruning import Plan, Victim
from kvtools.surveying import is_pinned

Outcome = Literal["deleted", "gone", "changed", "pinned", "needed", "refused"]


def apply(plan: Plan) -> Iterator[tuple[Victim, Outcome]]:
    """Each victim and what became of it. The lock is held per file, so that a server's save waits for one deletion at most."""
    for victim in plan.victims:
        with held(plan.directory):
            yield victim, _delete(plan.directory, victim)


def _delete(directory: Path, victim: Victim) -> Outcome:
    path = directory / victim.entry.name
    objection = _objection(path, victim)
    if objection:
        return objection
    try:
        path.unlink()
        if victim.entry.kind not in (Kind.TEMP, Kind.SIDECAR):
            remove_sidecar(path)
    except FileNotFoundError:
        return "gone"
    except OSError:
        return "refused"
    return "deleted"


def _objection(path: Path, victim: Victim) -> Outcome | None:
    """What has happened since the plan was made: it was touched, replaced, pinned, or what it was given up for has left."""
    stamp = Stamp.of(path)
    if stamp is None:
        return "gone"
    if stamp != Stamp.seen(victim.entry):
        return "changed"
    if path.with_name(path.name + SUFFIX).exists() and is_pinned(path):
        return "pinned"
    if victim.covered_by is not None and not os.path.lexists(path.with_name(victim.covered_by)):
        return "needed"
    if victim.entry.kind is Kind.SIDECAR and path.with_name(path.name.removesuffix(SUFFIX)).exists():
        return "needed"
    return None
