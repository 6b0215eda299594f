"""What a session remembers: for each layer the raw window, the compressed rows, and the compressors' frontiers.

    Window   the last W rows in order, in a buffer long enough that appending seldom moves any
    Stream   finished rows, append-only, and the frontier: the tokens of the windows that are still open

Everything is float32 whatever the compute dtype, and lies in memory as a payload has it, so that a SessionState over a
memory is views. How many rows there are follows from the number of tokens alone: floor(tokens/ratio).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from kvformat.shapes import Shape, state_shape
from kvformat.state import LayerState, SessionState

if TYPE_CHECKING:
    from kvformat.state import Array

    from .session import Mark

EMPTY_SCORE = -1e30


class Window:
    """The raw rows of the last tokens, oldest first, contiguous."""

    def __init__(self, size: int, chunk: int, dim: int, device: torch.device) -> None:
        self.size = size
        self.buffer = torch.empty(2 * size + chunk, dim, device=device)
        self.end = 0

    def last(self, count: int) -> Tensor:
        return self.buffer[self.end - count : self.end]

    def append(self, rows: Tensor) -> Tensor:
        """Add rows [S, d]; return them after those that the first of them still sees, at most W-1."""
        seen = min(self.end, self.size - 1)
        if self.end + len(rows) > len(self.buffer):
            self.buffer[:seen] = self.last(seen)
            self.end = seen
        self.buffer[self.end : self.end + len(rows)] = rows
        self.end += len(rows)
        return self.last(seen + len(rows))

    def reset(self, live: int) -> Tensor:
        """Forget all; the place for `live` rows that someone else fills in."""
        self.end = live
        return self.last(live)


class Stream:
    """The compressed rows of one compressor and its frontier [lead + ratio, lanes*d] of kv and of score.

    Ratio 4 pools over two windows, so `lead` rows of the closed window before the open one are kept.
    """

    def __init__(self, ratio: int, dim: int, ctx: int, device: torch.device) -> None:
        self.ratio = ratio
        frontier = state_shape(ratio, dim)
        self.lead = frontier[0] - ratio
        # On the CPU an untouched page costs nothing; a CUDA buffer is paid for at once and so grows by doubling.
        rows = ctx // ratio if device.type == "cpu" else 0
        self.rows = torch.empty(rows, dim, device=device)
        self.finished = 0  # rows that nothing is put over, while tokens that are in them are processed again
        self.kv = torch.empty(frontier, device=device)
        self.score = torch.empty(frontier, device=device)

    def put(self, start: int, rows: Tensor) -> None:
        if start < self.finished:
            return
        self.reserve(start + len(rows))
        self.rows[start : start + len(rows)] = rows

    def reserve(self, rows: int) -> None:
        if rows > len(self.rows):
            with torch.inference_mode(False):  # a buffer may be written outside the forward pass, too
                grown = self.rows.new_empty(max(rows, 2 * len(self.rows)), self.rows.shape[1])
            grown[: len(self.rows)] = self.rows
            self.rows = grown

    def reset(self) -> None:
        self.finished = 0
        self.kv.zero_()
        self.score.fill_(EMPTY_SCORE)


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """One layer: a window, and what its ratio adds."""

    ratio: int
    window: Window
    attn: Stream | None
    index: Stream | None

    @property
    def streams(self) -> tuple[Stream, ...]:
        return tuple(stream for stream in (self.attn, self.index) if stream is not None)

    def fixed(self, live: int) -> list[Tensor]:
        """Views of all that does not grow with the conversation: raw rows, then kv and score of each frontier."""
        return [self.window.last(live), *(part for stream in self.streams for part in (stream.kv, stream.score))]


class Memory:
    """The buffers of one session, allocated once for `ctx` tokens, and the marks and leases that rest on their rows."""

    def __init__(self, shape: Shape, ctx: int, chunk: int, device: torch.device) -> None:
        self.shape = shape
        self.ctx = ctx
        self.length = 0  # tokens
        self.tokens = np.empty(ctx, np.uint32)
        self.logits = torch.zeros(shape.vocab, device=device)
        self.layers = tuple(
            LayerMemory(
                ratio,
                Window(shape.window, chunk, shape.head_dim, device),
                Stream(ratio, shape.head_dim, ctx, device) if ratio else None,
                Stream(ratio, shape.indexer_dim, ctx, device) if ratio == 4 else None,
            )
            for ratio in shape.ratios
        )
        self.marks: WeakSet[Mark] = WeakSet()
        self.leases: dict[int, int] = {}  # tokens that each lease covers; threads may drop theirs at any moment
        self.reset(0)

    def live(self, length: int) -> int:
        """Raw rows that a payload of `length` tokens holds."""
        return min(self.shape.window, length)

    def fixed(self) -> list[Tensor]:
        """Every layer's fixed part in order; a mark is a copy of it."""
        return [part for layer in self.layers for part in layer.fixed(self.live(self.length))]

    def reset(self, length: int) -> None:
        """Make room for a state of `length` tokens, which the caller fills in; 0 is an empty session."""
        self.length = length
        for layer in self.layers:
            layer.window.reset(self.live(length))
            for stream in layer.streams:
                stream.reset()
                stream.reserve(length // stream.ratio)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Within, the last token is processed once more; every row that it left is there, and stays as it is."""
        fixed = [part.clone() for part in self.fixed()]
        for layer in self.layers:
            layer.window.end -= 1
            for stream in layer.streams:
                stream.finished = self.length // stream.ratio
        self.length -= 1
        yield
        for layer in self.layers:
            for stream in layer.streams:
                stream.finished = 0
        for mine, before in zip(self.fixed(), fixed, strict=True):
            mine.copy_(before)

    def copy_rows(self, other: Memory, length: int) -> None:
        """Take over what `other` has of the first `length` tokens, except the fixed part."""
        self.tokens[:length] = other.tokens[:length]
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            for to, source in zip(mine.streams, theirs.streams, strict=True):
                to.put(0, source.rows[: length // source.ratio])

    def tensors(self, length: int, fixed: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        """Each layer's tensors in the payload's order: the first `length` tokens' rows, and the given fixed part."""
        parts = iter(fixed)
        for layer in self.layers:
            yield [next(parts)] + [
                part
                for stream in layer.streams
                for part in (stream.rows[: length // stream.ratio], next(parts), next(parts))
            ]

    def state(self, length: int, logits: Tensor, fixed: Sequence[Tensor]) -> SessionState:
        """The payload of the first `length` tokens."""
        layers = tuple(LayerState(*map(as_array, tensors)) for tensors in self.tensors(length, fixed))
        return SessionState(self.shape, self.ctx, self.tokens[:length], as_array(logits), layers)

    def load(self, state: SessionState) -> None:
        """Copy a state of `self.length` tokens in, where the buffers could not be filled through views."""
        self.tokens[: self.length] = state.tokens
        self.logits.copy_(torch.from_numpy(state.logits))
        for tensors, layer in zip(self.tensors(self.length, self.fixed()), state.layers, strict=True):
            for tensor, (_, array) in zip(tensors, layer.arrays(), strict=True):
                tensor.copy_(torch.from_numpy(array))


def as_array(tensor: Tensor) -> Array:
    """The tensor's own memory where numpy can see it, a copy on the host where it cannot."""
    return tensor.cpu().numpy()
