"""The engine's thread: one job after the other, so that everything that touches a session happens in one place."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from kvengine import Session
from kvformat.governor import Limits
from kvformat.policy import Knobs
from kvformat.room import Options
from kvformat.store import Store
from kvprompt.conversation import Conversation
from kvprompt.render import Style
from kvprompt.replay import ToolMemory

from .errors import QueueFull, Refused, ShuttingDown
from .generation import Draw, sampler_of
from .loading import Loaded
from .prompting import Prompts
from .serving import Serving
from .settings import Settings
from .slots import Slots
from .trace import Trace
from .wire import Failed, Job, Status
from .wording import choose

log = logging.getLogger("kvserver")

RETRY_AFTER = 5  # seconds that a client is told to wait when the queue is full
MIB = 1 << 20


class Driver:
    """The backend of the web layer (`wire.Backend`). `draw` replaces the sampler, for tests."""

    def __init__(self, loaded: Loaded, settings: Settings, draw: Callable[[Conversation], Draw] = sampler_of) -> None:
        # One session more than asked for: the scratch slot, whose pages cost nothing until a side request touches them.
        sessions = [Session(loaded.model, settings.ctx, settings.prefill_chunk) for _ in range(settings.sessions + 1)]
        memory = None if settings.disable_exact_dsml_tool_replay else ToolMemory(settings.tool_memory_max_ids)
        store = open_store(loaded, settings)
        self._wording = choose(settings.tool_preamble, store)
        style = Style(settings.ctx, self._wording.preamble, settings.strip_volatile)
        self._trace = Trace(settings.trace) if settings.trace else None
        self.serving = Serving(
            loaded,
            Slots(sessions, settings.mark_memory_mb * MIB),
            store,
            Prompts(style, memory, store),
            knobs_of(settings),
            draw,
            self._trace,
        )
        self._loaded = loaded
        self._store = store
        self._queue: queue.Queue[Job | None] = queue.Queue(settings.max_queue + 1)  # one for the end
        self._max_queue = settings.max_queue
        self._busy = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Put a job in the queue. Raises QueueFull or ShuttingDown."""
        if self._stopping.is_set():
            raise ShuttingDown
        if self._busy.is_set() and self._queue.qsize() >= self._max_queue:
            raise QueueFull(RETRY_AFTER)
        self._queue.put(job)

    def read_ahead(self, conversation: Conversation) -> None:
        """Tokenise long texts before their turn comes. Raises Refused if they cannot fit."""
        self.serving.read_ahead(conversation)

    def count_tokens(self, conversation: Conversation) -> int:
        """How many tokens the request's prompt has."""
        return self.serving.count_tokens(conversation)

    def status(self) -> Status:
        """What /health and /metrics show."""
        state: Literal["ready", "stopping"] = "stopping" if self._stopping.is_set() else "ready"
        live = sum(len(slot) > 0 for slot in self.serving.slots)
        return Status(state, self._queue.qsize(), live, tuple(self.serving.metrics()), self._loaded.name)

    def describe(self) -> str:
        """The start line: the model, what the directory holds, and how prompts with tools are worded."""
        config = self._loaded.model.config
        line = f"{self._loaded.name}, {len(config.ratios)} layers, context {self.serving.context}"
        directory = describe_directory(self._store) if self._store else "no kv directory"
        return f"{line}; {directory}; {self._wording}"

    def stop(self) -> None:
        """Take no more jobs; those that run end where they are, those that wait are told."""
        self._stopping.set()

    def close(self) -> None:
        """After `stop`: wait for the thread, then save every live session."""
        self._queue.put(None)
        self._thread.join()
        self.serving.keeper.save_all()
        if self._trace is not None:
            self._trace.close()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            self._busy.set()
            if self._stopping.is_set():
                job.send(Failed(503, "the server is stopping"))
            elif not job.cancelled.is_set():
                self._serve(job)
            self._busy.clear()

    def _serve(self, job: Job) -> None:
        try:
            self.serving.serve(job, self._stopping.is_set)
        except Refused as refused:
            job.send(refused.failed)
        except Exception as error:
            log.exception("request failed")
            job.send(Failed(500, f"internal error: {error}"))


def knobs_of(settings: Settings) -> Knobs:
    """Where to save, as the policy wants to know it."""
    return Knobs(
        settings.kv_cache_min_tokens,
        settings.kv_cache_cold_max_tokens,
        settings.kv_cache_continued_interval_tokens,
        settings.kv_cache_boundary_trim_tokens,
        settings.kv_cache_boundary_align_tokens,
        settings.kv_cache_boundary_order,
    )


def open_store(loaded: Loaded, settings: Settings) -> Store | None:
    """The store of the directory, brought within its budget; None without a directory."""
    if settings.kv_disk_dir is None:
        return None
    options = Options(
        budget=settings.kv_disk_space_mb * MIB,
        min_tokens=settings.kv_cache_min_tokens,
        policy=settings.kv_cache_policy,
        abi=settings.kv_abi,
        limits=Limits(settings.kv_cache_min_gain_tokens, settings.kv_write_limit * MIB),
    )
    identity = replace(loaded.identity, reject_other_quant=settings.kv_cache_reject_different_quant)
    store = Store(settings.kv_disk_dir, identity, settings.ctx, options)
    store.room.trim()
    return store


def describe_directory(store: Store) -> str:
    """Files, bytes, budget and oldest use: nothing in the directory ever goes but by its budget."""
    with store.catalog.lock:
        store.catalog.refresh()
        used = [entry.header.used for _, entry in store.catalog.good() if entry.header]
    size = f"{store.catalog.used() / MIB:.0f} of {store.options.budget // MIB} MiB"
    line = f"kv directory {store.catalog.root}: {len(used)} files, {size}"
    return f"{line}, oldest used {(store.clock() - min(used)) / 86400:.1f} days ago" if used else line
