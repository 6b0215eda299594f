"""Which files failed to load in this process, so that no request tries them twice (CASES 6). Nothing is deleted for it."""

from __future__ import annotations

from pathlib import Path

Stamp = tuple[int, int, int]  # inode, size, modification time in ns


class Failures:
    """Path → why it failed, for as long as the very same file stands there."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Stamp, str, bool]] = {}

    def remember(self, path: Path, reason: str, *, worthless: bool) -> bool:
        """Note a failure; `worthless` files may be replaced by a save. False if the file has merely vanished."""
        stamp = _stamp(path)
        if stamp:
            self._known[path] = (stamp, reason, worthless)
        return stamp is not None

    def pardon(self) -> list[Path]:
        """Forget the files that were replaced or removed since, and say which."""
        changed = [path for path, (stamp, *_) in self._known.items() if _stamp(path) != stamp]
        for path in changed:
            del self._known[path]
        return changed

    def reason(self, path: Path) -> str | None:
        return self._known[path][1] if path in self._known else None

    def is_worthless(self, path: Path) -> bool:
        return path in self._known and self._known[path][2]


def _stamp(path: Path) -> Stamp | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns
