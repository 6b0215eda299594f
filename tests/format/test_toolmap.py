"""Tool maps are read and written like the real ds4 does it."""

from __future__ import annotations

import io
import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from kvformat import layout
from kvformat.toolmap import blocks_in_text, encode_tool_map, find_tool_map, pairs_in_text, read_tool_map
from strategies import tool_pairs


class Memory:
    """ds4's tool memory as far as these tests need it: the newest `limit` ids, each with its block."""

    def __init__(self, limit: int, preloaded: list[list[str]]) -> None:
        self.limit = limit
        self.blocks: OrderedDict[bytes, bytes] = OrderedDict()
        for name, block in preloaded:
            self.put(name.encode(), block.encode())

    def put(self, name: bytes, block: bytes) -> None:
        self.blocks[name] = block
        self.blocks.move_to_end(name)
        while len(self.blocks) > self.limit:
            self.blocks.popitem(last=False)

    def newest_first(self) -> list[list[str]]:
        return [[name.decode(), block.decode()] for name, block in reversed(self.blocks.items())]


def load(row: dict[str, Any]) -> tuple[int, Memory]:
    """Load a trailer into a memory as a server does; returns how many entries ds4 counts, also those that a NUL empties."""
    data = bytes.fromhex(row["hex"])
    file = io.BytesIO(data)
    tools = find_tool_map(file, 0, len(data), row["max_entries"])
    wanted = {name.encode() for name in row["wanted"]}
    memory = Memory(row["max_entries"], row["preloaded"])
    for name, block in read_tool_map(file, tools):
        if not wanted or name in wanted:
            memory.put(name, block)
    return sum(not wanted or entry.id in wanted for entry in tools.entries), memory


def test_load_gives_the_entries_of_the_real_loader(golden_kv: Path) -> None:
    rows = json.loads((golden_kv / "edge/ktm_load.json").read_bytes())
    assert len(rows) > 60
    for row in rows:
        loaded, memory = load(row)
        assert loaded == row["loaded"], row["name"]
        assert memory.newest_first() == [entry[:2] for entry in row["entries_mru_first"]], row["name"]


def test_write_gives_the_bytes_of_the_real_writer(golden_kv: Path) -> None:
    for row in json.loads((golden_kv / "edge/ktm_write.json").read_bytes()):
        ids_of: dict[bytes, list[bytes]] = {}
        for name, block in row["memory_in_put_order"]:
            ids_of.setdefault(block.encode(), []).insert(0, name.encode())
        written = encode_tool_map(pairs_in_text(row["text"].encode(), ids_of))
        assert written == bytes.fromhex(row["file_hex"]), row["name"]
        assert len(written) == row["written"]


@given(tool_pairs)
def test_a_written_map_reads_back_up_to_the_first_nul(pairs: list[tuple[bytes, bytes]]) -> None:
    data = encode_tool_map(pairs)
    found = find_tool_map(io.BytesIO(data), 0, len(data))
    assert (found.problem, found.end) == (None, len(data))
    cut = [(name.split(b"\0")[0], block.split(b"\0")[0]) for name, block in pairs]
    assert list(read_tool_map(io.BytesIO(data), found)) == [(name, block) for name, block in cut if name and block]


@given(tool_pairs)
def test_the_declaration_describes_what_is_written(pairs: list[tuple[bytes, bytes]]) -> None:
    data = encode_tool_map(pairs)
    declared = layout.KTM.parse(data, limit=len(data))
    found = find_tool_map(io.BytesIO(data), 0, len(data))
    assert [entry.dsml for entry in declared.entries] == [entry.dsml for entry in found.entries]
    assert [data[e.id.offset : e.id.end] for e in declared.entries] == [e.id for e in found.entries]


def test_blocks_follow_the_text_and_stop_at_a_nul() -> None:
    a, b = "<tool_calls>a</tool_calls>", "\n\n<｜DSML｜tool_calls>b</｜DSML｜tool_calls>"
    text = f"x{b}y\n{a}<DSML｜tool_calls>never closed\0{a}".encode()
    assert list(blocks_in_text(text)) == [b.encode(), a.encode()]


@pytest.mark.parametrize(("id_bytes", "entries"), [(256, 2), (257, 1)])
def test_an_id_may_have_256_bytes(id_bytes: int, entries: int) -> None:
    data = encode_tool_map([(b"a", b"<A>"), (b"x" * id_bytes, b"<B>")])
    assert len(find_tool_map(io.BytesIO(data), 0, len(data)).entries) == entries


def test_nothing_to_write_is_no_section() -> None:
    assert encode_tool_map([]) == b""
