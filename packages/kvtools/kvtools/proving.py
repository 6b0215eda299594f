"""`kvtool verify --prove`: feed the file's own tokens from zero, and what comes out is what is stored.

To the bit where the writer was this engine and cut the tokens at the same positions. Another writer, or other cuts, round
here and there differently: then the likeliest next token must agree where it is clearly the likeliest, and no tensor may be
further off than roundings carry. Limits are measured on files of the real ds4: at most 0.07 pooled over a right state, and
above 1 over one of other tokens or of another model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

from kvformat.checkpoint import Checkpoint
from kvformat.errors import Damaged, KVError
from kvformat.index import DirectoryIndex
from kvformat.state import SessionState
from kvtools import compatibility
from kvtools.findings import Finding, Verdict
from kvtools.tensors import FRONTIERS, live_slots

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvengine import Model

CLEAR_MARGIN = 1.0  # between the two largest logits
POOLED_LIMIT = 0.25  # rms of the difference, relative to the rms of what is stored
TENSOR_LIMIT = 0.7


@dataclass(frozen=True, slots=True)
class Proof:
    """Stored against computed. `worst` is the tensor that is relatively furthest off."""

    bitwise: bool
    pooled: float
    worst: str
    worst_rms: float
    same_choice: bool
    margin: float


def findings(checkpoint: Checkpoint, model: Model) -> Iterator[Finding]:
    """Whether this model makes this state out of these tokens."""
    payload = checkpoint.payload
    if payload is None or payload.layers is None:
        return
    if any(compatibility.findings(checkpoint, model.config.shape)):
        return  # said already
    try:
        proof = prove(checkpoint, model)
    except KVError as error:
        yield Finding("unproved", error.problem)
        return
    yield from _judged(proof)


def prove(checkpoint: Checkpoint, model: Model) -> Proof:
    """Compute the state anew and compare it. Raises KVError if the engine cannot take the tokens."""
    from kvengine import EngineError, Session

    assert checkpoint.payload is not None
    ids = checkpoint.token_ids()
    session = Session(model, len(ids) + 1, max(1, checkpoint.payload.words.prefill_chunk))
    try:
        session.feed(ids, cuts=_cuts(checkpoint))
    except EngineError as error:
        raise Damaged(f"the engine does not take its tokens: {error}") from None
    return compare(checkpoint.views(), session.state())


def compare(stored: SessionState, computed: SessionState) -> Proof:
    """Compare what two states of equal shape would be read for: logits, rows, live slots."""
    import numpy as np

    off = {name: _squares(a, b) for name, a, b in _pairs(stored, computed)}
    bitwise = all(np.array_equal(a, b) for _, a, b in _pairs(stored, computed))
    worst = max(off, key=lambda name: _relative(*off[name]))
    pooled = _relative(sum(d for d, _ in off.values()), sum(s for _, s in off.values()))
    second, first = np.partition(stored.logits, -2)[-2:] if len(stored.logits) > 1 else (-np.inf, stored.logits[0])
    same = bool(stored.logits.argmax() == computed.logits.argmax())
    return Proof(bitwise, pooled, worst, _relative(*off[worst]), same, float(first) - float(second))


def _judged(proof: Proof) -> Iterator[Finding]:
    if proof.bitwise:
        yield Finding("proved", "the model makes the same state, to the bit", verdict=Verdict.OK)
        return
    numbers = f"{proof.pooled:.2g} off over all, {proof.worst_rms:.2g} in {proof.worst}"
    wrong_choice = not proof.same_choice and proof.margin > CLEAR_MARGIN
    if wrong_choice:
        yield Finding(
            "other-choice",
            f"the model goes on with another token than the file, which is {proof.margin:.1f} ahead",
            verdict=Verdict.DAMAGED,
        )
    if not (proof.pooled <= POOLED_LIMIT and proof.worst_rms <= TENSOR_LIMIT):
        yield Finding("other-state", f"the model makes another state: {numbers}", verdict=Verdict.DAMAGED)
    elif not wrong_choice:
        yield Finding("proved", f"the model makes the same state but for roundings: {numbers}", verdict=Verdict.OK)


def _cuts(checkpoint: Checkpoint) -> list[int]:
    """Where shorter files of the same conversation show that the writer stopped."""
    index = DirectoryIndex(checkpoint.path.parent)
    index.refresh()
    return [entry.header.tokens for entry in index.prefixes_of(checkpoint.text()) if entry.header]


def _pairs(stored: SessionState, computed: SessionState) -> Iterator[tuple[str, NDArray[Any], NDArray[Any]]]:
    """Name, stored and computed, of everything that a restore reads."""
    yield "logits", stored.logits, computed.logits
    for il, (ratio, a, b) in enumerate(zip(stored.shape.ratios, stored.layers, computed.layers, strict=True)):
        for (name, x), (_, y) in zip(a.arrays(), b.arrays(), strict=True):
            if name not in FRONTIERS:
                yield f"layer{il}.{name}", x, y
                continue
            for rows in live_slots(ratio, len(stored.tokens), x.shape[1]):
                live = slice(rows.first, rows.first + rows.count), slice(rows.columns)
                yield f"layer{il}.{name}[{rows.first}:{rows.first + rows.count}]", x[live], y[live]


def _squares(stored: NDArray[Any], computed: NDArray[Any]) -> tuple[float, float]:
    """Sums of squares of the difference and of what is stored."""
    import numpy as np

    wide = stored.astype(np.float64)
    return float(np.sum((wide - computed) ** 2)), float(np.sum(wide**2))


def _relative(difference: float, stored: float) -> float:
    if not difference:
        return 0.0
    return sqrt(difference / stored) if stored else float("inf")
