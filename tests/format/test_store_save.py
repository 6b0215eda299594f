"""Saving: nothing twice, nothing over another's file, room first, and every refusal told and counted."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from kvformat.governor import Limits
from kvformat.policy import Reason
from kvformat.sidecar import read_sidecar
from kvformat.store import Store
from store_kit import (
    IDENTITY,
    header_of,
    open_store,
    plant,
    restored,
    said,
    save,
    stored,
)
from strategies import patched

# ---- one file


def test_what_was_saved_is_found_by_another_process(tmp_path: Path) -> None:
    path = stored(open_store(tmp_path), "a", 130)
    assert path.parent == tmp_path
    assert restored(open_store(tmp_path), said("a", 200)) == 130


def test_directory_and_files_are_private(tmp_path: Path) -> None:
    fingerprinted = replace(IDENTITY, fingerprint="aa11")
    path = stored(open_store(tmp_path / "new" / "kv", fingerprinted), "a", 130)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    for entry in path.parent.iterdir():
        assert entry.stat().st_mode & 0o777 == 0o600, entry


@pytest.mark.parametrize(("abi", "expected"), [(0, 0), (2, 2)])
def test_the_generation_can_be_chosen(tmp_path: Path, abi: int, expected: int) -> None:
    assert header_of(stored(open_store(tmp_path, abi=abi), "a", 130)).payload_abi == expected


def test_the_generation_is_that_of_the_newest_file_that_we_understand(tmp_path: Path) -> None:
    assert header_of(stored(open_store(tmp_path / "empty"), "a", 130)).payload_abi == 2
    plant(tmp_path, "new", 20, generation=2, created=100)
    plant(tmp_path, "newer", 20, generation=0, created=200)
    plant(tmp_path, "newest", 20, payload_abi=9, created=300)
    store = open_store(tmp_path)
    old = stored(store, "a", 130)
    assert header_of(old).payload_abi == 0
    for path in (*tmp_path.glob("*.kv"),):
        path.unlink()
    assert header_of(stored(store, "a", 130)).payload_abi == 2


# ---- the same text again


def test_the_same_text_twice_writes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    path = stored(store, "a", 130)
    before, info = path.read_bytes(), path.stat()
    again = save(store, "a", 130)
    assert (again.status, again.path, again.nbytes) == ("present", path, 0)
    assert path.read_bytes() == before and path.stat().st_mtime_ns == info.st_mtime_ns
    assert store.ledger.written[Reason.EVICT] == len(before)


def test_only_a_changed_tool_map_is_written(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    path = stored(store, "a", 130, tool_map=[(b"id1", b"<A>")])
    changed = path.stat().st_mtime_ns
    assert save(store, "a", 130, tool_map=[(b"id1", b"<A>")]).status == "present"
    assert path.stat().st_mtime_ns == changed
    assert save(store, "a", 130, tool_map=[(b"id2", b"<B>")]).status == "present"
    assert store.find_tools([b"id1", b"id2"]) == {b"id1": b"<A>", b"id2": b"<B>"}
    assert restored(store, said("a", 200)) == 130


def test_a_damaged_file_of_the_same_text_is_replaced_and_that_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store = open_store(tmp_path)
    path = stored(store, "a", 130)
    good = path.read_bytes()
    payload = header_of(path).payload_offset
    for damage in (good[:-1], patched(good, (payload + 28, b"\xff")), patched(good, (60, b"!"))):
        path.write_bytes(damage)
        caplog.clear()
        assert save(store, "a", 130).status == "stored"
        assert path.read_bytes() == good
        assert f"{path} is damaged" in caplog.text


# ---- the same text of somebody else


def subdirectory(store: Store) -> Path:
    return store.catalog.own


@pytest.mark.parametrize(
    "theirs",
    [{"model_id": 1}, {"quant_bits": 4}, {"payload_abi": 9}, {"version": 2}, {"magic": b"ABC"}],
    ids=lambda change: next(iter(change)),
)
def test_their_file_stays_and_ours_goes_into_our_own_place(
    tmp_path: Path, theirs: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    path = plant(tmp_path, "a", 130, **theirs)
    plant(tmp_path, "b", 130, **theirs)
    before = path.read_bytes()
    store = open_store(tmp_path, replace(IDENTITY, reject_other_quant=True))
    ours = [stored(store, "a", 130), stored(store, "b", 130)]
    assert {path.parent for path in ours} == {subdirectory(store)}
    assert path.read_bytes() == before
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1
    assert restored(store, said("a", 200)) == 130
    assert restored(open_store(tmp_path), said("a", 200)) == 130
    assert save(store, "a", 130).status == "present"
    assert subdirectory(store).stat().st_mode & 0o777 == 0o700


def test_other_layers_under_our_name_are_not_ours_to_replace(tmp_path: Path) -> None:
    path = plant(tmp_path, "a", 130, replace(IDENTITY.shape, head_dim=5))
    before = path.read_bytes()
    store = open_store(tmp_path)
    assert restored(store, said("a", 200)) == 0
    assert stored(store, "a", 130).parent == subdirectory(store)
    assert path.read_bytes() == before
    assert restored(store, said("a", 200)) == 130


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: os.mkfifo(path)], ids=["directory", "pipe"])
def test_what_is_no_file_keeps_its_name(tmp_path: Path, make: object) -> None:
    store = open_store(tmp_path)
    path = stored(store, "a", 130)
    path.unlink()
    make(path)  # type: ignore[operator]
    assert stored(store, "a", 130).parent == subdirectory(store)
    assert path.exists() and not path.is_file()
    path.rmdir() if path.is_dir() else path.unlink()


def test_other_weights_live_side_by_side(tmp_path: Path) -> None:
    mine, other = (open_store(tmp_path, replace(IDENTITY, fingerprint=f)) for f in ("aa11", "bb22"))
    first, second = stored(mine, "a", 130), stored(other, "a", 130)
    assert (first.parent, second.parent) == (tmp_path, subdirectory(other))
    assert [read_sidecar(path).fingerprint for path in (first, second)] == ["aa11", "bb22"]
    for store in (mine, other):
        assert restored(store, said("a", 200)) == 130


def test_a_longer_file_of_another_model_does_not_make_ours_worthless(tmp_path: Path) -> None:
    plant(tmp_path, "a", 190, model_id=1)
    store = open_store(tmp_path, limits=Limits(min_gain=50))
    assert save(store, "a", 200).status == "stored"
