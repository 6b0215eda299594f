"""OpenAI completions: raw text, and nothing but text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from kvprompt.events import Text

from ..errors import openai_error
from ..wire import Failed, Finished, Logprob, Piece, Usage
from .reply import Json, Reply, data, event, finite, openai_usage, token_text


class CompletionReply(Reply):
    """The answer of /v1/completions."""

    prefix = "cmpl"
    _offset = 0  # characters of the text so far

    def body(self, finished: Finished) -> Json:
        choice = self._choice(finished.turn.content, finished.finish, finished.logprobs)
        return self._object([choice]) | {"usage": openai_usage(finished.usage)}

    def start(self, usage: Usage) -> Iterator[bytes]:
        yield from ()

    def piece(self, piece: Piece) -> Iterator[bytes]:
        if isinstance(piece.event, Text):
            yield data(self._object([self._choice(piece.event.text, None, piece.logprobs)]))

    def finish(self, finished: Finished) -> Iterator[bytes]:
        yield data(self._object([self._choice("", finished.finish, ())]))
        if self.conversation.include_usage:
            yield data(self._object([]) | {"usage": openai_usage(finished.usage)})
        yield b"data: [DONE]\n\n"

    def fail(self, failed: Failed) -> Iterator[bytes]:
        yield event("error", openai_error(failed, "prompt"))

    def _object(self, choices: list[Json]) -> Json:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.conversation.model,
            "choices": choices,
        }

    def _choice(self, text: str, finish: str | None, logprobs: tuple[Logprob, ...]) -> Json:
        choice: Json = {"text": text, "index": 0, "finish_reason": finish}
        if logprobs:
            choice["logprobs"] = self._logprobs(logprobs)
        self._offset += len(text)
        return choice

    def _logprobs(self, logprobs: tuple[Logprob, ...]) -> Json:
        """Four lists, one entry a token; offsets are characters of the answer."""
        texts = [token_text(entry.token) for entry in logprobs]
        return {
            "tokens": texts,
            "token_logprobs": [finite(entry.logprob) for entry in logprobs],
            "top_logprobs": [{token_text(token): finite(value) for token, value in entry.top} for entry in logprobs],
            "text_offset": list(accumulate(map(len, texts[:-1]), initial=self._offset)),
        }
