"""`kvtool why`: what a prompt would start from, and why no longer file did. The decision is the server's own: `kvformat.reader`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kvformat import layout
from kvformat.envelope import open_regular
from kvformat.errors import KVError, Unreadable
from kvformat.header import Header
from kvformat.identity import Identity
from kvformat.nearmiss import compare
from kvformat.prefix import text_key
from kvformat.reader import Match, Reader
from kvformat.room import Options
from kvformat.scan import Entry, Kind, scan
from kvformat.shapes import FLASH, Shape
from kvformat.sidecar import read_sidecar
from kvtools import extras, wordings
from kvtools.opening import open_settled
from kvtools.output import progress

NEAR = 10  # near misses that are worth telling
TAIL = 128  # bytes at the end of a text by which its conversation is known again


@dataclass(frozen=True, slots=True)
class Knobs:
    """What decides in a server, by the names of its options. `quant` None is that of the directory's model."""

    ctx: int = 32768
    min_tokens: int = 512
    quant: int | None = None
    reject_different_quant: bool = False


@dataclass(frozen=True, slots=True)
class Loss:
    """One file that holds more of the prompt than what it starts from, and why it does not serve.

    `byte` is where its text and the prompt part, None if all of its text is there. `same_conversation`: behind that byte
    they agree again. `lost` is the tokens that are prefilled for it; an estimate where only a part of its text is there.
    """

    path: Path
    tokens: int
    reason: str
    lost: int
    byte: int | None = None
    in_prompt: bytes = b""
    in_file: bytes = b""
    same_conversation: bool = False


@dataclass(frozen=True, slots=True)
class Why:
    """The answer. `start` is None when everything is prefilled; `losses` are the best few, the likeliest first."""

    start: Match | None
    losses: tuple[Loss, ...]
    examined: int


def open_reader(
    directory: Path, knobs: Knobs, hint: Shape | tuple[int, ...] | None = None, model: Path | None = None
) -> Reader:
    """The reader that a server of this model, or of the directory's, has. Raises Unreadable for what is not there."""
    if not directory.is_dir():
        raise Unreadable("is not a directory", path=directory)
    logging.getLogger("kvformat.store").addHandler(logging.NullHandler())  # what it logs is in our answer
    found = extras.load_identity(model) if model else model_of(directory, hint)
    quant = knobs.quant or found.quant_bits
    identity = Identity(found.shape, quant, found.fingerprint, knobs.reject_different_quant)
    return Reader(directory, identity, knobs.ctx, Options(min_tokens=knobs.min_tokens))


def model_of(directory: Path, hint: Shape | tuple[int, ...] | None = None) -> Identity:
    """The model of the lately used files; Flash at 2 bits where there are none."""
    good = [(entry.header.used, entry) for entry in scan(directory) if entry.kind is Kind.GOOD and entry.header]
    for _, entry in sorted(good, key=lambda pair: pair[0], reverse=True):
        path = directory / entry.name
        try:
            with open_settled(path, hint) as checkpoint:
                return Identity(checkpoint.shape, checkpoint.header.quant_bits, read_sidecar(path).fingerprint)
        except KVError:
            continue
    return Identity(hint if isinstance(hint, Shape) else FLASH, 2)


def why(reader: Reader, prompt: bytes) -> Why:
    """Ask the reader what it would start from, then look at every file for what came closer."""
    start: Match | None = None
    losses = []
    tried = set()
    for match in reader.candidates(prompt):
        tried.add(match.path)
        reason = _fails(reader, match, prompt) if match.usable else match.why
        if reason is None:
            start = match
            break
        losses.append(Loss(match.path, match.tokens, reason, match.tokens))
    reached = _text_bytes(start)
    entries = [(path, e.header, e) for path, e in reader.catalog.entries() if e.header and _has_text(e)]
    for path, header, entry in progress(entries, "comparing", len(entries)):
        if path not in tried and header.text_bytes > reached:
            losses += _missed(path, header, entry, prompt, reached)
    tokens = start.tokens if start else 0
    near = [replace(loss, lost=loss.lost - tokens) for loss in losses if loss.lost > tokens]
    near.sort(key=lambda loss: (loss.byte is None, loss.same_conversation, loss.byte or 0, loss.tokens), reverse=True)
    return Why(start, tuple(near[:NEAR]), len(entries))


def _fails(reader: Reader, match: Match, prompt: bytes) -> str | None:
    """Why the server could not load a file that it would try."""
    try:
        reader.open(match, prompt).close()
    except KVError as error:
        return f"cannot be loaded: {error.problem}"
    return None


def _text_bytes(match: Match | None) -> int:
    return match.entry.header.text_bytes if match and match.entry.header else 0


def _has_text(entry: Entry) -> bool:
    """Whether the text stands where ours stands, in whatever else the file cannot be used."""
    header = entry.header
    return (
        header is not None
        and (header.magic, header.version) == (layout.KVC_MAGIC, layout.KVC_VERSION)
        and 0 < header.text_bytes <= entry.size - layout.TEXT_OFFSET
    )


def _missed(path: Path, header: Header, entry: Entry, prompt: bytes, reached: int) -> Iterator[Loss]:
    miss = compare(path, header, prompt)
    if miss is None:
        unlisted = _unlisted(path, header, entry, prompt)
        if unlisted is not None:
            yield Loss(path, header.tokens, unlisted, header.tokens)
        return
    same = _goes_on(path, header, miss.byte, prompt)
    if same or miss.byte > reached:
        lost = header.tokens if same else header.tokens * miss.byte // header.text_bytes
        parts = "goes on where the prompt ends, at" if miss.byte == len(prompt) else "differs at"
        reason = f"the text {parts} byte {miss.byte}{wordings.explain(path, header, prompt, miss.byte)}"
        yield Loss(path, header.tokens, reason, lost, miss.byte, miss.in_prompt, miss.in_file, same)


def _goes_on(path: Path, header: Header, byte: int, prompt: bytes) -> bool:
    """Whether the end of the file's text stands in the prompt behind the byte that differs."""
    start = max(byte + 1, header.text_bytes - TAIL)
    if header.text_bytes - start < TAIL // 2:
        return False
    try:
        with open_regular(path) as file:
            file.seek(layout.TEXT_OFFSET + start)
            return prompt.find(file.read(header.text_bytes - start), byte) >= 0
    except (KVError, OSError):
        return False


def _unlisted(path: Path, header: Header, entry: Entry, prompt: bytes) -> str | None:
    """Why a file whose text the prompt begins with is not looked up at all; None for one that vanished."""
    if not path.exists():
        return None
    if entry.kind is Kind.STRIPPED:
        return "stripped: it holds text only"
    if entry.kind is not Kind.GOOD:
        return entry.problem or entry.kind.value
    if entry.key != text_key(prompt[: header.text_bytes]):
        return "the name is not the SHA1 of the text, so no lookup finds it"
    return "came while we looked"
