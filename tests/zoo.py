"""The zoo: one small file of every relative of the format and of every way to break one, with the verdict that it deserves.

Relatives are those of FORMAT 1.4 and 1.7: what their authors changed, on an otherwise sound file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvformat.prefix import text_key
from kvformat.scan import Kind
from kvformat.shapes import Shape
from kvformat.writer import Contents
from kvtools.verifying import Verdict
from strategies import Sample, built, patched, plain_file, plain_state

TEXT = b"Hello.\nWorld"
PAYLOAD = 52 + len(TEXT)
CALL = ((b"call_1", b"<tool_calls>x</tool_calls>"),)


@dataclass(frozen=True, slots=True)
class Specimen:
    """`says` is part of what is said about it; `kind` is what a directory scan sees, `verdict` what `verify` finds."""

    name: str
    data: bytes
    kind: Kind
    verdict: Verdict
    says: str
    file_name: str = f"{text_key(TEXT)}.kv"


def u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


def word(index: int, value: int) -> tuple[int, bytes]:
    """A patch of one of the 13 payload words."""
    return PAYLOAD + 4 * index, u32(value)


def count(row: int, layer: int, value: int) -> tuple[int, bytes]:
    """A patch of n_comp (row 0) or n_index_comp (row 1) of one layer of the plain file."""
    state = plain_state()
    front = 52 + 4 * (len(state.tokens) + state.shape.vocab)
    return PAYLOAD + front + 4 * (row * state.shape.layers + layer), u32(value)


def zoo() -> list[Specimen]:
    return [*sound(), *other_envelopes(), *other_payloads(), *foreign(), *cut_short(), *damaged(), *odd()]


def sound() -> Iterator[Specimen]:
    for generation in (0, 2):
        yield Specimen(f"generation {generation}", plain_file(generation).data, Kind.GOOD, Verdict.OK, "")
    yield Specimen("with a tool map", plain_file(tool_map=CALL).data, Kind.GOOD, Verdict.OK, "")
    short = Contents.from_state(plain_state(tokens=3), TEXT, reason="cold", quant_bits=4, now=1)
    yield Specimen("three tokens", built(short), Kind.GOOD, Verdict.AMBIGUOUS, "several layer patterns")


def other_envelopes() -> Iterator[Specimen]:
    plain = plain_file().data
    rows: list[tuple[str, str, list[tuple[int, bytes]]]] = [
        ("v2 CRC32C", "CRC32C", [(3, b"\2")]),
        ("v2 LZ4, first draft", "LZ4 chunks (codec in byte 7)", [(3, b"\2"), (7, b"\1"), (20, u32(16 << 20))]),
        ("v2 LZ4, current", "LZ4 chunks (codec in byte 21)", [(3, b"\2"), (21, b"\1\x18")]),
        ("v2 append-only", "append-only", [(3, b"\2"), (20, b"\3"), (40, u64(len(plain)))]),
        ("v3 with a parent", "KVC version 3", [(3, b"\3")]),
        ("v0", "KVC version 0", [(3, b"\0")]),
        ("ABI 1", "payload ABI 1", [(20, b"\1")]),
        ("ABI 9", "payload ABI 9", [(20, b"\x09")]),
        ("quant 8", "quant bits 8", [(4, b"\x08")]),
        ("GLM 5.2", "model 2 (GLM 5.2)", [(7, b"\2")]),
        ("GLM 5.3", "model 3 (GLM 5.3", [(7, b"\3")]),
        ("V4.1 Flash", "model 4 (V4.1 Flash)", [(7, b"\4"), word(12, 0x00413431)]),
        ("Qwen3.8", "model 5 (Qwen3.8", [(7, b"\5"), word(12, 0x51573802)]),
        ("Qwen3.8 mini", "model 6 (Qwen3.8 mini)", [(7, b"\6"), word(12, 0x51573802)]),
        ("model 200", "model 200 (unknown)", [(7, b"\xc8")]),
    ]
    for name, says, patches in rows:
        data = patched(plain, *patches) + (b"TAIL" + bytes(28) if "append" in name else b"")
        yield Specimen(name, data, Kind.OTHER_DIALECT, Verdict.OTHER_DIALECT, says)


def other_payloads() -> Iterator[Specimen]:
    plain, old = plain_file().data, plain_file(0).data
    for name, says, data in [
        ("payload 3", "DSV4 version 3", patched(plain, word(1, 3))),
        ("payload 4", "DSV4 version 4", patched(plain, word(1, 4))),
        ("payload 2 under ABI 0", "DSV4 version 2 under payload ABI 0", patched(old, word(1, 2))),
        ("payload 1 under ABI 2", "DSV4 version 1 under payload ABI 2", patched(plain, word(1, 1))),
        ("V4.1 words", "grammar of another model", patched(plain, word(12, 0x00413431))),
        ("Qwen words", "grammar of another model", patched(plain, word(12, 0x51573802))),
        ("another magic", "payload magic b'DSVL'", patched(plain, (PAYLOAD, b"DSVL"))),
        ("Pro byte over another layout", "not Pro", patched(plain, (7, b"\1"))),
    ]:
        yield Specimen(name, data, Kind.GOOD, Verdict.OTHER_DIALECT, says)


def foreign() -> Iterator[Specimen]:
    payload = plain_file().data[PAYLOAD:]
    for name, says, data in [
        ("bare payload", "a bare DSV4 payload", payload),
        ("DSVL shard", "a DSVL shard", b"DSVL" + payload[4:]),
        ("GGUF", "not a KVC file", b"GGUF" + bytes(100)),
    ]:
        yield Specimen(name, data, Kind.FOREIGN, Verdict.FOREIGN, says)


def cut_short() -> Iterator[Specimen]:
    plain = plain_file().data
    for name, says, data in [
        ("empty", "too short for a header", b""),
        ("51 bytes", "too short for a header", plain[:51]),
        ("header only", "ends inside the text", plain[:52]),
        ("half a text", "ends inside the text", plain[: PAYLOAD - 3]),
        ("no payload", "ends inside the payload", plain[:PAYLOAD]),
        ("last byte missing", "ends inside the payload", plain[:-1]),
        ("4 GiB of text", "ends inside the text", patched(plain, (48, b"\xff" * 4))),
        ("2^64-1 bytes of payload", "ends inside the payload", patched(plain, (40, b"\xff" * 8))),
    ]:
        yield Specimen(name, data, Kind.TRUNCATED, Verdict.TRUNCATED, says)
    short = patched(plain, (40, u64(40)))
    yield Specimen("40 bytes of payload", short, Kind.GOOD, Verdict.TRUNCATED, "no room for the 13 payload words")
    many = patched(plain, (8, u32(2**30)), word(7, 2**30))
    yield Specimen("a billion tokens", many, Kind.GOOD, Verdict.TRUNCATED, "ends before its layers")


def damaged() -> Iterator[Specimen]:
    plain = plain_file().data
    payload_bytes = len(plain) - PAYLOAD
    yield Specimen("no tokens", patched(plain, (8, u32(0))), Kind.DAMAGED, Verdict.DAMAGED, "counts no tokens")
    for name, says, data in [
        ("other token count", "disagree on the tokens", patched(plain, (8, u32(131)))),
        ("no layers", "implausible number of layers", patched(plain, word(8, 0))),
        ("too many layers", "implausible number of layers", patched(plain, word(8, 100_000))),
        ("wrong live rows", "raw ring", patched(plain, word(12, 7))),
        ("ring below its live rows", "raw ring", patched(plain, word(4, 7))),
        ("one row too many", "no pattern of layers", patched(plain, count(0, 1, 33))),
        ("rows above capacity", "more compressed rows", patched(plain, count(0, 2, 131))),
        ("indexer rows above capacity", "more indexer rows", patched(plain, count(1, 1, 10**6))),
        ("payload a byte short", "no pattern of layers", patched(plain, (40, u64(payload_bytes - 1)))),
        ("payload a byte long", "no pattern of layers", patched(plain + b"x", (40, u64(payload_bytes + 1)))),
    ]:
        yield Specimen(name, data, Kind.GOOD, Verdict.DAMAGED, says)


def odd() -> Iterator[Specimen]:
    """Readable, and something is not as a writer should leave it."""
    plain, tools = plain_file().data, plain_file(tool_map=CALL).data
    ids, logits = PAYLOAD + 52, PAYLOAD + 52 + 4 * 130
    for name, says, data in [
        ("weights stamp in 21..23", "reserved-bytes", patched(plain, (21, b"\x8a\x11\x3f"))),
        ("reason 7", "unknown-reason", patched(plain, (5, b"\7"))),
        ("pictures in ext bit 4", "unknown-flags", patched(plain, (6, b"\x10"))),
        ("another ctx in the header", "ctx-mismatch", patched(plain, (16, u32(1024)))),
        ("token outside the vocabulary", "token-id", patched(plain, (ids, u32(16)))),
        ("NaN logit", "not-finite", patched(plain, (logits, b"\0\0\xc0\x7f"))),
        ("rows on a sliding layer", "row-count", patched(plain, count(0, 0, 2))),
        ("leftover", "leftover", plain + b"junk"),
        ("no tool map where one is promised", "trailer", patched(plain, (6, b"\1"))),
        ("tool map cut short", "trailer", tools[:-1]),
        ("tool map of 2^32-1 entries", "trailer", patched(tools, (len(plain) + 4, b"\xff" * 4))),
        ("title cut short", "trailer", patched(plain, (6, b"\x08")) + u32(9) + b"title"),
    ]:
        yield Specimen(name, data, Kind.GOOD, Verdict.WARNING, says)
    empty = replace(plain_file().contents, text=b"")
    empty = replace(empty, header=empty.header.with_sizes(0, empty.header.payload_bytes))
    yield Specimen("empty text", built(empty), Kind.GOOD, Verdict.WARNING, "empty-text", f"{text_key(b'')}.kv")
    yield Specimen("token-SHA name", plain, Kind.GOOD, Verdict.WARNING, "name-mismatch", f"{text_key(b'ids')}.kv")
    system = patched(plain, (5, b"\5"))
    yield Specimen("system prompt of the agent", system, Kind.GOOD, Verdict.WARNING, "name-unused", "sysprompt.kv")
    yield Specimen("stripped", stripped().data, Kind.STRIPPED, Verdict.WARNING, "stripped")


def stripped() -> Sample:
    """A session of ds4-agent after /strip: its text, and a title behind it."""
    sample = plain_file(reason=6, ext_flags=8)
    header = sample.contents.header.with_sizes(len(TEXT), 0)
    contents = replace(sample.contents, header=header, payload=None, trailers=u32(5) + b"title")
    return Sample(built(contents), contents, Shape("small", (0, 4, 128), 3, 2, 16, 8))
