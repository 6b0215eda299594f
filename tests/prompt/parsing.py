"""Requests in every dialect, by their fields or by their bytes."""

from __future__ import annotations

import json
from typing import Any

from kvprompt.conversation import Conversation
from kvprompt.dialects import PARSERS

ROUTES = {
    "chat": ("/v1/chat/completions", {"messages": []}),
    "completion": ("/v1/completions", {"prompt": ""}),
    "anthropic": ("/v1/messages", {"messages": []}),
    "responses": ("/v1/responses", {"input": ""}),
}


def parse(dialect: str, **fields: Any) -> Conversation:
    path, least = ROUTES[dialect]
    return PARSERS[path](json.dumps(least | fields).encode())


def parse_raw(dialect: str, body: str | bytes) -> Conversation:
    return PARSERS[ROUTES[dialect][0]](body if isinstance(body, bytes) else body.encode())
