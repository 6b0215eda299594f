"""Answers in each dialect: messages of the engine in, JSON or server-sent events out. Knows no socket."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kvprompt.conversation import Dialect

from .anthropic import AnthropicReply
from .chat import ChatReply
from .completion import CompletionReply
from .reply import Reply
from .responses import ResponsesReply

REPLIES: Mapping[Dialect, type[Reply]] = MappingProxyType(
    {
        Dialect.CHAT: ChatReply,
        Dialect.COMPLETION: CompletionReply,
        Dialect.RESPONSES: ResponsesReply,
        Dialect.ANTHROPIC: AnthropicReply,
    }
)

__all__ = ["REPLIES", "Reply"]
