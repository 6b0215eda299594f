"""`kvtool verify --full`: every number that a restore would use is one, and the state is as long as its key and its tokens say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from kvformat.checkpoint import Checkpoint
from kvformat.errors import Damaged
from kvformat.payload import LayerSpans
from kvformat.sidecar import read_sidecar
from kvformat.spans import Span
from kvtools.findings import Finding, Verdict
from kvtools.sweeping import SCHEME, checksum, suspects
from kvtools.tensors import EMPTY_SCORE, Rows, live_slots

if TYPE_CHECKING:
    from numpy.typing import NDArray

EOS_TEXT = "<｜end▁of▁sentence｜>".encode()
EOS_ID = 1
ROWS = ("raw", "attn_comp", "index_comp")
FRONTIERS = ("attn_state", "index_state")


def findings(checkpoint: Checkpoint, pool: Executor) -> Iterator[Finding]:
    """What reading all of an open file shows beyond `verifying.warnings`. Layers of an ambiguous file are not known."""
    recorded = _recorded(checkpoint)
    if isinstance(recorded, Finding):
        yield recorded
        recorded = ""
    intact = bool(recorded) and checksum(checkpoint, pool) == recorded
    if recorded and not intact:
        yield Finding("checksum", "not the bytes that were sealed", verdict=Verdict.DAMAGED)
    sweep = iter(()) if intact else suspects(checkpoint, pool)  # what is sealed was looked through when it was sealed
    yield from _unfed_eos(checkpoint)
    payload = checkpoint.payload
    layers = () if payload is None or payload.layers is None else payload.layers
    empty = list(_frontiers(checkpoint, layers))  # while the threads sweep
    doubtful = list(sweep)
    for il, layer in enumerate(layers):
        yield from _rows(checkpoint, il, layer, doubtful)
    yield from empty
    if doubtful:
        yield from _frontier_numbers(checkpoint, layers)


def _recorded(checkpoint: Checkpoint) -> str | Finding:
    """The checksum in the sidecar, empty if there is none, or what is wrong with the sidecar."""
    try:
        recorded = read_sidecar(checkpoint.path).checksum
    except Damaged as error:
        return Finding("sidecar", error.problem)
    if recorded and not recorded.startswith(SCHEME):
        return Finding("sidecar", f"a checksum of another kind than {SCHEME}… is not checked")
    return recorded


def _unfed_eos(checkpoint: Checkpoint) -> Iterator[Finding]:
    """A predicted key ends in an EOS that upstream never feeds (CASES 80)."""
    text, payload = checkpoint.text_span, checkpoint.payload
    if payload is None or checkpoint.header.key_kind == "token-text" or text.nbytes < len(EOS_TEXT):
        return
    end, last = bytearray(len(EOS_TEXT)), bytearray(4)
    checkpoint.read_at(text.end - len(end), memoryview(end))
    checkpoint.read_at(payload.token_ids.end - 4, memoryview(last))
    if end == EOS_TEXT and int.from_bytes(last, "little") != EOS_ID:
        yield Finding(
            "unfed-eos",
            "the key ends in an EOS that the state was not fed: a restore has to feed it first, and ds4 does not",
            text.end - len(end),
        )


def _rows(checkpoint: Checkpoint, il: int, layer: LayerSpans, doubtful: list[Span]) -> Iterator[Finding]:
    """The first number of each tensor that is none, looked for only where the sweep saw one."""
    for name in ROWS:
        span: Span | None = getattr(layer, name)
        if span is None:
            continue
        for suspect in doubtful:
            start, end = max(span.offset, suspect.offset), min(span.end, suspect.end)
            at = _first_not_finite(_floats(checkpoint, start, end)) if start < end else None
            if at is not None:
                offset = start + 4 * at
                row = (offset - span.offset) // (4 * span.shape[1])
                yield _not_finite(f"layer {il} {name} row {row}", offset)
                break


def _frontiers(checkpoint: Checkpoint, layers: tuple[LayerSpans, ...]) -> Iterator[Finding]:
    """Slots that will be read again must hold something. The one pattern that upstream's GPU path leaves empty is named once."""
    tokens = checkpoint.header.tokens
    quirk: Counter[int] = Counter()
    for name, _, score, rows in _live_frontiers(checkpoint, layers):
        values, offset = _slot(checkpoint, score, rows)
        if rows.first and (values <= EMPTY_SCORE).all():
            quirk[offset] += 1
        else:
            yield from _slot_findings(name, rows, values, offset)
    if quirk:
        yield Finding(
            "gpu-frontier",
            f"the open window of {len(quirk)} compressors is empty at {tokens} tokens: ds4's GPU path lost it after one "
            "prefill of a length that is no multiple of 4, and what follows differs; save it again from its text",
            min(quirk),
        )


def _frontier_numbers(checkpoint: Checkpoint, layers: tuple[LayerSpans, ...]) -> Iterator[Finding]:
    """The kv side of the live slots, which is worth a look only where the sweep saw something."""
    for name, kv, _, rows in _live_frontiers(checkpoint, layers):
        yield from _kv_findings(f"{name}_kv", *_slot(checkpoint, kv, rows))


def _live_frontiers(checkpoint: Checkpoint, layers: tuple[LayerSpans, ...]) -> Iterator[tuple[str, Span, Span, Rows]]:
    """Name, kv, score and the rows that will be read again, for each frontier of each layer."""
    for il, layer in enumerate(layers):
        for name in FRONTIERS:
            kv, score = getattr(layer, f"{name}_kv"), getattr(layer, f"{name}_score")
            if score is not None:
                live = live_slots(checkpoint.shape.ratios[il], checkpoint.header.tokens, score.shape[1])
                yield from ((f"layer {il} {name}", kv, score, rows) for rows in live if rows.count)


def _slot_findings(name: str, rows: Rows, scores: NDArray[Any], offset: int) -> Iterator[Finding]:
    empty = scores <= EMPTY_SCORE
    if empty.any():
        slot = rows.first + int(empty.any(axis=1).argmax())
        yield Finding("frontier-empty", f"{name}: slot {slot} is empty and will be read", offset, Verdict.DAMAGED)
    elif _first_not_finite(scores) is not None:
        yield _not_finite(f"{name}_score", offset)


def _kv_findings(name: str, values: NDArray[Any], offset: int) -> Iterator[Finding]:
    if _first_not_finite(values) is not None:
        yield _not_finite(name, offset)


def _slot(checkpoint: Checkpoint, span: Span, rows: Rows) -> tuple[NDArray[Any], int]:
    """Some rows of a frontier, and where they begin."""
    start = span.offset + 4 * span.shape[1] * rows.first
    values = _floats(checkpoint, start, start + 4 * span.shape[1] * rows.count)
    return values.reshape(rows.count, span.shape[1])[:, : rows.columns], start


def _floats(checkpoint: Checkpoint, start: int, end: int) -> NDArray[Any]:
    import numpy as np

    data = bytearray(end - start)
    checkpoint.read_at(start, memoryview(data))
    return np.frombuffer(data, "<f4")


def _first_not_finite(values: NDArray[Any]) -> int | None:
    import numpy as np

    finite = np.isfinite(values)
    return None if finite.all() else int(finite.argmin())


def _not_finite(where: str, offset: int) -> Finding:
    return Finding("state-not-finite", f"{where} holds a NaN or an infinity", offset, Verdict.DAMAGED)
