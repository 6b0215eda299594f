"""OpenAI completions: a chat of one user message under a fixed system text, without tools."""

from __future__ import annotations

from ..conversation import Conversation, Dialect, Message
from ..markers import COMPLETION_SYSTEM
from ..rawjson import Json
from .fields import DEFAULT_MODEL, effort, include_usage, read_body, sampling, thinking, thinking_switch


def parse_completion(body: bytes) -> Conversation:
    """Read the body of POST /v1/completions. Raises BadRequest."""
    fields = read_body(body)
    model = fields.text("model", DEFAULT_MODEL)
    prompt = _prompt(fields.require("prompt"))
    return Conversation(
        dialect=Dialect.COMPLETION,
        model=model,
        messages=(Message("system", COMPLETION_SYSTEM), Message("user", prompt)),
        thinking=thinking(model, thinking_switch(fields), effort(fields, "reasoning_effort")),
        sampling=sampling(fields, max_tokens=("max_tokens",), stop="stop"),
        stream=bool(fields.flag("stream")),
        include_usage=include_usage(fields),
    )


def _prompt(value: Json) -> str:
    """The string, or the first of several; a prompt of another kind is empty."""
    if value.kind == "array":
        value = next(value.elements(), value)
    return value.string() if value.kind == "string" else ""
