"""Read one directory of checkpoints for one model: what a prompt can start from, and what became of the tries.

The directory is the index: other processes, ds4-server among them, may add or remove files at any moment. A hit never deletes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kvformat import layout
from kvformat.catalog import Catalog, Located
from kvformat.checkpoint import Checkpoint
from kvformat.errors import Damaged, KVError, Mismatch, Truncated
from kvformat.failures import Failures
from kvformat.header import Header
from kvformat.identity import Identity
from kvformat.inplace import touch
from kvformat.nearmiss import NearMiss, compare, start_of_text
from kvformat.room import Options
from kvformat.scan import Entry
from kvformat.sidecar import read_sidecar
from kvformat.verdict import Refusal, Verdict

log = logging.getLogger("kvformat.store")

NEAR_MISSES_READ = 8  # lately used texts that are read to explain a miss


@dataclass(frozen=True, slots=True)
class Match:
    """A file whose key is the hash of a prefix of the prompt; `why` says more of a verdict that is not `USABLE`."""

    path: Path
    entry: Entry
    verdict: Verdict = Verdict.USABLE
    why: str = ""

    @property
    def usable(self) -> bool:
        return self.verdict is Verdict.USABLE

    @property
    def tokens(self) -> int:
        return self.entry.header.tokens if self.entry.header else 0


class Reader:
    """Lookup. Any thread may call; `clock` gives unix seconds, `ctx` is the reader's context in tokens."""

    def __init__(
        self,
        directory: Path,
        identity: Identity,
        ctx: int,
        options: Options | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.identity = identity
        self.ctx = ctx
        self.options = options or Options()
        self.clock = clock
        self.catalog = Catalog(directory, identity)
        self._failures = Failures()

    def candidates(self, prompt: bytes) -> Iterator[Match]:
        """Every file whose key is the hash of a prefix of the prompt, longest text first; each with its verdict."""
        with self.catalog.lock:
            self._refresh()
            found = self.catalog.prefixes_of(prompt)
        for path, _ in found:
            with self.catalog.lock:
                entry = self.catalog.current(path)
            if entry and entry.header:
                yield Match(path, entry, *(self._refusal_of(path, entry) or ()))

    def _refresh(self) -> None:
        self.catalog.refresh()
        for path in self._failures.pardon():
            self.catalog.examine(path)

    def _refusal_of(self, path: Path, entry: Entry) -> Refusal | None:
        """Why a listed file does not serve; it may have become something else since it was listed."""
        if entry.problem or entry.header is None:
            return Refusal(Verdict.UNREADABLE, entry.problem or entry.kind.value)
        return self._unusable(path, entry.header)

    def _unusable(self, path: Path, header: Header) -> Refusal | None:
        """Why a file of ours with this header does not serve here and now."""
        reason = self._failures.reason(path)
        if reason:
            return Refusal(Verdict.UNREADABLE, f"known bad: {reason}")
        if header.tokens < self.options.min_tokens:
            return Refusal(Verdict.BELOW_MIN_TOKENS, f"below {self.options.min_tokens} tokens")
        if header.tokens >= self.ctx:
            return Refusal(Verdict.CONTEXT_TOO_LARGE, f"ctx: {header.tokens} tokens do not fit into {self.ctx}")
        return self._refuses(path, header)

    def _refuses(self, path: Path, header: Header) -> Refusal | None:
        try:
            fingerprint = read_sidecar(path).fingerprint if self.identity.fingerprint else ""
        except Damaged as error:
            return Refusal(Verdict.UNREADABLE, str(error))
        return self.identity.refuses(header, fingerprint)

    def open(self, match: Match, prompt: bytes) -> Checkpoint:
        """Open a match and prove it: its text is a prefix of the prompt, its shape is ours. The caller closes it.

        Raises KVError; the file is then remembered as bad for this process, unless it merely vanished.
        """
        try:
            checkpoint = self._open_ours(match.path)
            try:
                self._prove(checkpoint, prompt)
            except KVError:
                checkpoint.close()
                raise
            return checkpoint
        except KVError as error:
            self._remember(match.path, error)
            raise

    def _open_ours(self, path: Path) -> Checkpoint:
        checkpoint = Checkpoint.open(path, (self.identity.shape,))
        try:
            shape, ours = checkpoint.shape, self.identity.shape
            if replace(shape, name=ours.name) != ours:
                raise Mismatch("its layers are not ours", path=path, expected=ours.name, found=shape.name)
        except KVError:
            checkpoint.close()
            raise
        return checkpoint

    def _prove(self, checkpoint: Checkpoint, prompt: bytes) -> None:
        """The index may be older than the file, so nothing that it said counts here."""
        refusal = self._unusable(checkpoint.path, checkpoint.header)
        if refusal:
            raise Mismatch(refusal.why, path=checkpoint.path)
        at = 0
        for piece in checkpoint.pieces(checkpoint.text_span):
            if prompt[at : at + len(piece)] != piece:
                offset = layout.TEXT_OFFSET + at
                raise Damaged("the text is not the one that the name promises", path=checkpoint.path, offset=offset)
            at += len(piece)

    def mark_bad(self, match: Match, reason: str) -> None:
        """Do not try this very file again in this process; a save of its text replaces it."""
        self._remember(match.path, Damaged(reason))

    def _remember(self, path: Path, error: KVError) -> None:
        if self._failures.remember(path, error.problem, worthless=isinstance(error, (Damaged, Truncated))):
            log.warning("kv cache load failed %s: %s", path, error.problem)

    def touched(self, match: Match) -> None:
        """Count a successful restore in the file. One that vanished or cannot be written is only logged."""
        try:
            touch(match.path, int(self.clock()))
        except KVError as error:
            log.warning("kv cache touch failed: %s", error)
        with self.catalog.lock:
            self.catalog.examine(match.path)

    def nearest_miss(self, prompt: bytes) -> NearMiss | None:
        """What explains a miss best: of the lately used files, the one that shares the longest start with the prompt."""
        lately = self._lately_used()[:NEAR_MISSES_READ]
        misses = [miss for path, entry in lately if entry.header and (miss := compare(path, entry.header, prompt))]
        return max(misses, key=lambda miss: miss.byte, default=None)

    def text_starts(self, count: int) -> Iterator[tuple[Path, bytes]]:
        """The first `count` bytes of the text of each file of our model, the file used last first, each read when it is due."""
        with self.catalog.lock:
            self._refresh()
        for path, entry in self._lately_used():
            if entry.key and entry.header and not self._refuses(path, entry.header):
                start = start_of_text(path, entry.header, count)
                if start is not None:
                    yield path, start

    def _lately_used(self) -> list[Located]:
        with self.catalog.lock:
            return sorted(self.catalog.good(), key=_used, reverse=True)

    def find_tools(self, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        """id → sampled block, for those tool call ids that a map on disk holds."""
        with self.catalog.lock:
            return self.catalog.find_tools(ids)


def _used(located: Located) -> int:
    return located[1].header.used if located[1].header else 0
