"""`kvtool verify --model`: could this model restore the file at all? By shape; files do not say which weights made them."""

from __future__ import annotations

from collections.abc import Iterator

from kvformat.checkpoint import Checkpoint
from kvformat.shapes import Shape
from kvtools.findings import Finding, Verdict


def findings(checkpoint: Checkpoint, shape: Shape) -> Iterator[Finding]:
    """One finding if header, words or layer pattern are another model's."""
    payload, header = checkpoint.payload, checkpoint.header
    if payload is None:
        return
    words, ratios = payload.words, payload.shape.ratios if payload.shape else shape.ratios
    theirs = (header.model_id, ratios, words.head_dim, words.indexer_dim, words.vocab)
    if theirs != (shape.model_id, shape.ratios, shape.head_dim, shape.indexer_dim, shape.vocab):
        yield Finding(
            "other-model",
            f"made by model {header.model_id} of {words.layers} layers, head {words.head_dim}, vocabulary {words.vocab}; "
            f"yours is model {shape.model_id} of {shape.layers} layers, head {shape.head_dim}, vocabulary {shape.vocab}",
            header.payload_offset,
            Verdict.INCOMPATIBLE,
        )
