"""One DSV4 payload: find every tensor of it without reading one, settle its layer pattern, and write it again.

Parsing needs the row counts (small, read here) because the layers' sizes depend on them, and the ratios, which no payload
stores: a known shape brings them, else `shapes.infer_ratios` finds what fits. If several patterns fit, the payload is
*ambiguous*: its layers stay one opaque span.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, BinaryIO

from kvformat import layout
from kvformat.errors import Damaged, OtherDialect, Truncated
from kvformat.header import Header
from kvformat.shapes import Shape, front_bytes, infer_ratios, layer_bytes
from kvformat.spans import Span

MAX_LAYERS = 256  # bounds what a hostile file can make us read before its size has been checked


@dataclass(frozen=True, slots=True)
class Words:
    """The 13 words, as declared in `layout.WORDS`."""

    magic: bytes
    version: int
    ctx: int
    prefill_chunk: int
    raw_cap: int
    raw_window: int
    comp_cap: int
    tokens: int
    layers: int
    head_dim: int
    indexer_dim: int
    vocab: int
    raw_live: int


@dataclass(frozen=True, slots=True)
class LayerSpans:
    """Where one layer's tensors lie; None for what its ratio does not have. Names as in `state.LayerState`."""

    raw: Span
    attn_comp: Span | None
    attn_state_kv: Span | None
    attn_state_score: Span | None
    index_comp: Span | None
    index_state_kv: Span | None
    index_state_score: Span | None


@dataclass(frozen=True, slots=True)
class Payload:
    """Where everything lies. `shape` and `layers` are None while several layer patterns fit (`body` spans them all)."""

    words: Words
    token_ids: Span
    logits: Span
    n_comp: tuple[int, ...]
    n_index_comp: tuple[int, ...]
    counts: Span  # both count arrays
    body: Span
    shape: Shape | None
    layers: tuple[LayerSpans, ...] | None


def find_payload(file: BinaryIO, header: Header, shapes: Iterable[Shape]) -> Payload:
    """Locate the tensors of the payload that `header` announces; `shapes` are the patterns known to the caller.

    Raises Truncated, Damaged or OtherDialect with the absolute offset of the fault.
    """
    if header.payload_bytes < layout.WORDS.sizeof():
        raise Truncated(
            "no room for the 13 payload words",
            offset=header.payload_offset,
            expected="52 bytes",
            found=header.payload_bytes,
        )
    file.seek(header.payload_offset)
    words = Words(**_fields(layout.WORDS.parse_stream(file)))
    _check_words(header, words)
    need = front_bytes(words.tokens, words.vocab, words.layers)
    if need > header.payload_bytes:
        raise Truncated(
            "the payload ends before its layers",
            offset=header.payload_offset,
            expected=f"at least {need} bytes",
            found=header.payload_bytes,
        )
    file.seek(header.payload_offset)
    front = layout.PAYLOAD_FRONT.parse_stream(file, limit=header.payload_end)
    n_comp = tuple(read_u32(file, front.n_comp))
    n_index_comp = tuple(read_u32(file, front.n_index_comp))
    body = Span(front.n_index_comp.end, "u1", (header.payload_end - front.n_index_comp.end,))
    _check_counts(words, n_comp, n_index_comp, front.n_comp.offset)
    shape = _settle(header, words, n_comp, n_index_comp, body, shapes)
    layers = None if shape is None else _find_layers(file, words, shape, n_comp, n_index_comp, body)
    counts = Span(front.n_comp.offset, "u4", (2, words.layers))
    return Payload(words, front.token_ids, front.logits, n_comp, n_index_comp, counts, body, shape, layers)


def _check_words(header: Header, words: Words) -> None:
    """What ds4 refuses by the words alone (FORMAT 2.4), without the checks that depend on the reader's own context."""

    def at(index: int) -> int:
        return header.payload_offset + 4 * index

    if words.magic != layout.DSV4_MAGIC:
        raise OtherDialect(f"payload magic {words.magic!r}", offset=at(0), remedy="it is shown and kept, never changed")
    if words.version != layout.GENERATIONS[header.payload_abi]:
        raise OtherDialect(
            f"DSV4 version {words.version} under payload ABI {header.payload_abi}",
            offset=at(1),
            remedy="it is shown and kept, never changed",
        )
    if words.raw_live in (layout.V41_WORD_12, layout.QWEN_WORD_12):
        raise OtherDialect(
            "the payload grammar of another model", offset=at(12), remedy="it is shown and kept, never changed"
        )
    if not 0 < words.layers <= MAX_LAYERS:
        raise Damaged("implausible number of layers", offset=at(8), expected=f"1..{MAX_LAYERS}", found=words.layers)
    if words.tokens != header.tokens:
        raise Damaged(
            "header and payload disagree on the tokens", offset=at(7), expected=header.tokens, found=words.tokens
        )
    room = max(header.ctx, words.ctx) // 4 + 2
    if words.comp_cap > room:
        raise Damaged(
            "the compressed cache is larger than its context", offset=at(6), expected=room, found=words.comp_cap
        )
    live = min(words.raw_window, words.tokens)
    if words.raw_live != live or words.raw_live > words.raw_cap:
        raise Damaged(
            "the raw ring contradicts itself",
            offset=at(12),
            expected=f"min(window {words.raw_window}, tokens {words.tokens}) live rows within a ring of {words.raw_cap}",
            found=words.raw_live,
        )


def _check_counts(words: Words, n_comp: tuple[int, ...], n_index_comp: tuple[int, ...], offset: int) -> None:
    for name, counts, start in (("compressed", n_comp, offset), ("indexer", n_index_comp, offset + 4 * words.layers)):
        for il, count in enumerate(counts):
            if count > words.comp_cap:
                raise Damaged(
                    f"layer {il} has more {name} rows than the cache holds",
                    offset=start + 4 * il,
                    expected=f"at most {words.comp_cap}",
                    found=count,
                )


def _settle(
    header: Header,
    words: Words,
    n_comp: tuple[int, ...],
    n_index_comp: tuple[int, ...],
    body: Span,
    shapes: Iterable[Shape],
) -> Shape | None:
    """The shape whose layers fill the body exactly; None if several patterns do."""

    def size(ratios: tuple[int, ...]) -> int:
        per_layer = zip(ratios, n_comp, n_index_comp, strict=True)
        return sum(layer_bytes(r, words.raw_live, c, i, words.head_dim, words.indexer_dim) for r, c, i in per_layer)

    named = [
        s
        for s in shapes
        if (s.layers, s.head_dim, s.indexer_dim, s.vocab)
        == (words.layers, words.head_dim, words.indexer_dim, words.vocab)
        and words.raw_window in (s.window, words.ctx)
    ]
    fitting = [s for s in named if size(s.ratios) == body.nbytes]
    if named and not fitting:
        raise Damaged(
            f"the payload is not the size of {named[0].name} at {words.tokens} tokens",
            offset=body.offset,
            expected=f"{size(named[0].ratios)} bytes of layers",
            found=body.nbytes,
        )
    if len({s.ratios for s in fitting}) == 1:
        if fitting[0].model_id != header.model_id:
            raise OtherDialect(f"model byte {header.model_id} over the layout of {fitting[0].name}", offset=7)
        return fitting[0]
    if fitting:
        return None
    if header.model_id:
        raise OtherDialect(
            f"model byte {header.model_id} over a layout that is not {layout.MODELS[header.model_id]}", offset=7
        )
    found = infer_ratios(
        words.tokens, words.raw_live, n_comp, n_index_comp, words.head_dim, words.indexer_dim, body.nbytes
    )
    if not found:
        raise Damaged(
            "no pattern of layers has the size of this payload", offset=body.offset, found=f"{body.nbytes} bytes"
        )
    if len(found) > 1:
        return None
    return Shape(f"{words.layers}-layer", found[0], words.head_dim, words.indexer_dim, words.vocab, words.raw_window)


def _find_layers(
    file: BinaryIO, words: Words, shape: Shape, n_comp: tuple[int, ...], n_index_comp: tuple[int, ...], body: Span
) -> tuple[LayerSpans, ...]:
    """Layers of one ratio and equal counts look alike, and a model has few such kinds: one of each is parsed, the rest moved."""
    layers: list[LayerSpans] = []
    kinds: dict[tuple[int, int, int], tuple[int, LayerSpans, int]] = {}  # → start, spans, end of the first one
    offset = body.offset
    for kind in zip(shape.ratios, n_comp, n_index_comp, strict=True):
        if kind not in kinds:
            kinds[kind] = offset, _find_layer(file, words, kind, offset, body.end), file.tell()
        start, first, end = kinds[kind]
        layers.append(_moved(first, offset - start))
        offset += end - start
    return tuple(layers)


def _find_layer(file: BinaryIO, words: Words, kind: tuple[int, int, int], offset: int, limit: int) -> LayerSpans:
    ratio, comp, index = kind
    file.seek(offset)
    found = layout.LAYER.parse_stream(
        file,
        limit=limit,
        ratio=ratio,
        live=words.raw_live,
        comp=comp,
        index=index,
        head_dim=words.head_dim,
        indexer_dim=words.indexer_dim,
    )
    return LayerSpans(**_fields(found))


def _moved(layer: LayerSpans, by: int) -> LayerSpans:
    spans = (getattr(layer, field.name) for field in fields(layer))
    return LayerSpans(*(span and Span(span.offset + by, span.dtype, span.shape) for span in spans))


def read_u32(file: BinaryIO, span: Span) -> array[int]:
    """The integers of a `u4` span, without numpy. The span is bounded by the file's size before it gets here."""
    values = array("I")
    file.seek(span.offset)
    data = file.read(span.nbytes)
    if len(data) != span.nbytes:
        raise Truncated("the file became shorter while it was read", offset=span.offset + len(data))
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _fields(container: Any) -> dict[str, Any]:
    return {key: value for key, value in container.items() if not key.startswith("_")}
