"""One directory of checkpoints for one model: find what a prompt can start from, save durably, tell what happened.

The directory is the index: other processes, ds4-server among them, may add or remove files at any moment. A hit never
deletes, and a failed save never fails its caller.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from kvformat import layout
from kvformat.catalog import Catalog, Located
from kvformat.checkpoint import Checkpoint
from kvformat.durable import owned
from kvformat.errors import Damaged, KVError, Mismatch, NotWritten
from kvformat.governor import Ledger, Save
from kvformat.identity import Identity
from kvformat.inplace import refresh_tool_map, touch
from kvformat.nearmiss import NearMiss, compare
from kvformat.policy import Reason, Skipped
from kvformat.prefix import text_key
from kvformat.room import Options, Room
from kvformat.scan import Entry, Kind
from kvformat.sidecar import read_sidecar, update_sidecar
from kvformat.state import SessionState
from kvformat.toolmap import encode_tool_map
from kvformat.writer import Contents, write

log = logging.getLogger("kvformat.store")

FULL_DISK_PAUSE = 60.0  # seconds without saves after a full disk stayed full
NEAR_MISSES_READ = 8  # lately used texts that are read to explain a miss
USABLE = "usable"


@dataclass(frozen=True, slots=True)
class Match:
    """A file whose key is the hash of a prefix of the prompt. `verdict` is "usable", or why it is not."""

    path: Path
    entry: Entry
    verdict: str

    @property
    def usable(self) -> bool:
        return self.verdict == USABLE

    @property
    def tokens(self) -> int:
        return self.entry.header.tokens if self.entry.header else 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a save; only `stored` wrote a payload (`nbytes`). `seconds` is the time it took."""

    status: Literal["stored", "present", "declined", "failed"]
    path: Path | None = None
    nbytes: int = 0
    seconds: float = 0.0
    skipped: Skipped | None = None
    error: str | None = None


class Store:
    """Lookup and save. Any thread may call; `clock` gives unix seconds, `ctx` is the reader's context in tokens."""

    def __init__(
        self,
        directory: Path,
        identity: Identity,
        ctx: int,
        options: Options | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.identity = identity
        self.ctx = ctx
        self.options = options or Options()
        self.clock = clock
        self.catalog = Catalog(directory, identity)
        self.room = Room(self.catalog, identity, ctx, self.options, clock)
        self.ledger = Ledger(clock)
        self._bad: dict[Path, tuple[int, str]] = {}  # path → (inode, reason)
        self._paused_until = 0.0
        self._warned = False

    # ---- lookup

    def candidates(self, prompt: bytes) -> Iterator[Match]:
        """Every file whose key is the hash of a prefix of the prompt, longest text first; each with its verdict."""
        with self.catalog.lock:
            self.catalog.refresh()
            found = self.catalog.prefixes_of(prompt)
        for path, entry in found:
            yield Match(path, entry, self._verdict(path, entry) or USABLE)

    def _verdict(self, path: Path, entry: Entry) -> str | None:
        header = entry.header
        assert header is not None
        inode, reason = self._bad.get(path, (0, ""))
        if reason and inode == entry.inode:
            return f"known bad: {reason}"
        if header.tokens < self.options.min_tokens:
            return f"below {self.options.min_tokens} tokens"
        if header.tokens >= self.ctx:
            return f"ctx: {header.tokens} tokens do not fit into {self.ctx}"
        return self._refuses(path, entry)

    def _refuses(self, path: Path, entry: Entry) -> str | None:
        assert entry.header is not None
        try:
            return self.identity.refuses(entry.header, read_sidecar(path).fingerprint)
        except Damaged as error:
            return str(error)

    def open(self, match: Match, prompt: bytes) -> Checkpoint:
        """Open a match and prove it: its text is a prefix of the prompt, its shape is ours. The caller closes it.

        Raises KVError; the file is then remembered as bad for this process, unless it merely vanished.
        """
        try:
            checkpoint = Checkpoint.open(match.path, (self.identity.shape,))
            try:
                self._prove(checkpoint, prompt)
            except KVError:
                checkpoint.close()
                raise
            return checkpoint
        except KVError as error:
            if match.path.exists():
                self.mark_bad(match, error.problem)
            raise

    def _prove(self, checkpoint: Checkpoint, prompt: bytes) -> None:
        shape, ours = checkpoint.shape, self.identity.shape
        if shape.ratios != ours.ratios:
            raise Mismatch("its layers are not ours", path=checkpoint.path, expected=ours.name, found=shape.name)
        at = 0
        for piece in checkpoint.pieces(checkpoint.text_span):
            if prompt[at : at + len(piece)] != piece:
                offset = layout.TEXT_OFFSET + at
                raise Damaged("the text is not the one that the name promises", path=checkpoint.path, offset=offset)
            at += len(piece)

    def mark_bad(self, match: Match, reason: str) -> None:
        """Do not try this very file again in this process."""
        self._bad[match.path] = (match.entry.inode, reason)
        log.warning("kv cache load failed %s: %s", match.path, reason)

    def touched(self, match: Match) -> None:
        """Count a successful restore in the file. One that vanished or cannot be written is only logged."""
        with self.catalog.lock:
            try:
                with owned(self.catalog.root):
                    touch(match.path, int(self.clock()))
            except (KVError, OSError) as error:
                log.warning("kv cache touch failed: %s", error)
            self.catalog.examine(match.path)

    def nearest_miss(self, prompt: bytes) -> NearMiss | None:
        """What explains a miss best: of the lately used files, the one that shares the longest start with the prompt."""
        with self.catalog.lock:
            lately = sorted(self.catalog.good(), key=_used, reverse=True)[:NEAR_MISSES_READ]
        misses = [miss for path, entry in lately if entry.header and (miss := compare(path, entry.header, prompt))]
        return max(misses, key=lambda miss: miss.byte, default=None)

    def find_tools(self, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        """id → sampled block, for those tool call ids that a map on disk holds."""
        with self.catalog.lock:
            self.catalog.refresh()
            return self.catalog.find_tools(ids)

    # ---- save

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
        with self.catalog.lock:
            try:
                with owned(self.catalog.root):
                    outcome = self._save(state, text, reason, key_kind, list(tool_map), waiting)
            except (KVError, OSError) as error:
                outcome = Outcome("failed", error=str(error))
        outcome = replace(outcome, seconds=time.monotonic() - started)
        _log(outcome, reason)
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
        self.catalog.refresh()
        final, present = self._place(text_key(text))
        if present:
            return self._refresh(final, tool_map)
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
        on_disk = max((entry.header.tokens for _, entry in self.catalog.prefixes_of(text) if entry.header), default=0)
        wanted = Save(reason, len(state.tokens), contents.nbytes, on_disk)
        skipped = self._refusal(wanted) or self.room.make(wanted, text, waiting)
        if skipped:
            return Outcome("declined", skipped=skipped)
        self._write(final, contents, text, waiting)
        self.ledger.wrote(wanted)
        return Outcome("stored", final, contents.nbytes)

    def _refusal(self, wanted: Save) -> Skipped | None:
        if self.clock() < self._paused_until:
            return Skipped(wanted.tokens, wanted.reason, "the disk was full a moment ago", "free some space")
        return self.ledger.admit(wanted, self.options.limits)

    def _place(self, key: str) -> tuple[Path, bool]:
        """Where a checkpoint of this key belongs, and whether a usable one of ours stands there already.

        What is damaged or failed to load is replaced by the rename; what is another model's or dialect's keeps its name.
        """
        for directory in (self.catalog.root, self.catalog.own):
            path = directory / f"{key}.kv"
            entry = self.catalog.get(path)
            if (
                entry is None
                or entry.kind in (Kind.TRUNCATED, Kind.DAMAGED)
                or self._bad.get(path, (0,))[0] == entry.inode
            ):
                return path, False
            if entry.kind is Kind.GOOD and not self._refuses(path, entry):
                return path, True
            if not self._warned:
                log.warning(
                    "kv cache: %s is another model's or dialect's and is kept; ours goes into %s",
                    path,
                    self.catalog.own,
                )
                self._warned = True
        return path, False  # in our own directory nobody else's file has a right to the name

    def _refresh(self, final: Path, tool_map: list[tuple[bytes, bytes]]) -> Outcome:
        """The same text is there already: no payload is written, only ids that its tool map lacks."""
        if tool_map:
            with Checkpoint.open(final, (self.identity.shape,)) as checkpoint:
                known = list(checkpoint.tool_pairs())
            if not set(tool_map) <= set(known):
                refresh_tool_map(final, encode_tool_map((dict(known) | dict(tool_map)).items()), int(self.clock()))
                self.catalog.examine(final)
        return Outcome("present", final)

    def _generation(self) -> int:
        """The payload ABI to write: that of the newest file that we understand, else 2, unless the options say which."""
        if self.options.abi != "auto":
            return self.options.abi
        headers = [entry.header for _, entry in self.catalog.good() if entry.header]
        return max(headers, key=lambda header: header.created).payload_abi if headers else 2

    def _write(self, final: Path, contents: Contents, text: bytes, waiting: bytes) -> None:
        final.parent.mkdir(mode=0o700, exist_ok=True)
        if self.identity.fingerprint:  # before the file, so that it is never seen without
            update_sidecar(final, fingerprint=self.identity.fingerprint)
        try:
            write(final, contents, durable=self.options.durable)
        except NotWritten as error:
            if not error.disk_full:
                raise
            self.room.free(2 * contents.nbytes, text, waiting)
            try:
                write(final, contents, durable=self.options.durable)
            except NotWritten:
                self._paused_until = self.clock() + FULL_DISK_PAUSE
                raise
        self.catalog.examine(final)


def _used(located: Located) -> int:
    return located[1].header.used if located[1].header else 0


def _log(outcome: Outcome, reason: Reason) -> None:
    name = layout.REASONS[reason]
    if outcome.status == "failed":
        log.warning("kv cache store failed (%s): %s", name, outcome.error)
    elif outcome.skipped:
        skipped = outcome.skipped
        log.info(
            "kv cache skipped tokens=%d reason=%s because %s (%s)", skipped.tokens, name, skipped.because, skipped.knob
        )
    elif outcome.status == "stored":
        size, milliseconds = outcome.nbytes / (1 << 20), outcome.seconds * 1e3
        log.info("kv cache stored reason=%s size=%.2f MiB save=%.1f ms %s", name, size, milliseconds, outcome.path)
