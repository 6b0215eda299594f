"""A directory that others use too: what writers leave behind, what a person adds, what vanishes under our feet."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvformat.errors import Damaged
from kvformat.inplace import touch
from kvformat.policy import Reason
from kvformat.scan import Kind, scan
from kvformat.sidecar import Sidecar, read_sidecar, sidecar_path, update_sidecar
from store_kit import (
    IDENTITY,
    NOW,
    Clock,
    header_of,
    open_store,
    plant,
    restore,
    restored,
    said,
    save,
    stored,
    verdicts,
)

KEY = "0" * 40


def aged(path: Path, seconds: float, data: bytes = b"half") -> Path:
    path.write_bytes(data)
    os.utime(path, (NOW - seconds, NOW - seconds))
    return path


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


# ---- left-overs


def test_only_what_dead_writers_left_long_ago_is_swept_and_that_is_logged(
    tmp_path: Path, dead_pid: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    dead, live, hour = f"tmp.{dead_pid}", f"tmp.{os.getpid()}", 3600
    gone = [
        aged(tmp_path / f"{KEY}.kv.{dead}", hour),
        aged(tmp_path / f"{KEY}.kv.{dead}.ab12", hour),
        aged(tmp_path / f"{KEY}.kv.json.{dead}.ab12", hour),
        aged(tmp_path / f"{KEY}.kv.{live}.cd34", 25 * hour),
        aged(tmp_path / f"{KEY}.kv.tmp.XyZ", 25 * hour),  # ds4-agent's names tell no pid
        aged(tmp_path / f"{KEY}.kv.json", hour, b"{}"),
    ]
    kept = [
        aged(tmp_path / f"{KEY}.kv.{dead}.ef56", 60),
        aged(tmp_path / f"{KEY}.kv.{live}.ab12", hour),
        aged(tmp_path / f"{KEY}.kv.tmp.AbC", hour),
        aged(tmp_path / "notes.tmp", 100 * hour),
        aged(tmp_path / f"{'1' * 40}.kv", 100 * hour),
        aged(tmp_path / f"{'1' * 40}.kv.json", 100 * hour, b"{}"),
    ]
    open_store(tmp_path).room.trim()
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in kept} | {".ds4kv.lock"}
    assert {f"kv cache swept {path}" for path in gone} == {r.getMessage() for r in caplog.records}


# ---- sidecars


def test_a_sidecar_keeps_what_it_does_not_know_and_counts_and_goes_with_its_file(tmp_path: Path) -> None:
    store = open_store(tmp_path, replace(IDENTITY, fingerprint="aa11"))
    path = stored(store, "a", 130)
    theirs = {"colour": "red", "zero": 0, "empty": [], "label": "draft"}
    sidecar_path(path).write_text(json.dumps(theirs))
    assert update_sidecar(path, pin=True) == Sidecar(pin=True, label="draft")
    assert json.loads(sidecar_path(path).read_text()) == {**theirs, "pin": True}
    update_sidecar(path, pin=False, label="")
    assert json.loads(sidecar_path(path).read_text()) == {"colour": "red", "zero": 0, "empty": []}
    kinds = {entry.name: entry.kind for entry in scan(tmp_path)}
    assert kinds[sidecar_path(path).name] is Kind.SIDECAR
    sizes = path.stat().st_size + sidecar_path(path).stat().st_size
    assert store.catalog.used() == sizes
    assert store.catalog.delete(path)
    assert not list(tmp_path.glob("*.kv*"))


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"\xff\xfe", b'{"a": "' + b"x" * 70_000 + b'"}'])
def test_a_damaged_sidecar_is_named_and_not_overwritten(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / f"{KEY}.kv"
    sidecar_path(path).write_bytes(data)
    for call in (read_sidecar, lambda p: update_sidecar(p, pin=True)):
        with pytest.raises(Damaged, match=r"sidecar.*delete it") as caught:
            call(path)
        assert caught.value.path == sidecar_path(path)
    assert sidecar_path(path).read_bytes() == data


def test_values_of_another_type_are_not_taken(tmp_path: Path) -> None:
    path = tmp_path / f"{KEY}.kv"
    sidecar_path(path).write_text('{"pin": "yes", "label": 7, "fingerprint": "aa"}')
    assert read_sidecar(path) == Sidecar(fingerprint="aa")


def test_a_sidecar_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"{KEY}.kv"
    update_sidecar(path, label="before")
    monkeypatch.setattr(os, "fsync", refuse(errno.EIO))
    with pytest.raises(Exception, match="not written"):
        update_sidecar(path, label="after")
    assert read_sidecar(path).label == "before"
    assert [entry.name for entry in tmp_path.iterdir()] == [sidecar_path(path).name]


# ---- a directory that refuses


def refuse(code: int) -> Any:
    def call(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return call


def test_a_read_only_directory_still_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plant(tmp_path, "a", 130)
    store = open_store(tmp_path)
    real = os.open
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT
    monkeypatch.setattr(os, "open", lambda p, f, *m: refuse(errno.EROFS)() if f & writing else real(p, f, *m))
    outcome = save(store, "b", 130)
    assert outcome.status == "failed" and "Read-only" in str(outcome.error)
    found = restore(store, said("a", 200))
    assert found
    store.touched(found[0])
    store.room.trim()
    assert [r.levelname for r in caplog.records] == ["WARNING"] * 3


def test_a_directory_that_is_gone_is_an_empty_one(tmp_path: Path) -> None:
    store = open_store(tmp_path / "kv")
    stored(store, "a", 130)
    shutil.rmtree(tmp_path / "kv")
    assert verdicts(store, said("a", 200)) == {}
    assert store.find_tools([b"id"]) == {}
    assert store.nearest_miss(said("a", 200)) is None
    assert save(store, "b", 130).status == "failed"
    store.room.trim()
    (tmp_path / "kv").mkdir()
    assert save(store, "b", 130).status == "stored"


def test_a_state_that_is_none_is_an_outcome_too(tmp_path: Path) -> None:
    outcome = save(open_store(tmp_path), "a", 0)
    assert outcome.status == "failed" and outcome.error
    assert not list(tmp_path.glob("*.kv*"))


# ---- several processes


def test_two_processes_that_touch_at_once_count_two_hits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stored(open_store(tmp_path), "a", 130)
    both_have_read, pwrite = threading.Barrier(2), os.pwrite

    def wait_and_write(*args: Any) -> int:
        with contextlib.suppress(threading.BrokenBarrierError):
            both_have_read.wait(0.2)
        return pwrite(*args)

    monkeypatch.setattr(os, "pwrite", wait_and_write)
    threads = [threading.Thread(target=touch, args=(path, 1)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert header_of(path).hits == 2


def test_two_stores_interleave_without_a_torn_read_or_a_foreign_delete(tmp_path: Path) -> None:
    budget = stored(open_store(tmp_path / "measure"), "m", 150).stat().st_size * 4
    clock, rng = Clock(), random.Random(5)
    stores = [
        open_store(tmp_path / "kv", replace(IDENTITY, fingerprint=f), clock=clock, budget=budget) for f in ("aa", "bb")
    ]
    foreign = tmp_path / "kv" / "notes.txt"
    foreign.write_bytes(b"mine")
    for _ in range(200):
        clock.now += 1
        store, name = rng.choice(stores), rng.choice("abcdef")
        if rng.random() < 0.5:
            assert save(store, name, rng.randrange(20, 150)).status != "failed"
            assert store.catalog.used() <= budget
        elif found := restore(store, said(name, 150)):
            fingerprint = read_sidecar(found[0].path).fingerprint
            assert fingerprint == store.identity.fingerprint
            store.touched(found[0])
    assert foreign.read_bytes() == b"mine"


def test_a_lookup_does_not_wait_for_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvformat import store as store_module

    store = open_store(tmp_path)
    stored(store, "a", 130)
    writing, go_on = threading.Event(), threading.Event()
    real = store_module.write

    def slow(*args: Any, **options: Any) -> None:
        writing.set()
        assert go_on.wait(10)
        real(*args, **options)

    monkeypatch.setattr(store_module, "write", slow)
    thread = threading.Thread(target=save, args=(store, "b", 130, Reason.EVICT))
    thread.start()
    assert writing.wait(10)
    found = restore(store, said("a", 200))
    assert found
    store.touched(found[0])
    assert thread.is_alive() and header_of(found[0].path).hits == 1
    go_on.set()
    thread.join()
    assert restored(store, said("b", 200)) == 130
