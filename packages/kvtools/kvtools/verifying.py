"""`kvtool verify`: is this file what it says it is?

Here is what every level checks, from structure to token ids and logits, which is little to read. Dearer checks are handed in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from kvformat.checkpoint import Checkpoint
from kvformat.errors import KVError
from kvformat.shapes import Shape
from kvtools import envelopecheck
from kvtools.findings import Check, Finding, Report, Verdict
from kvtools.opening import open_settled


def verify(path: Path, hint: Shape | tuple[int, ...] | None = None, checks: Sequence[Check] = ()) -> Report:
    """Check one file's structure, its name, its token ids and its logits, then `checks`; never raises for what the file holds."""
    try:
        with open_settled(path, hint) as checkpoint:
            return Report.of(path, [f for check in (warnings, *checks) for f in check(checkpoint)])
    except KVError as error:
        offset, error.path, error.offset = error.offset, None, None  # both stand beside the sentence
        return Report.of(path, [Finding(error.code, str(error), offset, Verdict(error.code))])


def warnings(checkpoint: Checkpoint) -> Iterator[Finding]:
    """What an open file shows without reading its layers."""
    yield from envelopecheck.findings(checkpoint)
    if checkpoint.payload is not None:
        yield from _words(checkpoint)
        yield from _counts(checkpoint)
        yield from _tokens_and_logits(checkpoint)
        if checkpoint.payload.shape is None:
            yield Finding("ambiguous", "several layer patterns fit; give --shape", verdict=Verdict.AMBIGUOUS)


def _words(checkpoint: Checkpoint) -> Iterator[Finding]:
    assert checkpoint.payload is not None
    header, words = checkpoint.header, checkpoint.payload.words
    start = header.payload_offset
    if words.ctx != header.ctx:
        yield Finding("ctx-mismatch", f"the header says ctx {header.ctx}, the payload {words.ctx}", start + 8)
    if words.tokens >= words.ctx:
        yield Finding("ctx-full", f"{words.tokens} tokens do not fit into ctx {words.ctx}", start + 8)
    if words.comp_cap != words.ctx // 4 + 2:
        yield Finding(
            "comp-cap",
            f"compressed capacity {words.comp_cap} instead of ctx / 4 + 2 = {words.ctx // 4 + 2}",
            start + 24,
        )
    if header.payload_abi == 0 and words.prefill_chunk != min(words.ctx, 2048):
        yield Finding(
            "prefill-chunk", f"a May build refuses prefill chunk {words.prefill_chunk} unless it is its own", start + 12
        )
    if words.raw_cap > 8192:
        yield Finding("raw-cap", f"no build has a raw ring of {words.raw_cap} rows", start + 16)


def _counts(checkpoint: Checkpoint) -> Iterator[Finding]:
    payload = checkpoint.payload
    if payload is None or payload.shape is None:
        return
    wanted = payload.shape.counts(payload.words.tokens)
    for name, counts, expected, row in (
        ("n_comp", payload.n_comp, wanted[0], 0),
        ("n_index_comp", payload.n_index_comp, wanted[1], payload.words.layers),
    ):
        for il, (found, right) in enumerate(zip(counts, expected, strict=True)):
            if found != right:
                offset = payload.counts.offset + 4 * (row + il)
                yield Finding(
                    "row-count", f"layer {il} has {name} {found}, {payload.words.tokens} tokens make {right}", offset
                )


def _tokens_and_logits(checkpoint: Checkpoint) -> Iterator[Finding]:
    import numpy as np

    assert checkpoint.payload is not None
    ids, logits, vocab = checkpoint.payload.token_ids, checkpoint.payload.logits, checkpoint.payload.words.vocab
    only_zeros = True
    for name, span, code in (("token ids", ids, "token-id"), ("logits", logits, "not-finite")):
        position = 0
        for piece in checkpoint.pieces(span):
            values = np.frombuffer(piece, f"<{span.dtype}")
            bad = np.flatnonzero(values >= vocab) if span is ids else np.flatnonzero(~np.isfinite(values))
            if span is logits:
                only_zeros &= not values.any()
            if len(bad):
                at = position + int(bad[0])
                problem = f"{values[bad[0]]} at position {at}" + (f", vocabulary {vocab}" if span is ids else "")
                yield Finding(code, f"{name}: {problem}", span.offset + 4 * at)
                break
            position += len(values)
    if only_zeros:
        message = "all logits are zero, as in records of a fork's bank: the last token has to be fed again"
        yield Finding("zero-logits", message, logits.offset)
