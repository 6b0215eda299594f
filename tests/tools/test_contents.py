"""kvtool tools, text, tokens: what a file holds, taken out byte for byte."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from kvformat.checkpoint import Checkpoint
from kvformat.prefix import text_key
from kvtools.contents import print_text
from strategies import built
from tools_kit import contents, kvtool, save, save_many
from zoo import zoo

MODEL = Path(__file__).parents[1] / "golden/models/tiny-q2.gguf"
BLOCK, OTHER = b"\n\n<tool_calls>one</tool_calls>", b"<tool_calls>two</tool_calls>"
ASSISTANT = "<｜Assistant｜>".encode()


class TestTools:
    def test_ids_and_their_blocks(self, tmp_path: Path) -> None:
        path = save(tmp_path, ASSISTANT + BLOCK, tool_map=[(b"call_1", BLOCK), (b"call_2", BLOCK)])
        (file,) = kvtool("tools", path, "--json").json["files"]
        assert file["tools"] == [{"id": "call_1", "block": BLOCK.decode()}, {"id": "call_2", "block": BLOCK.decode()}]
        assert (file["unmapped_blocks"], file["unmapped_ids"], file["problem"]) == ([], [], None)
        assert "  call_1, call_2\n      <tool_calls>one</tool_calls>\n" in kvtool("tools", path).out

    def test_a_block_that_no_id_stands_for(self, tmp_path: Path) -> None:
        explained = b"Write <tool_calls>like this</tool_calls>."
        path = save(tmp_path, explained + ASSISTANT + BLOCK + OTHER, tool_map=[(b"call_1", BLOCK)])
        (file,) = kvtool("tools", path, "--json").json["files"]
        assert file["unmapped_blocks"] == [OTHER.decode()]
        assert "in the text under no id: cannot be replayed after a restart" in kvtool("tools", path).out

    def test_an_id_in_the_text_without_a_block(self, tmp_path: Path) -> None:
        name = b"call_" + b"0123456789abcdef" * 2
        path = save(tmp_path, b"As " + name + b" said, and call_12 did not", tool_map=[(b"call_1", BLOCK)])
        assert kvtool("tools", path, "--json").json["files"][0]["unmapped_ids"] == [name.decode()]

    def test_an_id_that_stands_for_two_blocks(self, tmp_path: Path) -> None:
        save(tmp_path, b"one", tool_map=[(b"call_1", BLOCK), (b"call_2", BLOCK)])
        save(tmp_path, b"two", tool_map=[(b"call_1", OTHER), (b"call_2", BLOCK)])
        assert kvtool("tools", tmp_path, "--json").json["duplicates"] == [{"id": "call_1", "blocks": 2}]
        assert "call_1 stands for 2 different blocks" in kvtool("tools", tmp_path).out

    def test_the_real_server(self, restart: Path) -> None:
        found = kvtool("tools", restart / "tools_q2_run2/kv", "--json").json
        assert found["duplicates"] == []
        ids = {tool["id"] for file in found["files"] for tool in file["tools"]}
        assert len(ids) == 3
        assert not any(file["unmapped_blocks"] for file in found["files"])

    def test_the_zoo(self, tmp_path: Path) -> None:
        for number, specimen in enumerate(zoo()):
            (tmp_path / f"{number:040x}.kv").write_bytes(specimen.data)
        run = kvtool("tools", tmp_path, "--jsonl")
        assert run.code == 1
        assert len(run.lines) == len(zoo())
        assert all("error" in line or "tools" in line for line in run.lines)

    def test_five_thousand_files(self, tmp_path: Path) -> None:
        save_many(tmp_path / "kv", (b"%04d" % number + ASSISTANT + BLOCK for number in range(5000)))
        lines = kvtool("tools", tmp_path / "kv", "--jsonl").lines
        assert len(lines) == 5000
        assert all(line["unmapped_blocks"] == [BLOCK.decode()] for line in lines)

    def test_empty_and_missing(self, tmp_path: Path) -> None:
        assert kvtool("tools", tmp_path, "--json").json == {"files": [], "duplicates": []}
        assert kvtool("tools", tmp_path / "no.kv").code == 3


class TestText:
    def test_a_pipe_gets_the_bytes(self, golden_kv: Path) -> None:
        for path in sorted((golden_kv / "kv/basic_q2").glob("*.kv")):
            run = kvtool("text", path)
            assert (run.code, text_key(run.raw)) == (0, path.stem)

    def test_a_terminal_gets_lines_that_it_cannot_obey(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        with Checkpoint.open(save(tmp_path, b"one\n\x1b[31mtwo\xff\x00")) as checkpoint:
            print_text(checkpoint, Terminal())
        assert capsys.readouterr().out == "one\n\\x1b[31mtwo\\xff\\x00\n"

    def test_a_stripped_file_has_one(self, tmp_path: Path) -> None:
        made = contents(b"abc")
        path = tmp_path / "x.kv"
        path.write_bytes(built(replace(made, header=made.header.with_sizes(3, 0), payload=None)))
        assert kvtool("text", path).raw == b"abc"
        assert kvtool("tokens", path).code == 1
        assert "holds text only" in kvtool("tokens", path).err

    def test_what_cannot_be_read(self, tmp_path: Path) -> None:
        for verb in ("text", "tokens"):
            assert kvtool(verb, tmp_path / "no.kv").code == 3
            for specimen in zoo():
                path = tmp_path / specimen.file_name
                path.write_bytes(specimen.data)
                assert kvtool(verb, path).code in (0, 1)


class TestTokens:
    def test_one_line_of_ids(self, tmp_path: Path) -> None:
        path = save(tmp_path, b"abc", 5, ids=[3, 1, 4, 1, 5])
        assert kvtool("tokens", path).out == "3 1 4 1 5\n"
        assert kvtool("tokens", path, "--json").json == {
            "path": str(path), "tokens": 5, "ids": [3, 1, 4, 1, 5], "pieces": None
        }  # fmt: skip

    def test_pieces_join_to_the_text(self, golden_kv: Path) -> None:
        pytest.importorskip("tokenizers")
        path = golden_kv / "kv/basic_q2/d9c3f7728aeef45ed26391cec1b05ec55c8cb314.kv"
        found = kvtool("tokens", path, "--tokenizer", MODEL, "--json").json
        assert "".join(found["pieces"]).encode().startswith("<｜begin▁of▁sentence｜>You are a helpful".encode())
        assert kvtool("tokens", path, "--tokenizer", MODEL).out.splitlines()[1] == "0\t0\t<｜begin▁of▁sentence｜>"

    def test_an_id_beyond_the_vocabulary(self, tmp_path: Path) -> None:
        pytest.importorskip("tokenizers")
        path = save(tmp_path, b"abc", 2, ids=[0, 10**6])
        assert kvtool("tokens", path, "--tokenizer", MODEL, "--json").json["pieces"][1] == "?"

    def test_no_tokenizer(self, tmp_path: Path) -> None:
        run = kvtool("tokens", save(tmp_path, b"abc"), "--tokenizer", tmp_path / "no.gguf")
        assert run.code == 3
        assert "cannot be used as a tokenizer" in run.err or "pip install" in run.err
