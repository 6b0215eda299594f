"""Anything may happen to a directory, in any order: what the store finds, keeps and says is always what a simple model expects."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvformat.checkpoint import Checkpoint
from kvformat.durable import LOCK_NAME
from kvformat.errors import KVError
from kvformat.policy import Reason
from kvformat.prefix import text_key
from kvformat.room import SWEEP_GRACE
from kvformat.state import SessionState
from kvformat.store import Outcome, Store
from store_kit import CTX, IDENTITY, SHAPE, Clock, bytes_in, header_of, open_store, plant, restore, said
from strategies import random_state

MINE = replace(IDENTITY, fingerprint="aa11")
NAMES, LENGTHS = ("a", "b", "c"), (20, 60, 130, 200, 280)
KEYS = {text_key(said(name, tokens)): (name, tokens) for name in NAMES for tokens in LENGTHS}
BUDGETS = (16_000, 30_000, 60_000)  # a file is 3 to 9 KB
DEAD_PID = 1 << 22 | 1  # above the largest that Linux gives
CALLS = ("open", "replace", "unlink", "mkdir", "fsync", "ftruncate", "posix_fallocate", "pwrite")

conversations, lengths = st.sampled_from(NAMES), st.sampled_from(LENGTHS)
processes, tool_ids = st.integers(0, 1), st.integers(0, 3)


class Crash(BaseException):
    """The process is gone: no handler may run another system call."""


@contextmanager
def crash_at(call: int) -> Iterator[None]:
    """The process dies at its `call`-th system call that changes something, and makes none after it."""
    made, os_open = 0, os.open

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **options: Any) -> Any:
            nonlocal made
            made += not (real is os_open and args[1] & os.O_ACCMODE == os.O_RDONLY)
            if made >= call:
                raise Crash
            return real(*args, **options)

        return wrapper

    with mock.patch.multiple(os, **{name: dying(getattr(os, name)) for name in CALLS}):
        yield


@cache
def state_of(tokens: int) -> SessionState:
    return random_state(SHAPE, tokens, CTX, seed=tokens)


def is_sound(path: Path) -> bool:
    try:
        with Checkpoint.open(path, (SHAPE,)) as checkpoint:
            return checkpoint.text_key() == checkpoint.name_key and not checkpoint.trailer_problem
    except KVError:
        return False


class Deletions(logging.Handler):
    """What was said to be deleted since the last look."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith(("kv cache evicted", "kv cache swept")):
            self.text += record.getMessage() + "\n"


class StoreMachine(RuleBasedStateMachine):
    """Two processes on one directory. The model is `files`: what stands under a final name, and whether ours may load it."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.clock = Clock(time.time() + 2 * SWEEP_GRACE)
        self.files: dict[Path, bool] = {}
        self.theirs: dict[Path, bytes] = {}  # what nobody may touch
        self.seen: set[str] = set()
        self.log = Deletions()
        logger = logging.getLogger("kvformat.store")
        logger.addHandler(self.log)
        logger.setLevel(logging.INFO)
        self.no_sync = mock.patch.object(os, "fsync", lambda _: None)
        self.no_sync.start()

    def teardown(self) -> None:
        logging.getLogger("kvformat.store").removeHandler(self.log)
        self.no_sync.stop()
        shutil.rmtree(self.root)

    # ---- what happens

    @initialize(budget=st.sampled_from(BUDGETS))
    def start(self, budget: int) -> None:
        self.stores = [self.open(budget), self.open(budget)]

    def open(self, budget: int) -> Store:
        return open_store(self.root, MINE, clock=self.clock, budget=budget, durable=True)

    @rule(process=processes, name=conversations, tokens=lengths, tools=tool_ids, waiting=st.sampled_from([0, 300]))
    def save(self, process: int, name: str, tokens: int, tools: int, waiting: int) -> None:
        store = self.stores[process]
        before = self.usable(name, tokens, exactly=True)
        outcome = self.try_save(store, name, tokens, tools, said(name, waiting))
        assert outcome.status != "failed", outcome
        assert (outcome.status == "present") >= (before and not tools)
        assert not (before and outcome.status == "stored")
        if outcome.status != "declined":
            assert outcome.path
            self.files[outcome.path] = True
            assert outcome.status == "present" or bytes_in(self.root) <= store.options.budget

    def try_save(self, store: Store, name: str, tokens: int, tools: int, waiting: bytes) -> Outcome:
        tool_map = [(b"id%d" % tools, b"<%d>" % tools)] if tools else []
        return store.save(state_of(tokens), said(name, tokens), Reason.EVICT, tool_map=tool_map, waiting=waiting)

    @rule(process=processes, name=conversations, tokens=st.integers(10, 300), touch=st.booleans())
    def look_up(self, process: int, name: str, tokens: int, touch: bool) -> None:
        store, before = self.stores[process], self.names()
        found = restore(store, said(name, tokens))
        expected = self.usable(name, tokens)
        assert (len(found[1].tokens) if found else 0) == expected
        if found and touch:
            hits = header_of(found[0].path).hits
            store.touched(found[0])
            assert header_of(found[0].path).hits == hits + 1
        assert self.names() == before

    @rule(process=processes)
    def trim(self, process: int) -> None:
        self.stores[process].room.trim()
        for path in self.root.rglob(f"*.tmp.{DEAD_PID}.*"):
            assert self.clock.now - path.stat().st_mtime <= SWEEP_GRACE

    @rule(process=processes, budget=st.sampled_from(BUDGETS))
    def restart(self, process: int, budget: int) -> None:
        self.stores[process] = self.open(budget)
        self.trim(process)

    @rule(seconds=st.sampled_from([-100_000, -1, 1, 60, 3_600, 40_000, 3_000_000]))
    def jump(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule(data=st.data(), call=st.integers(1, 16), process=processes, name=conversations, tokens=lengths)
    def crash(self, data: st.DataObject, call: int, process: int, name: str, tokens: int) -> None:
        store = self.stores[process]
        try:
            with crash_at(call):
                match data.draw(st.sampled_from(["save", "touch", "trim"])):
                    case "save":
                        self.try_save(store, name, tokens, call % 4, b"")
                    case "touch":
                        for match in list(store.candidates(said(name, 300)))[:1]:
                            store.touched(match)
                    case "trim":
                        store.room.trim()
        except Crash:
            pass
        for path in list(self.root.rglob(f"*.tmp.{os.getpid()}.*")):
            path.rename(path.with_name(path.name.replace(f".tmp.{os.getpid()}.", f".tmp.{DEAD_PID}.")))
            self.seen.discard(path.name)
        for path in self.root.rglob("*.kv"):
            if path not in self.theirs:
                self.files[path] = is_sound(path) if path in self.files else True
        self.stores[process] = self.open(store.options.budget)

    # ---- what others do

    @precondition(lambda self: self.files)
    @rule(data=st.data())
    def corrupt(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(self.files)))
        header = header_of(path)
        if not self.files[path]:
            return
        where = data.draw(st.sampled_from(["magic", "text", "words", "rows", "end"]))
        offset = {"magic": 0, "text": 60, "words": header.payload_offset + 28, "rows": header.payload_end - 9}
        if where == "end":
            os.truncate(path, header.payload_end - 1)
        else:
            with path.open("r+b") as file:
                file.seek(offset[where])
                file.write(b"\xee")
        self.files[path] = where == "rows"  # there, nobody can see it without a checksum

    @precondition(lambda self: self.files)
    @rule(data=st.data())
    def vanish(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(self.files)))
        path.unlink(missing_ok=True)
        self.forget(path)

    @rule(name=conversations, tokens=lengths)
    def another_dialect_takes_the_name(self, name: str, tokens: int) -> None:
        path = self.root / f"{text_key(said(name, tokens))}.kv"
        if path not in self.files and path not in self.theirs:
            plant(self.root, name, tokens, payload_abi=9)
            self.theirs[path] = path.read_bytes()

    @rule(size=st.integers(0, 9_000))
    def somebody_keeps_notes(self, size: int) -> None:
        path = self.root / "notes.txt"
        path.write_bytes(bytes(size))
        self.theirs[path] = bytes(size)

    # ---- what always holds

    @invariant()
    def nothing_is_lost_unlogged(self) -> None:
        names = self.names()
        for gone in self.seen - names:
            assert gone.split(".kv")[0] in self.log.text, gone
        self.seen, self.log.text = names, ""
        for path in [path for path in self.files if not path.exists()]:
            self.forget(path)
        assert all(path.read_bytes() == data for path, data in self.theirs.items())

    @invariant()
    def no_unreadable_file_stands_under_a_final_name(self) -> None:
        for path in self.root.rglob("*.kv"):
            assert path in self.theirs or path in self.files
            assert path in self.theirs or not self.files[path] or is_sound(path)

    @invariant()
    def every_byte_is_accounted_for(self) -> None:
        for store in getattr(self, "stores", []):
            assert store.catalog.used() == bytes_in(self.root)

    # ---- the model

    def names(self) -> set[str]:
        return {path.name for path in self.root.rglob("*") if path.is_file()} - {LOCK_NAME}

    def forget(self, path: Path) -> None:
        self.files.pop(path)
        self.seen.discard(path.name)

    def usable(self, name: str, tokens: int, *, exactly: bool = False) -> int:
        """Tokens of the longest file that a prompt of so many tokens can start from."""
        known = [KEYS[path.stem] for path, usable in self.files.items() if usable and path.exists()]
        fitting = [t for n, t in known if n == name and (t == tokens if exactly else t <= tokens)]
        return max(fitting, default=0)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=max(settings().max_examples // 4, 1), stateful_step_count=40)
