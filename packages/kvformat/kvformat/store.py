"""One directory of checkpoints for one model: a reader that also saves, durably and within a budget.

A failed save never fails its caller.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from kvformat import layout
from kvformat.durable import owned
from kvformat.errors import Damaged, KVError, NotWritten
from kvformat.governor import Ledger, Save
from kvformat.identity import Identity
from kvformat.inplace import refresh_tool_map
from kvformat.outcome import Outcome
from kvformat.policy import Reason, Skipped
from kvformat.prefix import text_key
from kvformat.reader import Match, Reader
from kvformat.room import Options, Room
from kvformat.scan import Entry, Kind
from kvformat.sidecar import remove_sidecar, update_sidecar
from kvformat.state import SessionState
from kvformat.toolmap import encode_tool_map
from kvformat.writer import Contents, write

__all__ = ["Match", "Options", "Outcome", "Store"]

log = logging.getLogger("kvformat.store")

FULL_DISK_PAUSE = 60.0  # seconds without saves after a full disk stayed full
SIDECAR_BYTES = 256  # room for a new sidecar


class Store(Reader):
    """Lookup and save. One save at a time; a lookup waits for the catalog only, never for the disk."""

    def __init__(
        self,
        directory: Path,
        identity: Identity,
        ctx: int,
        options: Options | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(directory, identity, ctx, options, clock)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.room = Room(self.catalog, identity, ctx, self.options, clock)
        self.ledger = Ledger(clock)
        self._saving = threading.Lock()
        self._paused_until = 0.0
        self._warned = False

    def save(
        self,
        state: SessionState,
        text: bytes,
        reason: Reason,
        *,
        key_kind: str = "token-text",
        tool_map: Iterable[tuple[bytes, bytes]] = (),
        waiting: bytes = b"",
    ) -> Outcome:
        """Write one checkpoint durably after making room for it; what a disk can do is an outcome, not an exception.

        `waiting` is the prompt of the request that waits: files that it can start from are not evicted.
        """
        started = time.monotonic()
        with self._saving:
            try:
                with owned(self.catalog.root):
                    outcome = self._save(state, text, reason, key_kind, list(tool_map), waiting)
            except (KVError, OSError) as error:
                outcome = Outcome("failed", error=str(error))
        outcome = replace(outcome, seconds=time.monotonic() - started)
        outcome.log(reason)
        return outcome

    def _save(
        self,
        state: SessionState,
        text: bytes,
        reason: Reason,
        key_kind: str,
        tool_map: list[tuple[bytes, bytes]],
        waiting: bytes,
    ) -> Outcome:
        with self.catalog.lock:
            self._refresh()
            final, present = self._place(text_key(text))
            if present:
                return self._extend_tool_map(final, text, reason, tool_map, waiting)
            contents = Contents.from_state(
                state,
                text,
                reason=layout.REASONS[reason],
                quant_bits=self.identity.quant_bits,
                now=int(self.clock()),
                generation=self._generation(),
                key_kind=key_kind,
                tool_map=tool_map,
            )
            sidecar = SIDECAR_BYTES if self.identity.fingerprint else 0
            wanted = Save(reason, len(state.tokens), contents.nbytes + sidecar, self._on_disk(text))
            skipped = self._refusal(wanted, text, waiting)
        if skipped:
            return Outcome("declined", skipped=skipped)
        self._write(final, contents, text, waiting)
        self.ledger.wrote(wanted)
        return Outcome("stored", final, contents.nbytes)

    def _on_disk(self, text: bytes) -> int:
        """Tokens of the longest usable file that a prompt of this text could start from."""
        found = self.catalog.prefixes_of(text)
        return max((e.header.tokens for path, e in found if e.header and not self._unusable(path, e.header)), default=0)

    def _refusal(self, wanted: Save, text: bytes, waiting: bytes) -> Skipped | None:
        refused = self.ledger.admit(wanted, self.options.limits)
        if not refused:
            refused = self._pause(wanted) or self.room.make(wanted, text, waiting)
            if refused:
                self.ledger.skipped[wanted.reason] += 1
        return refused

    def _pause(self, wanted: Save) -> Skipped | None:
        if self.clock() < self._paused_until:
            return Skipped(wanted.tokens, wanted.reason, "the disk was full a moment ago", "free some space")
        return None

    def _place(self, key: str) -> tuple[Path, bool]:
        """Where a checkpoint of this key belongs, and whether a sound one of ours stands there already.

        What is damaged or failed to load is replaced by the rename; what is another model's or dialect's keeps its name.
        """
        for directory in (self.catalog.root, self.catalog.own):
            path = directory / f"{key}.kv"
            entry = self.catalog.examine(path)
            if entry is None:
                return path, False
            if self._is_present(path, entry):
                return path, True
            if entry.kind in (Kind.TRUNCATED, Kind.DAMAGED) or self._failures.is_worthless(path):
                log.info("kv cache: %s is damaged, a save of its text replaces it", path)
                return path, False
            if not self._warned:
                log.warning("kv cache: %s is not ours and is kept; ours goes into %s", path, self.catalog.own)
                self._warned = True
        return path, False  # in our own directory nobody else's file has a right to the name

    def _is_present(self, path: Path, entry: Entry) -> bool:
        """Whether a sound checkpoint of ours stands there; one that only looked sound is remembered."""
        if entry.kind is not Kind.GOOD or not entry.header or self._failures.reason(path):
            return False
        if self._refuses(path, entry.header):
            return False
        try:
            with self._open_ours(path) as checkpoint:
                if checkpoint.text_key() != entry.key:
                    raise Damaged("the text is not the one that the name promises", path=path)
        except KVError as error:
            self._remember(path, error)
            return False
        return True

    def _extend_tool_map(
        self, final: Path, text: bytes, reason: Reason, tool_map: list[tuple[bytes, bytes]], waiting: bytes
    ) -> Outcome:
        """The same text is there already: no payload is written, only ids that its tool map lacks."""
        with self._open_ours(final) as checkpoint:
            known = dict(checkpoint.tool_pairs())
            tokens, spare = checkpoint.header.tokens, checkpoint.size - checkpoint.header.payload_end
        if not known.items() >= dict(tool_map).items():
            trailer = encode_tool_map((known | dict(tool_map)).items())
            wanted = Save(reason, tokens, len(trailer) - spare)
            skipped = self.room.make(wanted, text, waiting) if wanted.bytes > 0 else None
            if skipped:
                return Outcome("declined", final, skipped=skipped)
            refresh_tool_map(final, trailer, int(self.clock()))
            self.catalog.examine(final)
        return Outcome("present", final)

    def _generation(self) -> int:
        """The payload ABI to write: that of the newest file that we understand, else 2, unless the options say which."""
        if self.options.abi != "auto":
            return self.options.abi
        headers = [entry.header for _, entry in self.catalog.good() if entry.header]
        return max(headers, key=lambda header: header.created).payload_abi if headers else 2

    def _write(self, final: Path, contents: Contents, text: bytes, waiting: bytes) -> None:
        try:
            self._write_once(final, contents)
        except NotWritten as error:
            if not error.disk_full:
                raise
            with self.catalog.lock:
                self.room.free(contents.nbytes, text, waiting)
            try:
                self._write_once(final, contents)
            except NotWritten:
                self._paused_until = self.clock() + FULL_DISK_PAUSE
                raise
        with self.catalog.lock:
            self.catalog.examine(final)

    def _write_once(self, final: Path, contents: Contents) -> None:
        final.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            if self.identity.fingerprint:  # before the file, so that it is never seen without
                update_sidecar(final, fingerprint=self.identity.fingerprint)
            write(final, contents, durable=self.options.durable)
        except NotWritten:
            if not final.exists():
                remove_sidecar(final)
            raise
