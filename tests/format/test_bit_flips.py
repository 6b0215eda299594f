"""Every single-bit flip of a small file is noticed, or lies where the format has nothing to notice it by.

The format has no checksum (FORMAT 6.10). BLIND is the list of what that costs, and it is exact: a flip that goes unnoticed
elsewhere fails the test, and so does an entry in which nothing goes unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvformat import layout
from kvformat.checkpoint import Checkpoint
from kvformat.prefix import text_key
from kvformat.shapes import Shape
from kvformat.writer import Contents
from kvtools.findings import Verdict
from kvtools.inspecting import sections
from kvtools.verifying import verify
from strategies import built, plain_state

SHAPE = Shape("tiny", (0, 4), head_dim=1, indexer_dim=1, vocab=5, window=4)
TEXT = b"text <A> <B>"
CALLS = ((b"call_1", b"<A>"), (b"call_2", b"<B>"))


@dataclass(frozen=True, slots=True)
class Blind:
    """Bytes in which a flip can go unnoticed, and why; `mask` says which bits of each byte."""

    name: str
    why: str
    mask: int = 0xFF


HEADER = {
    "reason": Blind("reason", "one known reason becomes another", 0x07),
    "ext_flags": Blind("ext_flags", "the kind of the key is stated nowhere else", 0x06),
    "hits": Blind("hits", "any count is legal"),
    "created": Blind("created", "any time is legal"),
    "last_used": Blind("last_used", "any time is legal"),
}
WORDS = {
    "prefill_chunk": Blind("prefill_chunk", "generation 2 takes any"),
    "raw_cap": Blind("raw_cap", "the writer's own ring, any size from the live rows to 8192"),
}
SECTIONS = {
    "token_ids": Blind("token_ids", "another id of the vocabulary"),
    "logits": Blind("logits", "another finite number"),
    "layer": Blind("layer", "any float is legal, and no reader compares them"),
}
TOOL_MAP = Blind("tool map", "an id is any bytes")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of nine tokens with a tool map, under its right name."""
    contents = Contents.from_state(
        plain_state(SHAPE, tokens=9, ctx=64), TEXT, reason="cold", quant_bits=2, now=1_790_000_000, tool_map=CALLS
    )
    path = tmp_path_factory.mktemp("flips") / f"{text_key(TEXT)}.kv"
    path.write_bytes(built(contents))
    assert verify(path, SHAPE).verdict is Verdict.OK
    return path


def blind_bytes(path: Path) -> dict[int, Blind]:
    """Offset → what lies there, for every byte of the list."""
    with Checkpoint.open(path, (SHAPE,)) as checkpoint:
        found = dict(_fields(layout.HEADER, HEADER, 0))
        found |= _fields(layout.WORDS, WORDS, checkpoint.header.payload_offset)
        for name, span in sections(checkpoint):
            blind = SECTIONS.get("layer" if name.startswith("layer") else name)
            if blind:
                found |= dict.fromkeys(range(span.offset, span.end), blind)
        assert checkpoint.tools is not None
        for entry in checkpoint.tools.entries:
            found |= dict.fromkeys(range(entry.dsml.offset - len(entry.id), entry.dsml.offset), TOOL_MAP)
        return found


def _fields(declaration: layout.Struct, listed: dict[str, Blind], base: int) -> Iterator[tuple[int, Blind]]:
    for field in declaration.subcons:
        if field.name in listed:
            yield from ((offset, listed[field.name]) for offset in range(base, base + field.sizeof()))
        base += field.sizeof()


def unnoticed_flips(path: Path) -> Iterator[tuple[int, int]]:
    """(offset, mask) of every flip after which `verify` still says ok."""
    data = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for offset, byte in enumerate(data):
            for bit in range(8):
                file.seek(offset)
                file.write(bytes([byte ^ 1 << bit]))
                if verify(path, SHAPE).verdict is Verdict.OK:
                    yield offset, 1 << bit
            file.seek(offset)
            file.write(bytes([byte]))


def test_every_flip_is_noticed_or_listed(sound: Path) -> None:
    listed = blind_bytes(sound)
    unnoticed = list(unnoticed_flips(sound))
    surprises = [(offset, mask) for offset, mask in unnoticed if offset not in listed or not listed[offset].mask & mask]
    assert not surprises
    assert {listed[offset] for offset, _ in unnoticed} == set(listed.values())
