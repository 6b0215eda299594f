"""Known model shapes: layers, ratios, sizes, and the exact size formula of a DSV4 payload (FORMAT 1.3).

A payload does not store its compression ratios. A known shape brings them; for any other shape `infer_ratios` finds
every pattern that the row counts and the payload size allow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import comb, prod

F32 = 4
HEAD_WORDS = 13
RATIOS = (0, 4, 128)


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

    def payload_bytes(self, tokens: int) -> int:
        """Exact payload size in bytes of a state of `tokens` tokens."""
        comp, index = self.counts(tokens)
        live = min(self.window, tokens)
        body = sum(
            layer_bytes(r, live, c, i, self.head_dim, self.indexer_dim)
            for r, c, i in zip(self.ratios, comp, index, strict=True)
        )
        return front_bytes(tokens, self.vocab, self.layers) + body


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


def known_shape(
    layers: int, head_dim: int, indexer_dim: int, vocab: int, among: Iterable[Shape] = KNOWN
) -> Shape | None:
    """The shape of the table whose header words are these, if there is one."""
    words = (layers, head_dim, indexer_dim, vocab)
    return next((s for s in among if (s.layers, s.head_dim, s.indexer_dim, s.vocab) == words), None)


MAX_GROUPS = 4  # distinct (n_comp, n_index) pairs that leave a choice; real files have one
MAX_SPLITS = 40_000  # ways to share ratios out that we are willing to try: 256 layers of three possible ratios


def infer_ratios(
    tokens: int,
    live: int,
    comp: Sequence[int],
    index: Sequence[int],
    head_dim: int,
    indexer_dim: int,
    body_bytes: int,
    limit: int = 2,
) -> list[tuple[int, ...]]:
    """Every ratio pattern (at most `limit`) whose layers sum up to `body_bytes`, exact counts preferred.

    Layers with equal counts are interchangeable for the size, so only the *number* of each ratio among them is searched.
    An empty list means that no pattern fits; more than one means that the file is ambiguous.
    """
    exact = [_exact_ratios(tokens, c, i) for c, i in zip(comp, index, strict=True)]
    found = list(_patterns(live, comp, index, exact, head_dim, indexer_dim, body_bytes, limit))
    if not found and not all(exact):
        # A writer whose counts are off (ds4 accepts rows on a ratio-0 layer): let the size decide for those layers.
        relaxed = [e or RATIOS for e in exact]
        found = list(_patterns(live, comp, index, relaxed, head_dim, indexer_dim, body_bytes, limit))
    return found


def _exact_ratios(tokens: int, comp: int, index: int) -> tuple[int, ...]:
    expected = {0: (0, 0), 4: (tokens // 4, tokens // 4), 128: (tokens // 128, 0)}
    return tuple(r for r in RATIOS if expected[r] == (comp, index))


def _patterns(
    live: int,
    comp: Sequence[int],
    index: Sequence[int],
    allowed: Sequence[tuple[int, ...]],
    head_dim: int,
    indexer_dim: int,
    body_bytes: int,
    limit: int,
) -> Iterator[tuple[int, ...]]:
    if not all(allowed):
        return
    groups = Counter(zip(comp, index, allowed, strict=True))
    open_groups = [g for g in groups if len(g[2]) > 1]
    if len(open_groups) > MAX_GROUPS:
        return

    def cost(c: int, i: int, ratio: int) -> int:
        return layer_bytes(ratio, live, c, i, head_dim, indexer_dim)

    fixed = sum(n * cost(c, i, a[0]) for (c, i, a), n in groups.items() if len(a) == 1)
    if prod(comb(groups[g] + len(g[2]) - 1, len(g[2]) - 1) for g in open_groups) > MAX_SPLITS:
        return
    for split in product(*(_splits(groups[g], len(g[2])) for g in open_groups)):
        total = fixed + sum(
            n * cost(c, i, r)
            for (c, i, a), shares in zip(open_groups, split, strict=True)
            for r, n in zip(a, shares, strict=True)
        )
        if total != body_bytes:
            continue
        for pattern in _arrangements(
            list(zip(comp, index, allowed, strict=True)), dict(zip(open_groups, split, strict=True))
        ):
            yield pattern
            limit -= 1
            if limit <= 0:
                return


def _splits(n: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write n as an ordered sum of `parts` non-negative integers."""
    if parts == 1:
        yield (n,)
        return
    for first in range(n + 1):
        for rest in _splits(n - first, parts - 1):
            yield (first, *rest)


LayerKey = tuple[int, int, tuple[int, ...]]  # n_comp, n_index_comp, ratios that these allow


def _arrangements(keys: list[LayerKey], shares: dict[LayerKey, tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Up to two patterns that hand each group's shares out over its layers: one, or proof that there are several."""
    several = any(sum(n > 0 for n in split) > 1 for split in shares.values())
    for order in (1, -1) if several else (1,):
        pools = {
            k: [r for r, n in zip(k[2], split, strict=True) for _ in range(n)][::order] for k, split in shares.items()
        }
        yield tuple(pools[k].pop(0) if k in pools else k[2][0] for k in keys)
