"""The output items of a response: how each looks whole, and the events by which a stream opens, grows and closes it."""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator

from kvprompt.conversation import Tool, ToolCall, Tools

from ..wire import Logprob
from .reply import Json, logprob_list

Events = Iterator[tuple[str, Json]]

SEARCH = "tool_search"


def new_id(prefix: str) -> str:
    """An id of this kind of object that nobody else has."""
    return f"{prefix}_{secrets.token_hex(12)}"


class Item(ABC):
    """One entry of `output`. `status` is in_progress until the turn is over."""

    prefix = ""

    def __init__(self) -> None:
        self.id = new_id(self.prefix)
        self.status = "in_progress"

    @abstractmethod
    def whole(self) -> Json:
        """The item with all that it has so far."""

    @abstractmethod
    def opening(self) -> Events:
        """The events that announce it, while it is empty."""

    @abstractmethod
    def closing(self) -> Events:
        """The events that complete it."""


class SpokenItem(Item):
    """An item that grows while the model speaks."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.logprobs: list[Json] = []

    @abstractmethod
    def grow(self, text: str, logprobs: tuple[Logprob, ...]) -> Events:
        """The events of one more piece."""

    def add(self, text: str, logprobs: tuple[Logprob, ...]) -> list[Json]:
        """Keep one more piece; its log-probabilities as JSON."""
        written = logprob_list(logprobs)
        self.text += text
        self.logprobs += written
        return written


class ReasoningItem(SpokenItem):
    """The model's thinking, shown as the summary that the client asked for."""

    prefix = "rs"

    def whole(self) -> Json:
        summary = [self._part()] if self.text else []
        return {"id": self.id, "type": "reasoning", "status": self.status, "summary": summary}

    def opening(self) -> Events:
        yield "output_item.added", {"item": self.whole()}
        yield "reasoning_summary_part.added", self._at(part=self._part())

    def grow(self, text: str, logprobs: tuple[Logprob, ...]) -> Events:
        self.add(text, ())
        yield "reasoning_summary_text.delta", self._at(delta=text)

    def closing(self) -> Events:
        yield "reasoning_summary_text.done", self._at(text=self.text)
        yield "reasoning_summary_part.done", self._at(part=self._part())
        yield "output_item.done", {"item": self.whole()}

    def _at(self, **members: object) -> Json:
        return {"item_id": self.id, "summary_index": 0} | members

    def _part(self) -> Json:
        return {"type": "summary_text", "text": self.text}


class MessageItem(SpokenItem):
    """What the model says."""

    prefix = "msg"

    def whole(self) -> Json:
        content = [self._part()] if self.text else []
        return {"id": self.id, "type": "message", "status": self.status, "role": "assistant", "content": content}

    def opening(self) -> Events:
        yield "output_item.added", {"item": self.whole()}
        yield "content_part.added", self._at(part=self._part())

    def grow(self, text: str, logprobs: tuple[Logprob, ...]) -> Events:
        yield "output_text.delta", self._at(delta=text, logprobs=self.add(text, logprobs))

    def closing(self) -> Events:
        yield "output_text.done", self._at(text=self.text, logprobs=self.logprobs)
        yield "content_part.done", self._at(part=self._part())
        yield "output_item.done", {"item": self.whole()}

    def _at(self, **members: object) -> Json:
        return {"item_id": self.id, "content_index": 0} | members

    def _part(self) -> Json:
        part: Json = {"type": "output_text", "text": self.text, "annotations": []}
        return part | {"logprobs": self.logprobs} if self.logprobs else part


class CallItem(Item):
    """A call of a function."""

    prefix = "fc"
    kind, field = "function_call", "arguments"

    def __init__(self, call: ToolCall, tool: Tool) -> None:
        super().__init__()
        self.call_id = call.id
        self.names = {"name": tool.name} | ({"namespace": tool.namespace} if tool.namespace else {})
        self.given = call.arguments

    def whole(self) -> Json:
        return self._item(self.given)

    def opening(self) -> Events:
        yield "output_item.added", {"item": self._item("")}

    def closing(self) -> Events:
        yield f"{self._events}.delta", {"item_id": self.id, "delta": self.given}
        yield f"{self._events}.done", {"item_id": self.id} | self.names | {self.field: self.given}
        yield "output_item.done", {"item": self.whole()}

    @property
    def _events(self) -> str:
        return f"{self.kind}_{self.field}"

    def _item(self, given: str) -> Json:
        head = {"id": self.id, "type": self.kind, "status": self.status}
        return head | self.names | {"call_id": self.call_id, self.field: given}


class CustomItem(CallItem):
    """A call of a free-form tool, whose input is no JSON but a text."""

    prefix = "ctc"
    kind, field = "custom_tool_call", "input"

    def __init__(self, call: ToolCall, tool: Tool) -> None:
        super().__init__(call, tool)
        self.given = _free_form(call.arguments)


class SearchItem(Item):
    """A call of the tool search that the client runs."""

    prefix = "fc"

    def __init__(self, call: ToolCall) -> None:
        super().__init__()
        self.call_id = call.id
        self.arguments = json.loads(call.arguments)

    def whole(self) -> Json:
        return self._item(self.arguments)

    def opening(self) -> Events:
        yield "output_item.added", {"item": self._item({})}

    def closing(self) -> Events:
        yield "output_item.done", {"item": self.whole()}

    def _item(self, arguments: Json) -> Json:
        head = {"id": self.id, "type": "tool_search_call", "status": self.status, "call_id": self.call_id}
        return head | {"execution": "client", "arguments": arguments}


def call_item(call: ToolCall, tools: Tools) -> Item:
    """The item of a call, of the kind that its tool was declared as."""
    tool = tools.by_name.get(call.name)
    if call.name == SEARCH and (tool is None or tool.kind == SEARCH):
        return SearchItem(call)
    return (CustomItem if tool and tool.kind == "custom" else CallItem)(call, tool or Tool(call.name))


def _free_form(arguments: str) -> str:
    """The one text among the arguments, which is how the prompt shows free-form input; else the arguments as they are."""
    values = list(json.loads(arguments).values())
    return values[0] if len(values) == 1 and isinstance(values[0], str) else arguments
