"""The zoo: one small file of every relative of the format and of every way to break one, with the verdict that it deserves.

Relatives are those of DIALECTS and of FORMAT 1.4 and 1.7: what their authors changed, on an otherwise sound file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvformat.prefix import text_key
from kvformat.scan import Kind
from kvformat.shapes import Shape
from kvformat.writer import Contents
from kvtools.findings import Verdict
from strategies import Sample, built, patched, plain_file, plain_state

TEXT = b"Hello.\nWorld"
PAYLOAD = 52 + len(TEXT)
CALL = ((b"call_1", b"World"),)


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
    return [*sound(), *other_dialects(), *foreign(), *cut_short(), *damaged(), *rotten(), *odd()]


def sound() -> Iterator[Specimen]:
    for generation in (0, 2):
        yield Specimen(f"generation {generation}", plain_file(generation).data, Kind.GOOD, Verdict.OK, "")
    yield Specimen("with a tool map", plain_file(tool_map=CALL).data, Kind.GOOD, Verdict.OK, "")
    pro = patched(plain_file().data, (7, b"\1"))
    yield Specimen("Pro byte over no known layout", pro, Kind.GOOD, Verdict.OK, "")
    short = Contents.from_state(plain_state(tokens=3), TEXT, reason="cold", quant_bits=4, now=1)
    yield Specimen("three tokens", built(short), Kind.GOOD, Verdict.AMBIGUOUS, "several layer patterns")


def other_dialects() -> Iterator[Specimen]:
    """One file of every dialect; `says` is its name in the table."""
    for name, says, data in [*other_models(), *forks_of_the_payload(), *other_envelopes(), *newer()]:
        yield Specimen(name, data, Kind.OTHER_DIALECT, Verdict.OTHER_DIALECT, says)
    segment = b"PSG1" + u32(1) + bytes(144) + TEXT
    yield Specimen(
        "pulsar segment", segment, Kind.OTHER_DIALECT, Verdict.OTHER_DIALECT, "segment of pulsar", f"{'a' * 40}.seg"
    )
    blob = b"CKPT" + u32(130) + u64(64) + bytes(64)
    yield Specimen("zhc105 companion", blob, Kind.OTHER_DIALECT, Verdict.OTHER_DIALECT, "companion", f"{'b' * 40}.ckpt")


def other_models() -> Iterator[tuple[str, str, bytes]]:
    """Of today's ds4-server, and of the forks that number models as it does not."""
    yield "V4.1 Flash", "V4.1 Flash", v41_flash(1)
    yield "m3ultra", "V4.1 Flash with DSpark rows", v41_flash(2)
    yield "m3ultra with bounds", "DSpark rows and their bounds", v41_flash(3)
    yield "V4.1 Flash of another word 3", "word 3 is 9", v41_flash(9)
    yield "GLM 5.2", "GLM 5.2", of_other_words(2, (8, 78), (9, 256), (10, 256), (11, 154880))
    yield "GLM 5.3 Flash", "GLM 5.3 Flash", of_other_words(3, (8, 45))
    yield "Laguna S2.1", "Laguna S2.1", of_other_words(3, (8, 48))
    for model, name in ((5, "Qwen3.8 Flash Next"), (6, "Qwen3.8 mini")):
        yield name, "Qwen3.8", of_other_words(model, (12, 0x51573802))
    yield "LIE", "Qwen3.8", of_other_words(5, (12, 0x51573802)) + b"LIEMTP1" + bytes(93)
    yield (
        "Flash under another number",
        "a fork's own numbering",
        of_other_words(2, (8, 43), (9, 512), (10, 128), (11, 129280)),
    )
    yield "model 4 over other words", "over other words than its own", of_other_words(4)


def forks_of_the_payload() -> Iterator[tuple[str, str, bytes]]:
    """KVC version 1, and a payload of their own."""
    small = plain_state().shape
    front = 4 * (13 + 130 + small.vocab + 2 * small.layers)
    yield "Entrpi 2", "Entrpi 2", with_payload(grown((None, bytes(16))))
    yield "Entrpi 2, evicted from a bank", "Entrpi 2", with_payload(grown((None, bytes(16))), reason=7)
    yield "Entrpi 3", "Entrpi 3", with_payload(grown((front, u32(0)), (None, bytes(16)), version=3))
    yield "Entrpi 3, packed rows", "Entrpi 3", with_payload(grown((front, u32(3)), (None, bytes(5)), version=3))
    yield "PR 363", "15 words", with_payload(grown((52, u64(7)), version=3))
    yield "packed indexer 3", "packed indexer rows", with_payload(grown(version=3))
    yield "packed indexer 4", "DSV4 version 4", with_payload(grown((None, b"DSPK" + bytes(30)), version=4))
    for tag in (b"SLR3", b"EXA3", b"MTF3", b"DTS3", b"QWN3", b"QWF3", b"STP3", b"LNG3", b"NEW3"):
        family = patched(grown(version=3), (4 * 5, tag))
        footer = b"KVI\x01" + bytes(range(32)) + b"KVI!"
        yield f"dfm {tag.decode()}", f"tag {tag.decode()}", with_payload(family, reason=9, ext_flags=0x70) + footer
    for version in (5, 7, 9, 12):
        yield f"pulsar {version}", f"DSV4 version {version}", with_payload(grown((52, bytes(16)), version=version))
    for abi in (3, 4):
        yield f"GB10, ABI {abi}", "raised payload ABI", with_payload(grown(), payload_abi=abi)
    for bits in (5, 6, 8):
        yield f"quant {bits}", "5, 6 or 8 quant bits", with_payload(grown(), quant_bits=bits)


def other_envelopes() -> Iterator[tuple[str, str, bytes]]:
    """KVC version 2 in its five kinds, version 3, and payloads and shards without any."""
    plain = plain_file().data
    payload = plain[PAYLOAD:]
    tail = patched(plain, (3, b"\2"), (20, b"\3"), (40, u64(len(plain))))
    yield "zhc105", "append-only", tail + b"TAL2" + bytes(28)
    yield "zhc105, older tail", "append-only", tail + b"TAIL" + bytes(28)
    front = patched(plain[:48], (3, b"\2"))
    yield "conv-id", "conversation id", front + bytes(24) + u32(len(TEXT)) + TEXT + payload
    yield "LZ4", "codec in byte 21", patched(plain, (3, b"\2"), (21, b"\1\x18"))
    yield "LZ4 draft", "codec in byte 7", patched(plain, (3, b"\2"), (7, b"\1"), (20, u32(16 << 20)))
    yield "CRC32C", "CRC32C", patched(plain, (3, b"\2"))
    yield "a parent file", "KVC version 3", patched(plain, (3, b"\3"))
    yield "bare payload", "a bare DSV4 payload", payload
    yield "DSVL shard", "a DSVL shard", b"DSVL" + payload[4:]


def newer() -> Iterator[tuple[str, str, bytes]]:
    """What no row of the table describes. Only the text's hash could tell rot from progress, and here it does not fit."""
    yield "KVC version 4", "KVC version 4", patched(plain_file().data, (3, b"\4"), (52, b"J"))
    yield "ABI 1", "payload ABI 1", with_payload(grown(), payload_abi=1)
    yield "ABI 9", "payload ABI 9", with_payload(grown(), payload_abi=9)
    yield "quant 3", "quant bits 3", with_payload(grown(), quant_bits=3)
    yield "model 200", "model 200", with_payload(grown(), model_id=200)
    yield "pulsar's own magic", "payload magic", with_payload(b"PLSR" + bytes(200))
    yield "DSV4 2 under ABI 0", "DSV4 version 2 under payload ABI 0", with_payload(grown(), payload_abi=0)
    yield "DSV4 1 under ABI 2", "DSV4 version 1 under payload ABI 2", with_payload(grown(version=1))
    yield "one byte more", "unknown extension of 1 bytes", with_payload(grown((None, b"x")))
    yield "a section more", "unknown extension of 4096 bytes", with_payload(grown((None, bytes(4096))))


def grown(*pieces: tuple[int | None, bytes], version: int = 2) -> bytes:
    """The plain payload with other bytes put in at some offsets (None: at its end), and another DSV4 version."""
    data = patched(plain_file().data[PAYLOAD:], (4, u32(version)))
    for offset, piece in pieces:
        at = len(data) if offset is None else offset
        data = data[:at] + piece + data[at:]
    return data


def with_payload(payload: bytes, **header: int) -> bytes:
    """The plain file with another payload and other header fields."""
    plain = plain_file(**header).contents.header.with_sizes(len(TEXT), len(payload))
    return plain.encode() + TEXT + payload


def of_other_words(model: int, *words: tuple[int, int]) -> bytes:
    """A file of another model: these words over the plain payload, whose tensors nobody reads."""
    return with_payload(patched(grown(), *((4 * index, u32(value)) for index, value in words)), model_id=model)


def v41_flash(word_3: int, tokens: int = 130, vocab: int = 16) -> bytes:
    """DIALECTS 1.1, its size by the formula there; word 3 tells the dialects of it apart."""
    words = (2, 512, word_3, 128, 128, 513, tokens, 40, 512, 128, vocab, 0x00413431)
    live = tokens // 2
    size = 52 + 4 * tokens + 4 * vocab + 81920 * min(tokens, 128) + 3 * 2560 * live + 2560 * tokens
    payload = b"DSV4" + b"".join(map(u32, words)) + bytes(size - 52)
    return with_payload(payload, model_id=4, reason=7)


def foreign() -> Iterator[Specimen]:
    yield Specimen("GGUF", b"GGUF" + bytes(100), Kind.FOREIGN, Verdict.FOREIGN, "not a KVC file")


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
    yield Specimen("40 bytes of payload", short, Kind.TRUNCATED, Verdict.TRUNCATED, "no room for the 13 payload words")
    many = patched(plain, (8, u32(2**30)), word(7, 2**30))
    yield Specimen("a billion tokens", many, Kind.TRUNCATED, Verdict.TRUNCATED, "ends before its layers")


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
    ]:
        yield Specimen(name, data, Kind.DAMAGED, Verdict.DAMAGED, says)


def rotten() -> Iterator[Specimen]:
    """What would be another dialect or nobody's, if its name and its sizes did not say whose it is."""
    plain, tools = plain_file().data, plain_file(tool_map=CALL).data
    for name, kind, says, data in [
        ("rot in the magic", Kind.FOREIGN, "first four bytes", patched(plain, (1, b"W"))),
        ("rot in the version", Kind.OTHER_DIALECT, "first four bytes", patched(plain, (3, b"\x41"))),
        ("rot in the payload's magic", Kind.OTHER_DIALECT, "payload's magic", patched(plain, word(0, 0x34565345))),
        ("rot in the DSV4 version", Kind.OTHER_DIALECT, "payload's version", patched(plain, word(1, 0x82))),
        ("rot in the text's length", Kind.OTHER_DIALECT, "length of the text", patched(plain, (48, u32(8)))),
        ("rot in the text", Kind.GOOD, "one of them has changed", patched(plain, (54, b"j"))),
        ("rot in a tool block", Kind.GOOD, "do not stand in the text", patched(tools, (len(tools) - 1, b"t"))),
    ]:
        yield Specimen(name, data, kind, Verdict.DAMAGED, says)
    denied = plain_file().contents.header.with_sizes(len(TEXT), 0).encode() + plain[52:]
    yield Specimen("a payload that is denied", denied, Kind.STRIPPED, Verdict.DAMAGED, "stands behind the text")


def odd() -> Iterator[Specimen]:
    """Readable, and something is not as a writer should leave it."""
    plain, tools = plain_file().data, plain_file(tool_map=CALL).data
    ids, logits = PAYLOAD + 52, PAYLOAD + 52 + 4 * 130
    for name, says, data in [
        ("weights stamp in 21..23", "reserved-bytes", patched(plain, (21, b"\x8a\x11\x3f"))),
        ("reason 7", "unknown-reason", patched(plain, (5, b"\7"))),
        ("reason 77", "unknown-reason", patched(plain, (5, b"M"))),
        ("ext bit 4", "unknown-flags", patched(plain, (6, b"\x10"))),
        ("ext bit 7", "unknown-flags", patched(plain, (6, b"\x80"))),
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
    by_ids = text_key(plain[ids:logits])
    yield Specimen("token-SHA name", plain, Kind.GOOD, Verdict.WARNING, "name-mismatch", f"{by_ids}.kv")
    pro, by_model = patched(plain, (7, b"\1")), text_key(b"\1" + TEXT)
    yield Specimen("Entrpi's name of a Pro file", pro, Kind.GOOD, Verdict.WARNING, "name-mismatch", f"{by_model}.kv")
    session = patched(plain, (5, b"\6"))
    yield Specimen("agent's session", session, Kind.GOOD, Verdict.WARNING, "name-mismatch", f"{text_key(b'title')}.kv")
    zeros = patched(plain, (logits, bytes(64)))
    yield Specimen("logits of a bank record", zeros, Kind.GOOD, Verdict.WARNING, "zero-logits")
    system = patched(plain, (5, b"\5"))
    yield Specimen("system prompt of the agent", system, Kind.GOOD, Verdict.WARNING, "name-unused", "sysprompt.kv")
    yield Specimen("stripped", stripped().data, Kind.STRIPPED, Verdict.WARNING, "stripped")


def stripped() -> Sample:
    """A session of ds4-agent after /strip: its text, and a title behind it."""
    sample = plain_file(reason=6, ext_flags=8)
    header = sample.contents.header.with_sizes(len(TEXT), 0)
    contents = replace(sample.contents, header=header, payload=None, trailers=u32(5) + b"title")
    return Sample(built(contents), contents, Shape("small", (0, 4, 128), 3, 2, 16, 8))
