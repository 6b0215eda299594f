"""`kvtool prune --apply` beside others that change the directory: what they need stays, and nobody fails."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from kvformat.governor import Limits
from kvformat.identity import Identity
from kvformat.inplace import touch
from kvformat.policy import Reason
from kvformat.state import SessionState, empty_state
from kvformat.store import Options, Store
from kvtools import deleting
from tools.test_prune import NOW, TALK, planned, prune, waypoints
from tools_kit import SMALL, kvtool, save

OPTIONS = Options(budget=400_000, min_tokens=1, limits=Limits(min_gain=0), durable=False)


@pytest.mark.parametrize("event", ["gone", "changed", "pinned", "replaced"])
def test_what_changed_since_the_plan_was_made_stays(event: str, tmp_path: Path) -> None:
    path = save(tmp_path, b"text")
    wish = planned(tmp_path, max_size=0)
    if event == "gone":
        path.unlink()
    elif event == "changed":
        os.utime(path, (NOW, NOW))
        touch(path, NOW)
    elif event == "pinned":
        kvtool("pin", path)
    else:
        save(tmp_path / "new", b"text").replace(path)
    [(_, outcome)] = deleting.apply(wish)
    assert outcome == ("changed" if event == "replaced" else event)
    assert path.exists() == (event != "gone")


def test_a_waypoint_stays_if_the_file_that_it_was_given_up_for_has_left(tmp_path: Path) -> None:
    *_, last = waypoints(tmp_path)
    wish = planned(tmp_path, superseded=True)
    last.unlink()
    assert {outcome for _, outcome in deleting.apply(wish)} == {"needed"}


def test_a_deletion_that_the_system_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, b"text")

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "no")

    monkeypatch.setattr(Path, "unlink", refuse)
    run = prune(tmp_path, "--max-size", 0, "--apply", "--json")
    assert run.code == 1 and run.json["victims"][0]["outcome"] == "refused"


def state_of(text: bytes) -> SessionState:
    state = empty_state(SMALL, len(text) // 8, ctx=4096)
    for name, array in state.arrays():
        array[...] = np.zeros(array.shape, array.dtype) if name == "tokens" else 0.5
    return state


@contextmanager
def busy_store(directory: Path, failures: list[object]) -> Iterator[Store]:
    """A store that saves and evicts as fast as it can, within a budget of a dozen files; notes every save that fails."""
    store = Store(directory, Identity(SMALL, 2), 4096, OPTIONS)
    stop = threading.Event()

    def work() -> None:
        round_ = 0
        while not stop.is_set():
            round_ += 1
            for length in range(400, 1300, 100):
                text = b"%08d" % round_ + TALK[:length]
                outcome = store.save(state_of(text), text, Reason.CONTINUED if length < 1200 else Reason.EVICT)
                if outcome.status == "failed":
                    failures.append(outcome)
                matches = list(store.candidates(text))
                if matches:
                    store.touched(matches[-1])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield store
    finally:
        stop.set()
        thread.join()


def test_apply_beside_a_store_that_writes_and_evicts(tmp_path: Path) -> None:
    """PRUNE_SECONDS=60 for the long version. Nothing fails on either side, and only what was named goes."""
    directory, failures, told = tmp_path / "kv", [], set()
    directory.mkdir()
    kept = [save(directory, b"pinned", created=NOW), save(directory, b"session", reason=6)]
    kvtool("pin", kept[0])
    stranger = directory / "notes.txt"
    stranger.write_text("somebody's")
    deadline = time.monotonic() + float(os.environ.get("PRUNE_SECONDS", "3"))
    with busy_store(directory, failures):
        while time.monotonic() < deadline:
            run = prune(directory, "--max-size", "200K", "--superseded", "--orphans", "--damaged", "--apply", "--json")
            assert (run.code, run.err) == (0, "")
            told |= {victim["outcome"] for victim in run.json["victims"]}
            assert all(path.exists() for path in (*kept, stranger))
    assert failures == []
    assert "deleted" in told and told <= {"deleted", "gone", "changed", "needed"}
    run = kvtool("verify", directory, "--json")
    assert run.json["totals"].keys() <= {"ok", "warning"}, run.json  # nothing half deleted, nothing half written
    assert not [
        path for path in directory.glob("*.json") if not path.with_name(path.name.removesuffix(".json")).exists()
    ]
