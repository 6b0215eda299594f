"""One DSV4 payload: find every tensor of it without reading one, settle its layer pattern, and write it again.

Parsing needs the row counts (small, read here) because the layers' sizes depend on them, and the ratios, which no payload
stores: a known shape brings them, else `ratios` finds what fits. If several patterns fit, the payload is *ambiguous*: its
layers stay one opaque span.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, BinaryIO

from kvformat import dialects, layout
from kvformat.errors import Damaged, KVError, OtherDialect, Truncated
from kvformat.header import Header
from kvformat.ratios import Layers
from kvformat.recognition import MTP_TAIL
from kvformat.shapes import Shape, front_bytes, layer_bytes
from kvformat.spans import Span, read_u32
from kvformat.words import Words


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

    `recognition` has found nothing that speaks against a generation of ours. Raises Truncated or Damaged with the absolute
    offset of the fault, and OtherDialect for more bytes than the words and counts account for.
    """
    file.seek(header.payload_offset)
    words = Words(**_fields(layout.WORDS.parse_stream(file)))
    words.check(header)
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
    """The shape whose layers fill the body exactly: one of `shapes`, else what the file itself says; None if several do."""

    def size(ratios: tuple[int, ...]) -> int:
        per_layer = zip(ratios, n_comp, n_index_comp, strict=True)
        return sum(layer_bytes(r, words.raw_live, c, i, words.head_dim, words.indexer_dim) for r, c, i in per_layer)

    named = [s for s in shapes if _is_of(s, words)]
    fitting = [s for s in named if size(s.ratios) == body.nbytes]
    if len({s.ratios for s in fitting}) == 1:
        if fitting[0].model_id != header.model_id:
            raise OtherDialect(dialects.unknown(f"model byte {header.model_id} over the layout of {fitting[0].name}"))
        return fitting[0]
    if fitting:
        return None
    layers = Layers(words.tokens, words.raw_live, n_comp, n_index_comp, words.head_dim, words.indexer_dim)
    found = layers.patterns(body.nbytes, relaxed=not named)
    if not found:
        raise _misfit(words, layers, body, named)
    if len(found) > 1:
        return None
    w = words
    return Shape(
        f"{w.layers}-layer", found[0], w.head_dim, w.indexer_dim, w.vocab, w.raw_window, model_id=header.model_id
    )


def _is_of(shape: Shape, w: Words) -> bool:
    sizes = (w.layers, w.head_dim, w.indexer_dim, w.vocab)
    return (shape.layers, shape.head_dim, shape.indexer_dim, shape.vocab) == sizes and w.raw_window in (
        shape.window,
        w.ctx,
    )


def _misfit(words: Words, layers: Layers, body: Span, named: list[Shape]) -> KVError:
    """More bytes than consistent counts account for are somebody's extension; all else contradicts itself."""
    bounds = layers.bounds()
    if bounds and body.nbytes > bounds[0]:
        if words.version == 2 and layers.patterns(body.nbytes - MTP_TAIL, relaxed=False):
            return OtherDialect(dialects.ENTRPI_2)
        return OtherDialect(dialects.extension(body.nbytes - bounds[0] if bounds[0] == bounds[1] else None))
    whose = (
        f"the payload is not the size of {named[0].name}"
        if named
        else "no pattern of layers has the size of this payload"
    )
    return Damaged(
        f"{whose} at {words.tokens} tokens",
        offset=body.offset,
        expected=f"{bounds[0] if bounds else 'other'} bytes of layers",
        found=body.nbytes,
    )


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


def _fields(container: Any) -> dict[str, Any]:
    return {key: value for key, value in container.items() if not key.startswith("_")}
