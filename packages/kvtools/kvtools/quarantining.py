"""`kvtool verify --quarantine`: move a bad file aside, sidecar and all, where no server looks and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from kvformat.sidecar import sidecar_path
from kvtools.findings import Verdict
from kvtools.holding import Stamp, held

MOVED = frozenset({Verdict.TRUNCATED, Verdict.DAMAGED})


def set_aside(path: Path, judged: Stamp | None, directory: Path) -> Path | None:
    """Where the file lies now; None if it is gone, or no longer the one that was judged."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with held(path.parent):
        if judged is None or Stamp.of(path) != judged:
            return None
        target = _claimed(directory / path.name)
        try:
            shutil.move(path, target)
        except BaseException:
            target.unlink()
            raise
        if sidecar_path(path).exists():
            shutil.move(sidecar_path(path), sidecar_path(target))
    return target


def _claimed(wanted: Path) -> Path:
    """The name itself, or the first of `name.2.kv`, `name.3.kv`, … that is free: an earlier patient is not overwritten.

    An empty file takes it at once, for a move to another file system fills a file, which nobody else may read meanwhile.
    """
    target, number = wanted, 1
    while True:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            return target
        number += 1
        target = wanted.with_name(f"{wanted.stem}.{number}{wanted.suffix}")
