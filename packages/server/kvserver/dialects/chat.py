"""OpenAI chat completions: one kind of chunk, whose delta grows the message."""

from __future__ import annotations

from collections.abc import Iterator

from kvprompt.conversation import ToolCall, Turn
from kvprompt.events import Arguments, Broken, Reasoning, Text

from ..errors import openai_error
from ..wire import Call, Failed, Finished, Logprob, Piece, Usage
from .reply import Json, Reply, data, event, logprob_list, logprobs_of_content, openai_usage


class ChatReply(Reply):
    """The answer of /v1/chat/completions."""

    def body(self, finished: Finished) -> Json:
        choice = {"index": 0, "message": _message(finished.turn), "finish_reason": finished.finish}
        if logprobs := logprobs_of_content(finished):
            choice["logprobs"] = _logprobs(logprobs)
        return self._object("chat.completion", [choice]) | {"usage": openai_usage(finished.usage)}

    def start(self, usage: Usage) -> Iterator[bytes]:
        yield self._chunk({"role": "assistant"})

    def piece(self, piece: Piece) -> Iterator[bytes]:
        match piece.event:
            case Reasoning(text):
                yield self._chunk({"reasoning_content": text})
            case Text(text) | Broken(_, text):
                yield self._chunk({"content": text}, logprobs=piece.logprobs)
            case Call(index, id, name):
                yield self._chunk({"tool_calls": [{"index": index} | _call(ToolCall(id, name, ""))]})
            case Arguments(index, text):
                yield self._chunk({"tool_calls": [{"index": index, "function": {"arguments": text}}]})

    def finish(self, finished: Finished) -> Iterator[bytes]:
        yield self._chunk({}, finished.finish)
        if self.conversation.include_usage:
            yield data(self._object("chat.completion.chunk", []) | {"usage": openai_usage(finished.usage)})
        yield b"data: [DONE]\n\n"

    def fail(self, failed: Failed) -> Iterator[bytes]:
        yield event("error", openai_error(failed, "messages"))

    def _chunk(self, delta: Json, finish: str | None = None, logprobs: tuple[Logprob, ...] = ()) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        if logprobs:
            choice["logprobs"] = _logprobs(logprobs)
        return data(self._object("chat.completion.chunk", [choice]))

    def _object(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.conversation.model,
            "choices": choices,
        }


def _message(turn: Turn) -> Json:
    message: Json = {"role": "assistant", "content": turn.content}
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [_call(call) for call in turn.calls]
    return message


def _call(call: ToolCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _logprobs(logprobs: tuple[Logprob, ...]) -> Json:
    return {"content": logprob_list(logprobs), "refusal": None}
