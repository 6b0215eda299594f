"""Anthropic Messages: content blocks, one open at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator

from kvprompt.conversation import ToolCall, Turn
from kvprompt.events import Arguments, Broken, Reasoning, Text

from ..errors import Refused, anthropic_error
from ..wire import Call, Failed, Finished, Piece, Usage
from .reply import COMMENT, Json, Reply, event

STOP_REASONS = {"tool_calls": "tool_use", "length": "max_tokens"}
# There is no stop reason for it, and half an answer must not pass for a whole one: after an error agents say so or try again.
CUT_OFF = Failed(503, "the server is stopping and has cut this answer off")


class AnthropicReply(Reply):
    """The answer of /v1/messages."""

    _index = -1  # of the block that is open, or was last
    _open = ""  # its kind; empty if none is open
    _answered = False  # whether there was a block other than thinking

    def body(self, finished: Finished) -> Json:
        if finished.finish == "error":
            raise Refused(CUT_OFF)
        return self._message(_content(finished.turn, self.id), finished.usage) | _stopped(finished)

    def keepalive(self) -> bytes:
        # Clients take nothing before message_start, but skip comments everywhere.
        return event("ping", {"type": "ping"}) if self.started else COMMENT

    def start(self, usage: Usage) -> Iterator[bytes]:
        yield _event("message_start", message=self._message([], usage))

    def piece(self, piece: Piece) -> Iterator[bytes]:
        match piece.event:
            case Reasoning(text):
                yield from self._into("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case Text(text) | Broken(_, text):
                yield from self._into("text", {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            case Call(_, id, name):
                yield from self._close()
                yield from self._into("tool_use", {"type": "tool_use", "id": id, "name": name, "input": {}})
            case Arguments(_, text):
                yield self._delta({"type": "input_json_delta", "partial_json": text})

    def finish(self, finished: Finished) -> Iterator[bytes]:
        if finished.finish == "error":
            yield from self.fail(CUT_OFF)
            return
        if not self._answered:
            yield from self._into("text", {"type": "text", "text": ""})
        yield from self._close()
        yield _event("message_delta", delta=_stopped(finished), usage=_usage(finished.usage))
        yield _event("message_stop")

    def fail(self, failed: Failed) -> Iterator[bytes]:
        yield event("error", anthropic_error(failed))

    def _into(self, kind: str, block: Json) -> Iterator[bytes]:
        """Open a block of this kind, unless the open one is of it."""
        if self._open == kind:
            return
        yield from self._close()
        self._index, self._open = self._index + 1, kind
        self._answered |= kind != "thinking"
        yield _event("content_block_start", index=self._index, content_block=block)

    def _close(self) -> Iterator[bytes]:
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": self.id})
        if self._open:
            yield _event("content_block_stop", index=self._index)
        self._open = ""

    def _delta(self, delta: Json) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _message(self, content: list[Json], usage: Usage) -> Json:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.conversation.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(usage),
        }


def _event(name: str, /, **members: object) -> bytes:
    return event(name, {"type": name} | members)


def _content(turn: Turn, signature: str) -> list[Json]:
    blocks: list[Json] = []
    if turn.reasoning:
        blocks.append({"type": "thinking", "thinking": turn.reasoning, "signature": signature})
    if turn.content or not turn.calls:
        blocks.append({"type": "text", "text": turn.content})
    return blocks + [_tool_use(call) for call in turn.calls]


def _tool_use(call: ToolCall) -> Json:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}


def _stopped(finished: Finished) -> Json:
    reason = "stop_sequence" if finished.stop is not None else STOP_REASONS.get(finished.finish, "end_turn")
    return {"stop_reason": reason, "stop_sequence": finished.stop}


def _usage(usage: Usage) -> Json:
    """What is neither read from the cache nor written to it would be input_tokens, and that is nothing."""
    return {
        "input_tokens": 0,
        "output_tokens": usage.completion,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": usage.prompt - usage.cached,
    }
