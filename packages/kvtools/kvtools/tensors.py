"""Where two tensors of two files differ, a bounded piece at a time: no file is mapped, so its size never shows in memory.

Only live rows are compared. Which rows of a tensor mean anything is decided here, by MODEL section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvformat.checkpoint import Checkpoint
from kvformat.payload import LayerSpans
from kvformat.spans import Span

if TYPE_CHECKING:
    from numpy.typing import NDArray

PIECE = 1 << 20
EMPTY_SCORE = -5e29  # a score at or below marks a slot that nothing was written to, whatever the writer put there
FRONTIERS = ("attn_state_kv", "attn_state_score", "index_state_kv", "index_state_score")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Values are equal within `atol + rtol * |value in B|`, or when neither is a number."""

    atol: float = 0.0
    rtol: float = 0.0


@dataclass(frozen=True, slots=True)
class Rows:
    """`count` rows from row `first` on, of each the first `columns` values."""

    first: int
    count: int
    columns: int


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """What came of comparing one tensor. Rows are numbered as in A; `max_abs` and `rms` are over all values compared."""

    name: str
    rows: int
    differing_rows: int
    first_row: int | None
    max_abs: float
    rms: float


Pair = tuple[Rows, Rows]


def live_pairs(a: LayerSpans, b: LayerSpans, ratio: int, tokens: tuple[int, int]) -> dict[str, list[Pair]]:
    """Tensor → which rows of A stand for the same tokens as which rows of B.

    The raw ring holds the last positions, compressed rows only ever grow at the end, and a frontier belongs to one token
    count alone.
    """
    starts = tokens[0] - a.raw.shape[0], tokens[1] - b.raw.shape[0]
    first, count = max(starts), max(0, min(tokens) - max(starts))
    width = a.raw.shape[1]
    pairs = {"raw": [(Rows(first - starts[0], count, width), Rows(first - starts[1], count, width))] if count else []}
    for name in ("attn_comp", "index_comp"):
        ours, theirs = getattr(a, name), getattr(b, name)
        if ours is not None and theirs is not None:
            rows = Rows(0, min(ours.shape[0], theirs.shape[0]), ours.shape[1])
            pairs[name] = [(rows, rows)]
    for name in FRONTIERS:
        span = getattr(a, name)
        if span is not None and tokens[0] == tokens[1]:
            pairs[name] = [(rows, rows) for rows in live_slots(ratio, tokens[0], span.shape[1])]
    return pairs


def live_slots(ratio: int, tokens: int, columns: int) -> Iterator[Rows]:
    """The slots of a frontier that will be read again; the others keep whatever the writer left there."""
    pending = tokens % ratio
    if ratio == 4:
        if tokens >= ratio:
            yield Rows(0, ratio, columns // 2)  # of the previous window only the first lane is pooled once more
        yield Rows(ratio, pending, columns)
    else:
        yield Rows(0, pending, columns)


def compare_tensor(
    name: str, a: tuple[Checkpoint, Span], b: tuple[Checkpoint, Span], pairs: list[Pair], within: Tolerance
) -> TensorDifference:
    """Compare the paired rows of one tensor in two files."""
    tally = _Tally(name.endswith("_score"), within)
    for ours, theirs in pairs:
        row = ours.first
        for left, right in zip(_pieces(*a, ours), _pieces(*b, theirs), strict=True):
            tally.add(left, right, row)
            row += len(left)
    return tally.result(name)


def _pieces(checkpoint: Checkpoint, span: Span, rows: Rows) -> Iterator[NDArray[Any]]:
    import numpy as np

    width = span.shape[1]
    if not width:
        return
    wanted = Span(span.offset + 4 * width * rows.first, span.dtype, (rows.count, width))
    for piece in checkpoint.pieces(wanted, max(1, PIECE // (4 * width)) * 4 * width):
        yield np.frombuffer(piece, f"<{span.dtype}").reshape(-1, width)[:, : rows.columns]


class _Tally:
    """Sums over all pieces of one tensor."""

    def __init__(self, are_scores: bool, within: Tolerance) -> None:
        self._are_scores, self._within = are_scores, within
        self._rows = self._values = self._differing = 0
        self._first: int | None = None
        self._max = self._squares = 0.0

    def add(self, a: NDArray[Any], b: NDArray[Any], row: int) -> None:
        import numpy as np

        self._rows += len(a)
        self._values += a.size
        if np.array_equal(a, b):
            return
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.abs(a.astype(np.float64) - b)
            distance[(a == b) | (np.isnan(a) & np.isnan(b))] = 0  # infinities of one sign differ by NaN
            if self._are_scores:
                distance[(a <= EMPTY_SCORE) & (b <= EMPTY_SCORE)] = 0
            beyond = ~(distance <= self._within.atol + self._within.rtol * np.abs(b.astype(np.float64)))
            self._squares += float(np.sum(distance * distance))
        self._max = float(np.maximum(self._max, distance.max()))  # unlike max(), it keeps a NaN
        differing = np.flatnonzero((beyond & (distance != 0)).any(axis=1))
        self._differing += len(differing)
        if self._first is None and len(differing):
            self._first = row + int(differing[0])

    def result(self, name: str) -> TensorDifference:
        rms = (self._squares / self._values) ** 0.5 if self._values else 0.0
        return TensorDifference(name, self._rows, self._differing, self._first, self._max, rms)
