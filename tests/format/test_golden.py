"""Every file that the real ds4 wrote opens, says what its index says, and comes back byte for byte."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from conftest import TINY
from kvformat import layout
from kvformat.checkpoint import Checkpoint
from kvformat.shapes import FLASH, KNOWN, PRO, Shape
from kvformat.state import empty_state
from kvformat.writer import Contents
from kvtools.findings import Verdict
from kvtools.opening import open_settled
from kvtools.verifying import verify
from strategies import built, random_state

SHAPES = (TINY, *KNOWN)


@dataclass(frozen=True, slots=True)
class Golden:
    """One file and its row in the index of its generation."""

    path: Path
    row: dict[str, Any]
    generation: int


@pytest.fixture(scope="module")
def golden_files(golden_kv: Path) -> list[Golden]:
    old = json.loads((golden_kv / "kv/index.json").read_bytes())
    new = json.loads((golden_kv / "current/kv_index.json").read_bytes())
    files = [Golden(golden_kv / "kv" / row["file"], row, 0) for row in old]
    files += [Golden(golden_kv / "current/kv" / row["file"], row, 2) for row in new]
    assert {f.path for f in files} == {*(golden_kv / "kv").rglob("*.kv"), *(golden_kv / "current/kv").rglob("*.kv")}
    return files


def opened(files: list[Golden]) -> Iterator[tuple[Golden, Checkpoint]]:
    for golden in files:
        with Checkpoint.open(golden.path, SHAPES) as checkpoint:
            yield golden, checkpoint


HEADER_KEYS = {"quant": "quant_bits", "ext": "ext_flags"}
HEADER_ROW = ("quant", "reason", "ext", "tokens", "hits", "ctx", "created", "last_used", "payload_bytes", "text_bytes")


def test_header_equals_the_index(golden_files: list[Golden]) -> None:
    for golden, checkpoint in opened(golden_files):
        row = golden.row if golden.generation == 0 else golden.row["header"]
        for key in HEADER_ROW:
            assert getattr(checkpoint.header, HEADER_KEYS.get(key, key)) == row[key], (golden.path, key)
        assert checkpoint.size == golden.row["bytes"]
        assert (checkpoint.name_key == checkpoint.text_key()) is golden.row["name_is_sha1_of_text"]
        assert checkpoint.header.payload_abi == golden.generation


def test_current_header_bytes_equal_the_index(golden_files: list[Golden]) -> None:
    for golden, checkpoint in opened([f for f in golden_files if f.generation == 2]):
        header, row = checkpoint.header, golden.row["header"]
        assert header.magic.decode() == row["magic"]
        assert (header.version, header.model_id, header.payload_abi) == (row["version"], row["model_id"], 2)
        assert list(header.reserved) == row["bytes_21_23"]
        assert hashlib.sha256(golden.path.read_bytes()).hexdigest() == golden.row["sha256"]


def test_words_equal_the_index(golden_files: list[Golden]) -> None:
    for golden, checkpoint in opened(golden_files):
        wanted = golden.row["payload_header_u32" if golden.generation == 0 else "payload_u32"]
        assert checkpoint.payload is not None
        words = checkpoint.payload.words
        found = [int.from_bytes(words.magic, "little")]
        found += [getattr(words, name) for name in words._fields if name != "magic"]
        assert found == wanted, golden.path


def test_current_ids_counts_and_text_equal_the_index(golden_files: list[Golden]) -> None:
    for golden, checkpoint in opened([f for f in golden_files if f.generation == 2]):
        row, payload = golden.row, checkpoint.payload
        assert payload is not None
        assert list(checkpoint.token_ids()) == row["token_ids"]
        assert (list(payload.n_comp), list(payload.n_index_comp)) == (row["n_comp"], row["n_index_comp"])
        assert row["text_is_utf8"] is (checkpoint.text().decode("utf-8", "replace").encode() == checkpoint.text())
        assert checkpoint.text().decode("utf-8", "replace") == row["text"]
        assert checkpoint.size - checkpoint.header.payload_end == row["trailer_bytes"]


def test_tool_maps_and_nuls_equal_the_index(golden_files: list[Golden]) -> None:
    for golden, checkpoint in opened(golden_files):
        found = [[name.decode(), block.decode()] for name, block in checkpoint.tool_pairs()]
        assert (found or None) == golden.row["ktm"], golden.path
        assert (b"\0" in checkpoint.text()) is golden.row["text_has_nul"]
        assert (checkpoint.leftover, checkpoint.trailer_problem) == (0, None)


def test_build_gives_the_same_bytes(golden_files: list[Golden]) -> None:
    for golden, checkpoint in opened(golden_files):
        assert built(Contents.of(checkpoint)) == golden.path.read_bytes(), golden.path


def test_size_formula_gives_every_payload(golden_files: list[Golden]) -> None:
    for golden, checkpoint in opened(golden_files):
        assert TINY.payload_bytes(checkpoint.header.tokens) == checkpoint.header.payload_bytes, golden.path
        assert checkpoint.payload is not None
        assert TINY.counts(checkpoint.header.tokens) == (checkpoint.payload.n_comp, checkpoint.payload.n_index_comp)


def test_every_file_is_sound(golden_files: list[Golden]) -> None:
    for golden in golden_files:
        assert verify(golden.path, TINY).verdict is Verdict.OK, golden.path


def test_state_reads_into_buffers_and_views_alike(golden_files: list[Golden]) -> None:
    for _, checkpoint in opened(golden_files[:4] + golden_files[-4:]):
        state = empty_state(TINY, checkpoint.header.tokens, 4096)
        checkpoint.read_into(state)
        for (name, read), (_, viewed) in zip(state.arrays(), checkpoint.views().arrays(), strict=True):
            assert read.tobytes() == viewed.tobytes(), name
            assert not viewed.flags.writeable


# ---- ambiguity: the ratios are not in the file


def test_short_files_alone_are_ambiguous_and_long_ones_are_not(golden_files: list[Golden]) -> None:
    for golden in golden_files:
        with Checkpoint.open(golden.path) as checkpoint:
            assert checkpoint.payload is not None
            if checkpoint.header.tokens < 128:
                assert checkpoint.payload.shape is None, golden.path
                assert checkpoint.payload.layers is None
            else:
                assert checkpoint.shape.ratios == TINY.ratios, golden.path
            assert built(Contents.of(checkpoint)) == golden.path.read_bytes()


@pytest.fixture
def short_and_long(golden_files: list[Golden], tmp_path: Path) -> tuple[Path, Path]:
    """A file below 128 tokens, alone in a directory, and a longer one that is elsewhere."""
    key = "tokens"
    short = min((f for f in golden_files if f.generation == 0), key=lambda f: f.row[key]).path
    longer = next(f for f in golden_files if f.generation == 0 and f.row[key] > 200).path
    return shutil.copy(short, tmp_path / short.name), longer


def test_ratios_settle_an_ambiguous_file(short_and_long: tuple[Path, Path]) -> None:
    short, _ = short_and_long
    assert verify(short).verdict is Verdict.AMBIGUOUS
    assert verify(short, TINY.ratios).verdict is Verdict.OK
    assert verify(short, (0, 128, 4, 0, 4)).verdict is Verdict.OK  # the size cannot tell an order
    assert verify(short, (0, 128, 4, 128, 4)).verdict is Verdict.MISMATCH


def test_a_longer_file_of_the_directory_settles_an_ambiguous_one(short_and_long: tuple[Path, Path]) -> None:
    short, longer = short_and_long
    shutil.copy(longer, short.with_name(longer.name))
    with open_settled(short) as checkpoint:
        assert checkpoint.shape.ratios == TINY.ratios
    assert verify(short).verdict is Verdict.OK


def test_a_neighbour_of_another_model_does_not_condemn_a_file(short_and_long: tuple[Path, Path]) -> None:
    short, _ = short_and_long
    other = replace(TINY, ratios=(128, 128, 4, 128, 4))
    contents = Contents.from_state(random_state(other, 200, 4096), b"x", reason="cold", quant_bits=2, now=1)
    short.with_name("longer.kv").write_bytes(built(contents))
    assert verify(short).verdict is Verdict.AMBIGUOUS


# ---- the real shapes, from FORMAT 1.3

PAYLOAD_BYTES = """
1 12811664 19353120
127 25574792 37475352
128 25757580 37740572
512 31042956 45305372
1695 47275528 68537496
2048 52184460 75564572
4096 80373132 115910172
10240 164939148 236946972
10500 168516508 242066988
20480 305882508 438674972
24576 362259852 519366172
30720 446825868 640402972
32768 475014540 680748572
81920 1151542668 1649042972
100000 1400385548 2005203100
"""


@pytest.mark.parametrize("row", PAYLOAD_BYTES.split("\n")[1:-1])
def test_size_of_flash_and_pro(row: str) -> None:
    tokens, flash, pro = map(int, row.split())
    assert (FLASH.payload_bytes(tokens), PRO.payload_bytes(tokens)) == (flash, pro)


def test_layers_of_flash_and_pro() -> None:
    assert [FLASH.ratios.count(r) for r in (0, 4, 128)] == [2, 21, 20]
    assert [PRO.ratios.count(r) for r in (0, 4, 128)] == [0, 30, 31]


def hollow_file(path: Path, shape: Shape, tokens: int, ctx: int = 1 << 20) -> None:
    """A file of the right size with words and counts and nothing else: holes take no room on the disk."""
    size, counts = shape.payload_bytes(tokens), shape.counts(tokens)
    words = [2, ctx, 4096, 4352, 128, ctx // 4 + 2, tokens, shape.layers, 512, 128, 129280, min(128, tokens)]
    with path.open("wb") as file:
        file.write(
            struct.pack("<3sBBBBBIIIB3sQQQI", b"KVC", 1, 2, 1, 0, shape.model_id, tokens, 0, ctx, 2, b"", 1, 1, size, 1)
        )
        file.write(b"x" + layout.DSV4_MAGIC + struct.pack("<12I", *words))
        file.seek(4 * (tokens + shape.vocab), 1)
        file.write(struct.pack(f"<{2 * shape.layers}I", *counts[0], *counts[1]))
        file.truncate(53 + size)


def test_offsets_inside_the_flash_payload(tmp_path: Path) -> None:
    hollow_file(tmp_path / "flash.kv", FLASH, 10240)
    with Checkpoint.open(tmp_path / "flash.kv") as checkpoint:
        payload, layers = checkpoint.payload, checkpoint.layers
        assert payload is not None and checkpoint.shape is FLASH
        second = layers[2]
        spans = [payload.token_ids, payload.logits, payload.counts, layers[0].raw, layers[1].raw, second.raw]
        spans += [second.attn_comp, second.attn_state_kv, second.attn_state_score]
        spans += [second.index_comp, second.index_state_kv, second.index_state_score, layers[3].raw]
        start = checkpoint.header.payload_offset
        assert [span.offset - start for span in spans if span] == [
            *(52, 41_012, 558_132, 558_476, 820_620, 1_082_764),
            *(1_344_908, 6_587_788, 6_620_556, 6_653_324, 7_964_044, 7_972_236, 7_980_428),
        ]
        assert second.attn_comp is not None and second.attn_comp.shape == (2560, 512)
        assert layers[4].raw.offset - layers[3].raw.offset == 950_272
        assert layers[-1].raw.offset + 6_897_664 == checkpoint.size
        assert payload.counts.offset - start + 4 * FLASH.layers == 558_304


def test_pro_is_known_by_its_words(tmp_path: Path) -> None:
    hollow_file(tmp_path / "pro.kv", PRO, 1)
    with Checkpoint.open(tmp_path / "pro.kv") as checkpoint:
        assert checkpoint.shape is PRO and checkpoint.header.payload_bytes == 19_353_120
