"""What passes between the web layer and the engine's thread: a job in, a stream of these messages out.

The web layer submits a `Job` and reads its messages in order: at most one `Started`, then `Piece`s, then exactly one
`Finished` or `Failed`. It sets `job.cancelled` when the client has gone; the engine then stops within one chunk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from kvprompt.conversation import Conversation, Turn
from kvprompt.events import Arguments, Broken, CallEnd, Reasoning, Text

Finish = Literal["stop", "length", "tool_calls", "error"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens: `prompt` in all, of which `cached` were not prefilled; `completion` generated, of which `reasoning` thinking."""

    prompt: int
    cached: int
    completion: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """The request is sound and planned; from here on headers may go out. `usage` has no completion yet."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call begins; its arguments follow in pieces. `id` is the one that the finished turn will have too."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Logprob:
    """One generated token: its bytes, its log-probability, and the likeliest alternatives with theirs, best first."""

    token: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """Something to show. In /v1/completions only `Text` occurs, with reasoning and markup raw in it."""

    event: Reasoning | Text | Call | Arguments | CallEnd | Broken
    logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The whole turn, its calls with ids, and why it ended. `stop` is the stop string that ended it, if one did."""

    turn: Turn
    finish: Finish
    usage: Usage
    stop: str | None = None
    logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """No answer, or no more of it: an HTTP status if headers are not out yet, one sentence, and members for the error body."""

    status: int
    message: str
    code: str | None = None
    members: dict[str, int] = field(default_factory=dict)  # n_prompt_tokens, n_ctx


Message = Started | Piece | Finished | Failed


@dataclass(slots=True, eq=False)
class Job:
    """One request on its way. `send` may be called from any thread; `logprobs` is how many alternatives are wanted, or None."""

    conversation: Conversation
    send: Callable[[Message], None]
    logprobs: int | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
