"""OpenAI chat completions."""

from __future__ import annotations

from ..conversation import RESULT_ROLES, Conversation, Dialect, Message, ToolCall, Tools
from .fields import (
    DEFAULT_MODEL,
    Fields,
    content_text,
    effort,
    include_usage,
    read_body,
    sampling,
    text_or_raw,
    thinking,
    thinking_switch,
)
from .tools import read_tools


def parse_chat(body: bytes) -> Conversation:
    """Read the body of POST /v1/chat/completions. Raises BadRequest."""
    fields = read_body(body)
    fields.require("messages")
    model = fields.text("model", DEFAULT_MODEL)
    tools = read_tools(fields.get("tools"))
    return Conversation(
        dialect=Dialect.CHAT,
        model=model,
        messages=tuple(_message(message) for message in fields.objects("messages")),
        tools=Tools() if _forbidden(fields) else tools,
        thinking=thinking(model, thinking_switch(fields), effort(fields, "reasoning_effort")),
        sampling=sampling(fields, max_tokens=("max_tokens", "max_completion_tokens"), stop="stop"),
        stream=bool(fields.flag("stream")),
        include_usage=include_usage(fields),
    )


def _forbidden(fields: Fields) -> bool:
    choice = fields.get("tool_choice")
    return choice is not None and choice.kind == "string" and choice.string() == "none"


def _message(fields: Fields) -> Message:
    id, role = fields.text("tool_call_id"), fields.text("role", "user")
    return Message(
        role=role,
        content=content_text(fields.get("content"), result=role in RESULT_ROLES),
        reasoning=content_text(fields.get("reasoning_content")),
        calls=tuple(call for entry in fields.objects("tool_calls") if (call := _call(entry))),
        result_ids=(id,) if id else (),
    )


def _call(entry: Fields) -> ToolCall | None:
    """One earlier call; one without a name or arguments is no call."""
    function = entry.object("function")
    arguments = function.get("arguments") if function else None
    if function is None or arguments is None or "name" not in function:
        return None
    return ToolCall(entry.text("id"), function.text("name"), text_or_raw(arguments))
