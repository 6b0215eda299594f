"""How each layer of a payload compresses, found from its row counts and its size, since no payload says it.

Layers with equal counts are interchangeable for the size, so only the *number* of each ratio among them is searched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import comb, prod

from kvformat.shapes import RATIOS, layer_bytes

MAX_GROUPS = 4  # distinct (n_comp, n_index) pairs that leave a choice; real files have one
MAX_SPLITS = 40_000  # ways to share ratios out that we are willing to try: 256 layers of three possible ratios
ENOUGH = 2  # patterns: one settles a file, more than one make it ambiguous

LayerKey = tuple[int, int, tuple[int, ...]]  # n_comp, n_index_comp, ratios that these allow


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of one payload of `tokens` tokens, as far as its words and counts describe them; `live` raw rows each."""

    tokens: int
    live: int
    comp: Sequence[int]
    index: Sequence[int]
    head_dim: int
    indexer_dim: int

    def patterns(self, body_bytes: int, *, relaxed: bool) -> list[tuple[int, ...]]:
        """The ratio patterns (at most two) whose layers sum up to `body_bytes`, exact counts preferred.

        `relaxed`: else one of a writer whose counts are off (ds4 accepts rows on a ratio-0 layer), where the size decides.
        An empty list means that no pattern fits; more than one means that the file is ambiguous.
        """
        exact = self._exact()
        found = list(self._patterns(exact, body_bytes))
        if not found and relaxed and not all(exact):
            found = list(self._patterns([options or RATIOS for options in exact], body_bytes))
        return found

    def bounds(self) -> tuple[int, int] | None:
        """Fewest and most bytes that layers with these counts can have; None where some layer's counts contradict the tokens."""
        exact = self._exact()
        if not all(exact):
            return None
        costs = [
            [self._cost(c, i, ratio) for ratio in options]
            for c, i, options in zip(self.comp, self.index, exact, strict=True)
        ]
        return sum(map(min, costs)), sum(map(max, costs))

    def _exact(self) -> list[tuple[int, ...]]:
        """Per layer, the ratios that have exactly its counts after so many tokens."""
        n = self.tokens
        expected = {0: (0, 0), 4: (n // 4, n // 4), 128: (n // 128, 0)}
        counts = zip(self.comp, self.index, strict=True)
        return [tuple(ratio for ratio in RATIOS if expected[ratio] == pair) for pair in counts]

    def _cost(self, comp: int, index: int, ratio: int) -> int:
        return layer_bytes(ratio, self.live, comp, index, self.head_dim, self.indexer_dim)

    def _patterns(self, allowed: Sequence[tuple[int, ...]], body_bytes: int) -> Iterator[tuple[int, ...]]:
        if not all(allowed):
            return
        keys = list(zip(self.comp, self.index, allowed, strict=True))
        groups = Counter(keys)
        open_groups = [group for group in groups if len(group[2]) > 1]
        if len(open_groups) > MAX_GROUPS:
            return
        fixed = sum(n * self._cost(c, i, a[0]) for (c, i, a), n in groups.items() if len(a) == 1)
        if prod(comb(groups[g] + len(g[2]) - 1, len(g[2]) - 1) for g in open_groups) > MAX_SPLITS:
            return
        wanted = ENOUGH
        for split in product(*(_splits(groups[g], len(g[2])) for g in open_groups)):
            total = fixed + sum(
                n * self._cost(c, i, ratio)
                for (c, i, a), shares in zip(open_groups, split, strict=True)
                for ratio, n in zip(a, shares, strict=True)
            )
            if total != body_bytes:
                continue
            for pattern in _arrangements(keys, dict(zip(open_groups, split, strict=True))):
                yield pattern
                wanted -= 1
                if not wanted:
                    return


def _splits(n: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write n as an ordered sum of `parts` non-negative integers."""
    if parts == 1:
        yield (n,)
        return
    for first in range(n + 1):
        for rest in _splits(n - first, parts - 1):
            yield (first, *rest)


def _arrangements(keys: list[LayerKey], shares: dict[LayerKey, tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Up to two patterns that hand each group's shares out over its layers: one, or proof that there are several."""
    several = any(sum(n > 0 for n in split) > 1 for split in shares.values())
    for order in (1, -1) if several else (1,):
        pools = {
            k: [r for r, n in zip(k[2], split, strict=True) for _ in range(n)][::order] for k, split in shares.items()
        }
        yield tuple(pools[k].pop(0) if k in pools else k[2][0] for k in keys)
