"""Tool call ids: found in any file, without opening the others, and wherever the newest file has gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvformat.checkpoint import Checkpoint
from kvformat.inplace import refresh_tool_map
from kvformat.prefix import text_key
from kvformat.toolmap import encode_tool_map
from kvformat.writer import Contents
from store_kit import IDENTITY, NOW, count_opens, open_store, said, stored
from strategies import built, random_state


def test_ids_are_found_with_their_blocks(tmp_path: Path) -> None:
    stored(open_store(tmp_path), "a", 130, tool_map=[(b"id1", b"<A>"), (b"id2", b"<A>")])
    stored(open_store(tmp_path), "b", 130, tool_map=[(b"id3", b"<B>")])
    store = open_store(tmp_path)
    assert store.find_tools([b"id1", b"id3", b"unknown"]) == {b"id1": b"<A>", b"id3": b"<B>"}
    assert store.find_tools([]) == {}


def test_2000_files_and_50_lookups_need_one_open_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = Contents.from_state(
        random_state(IDENTITY.shape, 1, 10),
        b"0000",
        reason="cold",
        quant_bits=2,
        now=int(NOW),
        tool_map=[(b"id0000", b"<A>")],
    )
    data = built(template)
    for number in range(2000):
        text = b"%04d" % number
        (tmp_path / f"{text_key(text)}.kv").write_bytes(data.replace(b"0000", text))
    store = open_store(tmp_path)
    opened = count_opens(monkeypatch, tmp_path)
    for number in range(50):
        assert store.find_tools([b"nobody's %d" % number]) == {}
        assert list(store.candidates(b"nobody's prompt %d" % number)) == []
    assert opened.total() == 2000
    for number in range(50):
        assert store.find_tools([b"id%04d" % number]) == {b"id%04d" % number: b"<A>"}
    assert opened.total() == 2050


def test_an_id_is_still_found_when_its_newest_file_is_gone(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    stored(store, "a", 130, tool_map=[(b"id1", b"<A>")])
    newest = stored(store, "a", 200, tool_map=[(b"id1", b"<A>"), (b"id2", b"<B>")])
    assert store.find_tools([b"id1", b"id2"]) == {b"id1": b"<A>", b"id2": b"<B>"}
    newest.unlink()
    assert store.find_tools([b"id1", b"id2"]) == {b"id1": b"<A>"}


def test_a_map_that_another_process_rewrote_is_read_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    path = stored(store, "a", 130)
    assert store.find_tools([b"id1"]) == {}
    refresh_tool_map(path, encode_tool_map([(b"id1", b"<A>")]), int(NOW))
    assert store.find_tools([b"id1"]) == {b"id1": b"<A>"}
    refresh_tool_map(path, encode_tool_map([(b"id2", b"<B>")]), int(NOW))
    assert store.find_tools([b"id1"]) == {}
    assert store.find_tools([b"id2"]) == {b"id2": b"<B>"}


def test_a_replaced_file_is_read_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    path = stored(store, "a", 130, tool_map=[(b"id1", b"<A>")])
    assert store.find_tools([b"id1"])
    path.unlink()
    assert store.find_tools([b"id1"]) == {}
    stored(open_store(tmp_path), "a", 130, tool_map=[(b"id1", b"<B>")])
    assert store.find_tools([b"id1"]) == {b"id1": b"<B>"}


def test_our_own_place_is_searched_too(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    path = stored(store, "a", 130, tool_map=[(b"id1", b"<A>")])
    store.catalog.own.mkdir()
    path.rename(store.catalog.own / path.name)
    assert store.find_tools([b"id1"]) == {b"id1": b"<A>"}


@pytest.mark.parametrize("cut", [1, 9, 14])
def test_a_map_that_is_cut_short_gives_what_is_left(tmp_path: Path, cut: int) -> None:
    store = open_store(tmp_path)
    path = stored(store, "a", 130, tool_map=[(b"id1", b"<A>"), (b"id2", b"<B>")])
    path.write_bytes(path.read_bytes()[:-cut])
    assert store.find_tools([b"id1", b"id2"]) == {b"id1": b"<A>"}
    with Checkpoint.open(path, (IDENTITY.shape,)) as checkpoint:
        assert checkpoint.text() == said("a", 130)
