"""The endpoints that answer: a body becomes a job, and the job's messages become JSON or server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from sanic import Blueprint, HTTPResponse, Request

from kvprompt.conversation import Conversation, Dialect
from kvprompt.dialects import PARSERS
from kvprompt.dialects.fields import read_body

from .dialects import REPLIES, Reply
from .dialects.reply import dumps
from .errors import Refused, StillLoading
from .wire import Backend, Failed, Finished, Job, Message

MOST_LOGPROBS = 20
LONG_BODY = 1 << 18  # bytes; to tokenise less takes no time
T = TypeVar("T")
ANTHROPIC = "/v1/messages"
NOT_STORED = {"Cache-Control": "no-cache"}


def answers() -> Blueprint:
    """POST of every dialect, and the tokens of a prompt in Anthropic's."""
    blueprint = Blueprint("answers")
    for path in PARSERS:
        blueprint.add_route(answer, path, methods=["POST"], name=path.replace("/", "_"))
    blueprint.add_route(count_tokens, f"{ANTHROPIC}/count_tokens", methods=["POST"])
    return blueprint


class Inbox:
    """The messages of one job, on their way from the engine's thread into this loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._messages: asyncio.Queue[Message] = asyncio.Queue()

    def put(self, message: Message) -> None:
        """Any thread may call, also when the loop has already ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._messages.put_nowait, message)

    async def get(self, deadline: float | None = None) -> Message | None:
        """The next message, None if none has come at `deadline` on the loop's clock."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._messages.get()
        except TimeoutError:
            return None

    async def last(self) -> Finished | Failed:
        """The message that ends the job."""
        while not isinstance(message := await self.get(), Finished | Failed):
            pass
        return message


async def answer(request: Request) -> HTTPResponse | None:
    """Answer one request in its own dialect. A client that goes away takes its job with it."""
    backend = backend_of(request)
    conversation, logprobs = await asyncio.to_thread(_read, path_of(request), request.body)
    reply = REPLIES[conversation.dialect](conversation)
    inbox = Inbox()
    job = Job(conversation, inbox.put, logprobs)
    if len(request.body) > LONG_BODY:
        await _tokenising(request, lambda: backend.read_ahead(conversation))
    try:
        backend.submit(job)
        return await (_stream(request, reply, inbox) if conversation.stream else _whole(reply, inbox))
    except BaseException:
        job.cancelled.set()
        raise


async def count_tokens(request: Request) -> HTTPResponse:
    """How many tokens a Messages request would be."""
    backend = backend_of(request)
    count = await _tokenising(request, lambda: backend.count_tokens(PARSERS[ANTHROPIC](request.body)))
    return json_response({"input_tokens": count})


def backend_of(request: Request) -> Backend:
    """The engine, once there is one. Raises StillLoading."""
    backend: Backend | None = request.app.ctx.backend
    if backend is None:
        raise StillLoading
    return backend


def path_of(request: Request) -> str:
    """The path as it is declared, whatever the client appended to it."""
    return f"/{request.route.path}" if request.route else request.path


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> HTTPResponse:
    """A body of compact JSON and a line feed."""
    return HTTPResponse(dumps(value) + b"\n", status, headers, content_type="application/json")


async def _tokenising(request: Request, work: Callable[[], T]) -> T:
    """Work in another thread: for a long body in one of a few, so that the others stay free for everybody else."""
    threads = request.app.ctx.tokenising if len(request.body) > LONG_BODY else None
    return await asyncio.get_running_loop().run_in_executor(threads, work)


def _read(path: str, body: bytes) -> tuple[Conversation, int | None]:
    conversation = PARSERS[path](body)
    return conversation, _logprobs(conversation.dialect, body) if b"logprobs" in body else None


def _logprobs(dialect: Dialect, body: bytes) -> int | None:
    """How many alternatives per token are wanted, None if not even the token's own log-probability is."""
    fields = read_body(body)
    match dialect:
        case Dialect.CHAT:
            top = fields.integer("top_logprobs") or 0
            wanted = top if fields.flag("logprobs") else None
        case Dialect.COMPLETION:
            wanted = fields.integer("logprobs")
        case Dialect.RESPONSES:
            wanted = fields.integer("top_logprobs")
        case Dialect.ANTHROPIC:
            wanted = None
    return None if wanted is None else min(wanted, MOST_LOGPROBS)


async def _whole(reply: Reply, inbox: Inbox) -> HTTPResponse:
    message = await inbox.last()
    if isinstance(message, Failed):
        raise Refused(message)
    return json_response(reply.body(message))


async def _stream(request: Request, reply: Reply, inbox: Inbox) -> None:
    """Send frames as messages come, and a sign of life when none went out for a while.

    Headers wait for the first message, so that a refusal still has its status, but no longer than one such while.
    """
    clock, pause = asyncio.get_running_loop().time, request.app.ctx.keepalive
    response: HTTPResponse | None = None
    message: Message | None = None
    deadline = clock() + pause
    try:
        while not isinstance(message, Finished | Failed):
            message = await inbox.get(deadline)
            if response is None:
                if isinstance(message, Failed):
                    raise Refused(message)
                response = await request.respond(content_type="text/event-stream", headers=NOT_STORED)
            frames = reply.keepalive() if message is None else reply.frames(message)
            if frames:
                await response.send(frames, isinstance(message, Finished | Failed))
                deadline = clock() + pause
    except Exception:
        if response is not None:  # the status is long sent: what went wrong can only be told in the stream
            failed = Failed(500, "the server failed in the middle of this answer")
            await response.send(reply.frames(failed), end_stream=True)
        raise
