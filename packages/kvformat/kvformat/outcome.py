"""What became of a save, as a value and as one log line: stored, present, declined and failed are never confused (CASES 54)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvformat import layout
from kvformat.policy import Reason, Skipped

log = logging.getLogger("kvformat.store")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a save; only `stored` wrote a payload (`nbytes`). `seconds` is the time it took."""

    status: Literal["stored", "present", "declined", "failed"]
    path: Path | None = None
    nbytes: int = 0
    seconds: float = 0.0
    skipped: Skipped | None = None
    error: str | None = None

    def log(self, reason: Reason) -> None:
        """`present` says nothing, as in ds4."""
        name = layout.REASONS[reason]
        if self.status == "failed":
            log.warning("kv cache store failed (%s): %s", name, self.error)
        elif self.skipped:
            tokens, because, knob = self.skipped.tokens, self.skipped.because, self.skipped.knob
            log.info("kv cache skipped tokens=%d reason=%s because %s (%s)", tokens, name, because, knob)
        elif self.status == "stored":
            size, milliseconds = self.nbytes / (1 << 20), self.seconds * 1e3
            log.info("kv cache stored reason=%s size=%.2f MiB save=%.1f ms %s", name, size, milliseconds, self.path)
