"""Keeping one directory within its budget: what counts, what goes, in which order, and what the system left behind."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kvformat.catalog import Catalog
from kvformat.durable import owned
from kvformat.errors import Damaged
from kvformat.eviction import Candidate, EvictionPolicy, victims
from kvformat.governor import Limits, Save
from kvformat.identity import Identity
from kvformat.policy import Reason, Skipped
from kvformat.prefix import text_key
from kvformat.sidecar import SUFFIX, read_sidecar

log = logging.getLogger("kvformat.store")

AGENT = (Reason.AGENT_SYSTEM, Reason.AGENT_SESSION)
SWEEP_GRACE = 600.0  # seconds before a left-over is taken for one


@dataclass(frozen=True, slots=True)
class Options:
    """How a store behaves. `budget` in bytes; `abi` is the payload generation to write; `durable` off only to measure."""

    budget: int = 4096 << 20
    min_tokens: int = 512
    policy: EvictionPolicy = "ours"
    abi: int | Literal["auto"] = "auto"
    limits: Limits = field(default_factory=Limits)
    durable: bool = True


class Room:
    """The budget of one catalog. Everything in the directory counts; only what a server of ours or ds4's has cached may go.

    Kept are pinned files, other dialects, names that ds4 does not look at, and the conversations of ds4-agent.
    """

    def __init__(
        self, catalog: Catalog, identity: Identity, ctx: int, options: Options, clock: Callable[[], float]
    ) -> None:
        self.catalog = catalog
        self.identity = identity
        self.ctx = ctx
        self.options = options
        self.clock = clock
        self.evicted: int = 0  # files, by this process

    def make(self, wanted: Save, text: bytes, waiting: bytes) -> Skipped | None:
        """Make room for a save of `text` before it is written; says why if there is none to be made."""
        budget = self.options.budget
        if wanted.bytes > budget:
            return Skipped(
                wanted.tokens,
                wanted.reason,
                f"its {wanted.bytes} bytes are over the budget of {budget}",
                "--kv-disk-space-mb",
            )
        self._evict(wanted.bytes, budget, text, waiting)
        if self.catalog.used() + wanted.bytes > budget:
            return Skipped(
                wanted.tokens, wanted.reason, "nothing else in the directory may go for it", "--kv-disk-space-mb"
            )
        return None

    def free(self, incoming: int, text: bytes, waiting: bytes) -> None:
        """The disk is full below the budget: drop left-overs and evict twice the incoming bytes, or else as many."""
        log.info("kv cache: the disk is full, making room for %d bytes", incoming)
        self.catalog.sweep(self.clock(), grace=0)
        evicted = self.evicted
        for room in (2 * incoming, incoming):
            if self.evicted == evicted:
                self._evict(room, self.catalog.used(), text, waiting)

    def trim(self) -> None:
        """Bring the directory down to its budget and sweep left-overs, as at the start of a server."""
        try:
            with owned(self.catalog.root), self.catalog.lock:
                self.catalog.sweep(self.clock(), SWEEP_GRACE)
                self._evict(0, self.options.budget, b"", b"")
        except OSError as error:
            log.warning("kv cache: %s cannot be trimmed: %s", self.catalog.root, os.strerror(error.errno or 0).lower())

    def candidates(self, incoming: bytes = b"") -> list[Candidate]:
        """What may be evicted, as the policy sees it, headers read anew. A candidate's key is its path."""
        extended = {path for path, _ in self.catalog.prefixes_of(incoming)}
        covered = self.catalog.covered()
        found = []
        for path, stale in list(self.catalog.good()):
            entry = self.catalog.examine(path)
            header = entry.header if entry else None
            if entry is None or header is None or entry.kind is not stale.kind:
                continue
            if entry.key is None or header.reason in AGENT:
                continue
            ours = path in extended and not self.identity.refuses(header)
            found.append(
                Candidate(
                    key=str(path),
                    tokens=header.tokens,
                    bytes=entry.size,
                    hits=header.hits,
                    created=header.created,
                    last_used=header.last_used,
                    reason=header.reason,
                    covered=ours or path in covered,
                    superseded=ours and self.ctx <= header.ctx,
                    pinned=self._pinned(path),
                )
            )
        return found

    def _pinned(self, path: Path) -> bool:
        if self.catalog.get(path.with_name(path.name + SUFFIX)) is None:
            return False
        try:
            return read_sidecar(path).pin
        except Damaged:
            return True  # somebody wrote something; not ours to delete

    def _evict(self, room: int, budget: int, text: bytes, waiting: bytes) -> None:
        used = self.catalog.used()
        if used + room <= budget:
            return
        candidates = self.candidates(text)
        others = used - sum(candidate.bytes for candidate in candidates)
        protected = {str(path) for path, _ in self.catalog.prefixes_of(waiting)}
        protected |= {str(place / f"{text_key(text)}.kv") for place in (self.catalog.root, self.catalog.own)}
        chosen = victims(
            candidates,
            budget=budget - others,
            incoming_bytes=room,
            now=self.clock(),
            policy=self.options.policy,
            protected=protected,
        )
        for victim in chosen:
            log.info(  # first, so that even a crash loses nothing unsaid
                "kv cache evicted reason=disk-cache-full tokens=%d hits=%d size=%.2f MiB %s",
                victim.tokens, victim.hits, victim.bytes / (1 << 20), victim.key,
            )  # fmt: skip
            self.evicted += self.catalog.delete(Path(victim.key))
