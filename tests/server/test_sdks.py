"""The official SDKs against the real engine: a tool loop in each dialect, streamed and not, and what it cost in tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import anthropic
import openai
import pytest

from server.fakes import serving
from server.rig import rig
from server.test_turns import BLOCK, ROOMY

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "number"}}}
FUNCTION = {"type": "function", "name": "get_weather", "parameters": PARAMETERS}
TOOL = {"name": "get_weather", "input_schema": PARAMETERS}
ARGUMENTS = {"city": "Rome 1", "days": 1.0}


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def streamed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@contextmanager
def server() -> Iterator[str]:
    with rig(settings=ROOMY) as running, serving(running.driver) as url:
        running.says = [BLOCK.format(n=1), "Sunny."]
        yield url


def test_openai_chat(streamed: bool) -> None:
    with server() as url, openai.OpenAI(base_url=f"{url}/v1", api_key="local", max_retries=0) as client:
        messages: list[dict[str, object]] = [{"role": "user", "content": "weather?"}]
        ask = {
            "model": "deepseek-chat",
            "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}],
        }
        if streamed:
            with client.chat.completions.stream(messages=messages, **ask) as events:  # type: ignore[arg-type]
                first = events.get_final_completion()
        else:
            first = client.chat.completions.create(messages=messages, **ask)  # type: ignore[call-overload]
        assert first.choices[0].finish_reason == "tool_calls"
        (call,) = first.choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", ARGUMENTS)
        messages += [
            first.choices[0].message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        ]
        second = client.chat.completions.create(messages=messages, **ask)  # type: ignore[call-overload]
        assert second.choices[0].message.content == "Sunny."
        assert second.usage.prompt_tokens - second.usage.prompt_tokens_details.cached_tokens < 30


def test_openai_responses(streamed: bool) -> None:
    with server() as url, openai.OpenAI(base_url=f"{url}/v1", api_key="local", max_retries=0) as client:
        items: list[dict[str, object]] = [{"role": "user", "content": "weather?"}]
        ask = {"model": "deepseek-chat", "reasoning": {"effort": "none"}, "tools": [FUNCTION]}
        if streamed:
            with client.responses.stream(input=items, **ask) as events:  # type: ignore[arg-type]
                first = events.get_final_response()
        else:
            first = client.responses.create(input=items, **ask)  # type: ignore[call-overload]
        (call,) = [item for item in first.output if item.type == "function_call"]
        assert (call.name, json.loads(call.arguments)) == ("get_weather", ARGUMENTS)
        items += [
            {
                "type": "function_call",
                "call_id": call.call_id,
                "name": call.name,
                "arguments": json.dumps(ARGUMENTS, indent=2),
            },
            {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
        ]
        second = client.responses.create(input=items, **ask)  # type: ignore[call-overload]
        assert second.output_text == "Sunny."
        assert second.usage.input_tokens - second.usage.input_tokens_details.cached_tokens < 30


def test_anthropic(streamed: bool) -> None:
    with server() as url, anthropic.Anthropic(base_url=url, api_key="local", max_retries=0) as client:
        messages: list[dict[str, object]] = [{"role": "user", "content": "weather?"}]
        ask = {"model": "m", "max_tokens": 300, "thinking": {"type": "disabled"}, "tools": [TOOL]}
        counted = client.messages.count_tokens(
            model="m", messages=messages, thinking=ask["thinking"], tools=ask["tools"]
        )  # type: ignore[arg-type]
        if streamed:
            with client.messages.stream(messages=messages, **ask) as events:  # type: ignore[arg-type]
                first = events.get_final_message()
        else:
            first = client.messages.create(messages=messages, **ask)  # type: ignore[call-overload]
        assert first.stop_reason == "tool_use"
        assert first.usage.cache_creation_input_tokens == counted.input_tokens
        (call,) = [block for block in first.content if block.type == "tool_use"]
        assert (call.name, call.input) == ("get_weather", ARGUMENTS)
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
        messages += [
            {"role": "assistant", "content": [block.model_dump() for block in first.content]},
            {"role": "user", "content": [result]},
        ]
        second = client.messages.create(messages=messages, **ask)  # type: ignore[call-overload]
        assert second.content[0].text == "Sunny."
        assert second.usage.cache_creation_input_tokens < 30


def test_logprobs_of_every_token_reach_the_stream() -> None:
    with rig() as running, serving(running.driver) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x") as client:
        running.says = ["Größe: 12 €, naïve 日本"]
        events = client.chat.completions.create(
            model="deepseek-chat",
            messages=[{"role": "user", "content": "?"}],
            logprobs=True,
            top_logprobs=2,
            stream=True,
        )
        shown = [
            item
            for event in events
            for choice in event.choices
            if choice.logprobs
            for item in choice.logprobs.content or []
        ]
        assert b"".join(bytes(item.bytes or []) for item in shown).decode() == "Größe: 12 €, naïve 日本"
