"""Room is made before writing, nothing that must stay goes for it, and every refusal is told and counted."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from kvformat import store as store_module
from kvformat.governor import Limits
from kvformat.policy import Reason
from kvformat.sidecar import sidecar_path, update_sidecar
from store_kit import (
    IDENTITY,
    Clock,
    bytes_in,
    count_opens,
    files,
    open_store,
    plant,
    restored,
    said,
    save,
    size_of,
    stored,
    verdicts,
)

# ---- room


def test_each_of_five_survives_its_own_store_in_a_budget_of_two_and_a_half(tmp_path: Path) -> None:
    budget = size_of(tmp_path, 130) * 5 // 2
    directory, clock = tmp_path / "kv", Clock()
    store = open_store(directory, clock=clock, budget=budget)
    for name in "abcde":
        clock.now += 10
        path = stored(store, name, 130)
        assert path.exists()
        assert save(store, name, 130).nbytes == 0
        assert store.catalog.used() == bytes_in(directory) <= budget
    assert len(files(directory)) == 2


def test_room_is_made_before_the_first_byte_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = size_of(tmp_path, 130)
    directory = tmp_path / "kv"
    store = open_store(directory, budget=size + 100)
    old = stored(store, "a", 130)
    there: list[bool] = []
    real = store_module.write
    monkeypatch.setattr(store_module, "write", lambda *a, **k: (there.append(old.exists()), real(*a, **k)))
    stored(store, "b", 130)
    assert there == [False]


def test_the_budget_counts_what_nobody_can_read(tmp_path: Path) -> None:
    size = size_of(tmp_path, 130)
    directory = tmp_path / "kv"
    store = open_store(directory, budget=3 * size)
    stored(store, "a", 130)
    (directory / "notes.txt").write_bytes(bytes(size))
    plant(directory, "b", 130, payload_abi=9)
    outcome = save(store, "c", 130)
    assert outcome.status == "stored"
    assert bytes_in(directory) <= 3 * size
    assert (directory / "notes.txt").exists() and len(files(directory)) == 2


def test_a_file_over_the_budget_evicts_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path / "kv", budget=size_of(tmp_path, 130) + 10)
    stored(store, "a", 130)
    outcome = save(store, "b", 300)
    assert outcome.status == "declined" and outcome.skipped and "over the budget" in outcome.skipped.because
    assert len(files(tmp_path / "kv")) == 1


def test_the_prefixes_of_the_waiting_prompt_stay(tmp_path: Path) -> None:
    clock = Clock()
    store = open_store(tmp_path / "kv", clock=clock, budget=size_of(tmp_path, 130) * 5 // 2)
    for name in "ab":
        stored(store, name, 130)
        clock.now += 1000
    stored(store, "c", 130, waiting=said("a", 200))
    assert restored(store, said("a", 200)) == 130
    assert restored(store, said("b", 200)) == 0


def test_a_pinned_file_is_never_evicted(tmp_path: Path) -> None:
    clock = Clock()
    store = open_store(tmp_path / "kv", clock=clock, budget=size_of(tmp_path, 130) * 5 // 2)
    pinned = stored(store, "a", 130)
    update_sidecar(pinned, pin=True)
    for name in "bcd":
        clock.now += 1000
        stored(store, name, 130)
    assert pinned.exists()
    damaged = stored(store, "e", 130)
    sidecar_path(damaged).write_bytes(b"not JSON")  # a person wrote something: nothing of it is guessed
    assert save(store, "f", 130).status == "declined"
    assert damaged.exists() and pinned.exists()


def test_what_others_deleted_uses_no_budget(tmp_path: Path) -> None:
    store = open_store(tmp_path / "kv", budget=size_of(tmp_path, 130) * 3 // 2)
    for name in "abc":
        stored(store, name, 130).unlink()
    assert save(store, "d", 130).status == "stored"
    assert store.room.evicted == 0


def test_a_directory_over_budget_is_trimmed_at_the_start(tmp_path: Path) -> None:
    size = size_of(tmp_path, 130)
    directory = tmp_path / "kv"
    for name in "abcd":
        plant(directory, name, 130)
    store = open_store(directory, budget=2 * size + 10)
    store.room.trim()
    assert len(files(directory)) == 2 and store.catalog.used() <= 2 * size + 10


def test_a_growing_tool_map_makes_room_too(tmp_path: Path) -> None:
    budget = size_of(tmp_path, 130) * 2 + 100
    store = open_store(tmp_path / "kv", budget=budget)
    stored(store, "a", 130)
    kept = stored(store, "b", 130)
    assert save(store, "b", 130, tool_map=[(b"id", bytes(range(1, 255)))]).status == "present"
    assert store.catalog.used() <= budget
    assert files(tmp_path / "kv") == {kept.name}
    assert store.find_tools([b"id"])


def test_a_tool_map_grows_at_the_cost_of_neither_its_own_file_nor_the_waiting_one(tmp_path: Path) -> None:
    store = open_store(tmp_path / "kv", budget=size_of(tmp_path, 130) * 2 + 100)
    both = {stored(store, "a", 130).name, stored(store, "b", 130).name}
    outcome = save(store, "b", 130, tool_map=[(b"id", bytes(range(1, 255)))], waiting=said("a", 200))
    assert outcome.status == "declined"
    assert files(tmp_path / "kv") == both


def test_a_sidecar_has_its_place_in_the_budget(tmp_path: Path) -> None:
    identity, size = replace(IDENTITY, fingerprint="a" * 64), size_of(tmp_path, 130)
    assert save(open_store(tmp_path / "kv", identity, budget=size + 10), "a", 130).status == "declined"
    store = open_store(tmp_path / "kv", identity, budget=size + 256)
    stored(store, "a", 130)
    assert size < store.catalog.used() <= size + 256


# ---- the governor


def test_a_save_that_adds_little_is_declined_logged_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store = open_store(tmp_path, limits=Limits(min_gain=50))
    stored(store, "a", 130)
    outcome = save(store, "a", 150)
    assert outcome.status == "declined" and outcome.skipped
    assert outcome.skipped.knob == "--kv-cache-min-gain-tokens"
    assert "kv cache skipped tokens=150 reason=evict because it adds 20 tokens" in caplog.text
    assert store.ledger.skipped == {Reason.EVICT: 1}
    assert save(store, "b", 150).status == "stored"


def test_bytes_per_hour_and_what_was_written_by_reason(tmp_path: Path) -> None:
    clock = Clock()
    size = size_of(tmp_path, 130)
    store = open_store(tmp_path / "kv", clock=clock, limits=Limits(min_gain=0, bytes_per_hour=2 * size))
    stored(store, "a", 130, Reason.COLD)
    stored(store, "b", 130, Reason.EVICT)
    assert save(store, "c", 130, Reason.EVICT).status == "declined"
    assert store.ledger.written == {Reason.COLD: size, Reason.EVICT: size}
    assert store.ledger.skipped == {Reason.EVICT: 1}
    clock.now += 3601
    assert save(store, "c", 130).status == "stored"


def test_a_refusal_for_lack_of_room_is_counted_once(tmp_path: Path) -> None:
    store = open_store(tmp_path, budget=100)
    assert save(store, "a", 130, Reason.COLD).status == "declined"
    assert store.ledger.skipped == {Reason.COLD: 1}
    assert verdicts(store, said("a", 200)) == {}


# ---- who goes


def test_a_waypoint_that_a_longer_file_covers_goes_before_an_older_conversation(tmp_path: Path) -> None:
    clock, three = Clock(), size_of(tmp_path, 130) + 2 * size_of(tmp_path, 200)
    store = open_store(tmp_path / "kv", clock=clock, budget=three + 100)
    older = stored(store, "b", 200)
    clock.now += 3600
    waypoint = stored(store, "a", 130, Reason.CONTINUED)
    longer = stored(store, "a", 200, Reason.CONTINUED)
    stored(store, "c", 130)
    assert not waypoint.exists() and older.exists() and longer.exists()


def test_each_text_is_read_once_for_all_evictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    store = open_store(tmp_path / "kv", clock=clock, budget=size_of(tmp_path, 130) * 7 // 2)
    for name in "abcd":
        clock.now += 1000
        before, last = files(tmp_path / "kv"), stored(store, name, 130)
    opened = count_opens(monkeypatch, tmp_path)
    stored(store, "e", 130)
    assert opened[last.name] == 2  # its header and its text
    assert {opened[name] for name in before & files(tmp_path / "kv")} == {1}  # its header
