"""Whose file this is, by structure alone: the 52 bytes of the header, the 13 words of the payload, the size.

At most two or three small reads, since a directory scan asks it of every file. In the order of doubt: the magic, the version,
the words, the size. What fits nothing is unknown, and never damaged; damaged is a file that is shorter than it says, or whose
grammar is known and contradicts itself.
"""

from __future__ import annotations

from collections.abc import Callable

from kvformat import dialects, layout
from kvformat.dialects import Dialect
from kvformat.errors import NotACheckpoint, OtherDialect, Truncated
from kvformat.header import Header
from kvformat.shapes import F32, FLASH, PRO, Shape, fills, front_bytes, known_shape
from kvformat.words import WORDS_BYTES, Words

Peek = Callable[[int, int], bytes]  # (count, offset) → so many bytes of the file from there, or what there is of them

MTP_TAIL = 16  # bytes that Entrpi 2 has behind upstream's payload
FINGERPRINT_WORDS = 8  # bytes by which the 15 words of PR #363 exceed 13
PACKED_ROW_FLAGS = 3  # bits of Entrpi 3: fp8 attention rows, fp4 indexer rows
ABIS = (0, 2, 3, 4)
QUANT_BITS = (2, 4, 5, 6, 8)
MODELS = len(layout.MODELS)
DEEPSEEK = {(s.layers, s.head_dim, s.indexer_dim, s.vocab) for s in (FLASH, PRO)}
BY_MAGIC = {
    layout.DSV4_MAGIC: dialects.BARE,
    layout.DSVL_MAGIC: dialects.SHARD,
    layout.SEGMENT_MAGIC: dialects.PULSAR_SEGMENT,
    layout.CKPT_MAGIC: dialects.ZHC105_COMPANION,
}


def recognise(header: Header, file_bytes: int, peek: Peek) -> Dialect | None:
    """The dialect of a file; None where it is ours or an extension of ours, and only the row counts can tell.

    Raises NotACheckpoint for what is no relative, Truncated and Damaged as the package's other readers do.
    """
    if header.magic != layout.KVC_MAGIC:
        return _by_magic(header)
    if header.version == 2:
        return _version_2(header, file_bytes, peek)
    if header.version == 3:
        return dialects.KVC_3
    if header.version != layout.KVC_VERSION:
        return dialects.unknown(f"KVC version {header.version}", dialects.MAGIC_ONLY)
    if strange := _strange_envelope(header):
        return dialects.unknown(strange)
    header.check(file_bytes)
    if not header.payload_bytes:
        return _stripped(header)
    if header.payload_bytes < WORDS_BYTES:
        raise Truncated(
            "no room for the 13 payload words",
            offset=header.payload_offset,
            expected=f"{WORDS_BYTES} bytes",
            found=header.payload_bytes,
        )
    words = Words.decode(peek(WORDS_BYTES, header.payload_offset).ljust(WORDS_BYTES, b"\0"))
    return _by_words(header, words, peek)


def require_ours(header: Header, file_bytes: int, peek: Peek) -> None:
    """Raise OtherDialect for what is recognised as somebody else's, and whatever `recognise` raises."""
    dialect = recognise(header, file_bytes, peek)
    if dialect is not None and not dialect.ours:
        raise OtherDialect(dialect)


def _by_magic(header: Header) -> Dialect:
    start = header.encode()[:4]
    if start not in BY_MAGIC:
        raise NotACheckpoint("not a KVC file", offset=0, expected="KVC", found=repr(start))
    return BY_MAGIC[start]


def _version_2(h: Header, file_bytes: int, peek: Peek) -> Dialect:
    """At least six formats call themselves version 2 and differ by plausibility only (CASES, format drift)."""
    codec, log2_chunk, _ = h.reserved
    chunk = int.from_bytes(bytes([h.payload_abi]) + h.reserved, "little")
    if h.payload_abi == 3 and h.payload_bytes < file_bytes and peek(4, h.payload_bytes) in layout.TAIL_MAGICS:
        return dialects.ZHC105
    if h.payload_abi == 2 and codec == 1 and 12 <= log2_chunk <= 26:
        return dialects.LZ4
    if h.model_id <= 1 and chunk >= 4096 and chunk & (chunk - 1) == 0:
        return dialects.LZ4_DRAFT
    text_bytes = int.from_bytes(peek(4, layout.CONV_ID_HEADER), "little")
    if h.payload_abi == 2 and peek(4, layout.CONV_ID_HEADER + 4 + text_bytes) == layout.DSV4_MAGIC:
        return dialects.CONV_ID
    return dialects.KVC_2


def _strange_envelope(h: Header) -> str | None:
    """A byte that no dialect with this envelope has. What it means for the lengths is not known either."""
    if h.payload_abi not in ABIS:
        return f"payload ABI {h.payload_abi}"
    if h.quant_bits not in QUANT_BITS:
        return f"quant bits {h.quant_bits}"
    return f"model {h.model_id}" if h.model_id >= MODELS else None


def _stripped(h: Header) -> Dialect:
    """Text only: what the payload was, nobody can tell."""
    if h.payload_abi in dialects.GENERATIONS and h.quant_bits in (2, 4) and h.model_id <= 1:
        return dialects.GENERATIONS[h.payload_abi]
    return dialects.unknown(
        f"text only, of model {h.model_id} at {h.quant_bits} bits under payload ABI {h.payload_abi}"
    )


def _by_words(h: Header, w: Words, peek: Peek) -> Dialect | None:
    if w.magic != layout.DSV4_MAGIC:
        return dialects.unknown(f"payload magic {w.magic!r}")
    if w.version == 3:
        return _version_3(h, w, peek)
    if w.version == 4:
        return dialects.VERSION_4
    if 5 <= w.version <= 12:
        return dialects.pulsar(w.version)
    if w.version == 2 and (other := _other_model(h, w)):
        return other
    if w.version == 2 and h.payload_abi in (3, 4):
        return dialects.TOKEN_RULES
    if w.version != layout.GENERATIONS.get(h.payload_abi):
        return dialects.unknown(f"DSV4 version {w.version} under payload ABI {h.payload_abi}")
    if h.quant_bits not in (2, 4):
        return dialects.QUANT_BITS
    return _generation(h, w)


def _generation(h: Header, w: Words) -> Dialect | None:
    """Ours by all words; the size says whether by all bytes."""
    w.check(h)
    shape = known_shape(w.layers, w.head_dim, w.indexer_dim, w.vocab)
    if shape is None:
        return None
    if exceeds(h, w, 0):
        if shape.model_id != h.model_id:
            return dialects.unknown(f"model byte {h.model_id} over the layout of {shape.name}")
        return dialects.GENERATIONS[h.payload_abi]
    return dialects.ENTRPI_2 if w.version == 2 and exceeds(h, w, MTP_TAIL) else None


def exceeds(h: Header, w: Words, surplus: int) -> bool:
    """Whether the payload is upstream's size for these words plus so many bytes, whatever its layers' ratios."""
    shape = known_shape(w.layers, w.head_dim, w.indexer_dim, w.vocab)
    if shape is not None and _has_window(shape, w):
        return shape.payload_bytes(w.tokens, w.raw_live) == h.payload_bytes - surplus
    body = h.payload_bytes - surplus - front_bytes(w.tokens, w.vocab, w.layers)
    return fills(body, w.layers, w.tokens, w.raw_live, w.head_dim, w.indexer_dim)


def _has_window(shape: Shape, w: Words) -> bool:
    return w.raw_window in (shape.window, w.ctx)


def _other_model(h: Header, w: Words) -> Dialect | None:
    """By what upstream's other models write into the words; None for Flash and Pro."""
    if w.raw_live == layout.V41_WORD_12:
        return {1: dialects.V41_FLASH, 2: dialects.M3ULTRA, 3: dialects.M3ULTRA_HIDDEN}.get(
            w.prefill_chunk, dialects.unknown(f"the words of V4.1 Flash, but word 3 is {w.prefill_chunk}")
        )
    if w.raw_live == layout.QWEN_WORD_12:
        return dialects.QWEN
    sizes = (w.layers, w.head_dim, w.indexer_dim, w.vocab)
    if h.model_id == 2 and sizes == layout.GLM_52_SIZES:
        return dialects.GLM_52
    if h.model_id == 2 and sizes in DEEPSEEK:
        return dialects.OTHER_NUMBERS
    if h.model_id == 3:
        return dialects.GLM_53 if w.layers == layout.GLM_53_LAYERS else dialects.LAGUNA
    if h.model_id > 1:
        return dialects.unknown(f"model byte {h.model_id} ({layout.MODELS[h.model_id]}) over other words than its own")
    return None


def _version_3(h: Header, w: Words, peek: Peek) -> Dialect:
    """A number that many have taken: told apart by a family's tag, by the size, and by the word behind the counts."""
    tag = w.raw_window.to_bytes(F32, "little")
    if tag in dialects.FAMILIES or (tag.isalnum() and tag.endswith(b"3")):
        return dialects.family(tag)
    if exceeds(h, w, 0):
        return dialects.PACKED_3
    if exceeds(h, w, FINGERPRINT_WORDS):
        return dialects.FINGERPRINTS
    flags = front_bytes(w.tokens, w.vocab, w.layers)
    if flags + F32 <= h.payload_bytes:
        found = int.from_bytes(peek(F32, h.payload_offset + flags), "little")
        if found <= PACKED_ROW_FLAGS:
            return dialects.ENTRPI_3
    return dialects.VERSION_3
