"""Write one .kv file from a session state, in either generation, byte for byte as ds4 writes it (FORMAT 8)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from kvformat import layout
from kvformat.checkpoint import Checkpoint
from kvformat.durable import replace_durably
from kvformat.errors import Mismatch
from kvformat.header import Header
from kvformat.state import LayerState, SessionState
from kvformat.toolmap import encode_tool_map
from kvformat.words import Words

Buffer = Any  # anything with the buffer protocol: bytes, array, numpy array, memoryview


@dataclass(frozen=True, slots=True)
class PayloadContents:
    """A payload's words and arrays. An ambiguous file has no ratios and no layers, only their bytes as one `body`."""

    words: Words
    token_ids: Buffer
    logits: Buffer
    n_comp: tuple[int, ...]
    n_index_comp: tuple[int, ...]
    ratios: tuple[int, ...]
    layers: tuple[LayerState, ...]
    body: Buffer = b""


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything in a file. The header's text and payload lengths are those of the parts."""

    header: Header
    text: Buffer
    payload: PayloadContents | None
    trailers: Buffer = b""

    @property
    def nbytes(self) -> int:
        return self.header.payload_end + memoryview(self.trailers).nbytes

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Contents:
        """What an open file holds, as mapped views; `build` gives the same bytes again."""
        mapped = memoryview(checkpoint.mapped())
        found = checkpoint.payload
        payload = None
        if found is not None:

            def cut(span: Any) -> memoryview:
                return mapped[span.offset : span.end]

            payload = PayloadContents(
                found.words,
                cut(found.token_ids),
                cut(found.logits),
                found.n_comp,
                found.n_index_comp,
                found.shape.ratios if found.shape else (),
                checkpoint.views().layers if found.shape else (),
                b"" if found.shape else cut(found.body),
            )
        text = checkpoint.text_span
        return cls(checkpoint.header, mapped[text.offset : text.end], payload, mapped[checkpoint.header.payload_end :])

    @classmethod
    def from_state(
        cls,
        state: SessionState,
        text: bytes,
        *,
        reason: str,
        quant_bits: int,
        now: int,
        generation: int = 2,
        key_kind: str = "token-text",
        tool_map: Iterable[tuple[bytes, bytes]] = (),
    ) -> Contents:
        """A new checkpoint of `state` under the key `text`; `generation` is the payload ABI, 0 or 2, `now` in unix seconds."""
        state.check()
        if not text:
            raise Mismatch("an empty text would match every prompt", remedy="give the rendered text of the tokens")
        shape, n = state.shape, len(state.tokens)
        window = min(shape.window, state.ctx)
        n_comp, n_index_comp = shape.counts(n)
        words = Words(
            layout.DSV4_MAGIC,
            layout.GENERATIONS[generation],
            state.ctx,
            min(state.ctx, 2048 if generation == 0 else state.prefill_chunk),
            window,
            window,
            state.ctx // 4 + 2,
            n,
            shape.layers,
            shape.head_dim,
            shape.indexer_dim,
            shape.vocab,
            min(window, n),
        )
        trailer = encode_tool_map(tool_map)
        flags = {
            "token-text": 0,
            "responses-visible": layout.EXT_RESPONSES_VISIBLE,
            "thinking-visible": layout.EXT_THINKING_VISIBLE,
        }
        header = Header(
            layout.KVC_MAGIC,
            layout.KVC_VERSION,
            quant_bits,
            layout.REASONS.index(reason),
            flags[key_kind] | (layout.EXT_TOOL_MAP if trailer else 0),
            shape.model_id,
            n,
            0,
            state.ctx,
            generation,
            bytes(3),
            now,
            now,
            shape.payload_bytes(n),
            len(text),
        )
        payload = PayloadContents(words, state.tokens, state.logits, n_comp, n_index_comp, shape.ratios, state.layers)
        return cls(header, text, payload, trailer)


def build(contents: Contents, file: BinaryIO) -> None:
    """Write the file's bytes in order; big arrays go to `file` as they are, uncopied."""
    file.write(contents.header.encode())
    file.write(contents.text)
    if contents.payload is not None:
        _build_payload(contents.payload, file)
    file.write(contents.trailers)


def _build_payload(payload: PayloadContents, file: BinaryIO) -> None:
    words = payload.words
    layout.PAYLOAD_FRONT.build_stream(
        {
            "words": words._asdict(),
            "token_ids": payload.token_ids,
            "logits": payload.logits,
            "n_comp": _u32(payload.n_comp),
            "n_index_comp": _u32(payload.n_index_comp),
        },
        file,
    )
    file.write(payload.body)
    if not payload.ratios:
        return
    for ratio, comp, index, layer in zip(
        payload.ratios, payload.n_comp, payload.n_index_comp, payload.layers, strict=True
    ):
        layout.LAYER.build_stream(
            {name: getattr(layer, name) for name in LayerState.__dataclass_fields__},
            file,
            ratio=ratio,
            live=words.raw_live,
            comp=comp,
            index=index,
            head_dim=words.head_dim,
            indexer_dim=words.indexer_dim,
        )


def write(final: Path, contents: Contents, *, durable: bool = True) -> None:
    """Write `contents` under the name `final`, all or nothing; raises NotWritten."""
    replace_durably(final, contents.nbytes, lambda file: build(contents, file), durable=durable)


def _u32(values: tuple[int, ...]) -> bytes:
    return b"".join(value.to_bytes(4, "little") for value in values)
