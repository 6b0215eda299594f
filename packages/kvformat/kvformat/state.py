"""SessionState: the in-memory twin of a DSV4 payload.

It holds arrays and says which shape each must have; it owns no buffers and copies nothing. An engine builds one over views
of its own buffers, in order to be written to a file or to be filled from one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from kvformat.errors import Mismatch
from kvformat.shapes import Shape, state_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class LayerState:
    """One layer's tensors, float32, C-contiguous, oldest row first. What a ratio does not have is None.

    Ratio 4 has two windows in a frontier: rows 0..3 the previous one, rows 4..7 the current one (row 4 + pos mod 4);
    the first half of the columns is the previous lane. Ratio 128: row = pos mod 128. Empty rows: kv 0.0, score -1e30.
    """

    raw: Array  # [R, head_dim], positions N-R .. N-1
    attn_comp: Array | None = None  # [n_comp, head_dim]
    attn_state_kv: Array | None = None  # [8, 2*head_dim] (ratio 4) or [128, head_dim] (ratio 128)
    attn_state_score: Array | None = None  # like attn_state_kv
    index_comp: Array | None = None  # [n_index_comp, indexer_dim], ratio 4 only, as the next two
    index_state_kv: Array | None = None  # [8, 2*indexer_dim]
    index_state_score: Array | None = None

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Name and array of each tensor that the layer has, in file order."""
        for field in fields(self):
            array = getattr(self, field.name)
            if array is not None:
                yield field.name, array


@dataclass(frozen=True, slots=True)
class SessionState:
    """Everything that a DSV4 payload keeps. `ctx` is the session's context length in tokens."""

    shape: Shape
    ctx: int
    tokens: Array  # u32 [N]
    logits: Array  # f32 [vocab], after the last token
    layers: tuple[LayerState, ...]
    prefill_chunk: int = 4096  # payload word 3 of generation 2, capped by ctx; readers of that generation ignore it

    @property
    def n_comp(self) -> tuple[int, ...]:
        return tuple(0 if layer.attn_comp is None else len(layer.attn_comp) for layer in self.layers)

    @property
    def n_index_comp(self) -> tuple[int, ...]:
        return tuple(0 if layer.index_comp is None else len(layer.index_comp) for layer in self.layers)

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """`tokens`, `logits`, then `layer<i>.<name>`, in file order."""
        yield "tokens", self.tokens
        yield "logits", self.logits
        for il, layer in enumerate(self.layers):
            for name, array in layer.arrays():
                yield f"layer{il}.{name}", array

    def check(self) -> None:
        """Raise Mismatch unless every array has the dtype and the shape that the payload asks for."""
        n = len(self.tokens)
        if not 0 < n < self.ctx:
            raise Mismatch("a state must hold fewer tokens than its context", expected=f"1..{self.ctx - 1}", found=n)
        comp, index = self.shape.counts(n)
        live = min(self.shape.window, n)
        _expect("tokens", self.tokens, (n,), "uint32")
        _expect("logits", self.logits, (self.shape.vocab,), "float32")
        if len(self.layers) != self.shape.layers:
            raise Mismatch("wrong number of layers", expected=self.shape.layers, found=len(self.layers))
        for il, (layer, ratio) in enumerate(zip(self.layers, self.shape.ratios, strict=True)):
            expected = layer_shapes(ratio, live, comp[il], index[il], self.shape.head_dim, self.shape.indexer_dim)
            present = dict(layer.arrays())
            if present.keys() != expected.keys():
                raise Mismatch(f"layer {il} has other tensors", expected=[*expected], found=[*present])
            for name, array in present.items():
                _expect(f"layer {il} {name}", array, expected[name], "float32")


def layer_shapes(
    ratio: int, live: int, comp: int, index: int, head_dim: int, indexer_dim: int
) -> dict[str, tuple[int, int]]:
    """Name → (rows, columns) of the tensors of one layer, in file order."""
    shapes = {"raw": (live, head_dim)}
    if ratio:
        shapes["attn_comp"] = (comp, head_dim)
        shapes["attn_state_kv"] = shapes["attn_state_score"] = state_shape(ratio, head_dim)
    if ratio == 4:
        shapes["index_comp"] = (index, indexer_dim)
        shapes["index_state_kv"] = shapes["index_state_score"] = state_shape(ratio, indexer_dim)
    return shapes


def empty_state(shape: Shape, tokens: int, ctx: int) -> SessionState:
    """A state of `tokens` tokens over fresh uninitialised arrays, to be filled by a reader."""
    import numpy as np

    comp, index = shape.counts(tokens)
    live = min(shape.window, tokens)
    layers = tuple(
        LayerState(
            **{
                name: np.empty(dims, np.float32)
                for name, dims in layer_shapes(r, live, c, i, shape.head_dim, shape.indexer_dim).items()
            }
        )
        for r, c, i in zip(shape.ratios, comp, index, strict=True)
    )
    return SessionState(shape, ctx, np.empty(tokens, np.uint32), np.empty(shape.vocab, np.float32), layers)


def _expect(name: str, array: Array, shape: tuple[int, ...], dtype: str) -> None:
    if tuple(array.shape) != shape or array.dtype.name != dtype or not array.flags.c_contiguous:
        layout = "" if array.flags.c_contiguous else " not contiguous"
        raise Mismatch(
            f"{name} does not fit",
            expected=f"{dtype}{list(shape)}",
            found=f"{array.dtype.name}{list(array.shape)}{layout}",
        )
