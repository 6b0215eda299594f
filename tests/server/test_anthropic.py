"""/v1/messages: PROMPT 5.3, the official SDK's own types, and count_tokens."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from kvprompt.conversation import ToolCall
from kvprompt.events import Arguments, Broken
from kvserver.wire import Call, Finish, Finished, Piece, Started, Usage
from server.fakes import FakeBackend, serving, spoken
from server.reading import BODIES, streamed, whole

PATH = "/v1/messages"
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
CALLS = (ToolCall("toolu_1", "get_weather", '{"city":"Rome"}'), ToolCall("toolu_2", "get_time", "{}"))
HI = [{"role": "user", "content": "hi"}]
TOOL = {"name": "get_weather", "input_schema": {"type": "object"}}


def outline(script: list[Any]) -> list[str]:
    """The events of a stream in short, each sound by the SDK's types."""
    found = streamed(PATH, script)
    for event in found:
        assert event.name == event.data["type"]
        EVENT.validate_python(event.data)
    return [_short(event.data) for event in found]


def _short(data: dict[str, Any]) -> str:
    told = data.get("content_block") or data.get("delta")
    index = f" {data['index']}" if "index" in data else ""
    return data["type"] + index + (f" {told['type']}" if told and "type" in told else "")


def test_a_whole_answer() -> None:
    answer = whole(PATH, spoken("I think.", "Well", CALLS))
    Message.model_validate(answer)
    signature = answer["id"]
    assert answer | {"id": "x"} == {
        "id": "x",
        "type": "message",
        "role": "assistant",
        "model": "deepseek-v4-flash",
        "content": [
            {"type": "thinking", "thinking": "I think.", "signature": signature},
            {"type": "text", "text": "Well"},
            {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome"}},
            {"type": "tool_use", "id": "toolu_2", "name": "get_time", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 0,
            "output_tokens": 7,
            "cache_read_input_tokens": 60,
            "cache_creation_input_tokens": 40,
        },
    }


@pytest.mark.parametrize(("reasoning", "kinds"), [("", ["text"]), ("r", ["thinking", "text"])])
def test_an_answer_without_words_has_an_empty_text(reasoning: str, kinds: list[str]) -> None:
    assert [block["type"] for block in whole(PATH, spoken(reasoning))["content"]] == kinds
    starts = [event.data for event in streamed(PATH, spoken(reasoning)) if event.name == "content_block_start"]
    assert [start["content_block"]["type"] for start in starts] == kinds


@pytest.mark.parametrize(
    ("finish", "stop", "reason"),
    [
        ("stop", None, "end_turn"),
        ("length", None, "max_tokens"),
        ("stop", "END", "stop_sequence"),
    ],
)
def test_stop_reasons(finish: Finish, stop: str | None, reason: str) -> None:
    script = spoken("", "x", finish=finish, stop=stop)
    answer = whole(PATH, script)
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, stop)
    delta = streamed(PATH, script)[-2].data
    assert delta["delta"] == {"stop_reason": reason, "stop_sequence": stop}
    assert delta["usage"]["output_tokens"] == 7


def test_half_an_answer_does_not_pass_for_a_whole_one() -> None:
    """Claude Code shows an end_turn as the answer, whatever cut it off; after an error it says so or tries again."""
    script = spoken("why", "x", finish="error")
    *_, last = streamed(PATH, script)
    assert (last.name, last.data["error"]["type"]) == ("error", "overloaded_error")
    with serving(FakeBackend(script)) as url:
        answer = httpx2.post(url + PATH, json=BODIES[PATH])
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "overloaded_error")


def test_a_stream_has_one_block_open_at_a_time_and_signs_what_was_thought() -> None:
    assert outline(spoken("why", "wow", CALLS)) == [
        "message_start",
        "content_block_start 0 thinking",
        "content_block_delta 0 thinking_delta",
        "content_block_delta 0 signature_delta",
        "content_block_stop 0",
        "content_block_start 1 text",
        "content_block_delta 1 text_delta",
        "content_block_stop 1",
        "content_block_start 2 tool_use",
        *["content_block_delta 2 input_json_delta"] * 3,
        "content_block_stop 2",
        "content_block_start 3 tool_use",
        "content_block_delta 3 input_json_delta",
        "content_block_stop 3",
        "message_delta",
        "message_stop",
    ]


def test_a_block_that_turns_out_broken_goes_on_as_text() -> None:
    script = [
        Started(Usage(5, 0)),
        Piece(Call(0, "toolu_1", "f")),
        Piece(Arguments(0, '{"a":')),
        Piece(Broken("cut off", "<markup")),
        Finished(spoken("", "<markup")[-1].turn, "stop", Usage(5, 0)),  # type: ignore[union-attr]
    ]
    assert outline(script)[3:7] == [
        "content_block_stop 0",
        "content_block_start 1 text",
        "content_block_delta 1 text_delta",
        "content_block_stop 1",
    ]


class TestSDK:
    """What the official client makes of it."""

    def test_whole(self) -> None:
        with serving(FakeBackend(spoken("r", "c", CALLS))) as url, _client(url) as client:
            answer = client.messages.create(model="m", max_tokens=9, messages=HI, tools=[TOOL])
        assert answer.content[2].input == {"city": "Rome"}
        assert answer.usage.cache_read_input_tokens == 60

    def test_stream(self) -> None:
        with (
            serving(FakeBackend(spoken("why", "text", CALLS))) as url,
            _client(url) as client,
            client.messages.stream(model="m", max_tokens=9, messages=HI, tools=[TOOL]) as stream,
        ):
            answer = stream.get_final_message()
        assert [block.type for block in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert answer.content[0].thinking == "why" and answer.content[0].signature == answer.id
        assert answer.content[2].input == {"city": "Rome"}
        assert answer.stop_reason == "tool_use" and answer.usage.output_tokens == 7

    def test_count_tokens(self) -> None:
        with serving(FakeBackend()) as url, _client(url) as client:
            assert client.messages.count_tokens(model="m", messages=HI * 3, system="s").input_tokens == 40

    def test_models(self) -> None:
        with serving(FakeBackend()) as url, _client(url) as client:
            names = [model.id for model in client.models.list()]
            assert client.models.retrieve(names[0]).display_name == "tiny"


def _client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="-", max_retries=0)
