"""The construct fields that find a big tensor without reading it, and that write one without copying it.

Parsing a `Tensor` yields a `Span` and moves on; nothing is read and no length is believed before it is bounded by `limit`,
the real end of what may be parsed (a keyword of `parse_stream`). Building takes any C-contiguous buffer.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO

from construct import Construct

from kvformat.errors import Mismatch, Truncated

ITEM_BYTES = {"u1": 1, "u4": 4, "f4": 4}
Dim = int | Callable[[Any], int]


@dataclass(frozen=True, slots=True)
class Span:
    """Where an array lies: absolute byte offset, element type (`u1`, `u4`, `f4`; little-endian), shape."""

    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


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


class Tensor(Construct):  # type: ignore[type-arg]
    """An array of `dims` elements (numbers or functions of the context) of one of the `ITEM_BYTES` types."""

    def __init__(self, dtype: str, *dims: Dim) -> None:
        super().__init__()
        self.dtype = dtype
        self.dims = dims

    def _shape(self, context: Any) -> tuple[int, ...]:
        return tuple(dim(context) if callable(dim) else dim for dim in self.dims)

    def _parse(self, stream: Any, context: Any, path: str) -> Span:
        span = Span(stream.tell(), self.dtype, self._shape(context))
        if span.end > context._params.limit:
            raise Truncated(
                f"{_field(path)} does not fit into what is left",
                offset=span.offset,
                expected=f"{span.nbytes} bytes",
                found=f"{context._params.limit - span.offset}",
            )
        stream.seek(span.end)
        return span

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        shape = self._shape(context)
        view = memoryview(obj)
        if view.nbytes != prod(shape) * ITEM_BYTES[self.dtype]:
            raise Mismatch(
                f"{_field(path)} has the wrong size",
                expected=f"{self.dtype}{list(shape)}",
                found=f"{view.nbytes} bytes",
            )
        if view.nbytes:  # a view with a zero in its shape cannot be cast
            stream.write(view.cast("B"))
        return obj

    def _sizeof(self, context: Any, path: str) -> int:
        return prod(self._shape(context)) * ITEM_BYTES[self.dtype]


def _field(path: str) -> str:
    """`(parsing) -> layers -> raw` → `raw`."""
    return path.rsplit(" -> ", 1)[-1]
