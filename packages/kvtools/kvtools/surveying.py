"""One directory as `prune` and `doctor` see it: every entry, who is whose prefix, what is broken, pinned or not ours."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kvformat.bitrot import find_rot
from kvformat.catalog import bytes_in
from kvformat.checkpoint import Checkpoint
from kvformat.errors import Damaged, KVError, OtherDialect, Truncated
from kvformat.eviction import Candidate
from kvformat.policy import Reason
from kvformat.room import SWEEP_GRACE
from kvformat.scan import Entry, Kind, scan
from kvformat.sidecar import SUFFIX, read_sidecar
from kvtools.ancestry import shorter_ones
from kvtools.output import progress


class Standing(StrEnum):
    """What an entry is to somebody who wants to make room."""

    CACHE = "cache"  # a checkpoint that a policy may judge
    BROKEN = "broken"  # damaged or truncated
    AGENT = "agent"  # saved by ds4-agent: no cache but a conversation
    DIALECT = "dialect"  # another program's, or newer
    OTHER = "other"


KINDS = {
    Kind.TRUNCATED: Standing.BROKEN,
    Kind.DAMAGED: Standing.BROKEN,
    Kind.STRIPPED: Standing.AGENT,
    Kind.OTHER_DIALECT: Standing.DIALECT,
}


@dataclass(frozen=True, slots=True)
class Survey:
    """Everything by name. `shorter`: the prefixes of a file among the others, longest first. `used`: all bytes, readable or
    not, subdirectories included."""

    directory: Path
    now: float
    entries: dict[str, Entry]
    shorter: dict[str, tuple[str, ...]]
    standing: dict[str, Standing]
    pinned: frozenset[str]
    covered: frozenset[str]
    used: int

    def of(self, *standings: Standing) -> list[Entry]:
        return [entry for name, entry in self.entries.items() if self.standing[name] in standings]

    def settled(self, entry: Entry) -> bool:
        """Whether its last write is so long ago that no copy can still be under way."""
        return self.now - entry.mtime > SWEEP_GRACE

    def candidates(self, without: Container[str]) -> list[Candidate]:
        """What a policy may choose from."""
        return [self.candidate(entry) for entry in self.of(Standing.CACHE) if entry.name not in without]

    def candidate(self, entry: Entry) -> Candidate:
        header = entry.header
        assert header is not None
        return Candidate(
            key=entry.name,
            tokens=header.tokens,
            bytes=entry.size,
            hits=header.hits,
            created=header.created,
            last_used=header.last_used,
            reason=header.reason,
            covered=entry.name in self.covered,
            pinned=entry.name in self.pinned,
        )


def survey(directory: Path, now: float) -> Survey:
    """Look at everything once. Raises Unreadable if the directory cannot be listed."""
    entries = {entry.name: entry for entry in progress(scan(directory), "reading headers")}
    shorter = shorter_ones(directory, entries)
    judged = progress(entries.values(), "checking structure", len(entries))
    standing = {entry.name: _standing(directory, entry) for entry in judged}
    pinned = {name for name in entries if name + SUFFIX in entries and is_pinned(directory / name)}
    covered = {name for names in shorter.values() for name in names}
    return Survey(
        directory, now, entries, shorter, standing, frozenset(pinned), frozenset(covered), _used(directory, entries)
    )


def _used(directory: Path, entries: Mapping[str, Entry]) -> int:
    """From the scan, so that sums over its entries agree with it while others write."""
    inner = (bytes_in(directory / name) for name, entry in entries.items() if entry.kind is Kind.DIRECTORY)
    return sum(entry.size for entry in entries.values() if entry.kind is not Kind.DIRECTORY) + sum(inner)


def is_pinned(checkpoint: Path) -> bool:
    """A sidecar that cannot be read counts as a pin: somebody wrote something."""
    try:
        return read_sidecar(checkpoint).pin
    except Damaged:
        return True


def _standing(directory: Path, entry: Entry) -> Standing:
    if entry.kind in (Kind.OTHER_DIALECT, Kind.FOREIGN) and find_rot(directory / entry.name, entry.dialect):
        return Standing.BROKEN
    if entry.kind is not Kind.GOOD:
        return KINDS.get(entry.kind, Standing.OTHER)
    if entry.header and entry.header.reason in (Reason.AGENT_SYSTEM, Reason.AGENT_SESSION):
        return Standing.AGENT
    if entry.key is None:
        return Standing.OTHER  # ds4 does not look at it: somebody's copy
    try:
        Checkpoint.open(directory / entry.name).close()
    except (Truncated, Damaged):
        return Standing.BROKEN
    except OtherDialect:
        return Standing.DIALECT
    except KVError:
        return Standing.OTHER
    return Standing.CACHE
