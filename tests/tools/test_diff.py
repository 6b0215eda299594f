"""kvtool diff: the same state or not, where the difference is, and what no reader ever looks at."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pytest

from kvformat.shapes import FLASH
from kvformat.state import LayerState
from kvtools.diffing import diff_files
from kvtools.picture import picture
from kvtools.tensors import Tolerance
from strategies import built
from tools_kit import contents, kvtool, save
from zoo import zoo

TEXT = b"One text of a conversation. " * 10


def flipped(tmp_path: Path, layer: int, tensor: str, row: int, column: int, tokens: int = 130) -> Path:
    """The plain file with another value in one place."""
    plain = contents(TEXT, tokens)
    state = plain.payload.layers[layer]
    array = getattr(state, tensor).copy()
    array[row, column] = 12345.0
    layers = list(plain.payload.layers)
    layers[layer] = replace(state, **{tensor: array})
    made = replace(plain, payload=replace(plain.payload, layers=tuple(layers)))
    path = tmp_path / "flipped.kv"
    path.write_bytes(built(made))
    return path


class TestTheSameState:
    def test_a_file_equals_itself(self, golden_kv: Path) -> None:
        for path in sorted((golden_kv / "kv").rglob("*.kv"))[:12]:
            assert kvtool("diff", path, path).code == 0

    def test_hits_and_dates_are_shown_and_do_not_count(self, golden_kv: Path) -> None:
        name = "a14ce15b72549aa1b3626922cf2f0d41541d0813.kv"
        run = kvtool("diff", golden_kv / "kv/basic_q2" / name, golden_kv / "kv/basic_q2/later" / name, "--json")
        assert run.code == 0
        assert run.json["equal"]
        assert {f["field"]: f["counts"] for f in run.json["fields"]} == {"hits": False, "last_used": False}

    def test_another_generation_of_the_same_state(self, tmp_path: Path) -> None:
        old = tmp_path / "old.kv"
        plain = contents(TEXT)
        words = plain.payload.words._replace(version=1)
        old.write_bytes(
            built(
                replace(plain, header=plain.header._replace(payload_abi=0), payload=replace(plain.payload, words=words))
            )
        )
        assert kvtool("diff", old, save(tmp_path, TEXT)).code == 0

    def test_dead_slots_are_ignored(self, tmp_path: Path) -> None:
        """130 tokens: two pending in each window. MODEL section 3 says which slots are read again."""
        plain = save(tmp_path, TEXT)
        live = {(row, column) for row in range(4) for column in range(3)} | {(r, c) for r in (4, 5) for c in range(6)}
        for row in range(8):
            for column in range(6):
                found = diff_files(plain, flipped(tmp_path, 1, "attn_state_kv", row, column))
                assert found.equal is ((row, column) not in live), (row, column)
        for row in (0, 1, 2, 127):
            found = diff_files(plain, flipped(tmp_path, 2, "attn_state_score", row, 0))
            assert found.equal is (row > 1)

    @pytest.mark.parametrize(("tokens", "live_rows"), [(3, [4, 5, 6]), (4, [0, 1, 2, 3]), (7, [0, 1, 2, 3, 4, 5, 6])])
    def test_live_slots_of_short_states(self, tmp_path: Path, tokens: int, live_rows: list[int]) -> None:
        plain = save(tmp_path, TEXT, tokens)
        shape = (0, 4, 128)
        different = [
            row
            for row in range(8)
            if not diff_files(plain, flipped(tmp_path, 1, "index_state_score", row, 0, tokens), shape).equal
        ]
        assert different == live_rows

    def test_empty_scores_are_equal_however_they_are_written(self, tmp_path: Path) -> None:
        files = []
        for value in (-1e30, -np.inf):
            plain = contents(TEXT)
            layer = plain.payload.layers[1]
            score = layer.attn_state_score.copy()
            score[4:6] = value
            layers = (plain.payload.layers[0], replace(layer, attn_state_score=score), plain.payload.layers[2])
            files.append(tmp_path / f"{value}.kv")
            files[-1].write_bytes(built(replace(plain, payload=replace(plain.payload, layers=layers))))
        assert kvtool("diff", *files).code == 0

    def test_rows_of_the_same_tokens_agree_between_two_lengths(self, golden_kv: Path) -> None:
        """Two saves of one run of the real server, at 192 and at 205 tokens."""
        shorter = golden_kv / "kv/basic_q4/11c4d4e836c0f11fe2017d2bf5b0b538184ad99b.kv"
        longer = golden_kv / "kv/basic_q4/de16c59ac87763620e97e042601b5430e204ecd2.kv"
        found = diff_files(shorter, longer)
        assert not found.equal
        assert (found.tokens.position, found.tokens.in_a, found.tokens.resplit) == (192, (), False)
        rows = {(layer.layer, layer.tensor.name): layer.tensor for layer in found.layers}
        assert rows[2, "attn_comp"].rows == 48
        assert rows[0, "raw"].rows == 3  # positions 189..191 are in both rings of 16
        assert not any(tensor.differing_rows for tensor in rows.values())


class TestAnotherState:
    @pytest.mark.parametrize(
        ("layer", "tensor", "row"),
        [
            (0, "raw", 7),
            (1, "attn_comp", 31),
            (1, "index_comp", 0),
            (1, "attn_state_kv", 5),
            (2, "attn_state_score", 1),
        ],
    )
    def test_it_names_the_layer_the_tensor_and_the_row(self, tmp_path: Path, layer: int, tensor: str, row: int) -> None:
        run = kvtool("diff", save(tmp_path, TEXT), flipped(tmp_path, layer, tensor, row, 0), "--json")
        assert run.code == 1
        differing = [found for found in run.json["layers"] if found["differing_rows"]]
        assert [(d["layer"], d["tensor"], d["first_row"], d["differing_rows"]) for d in differing] == [
            (layer, tensor, row, 1)
        ]

    def test_other_weights(self, golden_kv: Path) -> None:
        name = "de16c59ac87763620e97e042601b5430e204ecd2.kv"
        run = kvtool("diff", golden_kv / "kv/basic_q2" / name, golden_kv / "kv/basic_q4" / name, "--json")
        assert run.code == 1
        assert run.json["text"] is None
        assert run.json["tokens"] is None
        assert {f["field"] for f in run.json["fields"] if f["counts"]} == {"quant_bits"}
        assert run.json["logits"]["kl"] > 1
        assert len(run.json["logits"]["a_top"]) == 5

    def test_text(self, tmp_path: Path) -> None:
        a, b = save(tmp_path, b"x" * 50 + b"alpha" + b"y" * 50), save(tmp_path, b"x" * 50 + b"beta" + b"y" * 50)
        found = diff_files(a, b).text
        assert (found.byte, found.in_a, found.in_b) == (
            50,
            b"x" * 20 + b"alpha" + b"y" * 15,
            b"x" * 20 + b"beta" + b"y" * 16,
        )

    def test_a_difference_behind_the_first_piece_of_a_long_text(self, tmp_path: Path) -> None:
        long = b"0123456789" * 150_000
        a, b = save(tmp_path, long + b"a"), save(tmp_path, long)
        assert diff_files(a, b).text.byte == len(long)
        assert diff_files(b, a).text.in_a == long[-20:]

    def test_the_same_text_in_other_tokens(self, tmp_path: Path) -> None:
        ids = np.arange(130) % 64
        other = ids.copy()
        other[[40, 41]] = 7, 8
        a, b = tmp_path / "a.kv", tmp_path / "b.kv"
        a.write_bytes(built(contents(TEXT, ids=ids)))
        b.write_bytes(built(contents(TEXT, ids=other)))
        found = diff_files(a, b).tokens
        assert (found.position, found.in_a[:2], found.in_b[:2], found.resplit) == (40, (40, 41), (7, 8), True)

    def test_logits(self, tmp_path: Path) -> None:
        """Two of 64 tokens have half of the mass each in A, three quarters and a quarter in B."""
        files = []
        for halves in ((log(0.5), log(0.5)), (log(0.75), log(0.25))):
            plain = contents(TEXT)
            logits = np.full(64, -np.inf, np.float32)
            logits[[3, 9]] = halves
            files.append(tmp_path / f"{len(files)}.kv")
            files[-1].write_bytes(built(replace(plain, payload=replace(plain.payload, logits=logits))))
        found = diff_files(*files).logits
        assert found.kl == pytest.approx(0.5 * log(0.5 / 0.75) + 0.5 * log(0.5 / 0.25), rel=1e-5)
        assert found.max_abs == pytest.approx(log(2), rel=1e-5)
        assert [token for token, _ in found.b_top[:2]] == [3, 9]
        run = kvtool("diff", *files, "--json")
        assert run.json["logits"]["a_top"][2]["logit"] is None  # JSON has no infinity

    def test_tolerance(self, tmp_path: Path) -> None:
        plain = contents(TEXT)
        a, b = tmp_path / "a.kv", tmp_path / "b.kv"
        a.write_bytes(built(replace(plain, payload=replace(plain.payload, logits=np.full(64, 2.0, np.float32)))))
        b.write_bytes(built(replace(plain, payload=replace(plain.payload, logits=np.full(64, 2.25, np.float32)))))
        assert [kvtool("diff", a, b, *o).code for o in ((), ("--atol", 0.25), ("--atol", 0.2), ("--rtol", 0.12))] == [
            1,
            0,
            1,
            0,
        ]
        assert diff_files(a, b, within=Tolerance(0.25)).logits.max_abs == 0.25

    def test_nan_is_a_difference_unless_both_have_it(self, tmp_path: Path) -> None:
        plain = contents(TEXT)
        logits = np.zeros(64, np.float32)
        logits[5] = np.nan
        a, b = tmp_path / "a.kv", tmp_path / "b.kv"
        a.write_bytes(built(replace(plain, payload=replace(plain.payload, logits=logits))))
        b.write_bytes(built(replace(plain, payload=replace(plain.payload, logits=np.zeros(64, np.float32)))))
        assert kvtool("diff", a, a).code == 0
        run = kvtool("diff", a, b, "--json")
        assert (run.code, run.json["logits"]["max_abs"]) == (1, None)

    def test_tool_maps(self, tmp_path: Path) -> None:
        a, b = tmp_path / "a.kv", tmp_path / "b.kv"
        a.write_bytes(built(contents(TEXT, tool_map=[(b"one", b"X"), (b"two", b"X"), (b"both", b"X")])))
        b.write_bytes(built(contents(TEXT, tool_map=[(b"both", b"X"), (b"two", b"Y"), (b"three", b"X")])))
        run = kvtool("diff", a, b, "--json")
        assert run.code == 1
        assert run.json["tools"] == {"only_a": ["one"], "only_b": ["three"], "other_block": ["two"]}

    def test_another_layout(self, tmp_path: Path) -> None:
        a = save(tmp_path / "a", TEXT)
        b = save(tmp_path / "b", TEXT, shape=replace(FLASH, name="x", ratios=(0, 4), head_dim=3, vocab=64, window=8))
        run = kvtool("diff", a, b, "--json")
        assert run.code == 1
        assert run.json["layers"] == []
        assert {"layers", "ratios"} <= {f["field"] for f in run.json["fields"]}


class TestFilesThatStayOpenOrAreNone:
    def test_two_ambiguous_files_are_compared_as_they_lie(self, tmp_path: Path) -> None:
        a, b = save(tmp_path / "a", TEXT, 3), save(tmp_path / "b", TEXT, 3, seed=1)
        same = kvtool("diff", a, a, "--json")
        assert (same.code, [layer["tensor"] for layer in same.json["layers"]]) == (0, ["body"])
        assert kvtool("diff", a, b).code == 1

    def test_a_longer_file_beside_one_settles_both(self, tmp_path: Path) -> None:
        save(tmp_path / "a", b"longer", 130)
        run = kvtool("diff", save(tmp_path / "a", TEXT, 3), save(tmp_path / "b", TEXT, 3), "--json")
        assert run.code == 0
        assert {layer["ratio"] for layer in run.json["layers"]} == {0, 4, 128}
        swapped = kvtool("diff", save(tmp_path / "b", TEXT, 3), save(tmp_path / "a", TEXT, 3), "--json")
        assert swapped.json["layers"] == run.json["layers"]

    def test_stripped(self, tmp_path: Path) -> None:
        plain = contents(TEXT)
        path = tmp_path / "stripped.kv"
        path.write_bytes(built(replace(plain, header=plain.header.with_sizes(len(TEXT), 0), payload=None)))
        assert kvtool("diff", path, path).code == 0
        run = kvtool("diff", path, save(tmp_path, TEXT))
        assert run.code == 1
        assert "holds text only" in run.err

    @pytest.mark.parametrize("specimen", zoo(), ids=lambda specimen: specimen.name)
    def test_the_zoo(self, specimen, tmp_path: Path) -> None:
        path = tmp_path / specimen.file_name
        path.write_bytes(specimen.data)
        run = kvtool("diff", path, path)
        assert run.code == (1 if run.err else 0)
        assert "Traceback" not in run.err
        assert run.err.count("\n") <= 1

    def test_missing(self, tmp_path: Path) -> None:
        run = kvtool("diff", tmp_path / "no.kv", tmp_path / "no.kv")
        assert run.code == 3
        assert "no such file" in run.err


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """64 MB of layers that all differ; what is held at any time are a few pieces of 1 MiB and their distances."""
    shape = replace(FLASH, name="wide", ratios=(4,) * 4, vocab=64)
    tokens = 24_000
    state_bytes = shape.payload_bytes(tokens)
    assert state_bytes > 60e6
    paths = []
    for value in (1.0, 2.0):
        made = contents(b"t", tokens, shape=shape, ctx=tokens + 1)
        layers = (
            LayerState(**{n: np.full(a.shape, value, np.float32) for n, a in made.payload.layers[0].arrays()}),
        ) * 4
        paths.append(tmp_path / f"{value}.kv")
        paths[-1].write_bytes(built(replace(made, payload=replace(made.payload, layers=layers))))
    tracemalloc.start()
    assert not diff_files(*paths).equal
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16e6


class TestPicture:
    def test_the_caret_stands_under_the_first_byte_that_differs(self) -> None:
        lines = list(picture("prompt", b"0123456789abcdefghijXrest", "file", b"0123456789abcdefghijYrest", 400))
        assert lines == [
            "  prompt  …0123456789abcdefghijXrest",
            "  file    …0123456789abcdefghijYrest",
            "                               ^ byte 400",
        ]

    def test_near_the_start_and_at_an_end(self) -> None:
        lines = list(picture("A", b"abc", "B", b"abcd", 3))
        assert lines == ["  A  abc(end)", "  B  abcd", "        ^ byte 3"]

    def test_wide_and_half_characters(self) -> None:
        a, b = "今天x".encode(), "今夫x".encode()  # the second characters share two of their bytes
        lines = list(picture("A", a, "B", b, 4))
        assert lines == ["  A  今天x", "  B  今夫x", "       ^ byte 4"]

    def test_a_terminal_gets_no_control_bytes(self) -> None:
        assert "\x1b" not in "".join(picture("A", b"\x1b[31m", "B", b"x", 0))
