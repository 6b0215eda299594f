"""THE SPEC: the KVC file, the DSV4 payload, the KTM tool map and the title trailer, declared in construct; nothing else.

All integers are little-endian; float arrays are little-endian IEEE 754 (raw host memory of the writer); nothing is padded.

    0         HEADER          48 bytes
    48        TEXT            u32 length, then the rendered text: the key
    52+T      PAYLOAD         PAYLOAD_FRONT, then one LAYER per layer; `payload_bytes` of the header in all
    52+T+P    trailers        KTM if ext bit 0, TITLE if ext bit 3; bytes after them are nobody's

Bytes that no build gives a meaning to are fields as well, since they must survive. Text after `*` is the field's meaning;
docs/format.md prints these declarations as tables.
"""

from __future__ import annotations

from construct import Array, Bytes, If, Int8ul, Int32ul, Int64ul, Struct, this

from kvformat.spans import Tensor

KVC_MAGIC = b"KVC"
KVC_VERSION = 1
DSV4_MAGIC = b"DSV4"
KTM_MAGIC = b"KTM"
KTM_VERSION = 1

EXT_TOOL_MAP = 0x01
EXT_RESPONSES_VISIBLE = 0x02
EXT_THINKING_VISIBLE = 0x04
EXT_TITLE = 0x08
EXT_BANK_REPLAY = 0x10  # this and the next two: ds4-dfm
EXT_IMAGE_PIXELS = 0x20
EXT_FOOTER = 0x40
EXT_KNOWN = EXT_TOOL_MAP | EXT_RESPONSES_VISIBLE | EXT_THINKING_VISIBLE | EXT_TITLE

REASONS = ("unknown", "cold", "continued", "evict", "shutdown", "agent-system", "agent-session")

# payload ABI in the header → DSV4 version in the payload; ABI 1 was never written
GENERATIONS = {0: 1, 2: 2}

HEADER = Struct(
    "magic" / Bytes(3) * 'ASCII "KVC"',
    "version" / Int8ul * "1",
    "quant_bits" / Int8ul * "bits of the routed experts' weights: 2 (IQ2/Q2 class) or 4 (Q4 class, MXFP4)",
    "reason" / Int8ul * "0 unknown, 1 cold, 2 continued, 3 evict, 4 shutdown, 5 agent-system, 6 agent-session; forks: 7 to 9",
    "ext_flags" / Int8ul * "bit 0 KTM, 1 responses-visible key, 2 thinking-visible key, 3 title; forks: 4 to 6; all survive",
    "model_id" / Int8ul * "0 Flash, 1 Pro (2..6 other models); always 0 before 2026-05-25",
    "tokens" / Int32ul * "tokens of the payload, not 0",
    "hits" / Int32ul * "restores so far, wraps",
    "ctx" / Int32ul * "context length of the writer in tokens",
    "payload_abi" / Int8ul * "0 until 2026-05-26, then 2",
    "reserved" / Bytes(3) * "written 0, not read, survives",
    "created" / Int64ul * "unix seconds",
    "last_used" / Int64ul * "unix seconds; 0 means created",
    "payload_bytes" / Int64ul * "P; 0 in a stripped file (text only)",
)  # fmt: skip
HEADER_BYTES = HEADER.sizeof()
HITS_OFFSET = 12
LAST_USED_OFFSET = 32
EXT_FLAGS_OFFSET = 6

TEXT = Struct(
    "text_bytes" / Int32ul * "T",
    "text" / Tensor("u1", this.text_bytes) * "rendered bytes of the tokens or of the visible transcript; any bytes, no terminator",
)  # fmt: skip
TEXT_OFFSET = HEADER_BYTES + Int32ul.sizeof()

WORDS = Struct(
    "magic" / Bytes(4) * 'ASCII "DSV4", the word 0x34565344',
    "version" / Int32ul * "1 with ABI 0, 2 with ABI 2",
    "ctx" / Int32ul * "context length of the session in tokens",
    "prefill_chunk" / Int32ul * "ABI 0: min(ctx, 2048), and the reader wants its own; ABI 2: any",
    "raw_cap" / Int32ul * "rows of the writer's raw ring, at least raw_live",
    "raw_window" / Int32ul * "min(sliding window, ctx)",
    "comp_cap" / Int32ul * "ctx / 4 + 2",
    "tokens" / Int32ul * "N, below ctx",
    "layers" / Int32ul * "L: 43 Flash, 61 Pro",
    "head_dim" / Int32ul * "512",
    "indexer_dim" / Int32ul * "128",
    "vocab" / Int32ul * "129280",
    "raw_live" / Int32ul * "R = min(raw_window, N)",
)  # fmt: skip

PAYLOAD_FRONT = Struct(
    "words" / WORDS * "13 words",
    "token_ids" / Tensor("u4", this.words.tokens) * "what the state was made from; authoritative",
    "logits" / Tensor("f4", this.words.vocab) * "after the last token",
    "n_comp" / Tensor("u4", this.words.layers) * "compressed attention rows per layer: floor(N / ratio), 0 without a ratio",
    "n_index_comp" / Tensor("u4", this.words.layers) * "indexer rows per layer: floor(N / 4) at ratio 4, else 0",
)  # fmt: skip

# One layer. The ratio is the model's, not the file's; sizes come from the 13 words and the counts. They are given as
# keywords: ratio, live (R), comp, index (this layer's counts), head_dim, indexer_dim, limit.
_P = this._params
_lanes = 1 + (_P.ratio == 4)
LAYER = Struct(
    "raw" / Tensor("f4", _P.live, _P.head_dim) * "positions N-R .. N-1",
    "attn_comp" / If(_P.ratio != 0, Tensor("f4", _P.comp, _P.head_dim)) * "compressed rows, row 0 the oldest",
    "attn_state_kv" / If(_P.ratio != 0, Tensor("f4", _lanes * _P.ratio, _lanes * _P.head_dim))
    * "frontier of the compressor, row pos mod ratio (ratio 4: rows 0..3 previous window, 4..7 current); empty rows 0",
    "attn_state_score" / If(_P.ratio != 0, Tensor("f4", _lanes * _P.ratio, _lanes * _P.head_dim)) * "empty rows -1e30",
    "index_comp" / If(_P.ratio == 4, Tensor("f4", _P.index, _P.indexer_dim)) * "indexer rows, row 0 the oldest",
    "index_state_kv" / If(_P.ratio == 4, Tensor("f4", 8, 2 * _P.indexer_dim)) * "as attn_state_kv",
    "index_state_score" / If(_P.ratio == 4, Tensor("f4", 8, 2 * _P.indexer_dim)) * "as attn_state_score",
)  # fmt: skip

KTM_HEAD = Struct(
    "magic" / Bytes(3) * 'ASCII "KTM"',
    "version" / Int8ul * "1",
    "count" / Int32ul * "entries; a reader gives up above 4 times its own limit of ids",
)
KTM_ENTRY = Struct(
    "id_bytes" / Int32ul * "1..256",
    "dsml_bytes" / Int32ul * "1..512 MiB",
    "id" / Tensor("u1", this.id_bytes) * "tool call id, read up to the first NUL",
    "dsml" / Tensor("u1", this.dsml_bytes) * "the sampled block that holds this call, read up to the first NUL",
)
KTM = Struct("head" / KTM_HEAD, "entries" / Array(this.head.count, KTM_ENTRY))

TITLE = Struct(
    "title_bytes" / Int32ul * "length",
    "title" / Tensor("u1", this.title_bytes) * "session title, written by ds4-agent",
)

FOOTER = Struct(
    "magic" / Bytes(4) * 'ASCII "KVI" and a byte 1',
    "identity" / Bytes(32) * "names the model, in ds4-dfm's way",
    "end" / Bytes(4) * 'ASCII "KVI!"',
)
FOOTER_BYTES = FOOTER.sizeof()
FOOTER_MAGIC, FOOTER_END = b"KVI\x01", b"KVI!"

# By these the relatives of the format are recognised (FORMAT 1.4, 1.7, DIALECTS)
DSVL_MAGIC = b"DSVL"
SEGMENT_MAGIC = b"PSG1"
CKPT_MAGIC = b"CKPT"
TAIL_MAGICS = (b"TAIL", b"TAL2")
CONV_ID_HEADER = 72
V41_WORD_12 = 0x00413431
QWEN_WORD_12 = 0x51573802
GLM_52_SIZES = (78, 256, 256, 154880)  # words 8 to 11
GLM_53_LAYERS = 45
MODELS = ("Flash", "Pro", "GLM 5.2", "GLM 5.3 Flash or Laguna S2.1", "V4.1 Flash", "Qwen3.8 Flash Next", "Qwen3.8 mini")
