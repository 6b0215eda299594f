"""A backend that plays a script instead of a model, and a real server around it, on a port of its own."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sanic import Sanic

from kvprompt.conversation import Conversation, ToolCall, Turn
from kvprompt.events import Arguments, CallEnd, Reasoning, Text
from kvserver.app import create_app
from kvserver.errors import QueueFull, ShuttingDown
from kvserver.settings import Settings
from kvserver.wire import (
    Backend,
    Call,
    Failed,
    Finish,
    Finished,
    Job,
    Logprob,
    Message,
    Metric,
    Piece,
    Started,
    Status,
    Usage,
)

Step = Message | float
"""A message, or seconds of silence."""

USAGE = Usage(prompt=100, cached=60, completion=7, reasoning=3)


def spoken(
    reasoning: str = "",
    content: str = "",
    calls: Sequence[ToolCall] = (),
    finish: Finish = "stop",
    stop: str | None = None,
    logprobs: Sequence[Logprob] = (),
) -> list[Step]:
    """The messages of a whole turn. Text comes in pieces of three characters, arguments in pieces of five."""
    finish = "tool_calls" if calls else finish
    script: list[Step] = [Started(Usage(USAGE.prompt, USAGE.cached))]
    script += [Piece(Reasoning(part)) for part in _parts(reasoning, 3)]
    pending = tuple(logprobs)
    for part in _parts(content, 3):
        script.append(Piece(Text(part), pending))
        pending = ()
    for index, call in enumerate(calls):
        script.append(Piece(Call(index, call.id, call.name)))
        script += [Piece(Arguments(index, part)) for part in _parts(call.arguments, 5)]
        script.append(Piece(CallEnd(index)))
    usage = USAGE if reasoning else replace(USAGE, reasoning=0)
    of_all = (*[Logprob(b"?", -1.0)] * usage.reasoning, *logprobs) if logprobs else ()
    script.append(Finished(Turn(reasoning, content, tuple(calls)), finish, usage, stop, of_all))
    return script


def _parts(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@dataclass
class FakeBackend:
    """Plays `script` for every job in a thread of its own, and keeps the jobs."""

    script: Sequence[Step] | Callable[[Conversation], Sequence[Step]] = field(
        default_factory=lambda: spoken("", "Hello!")
    )
    state: str = "ready"
    full: bool = False
    jobs: list[Job] = field(default_factory=list)

    def submit(self, job: Job) -> None:
        if self.state == "stopping":
            raise ShuttingDown
        if self.full:
            raise QueueFull(retry_after=7)
        self.jobs.append(job)
        script = self.script(job.conversation) if callable(self.script) else self.script
        threading.Thread(target=self._play, args=(job, list(script)), daemon=True).start()

    def read_ahead(self, conversation: Conversation) -> None:
        """Nothing is tokenised here."""

    def count_tokens(self, conversation: Conversation) -> int:
        return 10 * len(conversation.messages)

    def status(self) -> Status:
        by_source = Metric("requests_total", "Requests by source.", {"live": 2, "disk": 1, "none": 3}, "source")
        return Status(self.state, queued=4, sessions=1, metrics=(by_source,), model="tiny")  # type: ignore[arg-type]

    def describe(self) -> str:
        return "a script; 3 files, 12 of 4096 MiB, the oldest of yesterday"

    def stop(self) -> None:
        self.state = "stopping"

    def close(self) -> None:
        pass

    def _play(self, job: Job, script: Sequence[Step]) -> None:
        for step in script:
            if not isinstance(step, float):
                job.send(step)
            elif until(lambda: job.cancelled.is_set() or self.state == "stopping", step):
                job.send(Finished(Turn(), "length", USAGE))
                return


_names = (f"kvserve-test-{number}" for number in itertools.count())


@contextmanager
def serving(backend: Backend | None, settings: Settings | None = None, *, keepalive: float = 5.0) -> Iterator[str]:
    """The address of a server that runs in a thread until the end of the block."""
    Sanic.test_mode = True  # or a second application in one process cannot start
    app = create_app(settings or Settings(), backend, name=next(_names), keepalive=keepalive)
    listener = socket.create_server(("127.0.0.1", 0))
    begun, end = threading.Event(), threading.Event()

    async def run() -> None:
        server: Any = await app.create_server(sock=listener, return_asyncio_server=True)
        await server.startup()
        await server.start_serving()
        begun.set()
        while not end.is_set():
            await asyncio.sleep(0.01)
        server.close()
        await server.wait_closed()
        for connection in list(server.connections):
            connection.abort()

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    assert begun.wait(10)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        end.set()
        thread.join(10)


def until(happened: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Whether it happens within that time."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


__all__ = ["USAGE", "Failed", "FakeBackend", "serving", "spoken", "until"]
