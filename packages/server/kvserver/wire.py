"""What passes between the web layer and the engine's thread: a job in, a stream of these messages out.

The web layer submits a `Job` and reads its messages in order: at most one `Started`, then `Piece`s, then exactly one
`Finished` or `Failed`. It sets `job.cancelled` when the client has gone; the engine then stops within one chunk.
`Backend` is all that it knows of the engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

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


Shown = Reasoning | Text | Call | Arguments | CallEnd | Broken


@dataclass(frozen=True, slots=True)
class Piece:
    """Something to show. In /v1/completions only `Text` occurs, with reasoning and markup raw in it."""

    event: Shown
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


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of counters for /metrics, `ds4kv_` and `name`: a value for each value of `label`, or one under ""."""

    name: str
    help: str
    values: Mapping[str, float]
    label: str = ""
    kind: Literal["counter", "gauge"] = "counter"


@dataclass(frozen=True, slots=True)
class Status:
    """What the operator sees: `queued` requests wait, `sessions` conversations are live, `model` is its name of its own."""

    state: Literal["loading", "ready", "stopping"]
    queued: int = 0
    sessions: int = 0
    metrics: tuple[Metric, ...] = ()
    model: str = ""


class Backend(Protocol):
    """The engine as the web layer sees it. Any thread may call; `read_ahead`, `count_tokens` and `close` take their time."""

    def submit(self, job: Job) -> None:
        """Queue a job. Raises errors.QueueFull or errors.ShuttingDown."""

    def read_ahead(self, conversation: Conversation) -> None:
        """Tokenise long texts in the caller's thread, so that they hold up nobody. Raises errors.Refused if they cannot fit."""

    def count_tokens(self, conversation: Conversation) -> int:
        """The tokens of the prompt that this conversation would be."""

    def status(self) -> Status:
        """How things stand."""

    def describe(self) -> str:
        """One sentence for the start line: model, context, and files, bytes, budget and oldest of the directory."""

    def stop(self) -> None:
        """Take no more jobs, fail those that wait, and let those that run end where they are, with a proper Finished."""

    def close(self) -> None:
        """After `stop`: wait for the engine's thread and save every live session."""
