"""What the dialects share when they answer: one reply from its first frame to its last, frames of SSE, ids, numbers."""

from __future__ import annotations

import itertools
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from kvprompt.conversation import Conversation

from ..wire import Failed, Finished, Logprob, Message, Piece, Started, Usage

Json = dict[str, Any]

LEAST_LOGPROB = -9999.0  # what OpenAI sends for minus infinity, which JSON does not have
COMMENT = b": keepalive\n\n"

_count = itertools.count(1)


class Reply(ABC):
    """One answer in one dialect. `frames` must see every message of a stream, `body` only the last of a whole answer."""

    prefix = "chatcmpl"

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.id = f"{self.prefix}-{next(_count)}"
        self.created = int(time.time())
        self.started = False

    def frames(self, message: Message) -> bytes:
        """What goes out when this message comes in; may be nothing."""
        if isinstance(message, Started):
            self.started = True
        return b"".join(self._frames(message))

    def keepalive(self) -> bytes:
        """What goes out when nothing has for a while: harmless everywhere in a stream, its beginning included."""
        return COMMENT

    @abstractmethod
    def body(self, finished: Finished) -> Json:
        """The whole answer, for a client that does not stream."""

    @abstractmethod
    def start(self, usage: Usage) -> Iterator[bytes]:
        """The frames before the first piece."""

    @abstractmethod
    def piece(self, piece: Piece) -> Iterator[bytes]:
        """The frames of one piece."""

    @abstractmethod
    def finish(self, finished: Finished) -> Iterator[bytes]:
        """The last frames."""

    @abstractmethod
    def fail(self, failed: Failed) -> Iterator[bytes]:
        """The last frames of a stream that breaks off, or that never came to its start."""

    def _frames(self, message: Message) -> Iterator[bytes]:
        match message:
            case Started(usage):
                return self.start(usage)
            case Piece():
                return self.piece(message)
            case Finished():
                return self.finish(message)
            case Failed():
                return self.fail(message)


def dumps(value: Any) -> bytes:
    """Compact JSON in UTF-8. Half a surrogate pair, which a client's own strings may hold, becomes a question mark."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def data(value: Any) -> bytes:
    """One event without a name."""
    return b"data: " + dumps(value) + b"\n\n"


def event(name: str, value: Any) -> bytes:
    """One event with a name."""
    return b"event: " + name.encode() + b"\n" + data(value)


def openai_usage(usage: Usage) -> Json:
    """The usage of chat and completions."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.prompt - usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def logprob_list(logprobs: Iterable[Logprob]) -> list[Json]:
    """Tokens with their alternatives, as chat and Responses write them."""
    return [
        _logprob(entry.token, entry.logprob) | {"top_logprobs": [_logprob(*top) for top in entry.top]}
        for entry in logprobs
    ]


def logprobs_of_content(finished: Finished) -> tuple[Logprob, ...]:
    """Those of the answer's tokens that are no thinking."""
    return finished.logprobs[finished.usage.reasoning :]


def token_text(token: bytes) -> str:
    """A token as text; bytes of half a character show as U+FFFD."""
    return token.decode("utf-8", "replace")


def finite(logprob: float) -> float:
    """A log-probability that JSON can hold."""
    return max(logprob, LEAST_LOGPROB)


def _logprob(token: bytes, logprob: float) -> Json:
    return {"token": token_text(token), "logprob": finite(logprob), "bytes": list(token)}
