"""How long each phase of a request took."""

from __future__ import annotations

import time
from itertools import pairwise


class Stopwatch:
    """Runs from its creation; a phase ends with each lap."""

    def __init__(self) -> None:
        self._ends = [time.monotonic()]

    def lap(self) -> None:
        self._ends.append(time.monotonic())

    def laps(self) -> list[float]:
        """Milliseconds of each phase."""
        return [(end - start) * 1e3 for start, end in pairwise(self._ends)]
