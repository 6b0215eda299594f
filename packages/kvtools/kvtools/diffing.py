"""`kvtool diff`: are two files the same state? What decides a restore is compared; counters and dates are only shown."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvformat.checkpoint import Checkpoint
from kvformat.dialects import reason_name
from kvformat.errors import Mismatch
from kvformat.nearmiss import CONTEXT, common_prefix
from kvformat.payload import Payload
from kvformat.shapes import Shape
from kvformat.spans import Span
from kvtools.opening import open_settled
from kvtools.output import progress
from kvtools.tensors import Rows, TensorDifference, Tolerance, compare_tensor, live_pairs

if TYPE_CHECKING:
    from numpy.typing import NDArray

STATE_FIELDS = frozenset({"quant_bits", "model_id", "tokens", "key_kind", "vocab", "layers", "ratios"})
LOCAL_WORDS = ("ctx", "prefill_chunk", "raw_cap", "comp_cap")  # the writer's own sizes, no part of the state
TOP = 5
EXACT = Tolerance()


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """A field of header or payload that differs. `counts` is false where two files of one state may differ."""

    field: str
    a: object
    b: object
    counts: bool


@dataclass(frozen=True, slots=True)
class TextDifference:
    """The first byte that differs, with 20 bytes of each text on both sides."""

    byte: int
    in_a: bytes
    in_b: bytes


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """The first position whose ids differ and the ids from there on; `resplit`: the same text in other pieces."""

    position: int
    in_a: tuple[int, ...]
    in_b: tuple[int, ...]
    resplit: bool


@dataclass(frozen=True, slots=True)
class LogitDifference:
    """`kl` is the divergence of B's distribution from A's in nats; the tops are (id, logit), the likeliest first."""

    equal: bool
    max_abs: float
    kl: float
    a_top: tuple[tuple[int, float], ...]
    b_top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class ToolDifference:
    """Tool call ids that only one map holds, and those that stand for another block."""

    only_a: tuple[bytes, ...]
    only_b: tuple[bytes, ...]
    other_block: tuple[bytes, ...]

    @property
    def equal(self) -> bool:
        return not (self.only_a or self.only_b or self.other_block)


@dataclass(frozen=True, slots=True)
class LayerDifference:
    """One tensor of one layer; layer None is the whole body of two files whose layer pattern stays open."""

    layer: int | None
    ratio: int | None
    tensor: TensorDifference


@dataclass(frozen=True, slots=True)
class Diff:
    """All that was compared. What is None is equal, or (logits) absent in both files."""

    fields: tuple[FieldDifference, ...]
    text: TextDifference | None
    tokens: TokenDifference | None
    logits: LogitDifference | None
    layers: tuple[LayerDifference, ...]
    tools: ToolDifference

    @property
    def equal(self) -> bool:
        return (
            not any(field.counts for field in self.fields)
            and self.text is None
            and self.tokens is None
            and (self.logits is None or self.logits.equal)
            and not any(layer.tensor.differing_rows for layer in self.layers)
            and self.tools.equal
        )


def diff_files(a: Path, b: Path, hint: Shape | tuple[int, ...] | None = None, within: Tolerance = EXACT) -> Diff:
    """Compare two files in bounded memory; what settles the layers of one settles those of the other. Raises KVError."""
    with open_settled(a, hint) as ours:
        known = hint or (ours.payload.shape if ours.payload else None)
        with open_settled(b, known) as theirs:
            if known or theirs.payload is None or theirs.payload.shape is None:
                return diff(ours, theirs, within)
            with open_settled(a, theirs.payload.shape) as settled:
                return diff(settled, theirs, within)


def diff(a: Checkpoint, b: Checkpoint, within: Tolerance = EXACT) -> Diff:
    """Compare two open files. Raises Mismatch where only one holds a state."""
    if (a.payload is None) != (b.payload is None):
        stripped = a if a.payload is None else b
        raise Mismatch(
            "holds text only, the other file a state", path=stripped.path, remedy="compare the texts instead"
        )
    same_text = _text(a, b)
    comparable = a.payload is not None and b.payload is not None and _same_sizes(a.payload, b.payload)
    return Diff(
        tuple(_fields(a, b)),
        same_text,
        _tokens(a, b, same_text is None) if a.payload else None,
        _logits(a, b, within) if comparable else None,
        tuple(_layers(a, b, within)) if comparable else (),
        _tools(a, b),
    )


def _fields(a: Checkpoint, b: Checkpoint) -> Iterator[FieldDifference]:
    ours, theirs = _described(a), _described(b)
    for name, value in ours.items():
        if value != theirs[name]:
            yield FieldDifference(name, value, theirs[name], name in STATE_FIELDS)


def _described(checkpoint: Checkpoint) -> dict[str, object]:
    h, payload = checkpoint.header, checkpoint.payload
    fields: dict[str, object] = {
        **{name: getattr(h, name) for name in ("quant_bits", "model_id", "tokens", "key_kind")},
        **{name: getattr(h, name) for name in ("hits", "ctx", "payload_abi", "created", "last_used")},
        "reason": reason_name(h, checkpoint.dialect),
        "reserved": h.reserved.hex(),
    }
    words = payload.words._asdict() if payload else {}
    fields |= {name: words.get(name) for name in ("vocab", "layers")}
    fields["ratios"] = payload.shape.ratios if payload and payload.shape else None
    return fields | {f"payload.{name}": words.get(name) for name in LOCAL_WORDS}


def _text(a: Checkpoint, b: Checkpoint) -> TextDifference | None:
    start = 0
    for ours, theirs in zip_longest(a.pieces(a.text_span), b.pieces(b.text_span), fillvalue=memoryview(b"")):
        if ours != theirs:
            byte = start + common_prefix(bytes(ours), bytes(theirs))
            return TextDifference(byte, _around(a, byte), _around(b, byte))
        start += len(ours)
    return None


def _around(checkpoint: Checkpoint, byte: int) -> bytes:
    first = max(0, byte - CONTEXT)
    span = checkpoint.text_span
    size = max(0, min(span.nbytes, byte + CONTEXT) - first)
    return b"".join(map(bytes, checkpoint.pieces(Span(span.offset + first, "u1", (size,)))))


def _tokens(a: Checkpoint, b: Checkpoint, same_text: bool) -> TokenDifference | None:
    import numpy as np

    ours, theirs = np.asarray(a.token_ids()), np.asarray(b.token_ids())
    shared = min(len(ours), len(theirs))
    unequal = np.flatnonzero(ours[:shared] != theirs[:shared])
    if not len(unequal) and len(ours) == len(theirs):
        return None
    at = int(unequal[0]) if len(unequal) else shared
    in_a, in_b = (tuple(map(int, ids[at : at + TOP])) for ids in (ours, theirs))
    return TokenDifference(at, in_a, in_b, same_text)


def _logits(a: Checkpoint, b: Checkpoint, within: Tolerance) -> LogitDifference | None:
    import numpy as np

    assert a.payload is not None and b.payload is not None
    spans = [Span(p.logits.offset, "f4", (1, p.words.vocab)) for p in (a.payload, b.payload)]
    found = compare_tensor("logits", (a, spans[0]), (b, spans[1]), [(Rows(0, 1, spans[0].shape[1]),) * 2], within)
    values = [
        np.frombuffer(b"".join(map(bytes, file.pieces(span))), "<f4").astype(np.float64)
        for file, span in zip((a, b), spans, strict=True)
    ]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        p, q = (_log_softmax(v) for v in values)
        kl = float(np.sum(np.where(np.isneginf(p), 0, np.exp(p) * (p - q))))
    tops = [tuple((int(i), float(v[i])) for i in np.argsort(-v, kind="stable")[:TOP]) for v in values]
    return LogitDifference(not found.differing_rows, found.max_abs, kl, tops[0], tops[1])


def _log_softmax(values: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    shifted: NDArray[Any] = values - values.max()
    shifted -= np.log(np.exp(shifted).sum())
    return shifted


def _layers(a: Checkpoint, b: Checkpoint, within: Tolerance) -> Iterator[LayerDifference]:
    assert a.payload is not None and b.payload is not None
    if a.payload.layers is None and b.payload.layers is None and a.payload.body.nbytes == b.payload.body.nbytes:
        yield _whole_body(a, b, within)
        return
    tokens = a.header.tokens, b.header.tokens
    layers = list(zip(a.shape.ratios, a.layers, b.layers, strict=True))
    for il, (ratio, ours, theirs) in enumerate(progress(layers, "comparing layer", len(layers))):
        for name, pairs in live_pairs(ours, theirs, ratio, tokens).items():
            tensor = compare_tensor(name, (a, getattr(ours, name)), (b, getattr(theirs, name)), pairs, within)
            yield LayerDifference(il, ratio, tensor)


def _whole_body(a: Checkpoint, b: Checkpoint, within: Tolerance) -> LayerDifference:
    assert a.payload is not None and b.payload is not None
    count = a.payload.body.nbytes // 4
    spans = [Span(p.body.offset, "f4", (count, 1)) for p in (a.payload, b.payload)]
    pair = Rows(0, count, 1), Rows(0, count, 1)
    return LayerDifference(None, None, compare_tensor("body", (a, spans[0]), (b, spans[1]), [pair], within))


def _same_sizes(a: Payload, b: Payload) -> bool:
    return _sizes(a) == _sizes(b)


def _sizes(payload: Payload) -> tuple[object, ...]:
    w = payload.words
    return w.layers, w.head_dim, w.indexer_dim, w.vocab, payload.shape.ratios if payload.shape else None


def _tools(a: Checkpoint, b: Checkpoint) -> ToolDifference:
    """Blocks may be hundreds of MB, so their digests are compared."""
    ours, theirs = (
        {name: hashlib.sha1(block, usedforsecurity=False).digest() for name, block in file.tool_pairs()}
        for file in (a, b)
    )
    return ToolDifference(
        tuple(sorted(ours.keys() - theirs.keys())),
        tuple(sorted(theirs.keys() - ours.keys())),
        tuple(sorted(name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name])),
    )
