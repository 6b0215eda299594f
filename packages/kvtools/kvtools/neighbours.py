"""What `doctor` says of files that other programs keep in the directory: whose they are, who reads them, who would delete them.

They are no fault of the directory's, so each class is a note, and none comes with a command that deletes.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

from kvformat.dialects import Dialect, Origin
from kvformat.scan import Entry
from kvtools.doctoring import Ailment, Patient, Severity
from kvtools.surveying import Standing

Owned = tuple[Entry, Dialect]


def other_models(patient: Patient) -> Iterator[Ailment]:
    """Of the same ds4-server, which counts them all."""
    if found := _of(patient, Origin.UPSTREAM):
        message = (
            f"{len(found)} files are of ds4-server's other models ({_counts(found)}): it reads them, counts them and may evict "
            "them; this project cannot resume them"
        )
        remedy = "nothing has to be done; a directory per model keeps one from taking the other's room"
        yield Ailment("other-models", Severity.NOTE, message, remedy, _names(found))


def forks(patient: Patient) -> Iterator[Ailment]:
    """Of programs that took the format further."""
    if found := _of(patient, Origin.FORK):
        by_reader: defaultdict[str, list[Owned]] = defaultdict(list)
        for entry, dialect in found:
            by_reader[dialect.readers].append((entry, dialect))
        who = "; ".join(f"{_counts(theirs)}, read by {readers}" for readers, theirs in by_reader.items())
        message = f"{len(found)} files are of forks: {who}"
        yield Ailment("forks", Severity.NOTE, message, "give each program a directory of its own", _names(found))


def unknown(patient: Patient) -> Iterator[Ailment]:
    """Newer than our table, or nobody's."""
    if found := _of(patient, Origin.UNKNOWN):
        kinds = ", ".join(f"{n} {name}" for name, n in Counter(dialect.name for _, dialect in found).items())
        message = f"{len(found)} files are newer than this kvtool, or of a program that it does not know ({kinds})"
        remedy = f"kvtool inspect {shlex.quote(str(patient.directory / found[0][0].name))} shows what is known of one"
        yield Ailment("unknown-dialect", Severity.NOTE, message, remedy, _names(found))


def deleters(patient: Patient) -> Iterator[Ailment]:
    """A build that deletes what it cannot read empties the directory of all others (DIALECTS 2.6)."""
    theirs = [entry for entry in patient.seen.entries.values() if entry.dialect and entry.dialect.deletes]
    endangered = [
        entry
        for entry in patient.seen.entries.values()
        if entry.key and entry.header and entry.header.magic == b"KVC" and entry not in theirs
    ]
    if theirs and endangered:
        assert theirs[0].dialect is not None
        message = (
            f"{len(theirs)} files are of {theirs[0].dialect.readers}, which deletes every <40 hex>.kv that it cannot read: "
            f"{len(endangered)} files here are lost when it starts"
        )
        remedy = "give that program a directory of its own before it runs again"
        yield Ailment("deletes-others", Severity.PROBLEM, message, remedy, tuple(e.name for e in endangered))


ALL: tuple[Callable[[Patient], Iterable[Ailment]], ...] = (deleters, other_models, forks, unknown)


def _of(patient: Patient, origin: Origin) -> list[Owned]:
    found = ((entry, entry.dialect) for entry in patient.seen.of(Standing.DIALECT))
    return [(entry, dialect) for entry, dialect in found if dialect is not None and dialect.origin is origin]


def _counts(found: list[Owned]) -> str:
    return ", ".join(f"{n} {code}" for code, n in Counter(dialect.code for _, dialect in found).items())


def _names(found: list[Owned]) -> tuple[str, ...]:
    return tuple(entry.name for entry, _ in found)
