"""Checkpoints are written in the background, from leased rows, while the session goes on. A failure is one warning."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from kvengine import Lease
from kvformat.policy import Reason
from kvformat.store import Outcome, Store

log = logging.getLogger("kvserver")


@dataclass(frozen=True, slots=True)
class Save:
    """One checkpoint to write: a leased state, its key, and what belongs to it."""

    lease: Lease
    text: bytes
    reason: Reason
    key_kind: str
    tool_map: tuple[tuple[bytes, bytes], ...]
    waiting: bytes
    done: Callable[[Outcome], None]


class Saver:
    """One thread that writes what is submitted, in order."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue: queue.Queue[Save | None] = queue.Queue()
        self._pending: list[Save] = []  # those in the queue, and the one that is being written
        self._thread = threading.Thread(target=self._run, name="kv-saver", daemon=True)
        self._thread.start()

    def submit(self, save: Save) -> None:
        self._pending.append(save)
        self._queue.put(save)

    def holds(self, prompt: bytes, beyond: int) -> bool:
        """Whether a file is still to come that would save this prompt more than `beyond` tokens."""
        pending = self._pending.copy()
        return any(len(save.lease.state.tokens) > beyond and prompt.startswith(save.text) for save in pending)

    def flush(self) -> None:
        """Wait until all that was submitted is on disk, or was given up."""
        self._queue.join()

    def stop(self) -> None:
        """Write what is left and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (save := self._queue.get()) is not None:
            try:
                self._write(save)
            except Exception:  # a save must never take its thread, and with it all later saves, along
                log.exception("kv cache store failed (%s)", save.reason.name.lower())
            finally:
                self._pending.remove(save)
                save.lease.release()
                self._queue.task_done()
        self._queue.task_done()

    def _write(self, save: Save) -> None:
        outcome = self._store.save(
            save.lease.state,
            save.text,
            save.reason,
            key_kind=save.key_kind,
            tool_map=save.tool_map,
            waiting=save.waiting,
        )
        save.done(outcome)
