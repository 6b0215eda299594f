"""Known model shapes: layers, ratios, sizes, and the exact size formula of a DSV4 payload (FORMAT 1.3).

A payload does not store its compression ratios. A known shape brings them; for any other, `ratios` finds every pattern that
the row counts and the payload size allow.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache

F32 = 4
HEAD_WORDS = 13
RATIOS = (0, 4, 128)
MAX_LAYERS = 256  # bounds what a hostile file can make us read or search before its size has been checked


@dataclass(frozen=True, slots=True)
class Shape:
    """What the payload's layout depends on. Every size is a number of float32 elements unless it says bytes."""

    name: str
    ratios: tuple[int, ...]  # per layer: 0 sliding window only, 4 with an indexer, 128 without
    head_dim: int = 512
    indexer_dim: int = 128
    vocab: int = 129280
    window: int = 128
    model_id: int = 0

    @property
    def layers(self) -> int:
        return len(self.ratios)

    def counts(self, tokens: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Compressed rows and indexer rows per layer after `tokens` tokens: floor(N/ratio), floor(N/4)."""
        comp = tuple(tokens // r if r else 0 for r in self.ratios)
        return comp, tuple(tokens // 4 if r == 4 else 0 for r in self.ratios)

    def payload_bytes(self, tokens: int, live: int | None = None) -> int:
        """Exact payload size in bytes of a state of `tokens` tokens; `live` raw rows, unless as many as the window has."""
        rows = min(self.window, tokens) if live is None else live
        body = sum(
            layers * exact_layer_bytes(ratio, tokens, rows, self.head_dim, self.indexer_dim)
            for ratio, layers in _kinds(self.ratios)
        )
        return front_bytes(tokens, self.vocab, self.layers) + body


@cache
def _kinds(ratios: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(ratio, layers that have it): the size of every file of a directory is asked for."""
    return tuple(Counter(ratios).items())


def _interleaved(first: int, layers: int) -> tuple[int, ...]:
    return first, first, *(4 if il % 2 == 0 else 128 for il in range(2, layers))


FLASH = Shape("flash", _interleaved(0, 43), model_id=0)
PRO = Shape("pro", _interleaved(128, 61), model_id=1)
KNOWN = (FLASH, PRO)


def state_shape(ratio: int, dim: int) -> tuple[int, int]:
    """Rows and columns of each of the two compressor frontiers (kv and score). Ratio 4 overlaps: two windows, two lanes."""
    lanes = 2 if ratio == 4 else 1
    return lanes * ratio, lanes * dim


def front_bytes(tokens: int, vocab: int, layers: int) -> int:
    """Bytes before the first layer: 13 words, token ids, logits, two counts per layer."""
    return F32 * (HEAD_WORDS + tokens + vocab + 2 * layers)


def layer_bytes(ratio: int, live: int, comp: int, index: int, head_dim: int, indexer_dim: int) -> int:
    """Bytes of one layer with `live` raw rows, `comp` compressed rows and `index` indexer rows."""
    elements = live * head_dim
    if ratio:
        rows, cols = state_shape(ratio, head_dim)
        elements += comp * head_dim + 2 * rows * cols
    if ratio == 4:
        rows, cols = state_shape(ratio, indexer_dim)
        elements += index * indexer_dim + 2 * rows * cols
    return F32 * elements


def exact_layer_bytes(ratio: int, tokens: int, live: int, head_dim: int, indexer_dim: int) -> int:
    """Bytes of one layer that has a row for every full window of its ratio."""
    comp, index = tokens // ratio if ratio else 0, tokens // 4 if ratio == 4 else 0
    return layer_bytes(ratio, live, comp, index, head_dim, indexer_dim)


def fills(body_bytes: int, layers: int, tokens: int, live: int, head_dim: int, indexer_dim: int) -> bool:
    """Whether some number of layers of each ratio, all with exact counts, is so many bytes. In one pass over the layers."""
    if not 0 < layers <= MAX_LAYERS:
        return False
    plain, four, long = (exact_layer_bytes(ratio, tokens, live, head_dim, indexer_dim) for ratio in RATIOS)
    for count in range(layers + 1):
        rest = body_bytes - layers * plain - count * (four - plain)
        if rest % (long - plain) == 0 and 0 <= rest // (long - plain) <= layers - count:
            return True
    return False


@cache
def known_shape(layers: int, head_dim: int, indexer_dim: int, vocab: int) -> Shape | None:
    """The shape of the table whose words 8 to 11 are these, if there is one."""
    words = (layers, head_dim, indexer_dim, vocab)
    return next((s for s in KNOWN if (s.layers, s.head_dim, s.indexer_dim, s.vocab) == words), None)
