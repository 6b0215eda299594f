"""`kvtool verify`: is this file what it says it is? Findings with stable codes, and one verdict per file.

Here is what every level checks, from structure to token ids and logits, which is little to read. Dearer checks are handed in.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

from kvformat import layout
from kvformat.checkpoint import Checkpoint
from kvformat.errors import KVError
from kvformat.shapes import Shape
from kvtools.opening import open_settled
from kvtools.output import safe


class Verdict(StrEnum):
    """The worst that was found, from best to worst."""

    OK = "ok"
    WARNING = "warning"  # readable, but something is not as a writer should leave it
    AMBIGUOUS = "ambiguous"
    ORPHAN = "orphan"  # a temp of a writer that is gone, a sidecar whose checkpoint is gone
    INCOMPATIBLE = "incompatible"  # sound, and not of the model that was named
    MISMATCH = "mismatch"  # the shape that was asked for is not the file's
    OTHER_DIALECT = "other-dialect"
    FOREIGN = "foreign"
    TRUNCATED = "truncated"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth saying. `code` is stable; `offset` is in bytes from the start of the file; `verdict` is how bad it is."""

    code: str
    message: str
    offset: int | None = None
    verdict: Verdict = Verdict.WARNING


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in one file, and what was done with it."""

    path: Path
    verdict: Verdict
    findings: tuple[Finding, ...]
    sealed: bool = False
    quarantined: Path | None = None

    @classmethod
    def of(cls, path: Path, findings: Iterable[Finding]) -> Report:
        """The verdict is that of the worst finding."""
        found = tuple(findings)
        return cls(path, max((f.verdict for f in found), key=[*Verdict].index, default=Verdict.OK), found)


Check = Callable[[Checkpoint], Iterable[Finding]]


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
    yield from _envelope(checkpoint)
    if checkpoint.payload is not None:
        yield from _words(checkpoint)
        yield from _counts(checkpoint)
        yield from _tokens_and_logits(checkpoint)
        if checkpoint.payload.shape is None:
            yield Finding("ambiguous", "several layer patterns fit; give --shape", verdict=Verdict.AMBIGUOUS)


def _envelope(checkpoint: Checkpoint) -> Iterator[Finding]:
    header = checkpoint.header
    key = checkpoint.text_key()
    if checkpoint.name_key is None:
        yield Finding("name-unused", "ds4-server does not look at a file of this name")
    elif checkpoint.name_key != key:
        yield Finding(
            "name-mismatch", f"the name is not the SHA1 {key} of the text, so no prompt finds it", layout.TEXT_OFFSET
        )
    if not header.text_bytes:
        yield Finding("empty-text", "an empty key matches every prompt", layout.HEADER_BYTES)
    if header.reason >= len(layout.REASONS):
        yield Finding("unknown-reason", f"reason {header.reason} is read as unknown", 5)
    if header.ext_flags & ~layout.EXT_KNOWN:
        yield Finding(
            "unknown-flags", f"ext flags {header.ext_flags:#04x} hold bits that no build gives a meaning to", 6
        )
    if any(header.reserved):
        yield Finding("reserved-bytes", f"reserved bytes {header.reserved.hex()}", 21)
    if header.tokens >= 1 << 31:
        yield Finding("never-picked", "ds4 reads this many tokens as a negative number", 8)
    if not header.payload_bytes:
        yield Finding("stripped", "text only: nothing can be restored from it", 40)
    if checkpoint.trailer_problem:
        yield Finding("trailer", checkpoint.trailer_problem, header.payload_end)
    if checkpoint.leftover:
        yield Finding(
            "leftover", f"{checkpoint.leftover} bytes belong to no section", checkpoint.size - checkpoint.leftover
        )


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
    for name, span, code in (("token ids", ids, "token-id"), ("logits", logits, "not-finite")):
        position = 0
        for piece in checkpoint.pieces(span):
            values = np.frombuffer(piece, f"<{span.dtype}")
            bad = np.flatnonzero(values >= vocab) if span is ids else np.flatnonzero(~np.isfinite(values))
            if len(bad):
                at = position + int(bad[0])
                problem = f"{values[bad[0]]} at position {at}" + (f", vocabulary {vocab}" if span is ids else "")
                yield Finding(code, f"{name}: {problem}", span.offset + 4 * at)
                break
            position += len(values)


def report_fields(report: Report) -> dict[str, Any]:
    """One file's report for programs."""
    return {
        "path": str(report.path),
        "verdict": report.verdict.value,
        "findings": [asdict(finding) for finding in report.findings],
        "sealed": report.sealed,
        "quarantined": None if report.quarantined is None else str(report.quarantined),
    }


def print_report(report: Report) -> None:
    """One line for a sound file, one more for each finding."""
    click.echo(f"{report.verdict.value:<13} {safe(os.fsencode(report.path))}")
    for finding in report.findings:
        where = f" (byte {finding.offset})" if finding.offset is not None else ""
        click.echo(f"{'':<13}   {finding.code}: {finding.message}{where}")
    if report.quarantined:
        click.echo(f"{'':<13}   moved to {safe(os.fsencode(report.quarantined))}")


def totals(reports: Sequence[Report]) -> dict[str, int]:
    """Files per verdict, worst last."""
    counts = Counter(report.verdict for report in reports)
    return {verdict.value: counts[verdict] for verdict in Verdict if counts[verdict]}


def summary(reports: Sequence[Report]) -> str:
    """One sentence under the reports."""
    return f"{len(reports)} files: " + (
        ", ".join(f"{n} {verdict}" for verdict, n in totals(reports).items()) or "nothing to verify"
    )
