"""OpenAI Responses: a list of items, of which several make up one message."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..conversation import Conversation, Dialect, Message, Thinking, ToolCall, Tools
from ..errors import BadRequest
from ..rawjson import Json
from .fields import DEFAULT_MODEL, Fields, effort, read_body, sampling, text_or_raw, thinking, unseen
from .tools import read_tools

TEXT_PARTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
CALLS = frozenset({"function_call", "custom_tool_call"})
HOSTED_CALLS = {
    "local_shell_call": "local_shell",
    "tool_search_call": "tool_search",
    "web_search_call": "web_search_call",
    "image_generation_call": "image_generation_call",
}
OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
HOSTED_OUTPUTS = frozenset(
    {
        "local_shell_call_output",
        "web_search_call_output",
        "tool_search_output",
        "tool_search_call_output",
        "image_generation_call_output",
    }
)
BOOKKEEPING = frozenset({"compaction", "context_compaction"})
SUMMARIES = frozenset({"auto", "concise", "detailed"})


def parse_responses(body: bytes) -> Conversation:
    """Read the body of POST /v1/responses. Raises BadRequest."""
    fields = read_body(body)
    _refuse_stored_state(fields)
    model = fields.text("model", DEFAULT_MODEL)
    items = _Items()
    if instructions := fields.text("instructions"):
        items.messages.append(Message("system", instructions))
    items.read(fields, fields.require("input"))
    tools = read_tools(fields.get("tools"), *items.more_tools)
    reasoning = fields.object("reasoning")
    wish = effort(reasoning, "effort") if reasoning else None
    return Conversation(
        dialect=Dialect.RESPONSES,
        model=model,
        messages=tuple(items.messages),
        tools=Tools() if _forbidden(fields.given("tool_choice")) else tools,
        thinking=thinking(model, None if wish is None else wish is not Thinking.OFF, wish),
        sampling=sampling(
            fields, max_tokens=("max_output_tokens", "max_tokens"), ignored=frozenset({"top_k", "min_p", "seed"})
        ),
        stream=bool(fields.flag("stream")),
        shows_reasoning=reasoning is not None and reasoning.text("summary") in SUMMARIES,
    )


def _refuse_stored_state(fields: Fields) -> None:
    for name in ("previous_response_id", "conversation"):
        if fields.given(name) is not None:
            raise BadRequest(f"'{name}' is not supported: no responses are kept here; replay the full input")


def _forbidden(choice: Json | None) -> bool:
    if choice is None:
        return False
    if choice.kind != "string" or choice.string() not in ("none", "auto"):
        raise BadRequest("this tool_choice is not supported; use 'auto' or 'none'")
    return choice.string() == "none"


@dataclass(slots=True)
class _Items:
    """The transcript so far, and the reasoning that still waits for the message it belongs to."""

    messages: list[Message] = field(default_factory=list)
    more_tools: list[Json] = field(default_factory=list)
    pending: str = ""

    def read(self, fields: Fields, value: Json) -> None:
        if value.kind == "string":
            self.messages.append(Message("user", value.string()))
            return
        for item in fields.objects("input"):
            self.add(item)
        self.flush()

    def add(self, item: Fields) -> None:
        kind, status = item.text("type", "message"), item.text("status")
        # What was said before an answer was cut off comes back as it was told; half a call would be another call.
        told = status in ("", "completed") or (status == "incomplete" and kind in ("message", "reasoning"))
        if not told:
            raise BadRequest(f"an input item has the status '{status}'; only completed items can be replayed")
        if kind == "message":
            self.message(item)
        elif kind == "reasoning":
            self.flush()
            parts = (_text(item.get("summary")), _text(item.get("content")))
            self.pending = "\n".join(part for part in parts if part)
        elif kind in CALLS or kind in HOSTED_CALLS:
            self.call(kind, item)
        elif kind in OUTPUTS or kind in HOSTED_OUTPUTS:
            self.output(kind, item)
        elif kind not in BOOKKEEPING:
            raise BadRequest(f"input items of type '{kind}' are not supported; remove it from the history")

    def flush(self) -> None:
        if self.pending:
            self.messages.append(Message("assistant", reasoning=self.pending))
            self.pending = ""

    def message(self, item: Fields) -> None:
        role, content = item.text("role", "user"), _text(item.get("content"))
        if role != "assistant":
            self.flush()
        self.messages.append(Message(role, content, self.pending if role == "assistant" else ""))
        if role == "assistant":
            self.pending = ""

    def call(self, kind: str, item: Fields) -> None:
        name = HOSTED_CALLS.get(kind) or item.text("namespace") + item.text("name")
        fields = ("action", "arguments", "input") if kind in HOSTED_CALLS else ("arguments", "input")
        given = item.given(*fields)
        call = ToolCall(item.text("call_id") or item.text("id"), name, "{}" if given is None else text_or_raw(given))
        if not self.messages or self.messages[-1].role != "assistant":
            self.messages.append(Message("assistant", reasoning=self.pending))
            self.pending = ""
        last = self.messages[-1]
        if not last.reasoning:
            last, self.pending = replace(last, reasoning=self.pending), ""
        self.messages[-1] = replace(last, calls=(*last.calls, call))

    def output(self, kind: str, item: Fields) -> None:
        self.flush()
        body = _text(item.get("output"), result=True)
        if not body and kind in HOSTED_OUTPUTS:
            given = item.given("result", "tools")
            body = "" if given is None else text_or_raw(given)
        id = item.text("call_id") or item.text("id")
        self.messages.append(Message("tool", body, result_ids=(id,) if id else ()))
        more = item.get("tools")
        if kind == "tool_search_output" and more is not None:
            self.more_tools.append(more)


def _text(value: Json | None, *, result: bool = False) -> str:
    """A string, the text of an array of text parts, or another value's own source."""
    if value is None or value.kind == "null":
        return ""
    if value.kind == "array":
        return "".join(_part(part, result) for part in value.elements())
    return text_or_raw(value)


def _part(part: Json, result: bool) -> str:
    if part.kind == "string":
        return part.string()
    fields = Fields(part, "a content part")
    if instead := unseen(fields, result=result):
        return instead
    if fields.text("type") not in TEXT_PARTS:
        raise BadRequest(f"content of type '{fields.text('type')}' is not supported, only text is")
    return fields.text("text")
