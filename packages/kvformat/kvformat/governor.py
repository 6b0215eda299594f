"""Which saves are worth their write: disks wear out by bytes written, while the budget limits bytes kept (CASES 44).

A pure decision, and a small ledger whose clock is injected. Knows no file.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kvformat.policy import Reason, Skipped

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Limits:
    """`min_gain` in tokens, `growth` a share of what is on disk already, `bytes_per_hour` for all reasons (0: none)."""

    min_gain: int = 512
    growth: float = 1.0
    share: float = 1 / 32
    bytes_per_hour: int = 0


@dataclass(frozen=True, slots=True)
class Save:
    """A wanted save: `on_disk` is the longest prefix of this conversation, in tokens, that a file already holds."""

    reason: Reason
    tokens: int
    bytes: int
    on_disk: int = 0


def refusal(save: Save, limits: Limits, written_last_hour: int = 0) -> Skipped | None:
    """None if the save is worth its bytes, else why not.

    Cold points are chosen apart from each other and from what is on disk, so only the hourly limit refuses them.
    A continued save is insurance that the next one replaces, so in a long session it has to add a growing share: the
    bytes that a session writes stay proportional to its final size. Evict and shutdown are a state's last chance.
    """
    gain = save.tokens - save.on_disk
    needed = _needed_gain(save, limits)
    if gain < needed:
        because = f"it adds {gain} tokens to the {save.on_disk} on disk, less than {needed}"
        return Skipped(save.tokens, save.reason, because, "--kv-cache-min-gain-tokens")
    if limits.bytes_per_hour and written_last_hour + save.bytes > limits.bytes_per_hour:
        because = f"{written_last_hour} bytes were written in the last hour and {save.bytes} more pass the limit"
        return Skipped(save.tokens, save.reason, because, "--kv-cache-write-mb-per-hour")
    return None


def _needed_gain(save: Save, limits: Limits) -> int:
    if save.reason == Reason.COLD:
        return 1
    if save.reason == Reason.CONTINUED:
        return max(limits.min_gain, int(limits.growth * save.on_disk))
    return max(limits.min_gain, int(limits.share * save.on_disk))


@dataclass(slots=True)
class Ledger:
    """What was written and what was skipped, by reason, and the last hour's bytes. `clock` returns seconds."""

    clock: Callable[[], float]
    written: Counter[Reason] = field(default_factory=Counter)  # bytes
    skipped: Counter[Reason] = field(default_factory=Counter)  # saves
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    def wrote(self, save: Save) -> None:
        self.written[save.reason] += save.bytes
        self._recent.append((self.clock(), save.bytes))

    def admit(self, save: Save, limits: Limits) -> Skipped | None:
        """`refusal` with this ledger's last hour; a refused save is counted."""
        refused = refusal(save, limits, self.last_hour())
        if refused:
            self.skipped[save.reason] += 1
        return refused

    def last_hour(self) -> int:
        """Bytes written in the last 3,600 seconds."""
        horizon = self.clock() - HOUR
        while self._recent and self._recent[0][0] <= horizon:
            self._recent.popleft()
        return sum(size for _, size in self._recent)
