"""`kvtool verify` over many files: which checks a level means, which files are taken, and what is done with each afterwards."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from math import ceil
from pathlib import Path

from click import UsageError

from kvformat.errors import KVError
from kvformat.scan import scan
from kvformat.shapes import Shape
from kvtools.findings import Check, Finding, Report, Verdict
from kvtools.holding import Stamp
from kvtools.opening import files_of, still_there
from kvtools.orphans import why_orphan
from kvtools.output import progress
from kvtools.quarantining import MOVED, set_aside
from kvtools.sealing import seal
from kvtools.sweeping import THREADS
from kvtools.verifying import verify

SOUND = frozenset({Verdict.OK, Verdict.WARNING, Verdict.AMBIGUOUS})


class Level(StrEnum):
    """How much is checked. Each includes those before it."""

    QUICK = "quick"  # structure, name, token ids, logits
    FULL = "full"  # every number, the checksum if there is one
    DEEP = "deep"  # tokens against text


@dataclass(frozen=True, slots=True)
class Wishes:
    """What `verify` was asked for, as on its command line; `subset` is the share of the files to take."""

    level: Level = Level.QUICK
    prove: bool = False
    shape: Shape | tuple[int, ...] | None = None
    tokenizer: Path | None = None
    model: Path | None = None
    quarantine: Path | None = None
    subset: float = 1.0
    seal: bool = False

    def __post_init__(self) -> None:
        if self.level is Level.DEEP and self.tokenizer is None:
            raise UsageError("--deep needs --tokenizer FILE: a GGUF or a tokenizer.json")
        if self.prove and self.model is None:
            raise UsageError("--prove needs --model M: a GGUF, or a folder with safetensors")


def judge(paths: Sequence[Path], wishes: Wishes, *, seed: int | None = None) -> Iterator[Report]:
    """One report per file, then one per left-over of the directories among the paths. Raises Unreadable before the first
    if the tokenizer or the model cannot be had."""
    with ThreadPoolExecutor(THREADS) as pool:
        checks = _checks(wishes, pool)
        files = sampled(list(files_of(paths)), wishes.subset, seed)
        todo = progress(still_there(files, paths), "verifying", len(files))
        judged = partial(_judged, named=paths, wishes=wishes, checks=checks, pool=pool)
        yield from filter(None, map(judged, todo))
    for directory in filter(Path.is_dir, paths):
        yield from left_overs(directory, time.time())


def sampled(files: list[Path], share: float, seed: int | None = None) -> list[Path]:
    """That share of the files, at least one, another choice every time; in their order."""
    count = min(len(files), ceil(len(files) * share))
    chosen = set(random.Random(seed).sample(files, count))
    return [path for path in files if path in chosen]


def left_overs(directory: Path, now: float) -> Iterator[Report]:
    """Temps and sidecars that belong to nobody."""
    for entry in scan(directory):
        if why := why_orphan(directory, entry, now):
            remedy = "kvtool prune --orphans --apply removes it"
            yield Report.of(directory / entry.name, [Finding("orphan", f"{why}; {remedy}", verdict=Verdict.ORPHAN)])


def _checks(wishes: Wishes, pool: Executor) -> list[Check]:
    """What is dear to import is imported only here."""
    from kvtools import compatibility, deepcheck, extras, fullcheck, proving

    checks: list[Check] = []
    if wishes.level is not Level.QUICK or wishes.seal:  # or a seal could cover what an earlier one would have shown
        checks.append(partial(fullcheck.findings, pool=pool))
    if wishes.level is Level.DEEP and wishes.tokenizer is not None:
        checks.append(partial(deepcheck.findings, tokenizer=extras.load_tokenizer(wishes.tokenizer)))
    if wishes.model is not None:
        checks.append(partial(compatibility.findings, shape=extras.load_shape(wishes.model)))
    if wishes.model is not None and wishes.prove:
        checks.append(partial(proving.findings, model=extras.load_model(wishes.model)))
    return checks


def _judged(
    path: Path, named: Sequence[Path], wishes: Wishes, checks: Sequence[Check], pool: Executor
) -> Report | None:
    """None for a file that nobody named and that others took away before it could be opened, even if it is back by now."""
    stamp = Stamp.of(path)
    report = verify(path, wishes.shape, checks)
    if report.verdict is Verdict.UNREADABLE and path not in named and (stamp is None or Stamp.of(path) != stamp):
        return None
    if wishes.quarantine is not None and report.verdict in MOVED:
        return _moved(report, stamp, wishes.quarantine)
    if wishes.seal and report.verdict in SOUND:
        return _sealed(report, stamp, pool)
    return report


def _moved(report: Report, stamp: Stamp | None, directory: Path) -> Report:
    try:
        return replace(report, quarantined=set_aside(report.path, stamp, directory))
    except OSError as error:
        problem = os.strerror(error.errno or 0).lower()
        return replace(report, findings=(*report.findings, Finding("not-moved", f"cannot be moved aside: {problem}")))


def _sealed(report: Report, stamp: Stamp | None, pool: Executor) -> Report:
    try:
        if seal(report.path, stamp, pool):
            return replace(report, sealed=True)
        why: object = "the file changed while it was verified"
    except (KVError, OSError) as error:
        why = error
    return Report.of(report.path, [*report.findings, Finding("not-sealed", f"no checksum was recorded: {why}")])
