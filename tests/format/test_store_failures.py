"""A file that fails is remembered and left alone, the next one is tried in the same request; a restore is counted on request."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvformat.errors import KVError
from kvformat.sidecar import sidecar_path
from store_kit import (
    IDENTITY,
    Clock,
    count_opens,
    header_of,
    open_store,
    plant,
    restore,
    restored,
    said,
    stored,
    verdicts,
)

PROMPT = said("a", 300)


# ---- files that fail


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def scribble(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(60)
        file.write(b"!")


def break_payload(path: Path) -> None:
    header = header_of(path)
    with path.open("r+b") as file:
        file.seek(header.payload_offset + 28)  # word 7, the token count
        file.write(b"\xff")


@pytest.mark.parametrize("damage", [cut, scribble, break_payload])
def test_the_next_shorter_one_is_used_in_the_same_request_and_the_bad_one_never_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]
) -> None:
    store = open_store(tmp_path)
    long, short = stored(store, "a", 200), stored(store, "a", 130)
    damage(long)
    before = long.read_bytes()
    assert restored(store, PROMPT) == 130
    opened = count_opens(monkeypatch, tmp_path)
    assert restored(store, PROMPT) == 130
    assert opened[long.name] == 0 and opened[short.name] == 1
    assert verdicts(store, PROMPT).get(200) != "usable"
    assert long.read_bytes() == before


def test_a_damaged_file_is_named_once_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(tmp_path)
    path = stored(store, "a", 200)
    scribble(path)
    for _ in range(3):
        assert restored(store, PROMPT) == 0
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1 and warnings[0].startswith(f"kv cache load failed {path}: the text is not")


def test_what_the_caller_marks_bad_is_left_alone_until_it_is_another_file(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    stored(store, "a", 200)
    match = next(store.candidates(PROMPT))
    store.mark_bad(match, "the first prefill failed")
    assert verdicts(store, PROMPT) == {200: "known bad: the first prefill failed"}
    match.path.unlink()
    plant(tmp_path, "a", 200)
    assert verdicts(store, PROMPT) == {200: "usable"}


def test_a_file_that_vanishes_before_it_is_opened_is_a_miss_and_no_bad_file(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    stored(store, "a", 130)
    path = stored(store, "a", 200)
    data = path.read_bytes()
    match = next(store.candidates(PROMPT))
    path.unlink()
    with pytest.raises(KVError, match="no such file"):
        store.open(match, PROMPT)
    assert restored(store, PROMPT) == 130
    path.write_bytes(data)
    assert restored(store, PROMPT) == 200


def test_a_file_that_was_replaced_is_judged_as_it_is_now(tmp_path: Path) -> None:
    store = open_store(tmp_path, replace(IDENTITY, reject_other_quant=True))
    good = stored(store, "a", 200).read_bytes()
    match = next(store.candidates(PROMPT))
    plant(tmp_path, "a", 200, quant_bits=4)
    with pytest.raises(KVError, match="quant 4"):
        store.open(match, PROMPT)
    assert verdicts(open_store(tmp_path), PROMPT) == {200: "usable"}
    match.path.unlink()
    match.path.write_bytes(good)
    assert verdicts(store, PROMPT) == {200: "usable"}


def test_another_models_file_that_made_way_for_ours_is_noticed(tmp_path: Path) -> None:
    theirs = plant(tmp_path, "a", 200, model_id=1)
    store = open_store(tmp_path)
    assert verdicts(store, PROMPT) == {200: "model id 1"}
    theirs.unlink()
    stored(open_store(tmp_path), "a", 200)
    assert restored(store, PROMPT) == 200


def test_a_copy_under_way_counts_once_it_is_complete(tmp_path: Path) -> None:
    path = plant(tmp_path, "a", 130)
    data = path.read_bytes()
    store = open_store(tmp_path)
    for part in (b"", data[:40], bytes(len(data)), data[:-1]):
        path.write_bytes(part)
        assert restored(store, PROMPT) == 0
    path.write_bytes(data)
    assert restored(store, PROMPT) == 130


# ---- a sidecar that does not help


def test_a_damaged_sidecar_is_named(tmp_path: Path) -> None:
    store = open_store(tmp_path, replace(IDENTITY, fingerprint="aa11"))
    path = stored(store, "a", 130)
    sidecar_path(path).write_bytes(b"{")
    verdict = verdicts(store, PROMPT)[130]
    assert str(sidecar_path(path)) in verdict and "delete it" in verdict


# ---- touch


def test_only_touched_counts_a_restore(tmp_path: Path) -> None:
    clock = Clock()
    store = open_store(tmp_path, clock=clock)
    path = stored(store, "a", 130)
    before = path.read_bytes()
    found = restore(store, PROMPT)
    assert found and path.read_bytes() == before
    clock.now += 5
    store.touched(found[0])
    after = header_of(path)
    assert (after.hits, after.last_used) == (1, int(clock.now))


def test_unknown_bytes_survive_a_touch(tmp_path: Path) -> None:
    path = plant(tmp_path, "a", 130, reserved=b"xyz", ext_flags=0xF0, reason=77)
    path.write_bytes(path.read_bytes() + b"somebody's trailer")
    before = path.read_bytes()
    store = open_store(tmp_path)
    store.touched(next(store.candidates(PROMPT)))
    after = path.read_bytes()
    assert [i for i in range(len(before)) if before[i] != after[i]] == [12]  # hits; last_used was now already
    assert len(after) == len(before)


def test_a_touch_that_cannot_be_made_is_logged_and_nothing_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    path = stored(store, "a", 130)
    match = next(store.candidates(PROMPT))
    path.unlink()
    store.touched(match)
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
        f"kv cache touch failed: {path}: cannot be opened: no such file or directory"
    ]
    assert verdicts(store, PROMPT) == {}
