"""Anthropic Messages. Results of tools come inside user messages, and stay there."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..conversation import Conversation, Dialect, Message, Thinking, ToolCall, Tools
from ..markers import tool_result
from ..rawjson import Json
from .fields import (
    DEFAULT_MODEL,
    Fields,
    content_text,
    effort,
    part_text,
    read_body,
    sampling,
    thinking,
    thinking_switch,
    unseen,
)
from .tools import read_tools

VOLATILE_PART = "x-anthropic-"


def parse_messages(body: bytes) -> Conversation:
    """Read the body of POST /v1/messages. Raises BadRequest."""
    fields = read_body(body)
    fields.require("messages")
    model = fields.text("model", DEFAULT_MODEL)
    tools = read_tools(fields.get("tools"))
    choice = fields.object("tool_choice")
    messages = [_message(message) for message in fields.objects("messages")]
    if system := _system(fields.get("system")):
        messages.append(Message("system", system))
    return Conversation(
        dialect=Dialect.ANTHROPIC,
        model=model,
        messages=tuple(messages),
        tools=Tools() if choice is not None and choice.text("type") == "none" else tools,
        thinking=thinking(model, thinking_switch(fields), _effort(fields)),
        sampling=sampling(
            fields, max_tokens=("max_tokens",), stop="stop_sequences", ignored=frozenset({"min_p", "seed"})
        ),
        stream=bool(fields.flag("stream")),
    )


def _effort(fields: Fields) -> Thinking | None:
    config = fields.object("output_config")
    return (effort(config, "effort") if config else None) or effort(fields, "reasoning_effort")


def _system(value: Json | None) -> str:
    """The parts, each on its own line, without those that Anthropic's own clients change with every request."""
    if value is None or value.kind not in ("string", "array"):
        return ""
    system = ""
    for part in [value] if value.kind == "string" else value.elements():
        text = part_text(part)
        if text and not text.startswith(VOLATILE_PART):
            system += ("\n" if system and not system.endswith("\n") else "") + text
    return system


def _message(fields: Fields) -> Message:
    value = fields.get("content")
    if value is None or value.kind != "array":
        return Message(fields.text("role", "user"), content_text(value))
    message = _Blocks()
    for block in value.elements():
        message.add(block)
    return Message(
        fields.text("role", "user"), message.content, message.reasoning, tuple(message.calls), tuple(message.result_ids)
    )


@dataclass(slots=True)
class _Blocks:
    """The content blocks of one message, taken apart."""

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    result_ids: list[str] = field(default_factory=list)

    def add(self, block: Json) -> None:
        if block.kind != "object":
            self.content += part_text(block)
            return
        fields = Fields(block, "a content block")
        unseen(fields)
        kind = fields.text("type")
        if kind == "tool_use":
            given = fields.get("input")
            self.calls.append(ToolCall(fields.text("id"), fields.text("name"), "{}" if given is None else given.raw))
        elif kind == "tool_result":
            if id := fields.text("tool_use_id") or fields.text("id"):
                self.result_ids.append(id)
            self.content += tool_result(content_text(fields.get("content"), result=True))
        else:
            self.content += content_text(fields.get("text"))
            self.reasoning += content_text(fields.get("thinking"))
