"""`kvtool tools` and `kvtool tokens`: what a checkpoint holds, taken out."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvformat.checkpoint import Checkpoint
from kvformat.envelope import Envelope
from kvformat.errors import KVError
from kvformat.toolmap import blocks_in_text
from kvtools.inspecting import error_fields
from kvtools.output import safe

if TYPE_CHECKING:
    from kvprompt.tokenizer import Tokenizer

CALL_ID = re.compile(rb"\b(?:call|toolu)_[0-9a-f]{32}\b")  # as ds4 makes them (FORMAT 4)


ASSISTANT = "<｜Assistant｜>".encode()  # before its first turn the text may explain tools, but holds no calls


@dataclass(frozen=True, slots=True)
class ToolReport:
    """The tool map of one file, set against its text.

    `pairs` are (id, block) in the order of the map. `unmapped_blocks` stand in the text and under no id, so that their calls
    cannot be replayed after a restart; `unmapped_ids` stand in the text and not in the map.
    """

    path: Path
    pairs: tuple[tuple[bytes, bytes], ...]
    unmapped_blocks: tuple[bytes, ...]
    unmapped_ids: tuple[bytes, ...]
    problem: str | None


def tool_report(path: Path) -> ToolReport:
    """Read the map and look for blocks and ids in the text. Raises KVError."""
    with Checkpoint.open(path) as checkpoint:
        pairs, text = tuple(checkpoint.tool_pairs()), checkpoint.text()
        problem = checkpoint.tools.problem if checkpoint.tools else None
    known = {block for _, block in pairs}
    blocks = dict.fromkeys(blocks_in_text(text.partition(ASSISTANT)[2]))
    ids = dict.fromkeys(CALL_ID.findall(text))
    mapped = {name for name, _ in pairs}
    return ToolReport(
        path, pairs, tuple(b for b in blocks if b not in known), tuple(i for i in ids if i not in mapped), problem
    )


def duplicates(reports: list[ToolReport]) -> dict[bytes, int]:
    """Ids that stand for several different blocks, in one map or over all, and for how many."""
    blocks: dict[bytes, set[bytes]] = defaultdict(set)
    for report in reports:
        for name, block in report.pairs:
            blocks[name].add(block)
    return {name: len(found) for name, found in blocks.items() if len(found) > 1}


def tool_fields(report: ToolReport) -> dict[str, Any]:
    """One file's tools for programs."""
    return {
        "path": str(report.path),
        "tools": [{"id": safe(name), "block": block.decode("utf-8", "replace")} for name, block in report.pairs],
        "unmapped_blocks": [block.decode("utf-8", "replace") for block in report.unmapped_blocks],
        "unmapped_ids": [safe(name) for name in report.unmapped_ids],
        "problem": report.problem,
    }


def failed_fields(path: Path, error: KVError) -> dict[str, Any]:
    """The same for a file that cannot be read."""
    return {"path": str(path), "error": error_fields(error)}


def print_tools(report: ToolReport) -> None:
    """Each block once, under all its ids; a file without any is left out."""
    lines = list(_tool_lines(report))
    if lines:
        click.echo(safe(os.fsencode(report.path)))
        for line in lines:
            click.echo(f"  {line}")


def _tool_lines(report: ToolReport) -> Iterator[str]:
    ids_of: dict[bytes, list[str]] = defaultdict(list)
    for name, block in report.pairs:
        ids_of[block].append(safe(name))
    for block, ids in ids_of.items():
        yield ", ".join(ids)
        yield from _block_lines(block)
    for block in report.unmapped_blocks:
        yield "in the text under no id: cannot be replayed after a restart"
        yield from _block_lines(block)
    for name in report.unmapped_ids:
        yield f"{safe(name)} in the text has no block"
    if report.problem:
        yield report.problem


def _block_lines(block: bytes) -> Iterator[str]:
    return (f"    {safe(line)}" for line in block.strip().split(b"\n"))


def print_text(checkpoint: Envelope, stdout: Any) -> None:
    """The text's own bytes; on a terminal its lines, with escapes for what a terminal might obey."""
    if not stdout.isatty():
        for piece in checkpoint.pieces(checkpoint.text_span):
            stdout.buffer.write(piece)
        return
    for line in checkpoint.text().split(b"\n"):
        click.echo(safe(line))


def token_pieces(ids: list[int], tokenizer: Tokenizer) -> list[str]:
    """What each token stands for, escaped; `?` for an id beyond the vocabulary."""
    known = tokenizer.token_bytes
    return [safe(known[i]) if i < len(known) else "?" for i in ids]
