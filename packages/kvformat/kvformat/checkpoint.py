"""One .kv file: open it in constant memory, read its parts into buffers that the caller gives or map them.

Opening checks structure and reads nothing big: a 1 GB file opens in milliseconds. Raises errors of kvformat.errors only.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast

from construct import ConstructError

from kvformat import layout
from kvformat.envelope import Envelope
from kvformat.errors import Ambiguous, Mismatch, OtherDialect, Truncated
from kvformat.payload import LayerSpans, Payload, find_payload
from kvformat.shapes import KNOWN, Shape
from kvformat.spans import Span
from kvformat.state import LayerState, SessionState
from kvformat.toolmap import ToolMap, find_tool_map, read_tool_map

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Checkpoint(Envelope):
    """A sound checkpoint of ours that is open for reading. Use it as a context manager.

    payload   where the tensors lie; None in a stripped file (text only)
    tools     the tool map behind the payload; None without ext bit 0
    title     where the session title lies; None without ext bit 3
    leftover  bytes behind the last announced trailer, which belong to nobody
    trailer_problem  why a trailer that the header announces could not be read in full
    """

    def __init__(self, path: Path, file: BinaryIO, shapes: Iterable[Shape] = KNOWN) -> None:
        super().__init__(path, file)
        if self.dialect is not None and not self.dialect.ours:
            raise OtherDialect(self.dialect)
        self.payload = find_payload(file, self.header, shapes) if self.header.payload_bytes else None
        self.tools: ToolMap | None = None
        self.title: Span | None = None
        self.trailer_problem: str | None = None
        footer = layout.FOOTER_BYTES if self.identity else 0
        self.leftover = max(0, self.size - footer - self._find_trailers())

    @classmethod
    def open(cls, path: str | os.PathLike[str], shapes: Iterable[Shape] = KNOWN) -> Self:
        """Open and check one file. `shapes` settles patterns that the file alone leaves open."""
        return cls._opened(Path(path), tuple(shapes))

    # ---- the state

    @property
    def shape(self) -> Shape:
        """The settled shape; raises Ambiguous while several patterns fit, Mismatch for a stripped file."""
        payload = self._payload()
        if payload.shape is None:
            raise Ambiguous(
                f"several layer patterns fit {payload.words.tokens} tokens",
                path=self.path,
                remedy="give --shape, or a longer file of the same model in the same directory",
            )
        return payload.shape

    @property
    def layers(self) -> tuple[LayerSpans, ...]:
        """Per layer, where its tensors lie; raises like `shape`."""
        shape, layers = self.shape, self._payload().layers
        assert layers is not None and len(layers) == shape.layers
        return layers

    def read_into(self, state: SessionState) -> None:
        """Fill the caller's arrays, which must have exactly this file's shapes. They are undefined after an error."""
        state.check()
        for span, (name, target) in zip(self._spans(), state.arrays(), strict=True):
            if span.shape != tuple(target.shape):
                raise Mismatch(
                    f"{name} does not fit", path=self.path, expected=list(span.shape), found=list(target.shape)
                )
            self._fill(span, target)

    def views(self) -> SessionState:
        """The state as read-only views of the mapped file: nothing is read before it is used."""
        shape, payload = self.shape, self._payload()
        mapped = self.mapped()
        return SessionState(
            shape,
            payload.words.ctx,
            _view(mapped, payload.token_ids),
            _view(mapped, payload.logits),
            tuple(
                LayerState(**{n: _view(mapped, s) for n, s in _named_spans(layer)})
                for layer in self.layers
            ),
            payload.words.prefill_chunk,
        )  # fmt: skip

    def tool_pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """(id, block) of the tool map, as ds4 would load them."""
        return iter(()) if self.tools is None else read_tool_map(self._file, self.tools)

    # ---- inside

    def _payload(self) -> Payload:
        if self.payload is None:
            raise self._text_only()
        return self.payload

    def _spans(self) -> Iterator[Span]:
        payload = self._payload()
        yield payload.token_ids
        yield payload.logits
        for layer in self.layers:
            for _, span in _named_spans(layer):
                yield span

    def _find_trailers(self) -> int:
        """Locate what the ext flags announce, in ascending bit order; returns where the last of it ends."""
        end = self.header.payload_end
        if self.header.ext_flags & layout.EXT_TOOL_MAP:
            self.tools = find_tool_map(self._file, end, self.size)
            self.trailer_problem = self.tools.problem
            end = self.tools.end
        if self.header.ext_flags & layout.EXT_TITLE and not self.trailer_problem:
            self._file.seek(end)
            try:
                self.title = layout.TITLE.parse_stream(self._file, limit=self.size).title
                end = self.title.end
            except (ConstructError, Truncated):
                self.trailer_problem = "the title is cut short"
        return end

    def _fill(self, span: Span, target: NDArray[Any]) -> None:
        if target.nbytes:
            self.read_at(span.offset, memoryview(cast("Any", target)).cast("B"))
        if sys.byteorder == "big":
            target.byteswap(inplace=True)


def _named_spans(layer: LayerSpans) -> Iterator[tuple[str, Span]]:
    for name in LayerState.__dataclass_fields__:
        span = getattr(layer, name)
        if span is not None:
            yield name, span


def _view(mapped: mmap.mmap, span: Span) -> NDArray[Any]:
    import numpy as np

    flat = np.frombuffer(mapped, dtype=f"<{span.dtype}", count=span.nbytes // 4, offset=span.offset)
    return flat.reshape(span.shape)
