"""Which saves are worth their write: disks wear out by bytes written, while the budget limits bytes kept (CASES 44).

A pure decision, and a small ledger whose clock is injected. Knows no file.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kvformat.policy import Reason, Skipped

HOUR = 3600.0

# Shares of what is on disk that a save has to add, chosen with bench/bench_policy.py.
SHARE = 1 / 40  # evict, shutdown, agent: the last chance of a state, whose tail is lost when it is refused
GROWTH = (
    1.5  # continued: insurance that the next save replaces; a run of any length writes at most 5/3 of its last file
)


@dataclass(frozen=True, slots=True)
class Limits:
    """`min_gain` in tokens, 0 writes every save; `bytes_per_hour` over all reasons, 0 for no limit."""

    min_gain: int = 512
    bytes_per_hour: int = 0


@dataclass(frozen=True, slots=True)
class Save:
    """A wanted save. `on_disk`: tokens of the longest prefix of this state that a file already holds."""

    reason: Reason
    tokens: int
    bytes: int
    on_disk: int = 0


def needed_gain(save: Save, limits: Limits) -> int:
    """How many tokens more than what is on disk the save has to hold.

    Cold points are already chosen apart from each other and past what is on disk, so any gain will do.
    """
    if not limits.min_gain or save.reason == Reason.COLD:
        return min(limits.min_gain, 1)
    share = GROWTH if save.reason == Reason.CONTINUED else SHARE
    return max(limits.min_gain, int(share * save.on_disk))


def refusal(save: Save, limits: Limits, written_last_hour: int = 0) -> Skipped | None:
    """None if the save is worth its bytes, else why not and which option decides it."""
    gain, needed = save.tokens - save.on_disk, needed_gain(save, limits)
    if gain < needed:
        because = f"it adds {gain} tokens to the {save.on_disk} on disk, less than {needed}"
        return Skipped(save.tokens, save.reason, because, "--kv-cache-min-gain-tokens")
    if limits.bytes_per_hour and written_last_hour + save.bytes > limits.bytes_per_hour:
        because = f"{written_last_hour} bytes of the hour's {limits.bytes_per_hour} are written, it needs {save.bytes}"
        return Skipped(save.tokens, save.reason, because, "--kv-write-limit")
    return None


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
