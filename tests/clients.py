"""Clients of the server, by what they do to a turn before they send it back. Each speaks every dialect."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from kvprompt.conversation import ToolCall, Turn

WEATHER = {
    "name": "get_weather",
    "description": "Get the weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
}
MODES = ("none", "high", "max")

Wire = dict[str, Any]


@dataclass(frozen=True)
class Client:
    """`changes` is what becomes of a turn; a client that merges leaves out what is empty and joins equal neighbours."""

    name: str
    changes: Callable[[Turn], Turn]
    merges: bool = False


def _pads(turn: Turn) -> Turn:
    return turn if turn.reasoning.strip() else replace(turn, reasoning=" ")


def _trims(turn: Turn) -> Turn:
    return replace(turn, reasoning=turn.reasoning.strip(), content=turn.content.strip())


def _reorders(turn: Turn) -> Turn:
    return replace(turn, calls=tuple(replace(call, arguments=_rebuilt(call)) for call in turn.calls))


def _rebuilt(call: ToolCall) -> str:
    """Sorted keys, other spacing, other escapes, other numbers: what a proxy makes of arguments."""
    return json.dumps(json.loads(call.arguments), sort_keys=True, indent=1, ensure_ascii=True)


CLIENTS = (
    Client("echoes", lambda turn: turn),
    Client("drops reasoning", lambda turn: replace(turn, reasoning="")),
    Client("pads reasoning", _pads),
    Client("trims", _trims),
    Client("reorders JSON", _reorders),
    Client("merges", lambda turn: turn, merges=True),
    Client("all at once", lambda turn: _reorders(_trims(replace(turn, reasoning=""))), merges=True),
)


@dataclass
class Session:
    """One client in one conversation: `request()` is the body that it sends next."""

    client: Client
    dialect: str
    mode: str
    tools: bool
    messages: list[Wire] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Where the request goes."""
        return {"chat": "/v1/chat/completions", "anthropic": "/v1/messages"}.get(self.dialect, "/v1/responses")

    def asks(self, text: str) -> None:
        """The person says something."""
        self._add({"role": "user", "content": text})

    def hears(self, turn: Turn) -> None:
        """The model's turn, as the server showed it."""
        if self.dialect == "responses":  # without a summary: reasoning is never shown
            turn = replace(turn, reasoning="")
        for message in _SAY[self.dialect](self.client.changes(turn)):
            self._add(message)

    def answers(self, turn: Turn, result: str) -> None:
        """The results of a turn's calls."""
        if self.dialect == "anthropic":
            blocks = [{"type": "tool_result", "tool_use_id": call.id, "content": result} for call in turn.calls]
            self._add({"role": "user", "content": blocks})
            return
        for call in turn.calls:
            if self.dialect == "chat":
                self._add({"role": "tool", "tool_call_id": call.id, "content": result})
            else:
                self._add({"type": "function_call_output", "call_id": call.id, "output": result})

    def request(self) -> bytes:
        """The next body."""
        return json.dumps(_REQUEST[self.dialect](self)).encode()

    def _add(self, message: Wire) -> None:
        if self.client.merges and _is_empty(message):
            return
        last = self.messages[-1] if self.messages else {}
        if self.client.merges and message.get("role") in ("user", "assistant") and message["role"] == last.get("role"):
            self.messages[-1] = _joined(last, message)
        else:
            self.messages.append(message)


def _is_empty(message: Wire) -> bool:
    return message.get("role") == "assistant" and not message.get("tool_calls") and not _text_of(message["content"])


def _text_of(content: str | list[Wire]) -> str:
    if isinstance(content, str):
        return content.strip()
    return "".join(block.get("text", "x") for block in content if block["type"] != "thinking").strip()


def _joined(first: Wire, second: Wire) -> Wire:
    if isinstance(first["content"], str) and isinstance(second["content"], str):
        content: str | list[Wire] = first["content"] + "\n\n" + second["content"]
    else:
        content = [*_blocks(first["content"]), *_blocks(second["content"])]
    return {**first, **second, "content": content}


def _blocks(content: str | list[Wire]) -> list[Wire]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _chat_says(turn: Turn) -> list[Wire]:
    message: Wire = {"role": "assistant", "content": turn.content}
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in turn.calls
        ]
    return [message]


def _anthropic_says(turn: Turn) -> list[Wire]:
    blocks: list[Wire] = []
    if turn.reasoning:
        blocks.append({"type": "thinking", "thinking": turn.reasoning, "signature": "s"})
    if turn.content or not turn.calls:
        blocks.append({"type": "text", "text": turn.content})
    for call in turn.calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)})
    return [{"role": "assistant", "content": blocks}]


def _responses_say(turn: Turn) -> list[Wire]:
    items: list[Wire] = []
    if turn.reasoning:
        items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": turn.reasoning}]})
    if turn.content:
        text = [{"type": "output_text", "text": turn.content, "annotations": []}]
        items.append({"type": "message", "role": "assistant", "status": "completed", "content": text})
    for call in turn.calls:
        items.append({"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments})
    return items


def _chat_request(session: Session) -> Wire:
    system = {"role": "system", "content": "Be brief."}
    body: Wire = {"model": "ds4", "messages": [system, *session.messages], "reasoning_effort": session.mode}
    return body | ({"tools": [{"type": "function", "function": WEATHER}]} if session.tools else {})


def _anthropic_request(session: Session) -> Wire:
    body: Wire = {"model": "ds4", "system": "Be brief.", "messages": session.messages, "max_tokens": 900}
    body["output_config"] = {"effort": session.mode}
    tool = {"name": WEATHER["name"], "input_schema": WEATHER["parameters"]}
    return body | ({"tools": [tool]} if session.tools else {})


def _responses_request(session: Session) -> Wire:
    body: Wire = {"model": "ds4", "instructions": "Be brief.", "input": session.messages}
    body["reasoning"] = {"effort": session.mode}
    if session.dialect == "responses+summary":
        body["reasoning"]["summary"] = "auto"
    return body | ({"tools": [{"type": "function", **WEATHER}]} if session.tools else {})


_SAY: dict[str, Callable[[Turn], list[Wire]]] = {
    "chat": _chat_says,
    "anthropic": _anthropic_says,
    "responses": _responses_say,
    "responses+summary": _responses_say,
}
_REQUEST: dict[str, Callable[[Session], Wire]] = {
    "chat": _chat_request,
    "anthropic": _anthropic_request,
    "responses": _responses_request,
    "responses+summary": _responses_request,
}
DIALECTS = tuple(_SAY)
