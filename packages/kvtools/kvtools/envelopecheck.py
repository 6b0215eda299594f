"""What `kvtool verify` checks around the payload: the name, the header's odd values, the trailers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from kvformat import layout
from kvformat.checkpoint import Checkpoint
from kvformat.dialects import flag_names, reason_name
from kvformat.policy import Reason
from kvtools.findings import Finding, Verdict

AGENT = (Reason.AGENT_SYSTEM, Reason.AGENT_SESSION)


def findings(checkpoint: Checkpoint) -> Iterator[Finding]:
    """All that an open file shows outside its payload."""
    yield from _name(checkpoint)
    yield from _header(checkpoint)
    yield from _trailers(checkpoint)


def _name(checkpoint: Checkpoint) -> Iterator[Finding]:
    """A name is the SHA1 of the text, or of something else that the file still holds; else one of the two has changed."""
    key = checkpoint.text_key()
    if checkpoint.name_key is None:
        yield Finding("name-unused", "ds4-server does not look at a file of this name")
    elif checkpoint.name_key != key:
        message = f"the name is not the SHA1 {key} of the text"
        if other := _other_origin(checkpoint):
            yield Finding("name-mismatch", f"{message} but {other}: no prompt finds it", layout.TEXT_OFFSET)
        else:
            rot = f"{message}: one of them has changed since it was written"
            yield Finding("name-mismatch", rot, layout.TEXT_OFFSET, Verdict.DAMAGED)
    if not checkpoint.header.text_bytes:
        yield Finding("empty-text", "an empty key matches every prompt", layout.HEADER_BYTES)


def _other_origin(checkpoint: Checkpoint) -> str | None:
    """What else writers have made names of (FORMAT 1.2, DIALECTS 2.1); None where nothing explains this one."""
    header = checkpoint.header
    if header.reason in AGENT:
        return "ds4-agent's"  # it named sessions by their text, then by title and time, and titles may be changed
    if header.model_id and _sha1(bytes([header.model_id]), checkpoint.text()) == checkpoint.name_key:
        return "that of the model byte and the text, as Entrpi's line names other models"
    if checkpoint.payload and _sha1(*checkpoint.pieces(checkpoint.payload.token_ids)) == checkpoint.name_key:
        return "that of the token ids, as ds4 named files until 2026-05-10"
    return None


def _sha1(*parts: bytes | memoryview) -> str:
    digest = hashlib.sha1(usedforsecurity=False)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _header(checkpoint: Checkpoint) -> Iterator[Finding]:
    header = checkpoint.header
    if header.reason >= len(layout.REASONS):
        yield Finding("unknown-reason", f"ds4 reads the reason {reason_name(header, checkpoint.dialect)} as unknown", 5)
    if header.ext_flags & ~layout.EXT_KNOWN:
        flags = ", ".join(flag_names(header, checkpoint.dialect))
        yield Finding("unknown-flags", f"ext flags {header.ext_flags:#04x} ({flags}): not all are ds4's", 6)
    if any(header.reserved):
        yield Finding("reserved-bytes", f"reserved bytes {header.reserved.hex()}", 21)
    if header.tokens >= 1 << 31:
        yield Finding("never-picked", "ds4 reads this many tokens as a negative number", 8)
    if not header.payload_bytes:
        yield from _stripped(checkpoint)


def _stripped(checkpoint: Checkpoint) -> Iterator[Finding]:
    """ds4-agent cuts a stripped session off behind its text, so a payload there means that the length is wrong."""
    start = bytearray(min(4, checkpoint.size - checkpoint.header.payload_offset))
    checkpoint.read_at(checkpoint.header.payload_offset, memoryview(start))
    if start == layout.DSV4_MAGIC:
        message = "the header says that it holds text only, and a payload stands behind the text"
        yield Finding("payload-denied", message, 40, Verdict.DAMAGED)
    else:
        yield Finding("stripped", "text only: nothing can be restored from it", 40)


def _trailers(checkpoint: Checkpoint) -> Iterator[Finding]:
    end = checkpoint.header.payload_end
    if checkpoint.trailer_problem:
        yield Finding("trailer", checkpoint.trailer_problem, end)
    if checkpoint.leftover:
        yield Finding(
            "leftover", f"{checkpoint.leftover} bytes belong to no section", checkpoint.size - checkpoint.leftover
        )
    yield from _tool_blocks(checkpoint)


def _tool_blocks(checkpoint: Checkpoint) -> Iterator[Finding]:
    """ds4 writes the map from the blocks that it finds in the text (FORMAT 4)."""
    mapped, text = checkpoint.mapped(), checkpoint.text_span
    lost = [name for name, block in checkpoint.tool_pairs() if mapped.find(block, text.offset, text.end) < 0]
    if lost:
        message = f"the blocks of {len(lost)} ids of the tool map do not stand in the text"
        yield Finding("tool-block", message, checkpoint.header.payload_end, Verdict.DAMAGED)
