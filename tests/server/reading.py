"""Asking a server and reading its answers, streams above all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from server.fakes import FakeBackend, Step, serving

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi", "reasoning": {"summary": "auto"}},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
}
"""The smallest body of each dialect."""


@dataclass(frozen=True)
class Event:
    """One server-sent event: its name, if it has one, and its data, parsed unless it is [DONE]."""

    name: str
    data: Any


def events(text: str) -> list[Event]:
    """The events of a stream, comments left out. Fails for anything that is not a sound stream."""
    assert text.endswith("\n\n")
    found = []
    for block in text[:-2].split("\n\n"):
        lines = block.split("\n")
        if lines[0].startswith(":"):
            assert len(lines) == 1
            continue
        name = lines.pop(0).removeprefix("event: ") if len(lines) == 2 else ""
        assert len(lines) == 1 and lines[0].startswith("data: ")
        data = lines[0].removeprefix("data: ")
        found.append(Event(name, data if data == "[DONE]" else json.loads(data)))
    return found


def whole(path: str, script: Sequence[Step], **more: object) -> Any:
    """The JSON answer that becomes of this script."""
    with serving(FakeBackend(script)) as url:
        answer = httpx2.post(url + path, json=BODIES[path] | more)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def streamed(path: str, script: Sequence[Step], **more: object) -> list[Event]:
    """The events that become of this script."""
    with serving(FakeBackend(script)) as url:
        answer = httpx2.post(url + path, json=BODIES[path] | {"stream": True} | more)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-cache"
    return events(answer.text)
