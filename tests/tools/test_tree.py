"""kvtool tree: the forest of prefixes, and what is held twice in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from kvformat.prefix import text_key
from kvtools.foresting import forest, totals
from strategies import built
from tools_kit import contents, kvtool, save, save_many
from zoo import zoo


def parents(directory: Path) -> dict[str, str | None]:
    return {node.name: node.parent for node in forest(directory)}


def name(text: bytes) -> str:
    return f"{text_key(text)}.kv"


class TestTheForest:
    def test_each_file_hangs_on_the_longest_that_it_extends(self, tmp_path: Path) -> None:
        for text, tokens in ((b"ab", 1), (b"abcd", 2), (b"abcdef", 3), (b"abx", 2), (b"z", 1)):
            save(tmp_path, text, tokens)
        assert parents(tmp_path) == {
            name(b"ab"): None,
            name(b"abcd"): name(b"ab"),
            name(b"abcdef"): name(b"abcd"),
            name(b"abx"): name(b"ab"),
            name(b"z"): None,
        }
        nodes = {node.name: node for node in forest(tmp_path)}
        assert [nodes[name(t)].depth for t in (b"ab", b"abcd", b"abcdef", b"abx", b"z")] == [0, 1, 2, 1, 0]
        assert {n for n, node in nodes.items() if node.covered} == {name(b"ab"), name(b"abcd")}

    def test_two_files_of_one_text(self, tmp_path: Path) -> None:
        """A reader on a case-blind disk, or an agent's session: the second hangs on the first."""
        path = save(tmp_path, b"abc")
        (tmp_path / "sysprompt.kv").write_bytes(path.read_bytes())
        assert parents(tmp_path) == {path.name: None, "sysprompt.kv": path.name}

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        save(tmp_path, b"\xff\x00\x1b"), save(tmp_path, b"\xff\x00\x1b[31m")
        run = kvtool("tree", tmp_path)
        assert run.code == 0
        assert "\x1b" not in run.out

    def test_the_real_server(self, restart: Path) -> None:
        found = totals(forest(restart / "basic_q2_run3/kv"))
        assert {key: found[key] for key in ("files", "roots", "covered")} == {"files": 17, "roots": 3, "covered": 12}

    def test_covered_is_what_the_store_calls_covered(self, golden_kv: Path) -> None:
        from kvformat.catalog import Catalog
        from kvformat.identity import Identity
        from kvformat.shapes import FLASH

        for directory in sorted((golden_kv / "current/kv").iterdir()):
            catalog = Catalog(directory, Identity(FLASH, 2))
            catalog.refresh()
            assert {node.name for node in forest(directory) if node.covered} == {p.name for p in catalog.covered()}


class TestSharedBytes:
    def test_nested_files_share_the_rows_of_the_shorter(self, tmp_path: Path) -> None:
        """Ratios 0, 4, 128 with head 3 and indexer 2: a quarter of the tokens makes rows of 3 + 2 floats, a 128th rows of 3."""
        for tokens in (16, 32, 480):
            save(tmp_path, b"x" * tokens, tokens)
        nodes = {node.header.tokens: node.shared_bytes for node in forest(tmp_path)}
        assert nodes == {16: 0, 32: 4 * (16 + 4 * 5), 480: 4 * (32 + 8 * 5)}
        save(tmp_path, b"x" * 500, 500)
        nodes = {node.header.tokens: node.shared_bytes for node in forest(tmp_path)}
        assert nodes[500] == 4 * (480 + 120 * 5 + 3 * 3)

    def test_other_tokens_share_nothing(self, tmp_path: Path) -> None:
        save(tmp_path, b"abc", 16)
        save(tmp_path, b"abcdef", 32, ids=np.zeros(32))
        assert totals(forest(tmp_path))["shared_bytes"] == 0

    def test_stripped_files_share_nothing(self, tmp_path: Path) -> None:
        made = contents(b"abc")
        (tmp_path / name(b"abc")).write_bytes(built(replace(made, header=made.header.with_sizes(3, 0), payload=None)))
        save(tmp_path, b"abcdef")
        assert parents(tmp_path)[name(b"abcdef")] == name(b"abc")
        assert totals(forest(tmp_path))["shared_bytes"] == 0


class TestDirectories:
    def test_empty(self, tmp_path: Path) -> None:
        run = kvtool("tree", tmp_path, "--json")
        assert (run.code, run.json["files"], run.json["totals"]["files"]) == (0, [], 0)
        assert kvtool("tree", tmp_path).err == "no checkpoints\n"

    def test_missing(self, tmp_path: Path) -> None:
        assert kvtool("tree", tmp_path / "no").code == 3

    def test_the_zoo(self, tmp_path: Path) -> None:
        for number, specimen in enumerate(zoo()):
            (tmp_path / f"{number:040x}.kv").write_bytes(specimen.data)
        run = kvtool("tree", tmp_path, "--jsonl")
        assert run.code == 0
        assert {line["text_bytes"] for line in run.lines} == {12}

    def test_five_thousand_files(self, tmp_path: Path) -> None:
        """500 conversations of ten waypoints each."""
        texts = (b"%03d" % chat + b"turn " * turns for chat in range(500) for turns in range(1, 11))
        save_many(tmp_path / "kv", texts)
        found = kvtool("tree", tmp_path / "kv", "--json").json["totals"]
        assert {key: found[key] for key in ("files", "roots", "covered")} == {
            "files": 5000,
            "roots": 500,
            "covered": 4500,
        }
