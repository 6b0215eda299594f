"""From a conversation to the exact bytes that ds4 renders: the bytes are the key, so nothing here is a matter of taste."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from .canonical import write_block
from .conversation import RESULT_ROLES, SYSTEM_ROLES, USER_ROLES, Conversation, Message, Thinking
from .markers import (
    ASSISTANT,
    BOS,
    EOS,
    THINK,
    THINK_MAX,
    THINK_MAX_CONTEXT,
    UNTHINK,
    USER,
    WHITESPACE,
    Preamble,
    tool_result,
    tools_section,
)
from .replay import Source, ToolMemory
from .volatile import DEFAULT_VOLATILE, strip_volatile


@dataclass(frozen=True, slots=True)
class Style:
    """How to render: the size of the context, the wording of the tool preamble, and what to strip from system texts."""

    context: int = THINK_MAX_CONTEXT
    preamble: Preamble = Preamble.AUGUST
    volatile: tuple[str, ...] = DEFAULT_VOLATILE


@dataclass(frozen=True, slots=True)
class ReplayCount:
    """How the messages with calls were rendered: from a remembered block or canonically. One line of ds4's trace."""

    mem: int = 0
    disk: int = 0
    canonical: int = 0
    missing_ids: int = 0

    def __str__(self) -> str:
        return f"mem={self.mem} disk={self.disk} canonical={self.canonical} missing_ids={self.missing_ids}"


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """The prompt's bytes, and how they came about."""

    text: bytes
    thinking: Thinking
    replay: ReplayCount

    @property
    def opens_thinking(self) -> bool:
        """Whether the model's first byte is already reasoning."""
        return self.text.endswith(THINK.encode())


def render(conversation: Conversation, style: Style, memory: ToolMemory | None = None) -> RenderedPrompt:
    """The whole prompt. With `memory`, calls that it knows are written as they were sampled."""
    thinking = conversation.thinking.within(style.context)
    head = BOS + (THINK_MAX if thinking is Thinking.MAX else "") + _system_text(conversation, style)
    body = _Body(thinking, conversation.tool_context, memory)
    body.write(conversation.messages)
    return RenderedPrompt(_encode(head) + b"".join(body.parts), thinking, ReplayCount(**body.replay))


def render_continuation(conversation: Conversation, start: int, style: Style) -> bytes:
    """What follows the live state when the client sent only results: the end of the model's turn, then messages[start:]."""
    body = _Body(conversation.thinking.within(style.context), tool_context=True, memory=None)
    body.write(conversation.messages[start:])
    return _encode(EOS) + b"".join(body.parts)


def _system_text(conversation: Conversation, style: Style) -> str:
    schemas = conversation.tools.schemas
    text = tools_section(style.preamble, schemas) if schemas else ""
    for message in conversation.messages:
        if message.role in SYSTEM_ROLES:
            text += ("\n\n" if text else "") + strip_volatile(message.content, style.volatile)
    return text


@dataclass(slots=True)
class _Body:
    """Everything after the system text, message by message."""

    thinking: Thinking
    tool_context: bool
    memory: ToolMemory | None
    parts: list[bytes] = field(default_factory=list)
    replay: Counter[str] = field(default_factory=Counter)
    awaits_assistant: bool = False
    in_results: bool = False

    def write(self, messages: Sequence[Message]) -> None:
        last_user = max((at for at, message in enumerate(messages) if message.role in USER_ROLES), default=-1)
        for at, message in enumerate(messages):
            if message.role == "user":
                self.put(USER + message.content)
                self.awaits_assistant, self.in_results = True, False
            elif message.role in RESULT_ROLES:
                self.put(("" if self.in_results else USER) + tool_result(message.content))
                self.awaits_assistant = self.in_results = True
            elif message.role == "assistant":
                self.assistant(message, keeps_reasoning=self.tool_context or at > last_user)
        if self.awaits_assistant:
            self.put(ASSISTANT + (UNTHINK if self.thinking is Thinking.OFF else THINK))

    def assistant(self, message: Message, *, keeps_reasoning: bool) -> None:
        if self.awaits_assistant:
            self.put(ASSISTANT)
            if self.thinking is not Thinking.OFF and keeps_reasoning:
                # Clients pad an empty reasoning with a space; it must not become another key.
                self.put(THINK + (message.reasoning if message.reasoning.strip(WHITESPACE) else ""))
            self.put(UNTHINK)
        self.put(message.content)
        if message.calls:
            self.parts.append(self.block(message))
        self.put(EOS)
        self.awaits_assistant = self.in_results = False

    def block(self, message: Message) -> bytes:
        """The sampled block if the memory has it, else the canonical one."""
        recall = self.memory.recall(message.calls) if self.memory is not None else None
        if recall is None or recall.block is None:
            self.replay["canonical"] += 1
            self.replay["missing_ids"] += len(message.calls) if recall is None else recall.missing_ids
            return _encode(write_block(message.calls))
        self.replay["mem" if recall.source is Source.RAM else "disk"] += 1
        return recall.block

    def put(self, text: str) -> None:
        self.parts.append(_encode(text))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
