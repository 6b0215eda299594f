"""A full disk: room is freed and the save tried once more, then saves rest for a while; requests go on, one warning."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvformat.durable import LOCK_NAME
from kvformat.errors import NotWritten
from kvformat.policy import Reason
from kvformat.store import FULL_DISK_PAUSE
from store_kit import IDENTITY, Clock, open_store, restored, said, save, stored


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def fill_up(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """The next `times` reservations of disk space fail."""
    left = [times]

    def reserve(*_: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", reserve, raising=False)
    return left


def test_a_disk_that_was_full_once_gets_room_and_a_second_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    store = open_store(tmp_path, clock=clock)
    for name in "abc":
        stored(store, name, 130)
        clock.now += 1000
    fill_up(monkeypatch, 1)
    assert save(store, "d", 130).status == "stored"
    assert store.room.evicted == 2  # about twice what is needed
    assert restored(store, said("d", 200)) == 130
    assert warned(caplog) == []


def test_one_small_old_file_is_still_worth_evicting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    stored(store, "a", 140)
    fill_up(monkeypatch, 1)
    assert save(store, "b", 130).status == "stored"
    assert store.room.evicted == 1


def test_a_disk_that_stays_full_rests_saves_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    store = open_store(tmp_path, clock=clock)
    stored(store, "a", 130)
    left = fill_up(monkeypatch, 1_000)
    outcome = save(store, "b", 130, waiting=said("a", 200))
    assert outcome.status == "failed" and "free some space" in str(outcome.error)
    assert left == [998]
    for name in "cde":
        clock.now += 10
        resting = save(store, name, 130)
        assert resting.status == "declined" and resting.skipped
    assert left == [998]
    assert warned(caplog) == [f"kv cache store failed (evict): {outcome.error}"]
    assert caplog.text.count("kv cache skipped") == 3 and store.ledger.skipped == {Reason.EVICT: 3}
    assert [path.suffix for path in tmp_path.iterdir()].count(".kv") == 1
    assert restored(store, said("a", 200)) == 130
    clock.now += FULL_DISK_PAUSE
    monkeypatch.undo()
    assert save(store, "b", 130).status == "stored"


def test_another_refusal_is_not_taken_for_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path, durable=True)
    stored(store, "a", 130)

    def broken(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    assert save(store, "b", 130).status == "failed"
    assert store.room.evicted == 0
    monkeypatch.undo()
    assert save(store, "b", 130).status == "stored"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(place)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a small tmpfs cannot be mounted here: {error}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill_file(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1024))


def test_a_small_disk_holds_the_latest_without_a_warning(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    (small_disk / "somebody's").write_bytes(bytes(44_000))
    clock = Clock()
    store = open_store(small_disk, clock=clock, durable=True)
    for name in "abcdefgh":
        clock.now += 5
        stored(store, name, 130)
        assert restored(store, said(name, 200)) == 130
    assert store.room.evicted and warned(caplog) == []


def test_on_a_disk_that_others_filled_requests_go_on(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(small_disk, durable=True)
    stored(store, "a", 130)
    fill_file(small_disk / "somebody's")
    waiting = said("a", 200)
    assert [save(store, name, 130, waiting=waiting).status for name in "bcd"] == ["failed", "declined", "declined"]
    assert restored(store, waiting) == 130
    assert len(warned(caplog)) == 1
    assert sorted(path.suffix for path in small_disk.iterdir()) == ["", ".kv", ".lock"]


def test_a_save_that_fails_leaves_no_sidecar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path, replace(IDENTITY, fingerprint="aa11"))

    def refuse(final: Path, *_: Any, **__: Any) -> None:
        raise NotWritten("not written", path=final, remedy=None, disk_full=False)

    monkeypatch.setattr("kvformat.store.write", refuse)
    assert save(store, "a", 130).status == "failed"
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_NAME]
