"""What `doctor` looks for: first the place, then the neighbours who write there, then the files."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from kvformat.dialects import counted_by_ds4
from kvformat.durable import LOCK_NAME
from kvformat.scan import Entry, Kind, is_dead_temp
from kvtools import neighbours, wordings
from kvtools.doctoring import Ailment, Examination, Patient, Severity
from kvtools.mounts import why_volatile
from kvtools.orphans import why_orphan
from kvtools.output import mib
from kvtools.surveying import Standing

try:
    import fcntl
except ImportError:  # no POSIX: no lock to ask
    fcntl = None  # type: ignore[assignment]

PROBLEM, NOTE = Severity.PROBLEM, Severity.NOTE
OTHERS = 0o077
SKEW = 300.0  # seconds by which clocks of one network may differ
_WRITER = re.compile(r"\.tmp\.(\d+)(\.)?")


def permissions(patient: Patient) -> Iterator[Ailment]:
    """Prompts lie there in clear: nobody else's business, and nobody else's to change."""
    info, where = patient.directory.stat(), _quoted(patient)
    if hasattr(os, "geteuid") and info.st_uid != os.geteuid():
        yield Ailment("owner", PROBLEM, "the directory is another user's", f"sudo chown -R $(id -un) {where}")
    if not os.access(patient.directory, os.W_OK):
        yield Ailment("not-writable", PROBLEM, "you cannot write there, so nothing is saved", f"chmod u+rwx {where}")
    if info.st_mode & OTHERS:
        open_files = tuple(name for name in patient.seen.entries if _mode(patient.directory / name) & OTHERS)
        mode = stat.S_IMODE(info.st_mode)
        message = f"its mode is {mode:o}, so others can enter it, and {len(open_files)} of its files are open to them"
        yield Ailment("permissions", PROBLEM, message, f"chmod -R go= {where}", open_files)


def place(patient: Patient) -> Iterator[Ailment]:
    """Memory, or a place that is cleaned: then nothing survives what the cache is for."""
    if why := why_volatile(patient.directory):
        remedy = f"stop the server, mv {_quoted(patient)} ~/.cache/, and give the new place to --kv-disk-dir"
        yield Ailment("volatile", PROBLEM, why, remedy)


def space(patient: Patient) -> Iterator[Ailment]:
    """Against the budget: what lies there, and what still fits on the disk."""
    over, missing = patient.used - patient.budget, patient.budget - patient.used - patient.free
    if over > 0:
        remedy = f"kvtool prune {_quoted(patient)} --max-size {patient.budget >> 20}M --apply"
        yield Ailment("over-budget", PROBLEM, f"{mib(over)} more lie there than the budget allows", remedy)
    if missing > 0:
        message = f"the disk has {mib(patient.free)} left: it is full {mib(missing)} before the budget is"
        yield Ailment("disk-full", PROBLEM, message, "free some space, or give the server a smaller --kv-disk-space-mb")


def uncounted(patient: Patient) -> Iterator[Ailment]:
    """ds4 counts what its header rule accepts, whoever wrote it, so the rest comes on top of its budget, for ever."""
    entries = patient.seen.entries.values()
    counted = [entry for entry in entries if _is_counted(entry) or entry.kind in (Kind.SIDECAR, Kind.LOCK)]
    names = {entry.name for entry in counted}
    rest = [entry for entry in entries if entry.name not in names]
    size = patient.used - sum(entry.size for entry in counted)
    if size > 0:
        kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(entry.kind.value for entry in rest).items())
        message = f"{mib(size)} lie there that no budget of ds4 counts ({kinds})"
        yield Ailment("uncounted", NOTE, message, f"kvtool ls {_quoted(patient)}", _names(rest))


def orphans(patient: Patient) -> Iterator[Ailment]:
    """What crashes left."""
    seen = patient.seen
    if lost := [entry for entry in seen.entries.values() if why_orphan(seen.directory, entry, seen.now)]:
        message = f"{len(lost)} left-overs of writers or files that are gone, {mib(sum(e.size for e in lost))}"
        yield Ailment("orphans", PROBLEM, message, f"kvtool prune {_quoted(patient)} --orphans --apply", _names(lost))


def broken(patient: Patient) -> Iterator[Ailment]:
    """A file that matches and cannot be loaded is tried again on every request (FORMAT 2.3)."""
    if bad := patient.seen.of(Standing.BROKEN):
        message = f"{len(bad)} files are damaged or truncated"
        remedy = f"kvtool verify {_quoted(patient)} says how; kvtool prune {_quoted(patient)} --damaged --apply"
        yield Ailment("damaged", PROBLEM, message, remedy, _names(bad))


def owners(patient: Patient) -> Iterator[Ailment]:
    """Two servers on one directory show only while they write: by their temps, by our lock, or by the owners of files."""
    temps = [e for e in patient.seen.entries.values() if e.kind is Kind.TEMP and not _is_dead(e, patient.seen.now)]
    found = [match for entry in temps if (match := _WRITER.search(entry.name))]
    writers, upstream = {match[1] for match in found}, {match[1] for match in found if not match[2]}
    remedy = "give each server a --kv-disk-dir of its own"
    if len(writers) > 1:
        message = f"processes {', '.join(sorted(writers))} are writing there at once"
        yield Ailment("two-writers", PROBLEM, message, remedy, _names(temps))
    elif upstream and _is_locked(patient.directory):
        message = f"ds4-server (process {min(upstream)}) writes there while a program of ours holds the lock"
        yield Ailment("two-writers", PROBLEM, message, remedy, _names(temps))
    places = (patient.directory, *(patient.directory / name for name in patient.seen.entries))
    users = {info.st_uid for place in places if (info := _stat(place))}
    if len(users) > 1:
        yield Ailment("two-users", PROBLEM, f"it and its files belong to users {sorted(users)}", remedy)


def clock(patient: Patient) -> Iterator[Ailment]:
    """A time in the future never ages, so that such files outlive all others."""
    limit = patient.seen.now + SKEW
    early = [e for e in patient.seen.entries.values() if e.mtime > limit or (_is_checkpoint(e) and _latest(e) > limit)]
    if early:
        message = f"{len(early)} files are from the future: a clock was wrong, and they never age"
        remedy = (
            "set the clock; a file is right again after its next hit, or goes with kvtool prune --file NAME --apply"
        )
        yield Ailment("clock", PROBLEM, message, remedy, _names(early))


def builds(patient: Patient) -> Iterator[Ailment]:
    """Which builds read which files (FORMAT 0, 9)."""
    found: dict[tuple[int, int], list[Entry]] = defaultdict(list)
    for entry in filter(_is_checkpoint, patient.seen.entries.values()):
        assert entry.header is not None
        found[entry.header.payload_abi, entry.header.model_id].append(entry)
    old, lost = found[0, 0], found[0, 1]
    where = _quoted(patient)
    if old:
        message = f"{len(old)} files have payload ABI 0: ds4 since 2026-05-26 neither reads nor counts nor deletes them"
        mixed = " and older builds fail on the others" if found[2, 0] or found[2, 1] else ""
        remedy = f"a directory per build; once the old one is gone: kvtool prune {where} --file NAME --apply"
        yield Ailment("mixed-builds" if mixed else "old-build", NOTE, message + mixed, remedy, _names(old))
    if lost:
        message = f"{len(lost)} files can only be read by builds of 2026-05-25"
        yield Ailment("no-build", PROBLEM, message, f"kvtool prune {where} --file NAME --apply", _names(lost))


def unreadable(patient: Patient) -> Iterator[Ailment]:
    """What the system hides from us."""
    if unread := [entry for entry in patient.seen.entries.values() if entry.kind is Kind.UNREADABLE]:
        message, remedy = f"{len(unread)} files cannot be read", f"chmod -R u+rw {_quoted(patient)}"
        yield Ailment("unreadable", PROBLEM, message, remedy, _names(unread))


def models(patient: Patient) -> Iterator[Ailment]:
    """Nothing in a file names its weights; what can be told apart is told."""
    good = [entry.header for entry in patient.seen.entries.values() if _is_checkpoint(entry) and entry.header]
    kinds = sorted({(header.model_id, header.quant_bits) for header in good})
    if len(kinds) > 1:
        listed = ", ".join(f"model {model} at {bits} bits" for model, bits in kinds)
        remedy = "a directory per model, or ds4-server --kv-cache-reject-different-quant"
        yield Ailment("mixed-models", NOTE, f"{listed}: ds4 restores files of other quant bits", remedy)
    sizes = sorted({header.ctx for header in good})
    if len(sizes) > 1:
        message = (
            f"contexts from {sizes[0]} to {sizes[-1]}: a server never loads a file of a larger context than its own"
        )
        yield Ailment("mixed-contexts", NOTE, message, "always give the same -c, or a directory per context")


ALL: tuple[Examination, ...] = (
    *(permissions, place, space, uncounted),
    *(orphans, owners, clock),
    *(broken, unreadable, *neighbours.ALL, builds, wordings.mixed, models),
)


def _quoted(patient: Patient) -> str:
    return shlex.quote(str(patient.directory))


def _names(entries: list[Entry]) -> tuple[str, ...]:
    return tuple(entry.name for entry in entries)


def _is_checkpoint(entry: Entry) -> bool:
    return entry.kind in (Kind.GOOD, Kind.STRIPPED)


def _is_counted(entry: Entry) -> bool:
    return entry.key is not None and entry.header is not None and counted_by_ds4(entry.header, entry.size)


def _latest(entry: Entry) -> int:
    return max(entry.header.created, entry.header.last_used) if entry.header else 0


def _is_dead(entry: Entry, now: float) -> bool:
    return is_dead_temp(entry.name, now - entry.mtime)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat(follow_symlinks=False)
    except OSError:
        return None


def _mode(path: Path) -> int:
    info = _stat(path)
    return info.st_mode if info else 0


def _is_locked(directory: Path) -> bool:
    """Whether somebody holds our lock at this moment."""
    if fcntl is None:
        return False
    try:
        with (directory / LOCK_NAME).open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
