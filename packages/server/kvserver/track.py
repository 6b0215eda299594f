"""Bytes to tokens of one request: where each token of the prompt's suffix and of the answer ends in the client's text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class Track:
    """Starts where the state was taken up: at token `tokens`, which is byte `nbytes` of the text; then one entry per token."""

    def __init__(self, tokens: int, nbytes: int) -> None:
        self._first = tokens
        self._ends = [nbytes]

    @property
    def tokens(self) -> int:
        return self._first + len(self._ends) - 1

    @property
    def nbytes(self) -> int:
        return self._ends[-1]

    def extend(self, lengths: Iterable[int]) -> None:
        """Tokens of these many bytes follow."""
        end = self._ends[-1]
        for length in lengths:
            end += length
            self._ends.append(end)

    def byte(self, position: int) -> int:
        """Where the text of the first `position` tokens ends."""
        return self._ends[position - self._first]

    def position(self, byte: int) -> int | None:
        """How many tokens lie within the first `byte` bytes; None for what lies before the start."""
        found = bisect_right(self._ends, byte) - 1
        return None if found < 0 else self._first + found
