"""`kvtool verify --quarantine`: move a bad file aside, sidecar and all, where no server looks and nothing is lost."""

from __future__ import annotations

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
        target = _free_name(directory / path.name)
        shutil.move(path, target)
        if sidecar_path(path).exists():
            shutil.move(sidecar_path(path), sidecar_path(target))
    return target


def _free_name(wanted: Path) -> Path:
    """The name itself, or the first of `name.2.kv`, `name.3.kv`, … that is free: an earlier patient is not overwritten."""
    target, number = wanted, 1
    while target.exists():
        number += 1
        target = wanted.with_name(f"{wanted.stem}.{number}{wanted.suffix}")
    return target
