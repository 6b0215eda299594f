"""OpenAI Responses: a list of output items. Each opens when its first piece comes, and all close at the end, in order.

Calls follow whole once the turn is complete, for until then their markup may still turn out to be none.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvprompt.conversation import Conversation
from kvprompt.events import Broken, Reasoning, Text

from ..wire import Failed, Finished, Logprob, Piece, Usage
from .items import Events, Item, MessageItem, ReasoningItem, SpokenItem, call_item, new_id
from .reply import Json, Reply, data, logprobs_of_content

STATUSES = {"length": "incomplete", "error": "failed"}
BROKEN = Failed(500, "generation failed")


class ResponsesReply(Reply):
    """The answer of /v1/responses."""

    def __init__(self, conversation: Conversation) -> None:
        super().__init__(conversation)
        self.id = new_id("resp")
        self._number = -1  # of the last event
        self._items: list[Item] = []
        self._spoken: dict[type[SpokenItem], int] = {}  # where among the items

    def body(self, finished: Finished) -> Json:
        turn = finished.turn
        if turn.reasoning and self.conversation.shows_reasoning:
            list(self._grow(ReasoningItem, turn.reasoning, ()))
        if turn.content:
            list(self._grow(MessageItem, turn.content, logprobs_of_content(finished)))
        list(self._close(finished))
        return self._response(STATUSES.get(finished.finish, "completed"), finished.usage)

    def start(self, usage: Usage) -> Iterator[bytes]:
        opening = self._response("in_progress")
        yield self._event("created", response=opening)
        yield self._event("in_progress", response=opening)

    def piece(self, piece: Piece) -> Iterator[bytes]:
        match piece.event:
            case Reasoning(text) if self.conversation.shows_reasoning:
                yield from self._grow(ReasoningItem, text, ())
            case Text(text) | Broken(_, text):
                yield from self._grow(MessageItem, text, piece.logprobs)

    def finish(self, finished: Finished) -> Iterator[bytes]:
        yield from self._close(finished)
        status = STATUSES.get(finished.finish, "completed")
        yield self._event(status, response=self._response(status, finished.usage))

    def fail(self, failed: Failed) -> Iterator[bytes]:
        if not self.started:
            yield from self.start(Usage(0, 0))
        for item in self._items:
            item.status = "incomplete"
        yield self._event("failed", response=self._response("failed", failed=failed))

    def _grow(self, kind: type[SpokenItem], text: str, logprobs: tuple[Logprob, ...]) -> Iterator[bytes]:
        if kind not in self._spoken:
            self._spoken[kind] = len(self._items)
            yield from self._open(kind())
        index = self._spoken[kind]
        item = self._items[index]
        assert isinstance(item, SpokenItem)
        yield from self._told(index, item.grow(text, logprobs))

    def _open(self, item: Item) -> Iterator[bytes]:
        self._items.append(item)
        yield from self._told(len(self._items) - 1, item.opening())

    def _close(self, finished: Finished) -> Iterator[bytes]:
        """Complete what was spoken, then tell the calls. What the end cut off is the last item."""
        cut_off = finished.finish in STATUSES
        for index, item in enumerate(self._items):
            item.status = "incomplete" if cut_off and item is self._items[-1] else "completed"
            yield from self._told(index, item.closing())
        for call in finished.turn.calls:
            item = call_item(call, self.conversation.tools)
            yield from self._open(item)
            item.status = "completed"
            yield from self._told(len(self._items) - 1, item.closing())

    def _told(self, index: int, events: Events) -> Iterator[bytes]:
        for name, members in events:
            yield self._event(name, output_index=index, **members)

    def _event(self, name: str, /, **members: object) -> bytes:
        self._number += 1
        return data({"type": f"response.{name}", "sequence_number": self._number} | members)

    def _response(self, status: str, usage: Usage | None = None, failed: Failed = BROKEN) -> Json:
        sampling = self.conversation.sampling
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.conversation.model,
            "error": _error(failed) if status == "failed" else None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": [item.whole() for item in self._items],
            "usage": _usage(usage) if usage else None,
            "max_output_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }


def _error(failed: Failed) -> Json:
    code = failed.code or ("invalid_prompt" if failed.status < 500 else "server_error")
    return {"code": code, "message": failed.message} | failed.members


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.prompt - usage.cached},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }
