"""A request body in any dialect, read into the one `Conversation`. What upstream reads is read, the rest is ignored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ..conversation import Conversation
from .anthropic import parse_messages
from .chat import parse_chat
from .completion import parse_completion
from .responses import parse_responses

PARSERS: Mapping[str, Callable[[bytes], Conversation]] = MappingProxyType(
    {
        "/v1/chat/completions": parse_chat,
        "/v1/completions": parse_completion,
        "/v1/messages": parse_messages,
        "/v1/responses": parse_responses,
    }
)
"""The parser of each path. All raise BadRequest, a sentence and a status, for what cannot be honoured."""

__all__ = ["PARSERS", "parse_chat", "parse_completion", "parse_messages", "parse_responses"]
