"""The engine's thread: one job after the other, so that everything that touches a session happens in one place."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from kvengine import Session
from kvformat.policy import Knobs
from kvformat.store import Store
from kvprompt.conversation import Conversation
from kvprompt.render import Style
from kvprompt.replay import ToolMemory

from .errors import QueueFull, ShuttingDown
from .generation import Draw, sampler_of
from .loading import Loaded
from .serving import Refused, Serving
from .slots import Slots
from .wire import Failed, Job

log = logging.getLogger("kvserver")

RETRY_AFTER = 5  # seconds that a client is told to wait when the queue is full


class Driver:
    """Owns the thread and the queue before it. `draw` replaces the sampler, for tests."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        ctx: int,
        knobs: Knobs,
        style: Style,
        prefill_chunk: int = 2048,
        sessions: int = 1,
        mark_bytes: int = 512 << 20,
        store: Store | None = None,
        memory: ToolMemory | None = None,
        max_queue: int = 64,
        draw: Callable[[Conversation], Draw] = sampler_of,
    ) -> None:
        # One more than asked for: the scratch slot, whose pages cost nothing until a side request touches them.
        slots = Slots([Session(loaded.model, ctx, prefill_chunk) for _ in range(sessions + 1)], mark_bytes)
        self.serving = Serving(loaded, slots, store, style, knobs, memory, draw)
        self._queue: queue.Queue[Job | None] = queue.Queue(max_queue)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Put a job in the queue. Raises QueueFull or ShuttingDown."""
        if self._stopping.is_set():
            raise ShuttingDown
        try:
            self._queue.put_nowait(job)
        except queue.Full:
            raise QueueFull(RETRY_AFTER) from None

    def count_tokens(self, conversation: Conversation) -> int:
        """How many tokens the request's prompt has. Any thread may ask."""
        prompt, _ = self.serving.render(conversation)
        return len(self.serving.tokenizer.encode_chat(prompt.text))

    def stop(self) -> None:
        """Stop generating, let the jobs in the queue go, save every live session, end the thread."""
        self._stopping.set()
        self._queue.put(None)
        self._thread.join()
        self.serving.keeper.save_all()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            if self._stopping.is_set():
                job.send(Failed(503, "the server is stopping"))
            elif not job.cancelled.is_set():
                self._serve(job)

    def _serve(self, job: Job) -> None:
        try:
            self.serving.serve(job, self._stopping.is_set)
        except Refused as refused:
            job.send(refused.failed)
        except Exception as error:
            log.exception("request failed")
            job.send(Failed(500, f"internal error: {error}"))
