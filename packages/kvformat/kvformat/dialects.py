"""Who else writes `.kv` files: one row for each program or build, with the names of what only it puts into a header.

Which row a file belongs to is found in `recognition`. A file of another row than the first two is shown, counted and kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvformat import layout
from kvformat.header import Header


class Origin(StrEnum):
    """What a dialect is to this project."""

    OURS = "ours"  # ds4-server's Flash and Pro: read and written here
    UPSTREAM = "upstream"  # ds4-server's other models
    FORK = "fork"
    UNKNOWN = "unknown"  # newer than this table, or nobody's


HEADER_FIELDS = frozenset(Header._fields)
NO_LENGTHS = HEADER_FIELDS - {"payload_bytes", "text_bytes"}
MAGIC_ONLY = frozenset({"magic", "version"})
NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Dialect:
    """One row. `code` is short and stable, `readers` are the programs that go on from such a file, "" where nobody knows.

    `fields`: the header fields that stand where upstream has them; the bytes of the others mean something else.
    `has_ids`: the token ids lie behind 13 words, as upstream's do. `deletes`: its program deletes files that it cannot read.
    """

    code: str
    name: str
    origin: Origin
    readers: str = ""
    fields: frozenset[str] = HEADER_FIELDS
    has_ids: bool = True
    deletes: bool = False

    @property
    def ours(self) -> bool:
        return self.origin is Origin.OURS


MAY = Dialect(
    "ds4-may", "ds4 until 2026-05-26", Origin.OURS, "ds4 from 2026-05-07 to 2026-05-26; newer builds skip it silently"
)
DS4 = Dialect("ds4", "ds4 since 2026-05-26", Origin.OURS, "ds4 since 2026-05-26")
GENERATIONS = {0: MAY, 2: DS4}


def _upstream(code: str, name: str, readers: str = "today's ds4-server") -> Dialect:
    return Dialect(code, name, Origin.UPSTREAM, readers)


GLM_52 = _upstream("glm-5.2", "GLM 5.2", "ds4-server since 2026-07-18")
GLM_53 = _upstream("glm-5.3", "GLM 5.3 Flash")
V41_FLASH = _upstream("v4.1-flash", "V4.1 Flash", "today's ds4-server on Metal")
QWEN = _upstream("qwen3.8", "Qwen3.8", "today's ds4-server, and LIE")


def _fork(code: str, name: str, readers: str, fields: frozenset[str] = HEADER_FIELDS, has_ids: bool = False) -> Dialect:
    return Dialect(code, name, Origin.FORK, readers, fields, has_ids)


LAGUNA = _fork("laguna", "model byte 3 over words that are not GLM 5.3's (Laguna S2.1)", "ds4's branch laguna-s2.1")
M3ULTRA = _fork("m3ultra", "V4.1 Flash with DSpark rows", "IngeniousIdiocy's m3ultra build", has_ids=True)
M3ULTRA_HIDDEN = _fork("m3ultra", "V4.1 Flash with DSpark rows and their bounds", "IngeniousIdiocy's m3ultra build")
OTHER_NUMBERS = _fork("other-numbers", "model byte 2 over the words of Flash or Pro: not GLM 5.2 but a fork's own numbering",
                      "the fork that wrote it (Entrpi's line numbers so)", has_ids=True)  # fmt: skip
ENTRPI_2 = _fork("entrpi-2", "Entrpi 2 (upstream's payload and 16 bytes of MTP statistics)",
                 "Entrpi's ds4 and its line; upstream refuses the trailing bytes", has_ids=True)  # fmt: skip
ENTRPI_3 = _fork("entrpi-3", "Entrpi 3 (DSV4 version 3 with a word for packed rows)", "Entrpi's ds4 and ds4-dfm",
                 has_ids=True)  # fmt: skip
FINGERPRINTS = _fork("pr-363", "DSV4 version 3 with 15 words, two of them a model fingerprint", "builds of PR #363")
PACKED_3 = _fork("packed-3", "DSV4 version 3 of upstream's size (the line with packed indexer rows)", "builds of that line",
                 has_ids=True)  # fmt: skip
VERSION_3 = _fork("dsv4-3", "DSV4 version 3 of a size that settles no dialect (Entrpi, pulsar, PR #363)",
                  "the fork that wrote it")  # fmt: skip
VERSION_4 = _fork("dsv4-4", "DSV4 version 4 (packed indexer rows, or an early pulsar)", "the fork that wrote it")
TOKEN_RULES = _fork("gb10", "upstream's layout under a raised payload ABI (other rules for tokens)",
                    "redhunt07's and xangel82's GB10 builds", has_ids=True)  # fmt: skip
QUANT_BITS = _fork("quant-5-6-8", "upstream's layout at 5, 6 or 8 quant bits", "kernelpool's and ivanfioravanti's builds",
                   has_ids=True)  # fmt: skip
FAMILIES = {
    b"SLR3": "Solar Open 2",
    b"EXA3": "EXAONE MoE",
    b"MTF3": "Motif 3",
    b"DTS3": "dots3",
    b"QWN3": "Qwen",
    b"QWF3": "Qwen",
    b"STP3": "Step 3.7",
    b"LNG3": "Ling 3 VL",
}  # word 5 of DSV4 version 3

ZHC105 = Dialect("zhc105", "KVC version 2, ABI 3 (append-only blocks with a tail index and a .ckpt companion)", Origin.FORK,
                 "zhc105's ds4", NO_LENGTHS, has_ids=False, deletes=True)  # fmt: skip
ZHC105_COMPANION = Dialect("zhc105-ckpt", "the .ckpt companion of a zhc105 file", Origin.FORK, "zhc105's ds4", NOTHING,
                           has_ids=False, deletes=True)  # fmt: skip
CONV_ID = _fork("conv-id", "KVC version 2 with a conversation id (72-byte header)", "nazerim's ds4",
                HEADER_FIELDS - {"text_bytes"})  # fmt: skip
LZ4 = _fork(
    "lz4", "KVC version 2, LZ4 chunks (codec in byte 21)", "builds of the LZ4 rebase", HEADER_FIELDS - {"reserved"}
)
LZ4_DRAFT = _fork("lz4-draft", "KVC version 2, LZ4 chunks (codec in byte 7)", "builds of the LZ4 draft",
                  HEADER_FIELDS - {"model_id", "payload_abi", "reserved"})  # fmt: skip
KVC_2 = Dialect(
    "kvc-2", "KVC version 2 (CRC32C, radix or a longer header)", Origin.UNKNOWN, "", MAGIC_ONLY, has_ids=False
)
KVC_3 = _fork("kvc-3", "KVC version 3 (longer header with a parent file)", "the fork that wrote it", MAGIC_ONLY)
PULSAR_SEGMENT = _fork("pulsar-segment", "a segment of pulsar's store", "pulsar", NOTHING)
BARE = _fork("bare-dsv4", "a bare DSV4 payload without its KVC envelope", "programs on libds4, such as ds4go", NOTHING)
SHARD = _fork("dsvl", "a DSVL shard", "distributed builds", NOTHING)


def pulsar(version: int) -> Dialect:
    """DSV4 versions 5 to 12 are pulsar's; later builds of it refuse them by name."""
    return _fork("pulsar", f"DSV4 version {version} (early pulsar)", "pulsar builds of that time")


def family(tag: bytes) -> Dialect:
    """A model of ds4-dfm that is not DeepSeek's; the tag stands in word 5."""
    name = FAMILIES.get(tag, "a family that is not in the table")
    return _fork(f"dfm-{tag.decode()}", f"ds4-dfm, {name} (tag {tag.decode()})", "ds4-dfm and ds4-dfm-rs", has_ids=True)


def unknown(name: str, fields: frozenset[str] = HEADER_FIELDS) -> Dialect:
    """What no row describes: newer than this table, or nobody's."""
    return Dialect("unknown", name, Origin.UNKNOWN, "", fields, has_ids=False)


def extension(surplus: int | None) -> Dialect:
    """Upstream's payload in full and more behind it; None where layers that look alike leave open how much."""
    name = "upstream's payload and an unknown extension" + ("" if surplus is None else f" of {surplus} bytes")
    return Dialect("extended", name, Origin.UNKNOWN, "", has_ids=True)


# ---- what only some dialects put into a header

FORK_REASONS = {7: "7 (fork)", 8: "bank-shutdown", 9: "bank-checkpoint"}
FLAGS = {
    layout.EXT_TOOL_MAP: "tool map",
    layout.EXT_RESPONSES_VISIBLE: "responses-visible",
    layout.EXT_THINKING_VISIBLE: "thinking-visible",
    layout.EXT_TITLE: "title",
    layout.EXT_BANK_REPLAY: "bank-replay-v1 (ds4-dfm)",
    layout.EXT_IMAGE_PIXELS: "image-pixels-v2 (ds4-dfm)",
    layout.EXT_FOOTER: "identity footer (ds4-dfm)",
}


def reason_name(header: Header, dialect: Dialect | None) -> str:
    """Why a file was written. ds4 reads what is above 6 as unknown; forks have given 7, 8 and 9 a meaning, and 7 several."""
    if header.reason < len(layout.REASONS):
        return layout.REASONS[header.reason]
    if header.reason == 7 and dialect is not None:
        if dialect in (V41_FLASH, M3ULTRA, M3ULTRA_HIDDEN):
            return "interval"
        if dialect in (ENTRPI_2, ENTRPI_3) or dialect.code.startswith("dfm-"):
            return "bank-evict"
        if dialect.code == "pulsar":
            return "sys-prefix"
    return FORK_REASONS.get(header.reason, f"{header.reason} (unknown)")


def flag_names(header: Header, dialect: Dialect | None) -> list[str]:
    """The set bits of `ext_flags`, lowest first; a bit that nobody is known to use is called by its number."""
    names = {**FLAGS, layout.EXT_BANK_REPLAY: "pictures"} if dialect is ZHC105 else FLAGS
    bits = (bit for bit in range(8) if header.ext_flags >> bit & 1)
    return [names.get(1 << bit, f"bit {bit}") for bit in bits]


def counted_by_ds4(header: Header, file_bytes: int) -> bool:
    """Whether today's ds4-server counts a file of a 40-digit name in its budget, and may evict it: its whole header rule."""
    return (
        (header.magic, header.version, header.payload_abi) == (layout.KVC_MAGIC, layout.KVC_VERSION, 2)
        and header.quant_bits in (2, 4)
        and header.tokens > 0
        and header.payload_end <= file_bytes
    )
