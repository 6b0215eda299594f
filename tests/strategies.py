"""Hypothesis strategies for small valid files of every dialect that this package writes, and random bytes around them."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from kvformat import layout
from kvformat.header import Header
from kvformat.prefix import text_key
from kvformat.shapes import RATIOS, Shape
from kvformat.state import LayerState, SessionState, layer_shapes
from kvformat.writer import Contents, build

U32, U64 = 2**32 - 1, 2**64 - 1
KEY_KINDS = ("token-text", "responses-visible", "thinking-visible")


@dataclass(frozen=True, slots=True)
class Sample:
    """One generated file: its bytes, the parts that it was built from, and the shape that settles it."""

    data: bytes
    contents: Contents
    shape: Shape

    @property
    def name(self) -> str:
        return f"{text_key(bytes(self.contents.text))}.kv"


def random_state(shape: Shape, tokens: int, ctx: int, seed: int = 0) -> SessionState:
    """A state of the right sizes: valid ids, finite logits, and any bit pattern (NaN too) in the layers."""
    rng = np.random.default_rng(seed)

    def bits(dims: tuple[int, ...]) -> np.ndarray:
        return rng.integers(0, U32, dims, np.uint32, endpoint=True).view(np.float32)

    live = min(shape.window, tokens)
    layers = tuple(
        LayerState(
            **{
                name: bits(dims)
                for name, dims in layer_shapes(r, live, c, i, shape.head_dim, shape.indexer_dim).items()
            }
        )
        for r, c, i in zip(shape.ratios, *shape.counts(tokens), strict=True)
    )
    ids = rng.integers(0, shape.vocab, tokens, np.uint32)
    return SessionState(shape, ctx, ids, rng.standard_normal(shape.vocab, np.float32), layers)


def built(contents: Contents) -> bytes:
    """The file's bytes."""
    file = io.BytesIO()
    build(contents, file)
    return file.getvalue()


def patched(data: bytes, *changes: tuple[int, bytes]) -> bytes:
    """The same bytes with others at some offsets."""
    copy = bytearray(data)
    for offset, piece in changes:
        copy[offset : offset + len(piece)] = piece
    return bytes(copy)


def shapes() -> st.SearchStrategy[Shape]:
    return st.builds(
        Shape,
        st.just("small"),
        st.lists(st.sampled_from(RATIOS), min_size=1, max_size=5).map(tuple),
        head_dim=st.integers(1, 5),
        indexer_dim=st.integers(1, 4),
        vocab=st.integers(1, 24),
        window=st.integers(1, 24),
    )


@st.composite
def states(draw: st.DrawFn) -> SessionState:
    """Lengths around the boundaries of both ratios are as likely as all the others together."""
    tokens = draw(st.sampled_from([1, 3, 4, 127, 128, 129, 256]) | st.integers(1, 300))
    ctx = tokens + draw(st.integers(1, 4000))
    return random_state(draw(shapes()), tokens, ctx, draw(st.integers(0, 1000)))


tool_pairs = st.lists(
    st.tuples(st.binary(min_size=1, max_size=256), st.binary(min_size=1, max_size=60)), min_size=1, max_size=4
)


@st.composite
def samples(draw: st.DrawFn, payload: bool | None = None) -> Sample:
    """A whole file. `payload` False gives stripped files only, True none of them."""
    state = draw(states())
    contents = Contents.from_state(
        state,
        draw(st.binary(min_size=1, max_size=80)),
        reason=draw(st.sampled_from(layout.REASONS)),
        quant_bits=draw(st.sampled_from([2, 4])),
        now=draw(st.integers(0, U64)),
        generation=draw(st.sampled_from([0, 2])),
        key_kind=draw(st.sampled_from(KEY_KINDS)),
        tool_map=draw(tool_pairs | st.just([])),
    )
    contents = replace(contents, header=_odd_bytes(draw, contents.header))
    if payload is not True and (payload is False or draw(st.integers(0, 4)) == 0):
        contents = replace(contents, header=contents.header.with_sizes(contents.header.text_bytes, 0), payload=None)
    if draw(st.booleans()):
        contents = _titled(contents, draw(st.binary(max_size=40)))
    contents = replace(contents, trailers=contents.trailers + draw(st.just(b"") | st.binary(max_size=40)))
    return Sample(built(contents), contents, state.shape)


def _odd_bytes(draw: st.DrawFn, header: Header) -> Header:
    """What a stranger may have left there and a touch must not lose: unknown flags, reserved bytes, any counter."""
    return header._replace(
        ext_flags=header.ext_flags | draw(st.integers(0, 15)) << 4,
        reserved=draw(st.just(bytes(3)) | st.binary(min_size=3, max_size=3)),
        hits=draw(st.integers(0, U32)),
        last_used=draw(st.integers(0, U64)),
    )


def _titled(contents: Contents, title: bytes) -> Contents:
    header = contents.header._replace(ext_flags=contents.header.ext_flags | layout.EXT_TITLE)
    return replace(contents, header=header, trailers=contents.trailers + len(title).to_bytes(4, "little") + title)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid file after a few blows: overwritten words, cuts, insertions."""
    data = bytearray(draw(samples()).data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, min(len(data), 400)) | st.integers(0, len(data)))
        match draw(st.sampled_from(["word", "cut", "insert", "flip"])):
            case "word":
                value = draw(st.sampled_from([0, 1, 127, 128, 2**31, U32]) | st.integers(0, U32))
                data[at : at + 4] = value.to_bytes(4, "little")
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(max_size=16))
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)


def plain_state(shape: Shape | None = None, tokens: int = 130, ctx: int = 512) -> SessionState:
    """A fixed state for tests that need any file at all: 130 tokens settle its pattern."""
    return random_state(shape or Shape("small", (0, 4, 128), 3, 2, 16, 8), tokens, ctx)


def plain_file(generation: int = 2, tool_map: tuple[tuple[bytes, bytes], ...] = (), **changes: object) -> Sample:
    """A fixed sound file; `changes` go to its header."""
    state = plain_state()
    contents = Contents.from_state(
        state,
        b"Hello.\nWorld",
        reason="cold",
        quant_bits=2,
        now=1_790_000_000,
        generation=generation,
        tool_map=tool_map,
    )
    contents = replace(contents, header=contents.header._replace(**changes))
    return Sample(built(contents), contents, state.shape)


def mutate(base: bytes, mutation: dict[str, Any]) -> bytes:
    """Apply a recipe of kvc_mutations.json."""
    data = patched(base, *((offset, bytes.fromhex(piece)) for offset, piece in mutation.get("patch", ())))
    if "remove" in mutation:
        start, end = mutation["remove"]
        data = data[:start] + data[end:]
    data = data[: mutation.get("truncate", len(data))]
    tail = mutation.get("append", "")
    return data + (base if tail == "base" else bytes.fromhex(tail)) + bytes(mutation.get("append_zeros", 0))
