"""/v1/chat/completions: the shapes of PROMPT 5.1, the official SDK's own types, and the `llm` command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from kvprompt.conversation import ToolCall, Turn
from kvprompt.events import Arguments, Broken, Text
from kvserver.wire import Call, Finished, Logprob, Piece, Started, Usage
from server.fakes import USAGE, FakeBackend, serving, spoken
from server.reading import streamed, whole

PATH = "/v1/chat/completions"
CALLS = (
    ToolCall("call_1", "get_weather", '{"city":"Rome","days":2}'),
    ToolCall("call_2", "get_time", "{}"),
)
LOGPROBS = (Logprob(b"Hi", -0.25, ((b"Hi", -0.25), (b"\xf0\x9f", -float("inf")))),)
HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}


def test_a_whole_answer_has_upstreams_members_and_the_sdks_types() -> None:
    answer = whole(PATH, spoken("I think.", "Well:", CALLS), model="anything")
    ChatCompletion.model_validate(answer)
    assert list(answer) == ["id", "object", "created", "model", "choices", "usage"]
    assert answer["id"].startswith("chatcmpl-") and answer["model"] == "anything"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Well:",
                "reasoning_content": "I think.",
                "tool_calls": [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments},
                    }
                    for call in CALLS
                ],
            },
            "finish_reason": "tool_calls",
        }
    ]


def test_content_is_a_string_also_when_there_is_none_and_what_is_absent_has_no_member() -> None:
    message = whole(PATH, spoken(finish="length"))["choices"][0]["message"]
    assert message == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("cached", [0, 60])
def test_usage_tells_what_was_cached_and_0_on_a_miss(cached: int) -> None:
    script = [Finished(Turn(content="x"), "stop", Usage(100, cached, 7, 3))]
    assert whole(PATH, script)["usage"] == {
        "prompt_tokens": 100,
        "completion_tokens": 7,
        "total_tokens": 107,
        "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 100 - cached},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }


def test_a_stream_tells_role_reasoning_content_calls_finish_and_done_in_this_order() -> None:
    found = streamed(PATH, spoken("think", "text", CALLS))
    assert found[-1].data == "[DONE]" and not any(event.name for event in found)
    chunks = [event.data for event in found[:-1]]
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert [next(iter(delta), "") for delta in deltas] == [
        "role",
        *["reasoning_content"] * 2,
        *["content"] * 2,
        *["tool_calls"] * 8,
        "",
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 13 + ["tool_calls"]
    first, *fragments = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert first == {
        "index": 0,
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": ""},
    }
    assert "".join(each["function"]["arguments"] for each in fragments if each["index"] == 0) == CALLS[0].arguments


def test_usage_is_streamed_only_when_asked_for() -> None:
    *_, usage, done = streamed(PATH, spoken("", "x"), stream_options={"include_usage": True})
    assert usage.data["choices"] == [] and usage.data["usage"]["prompt_tokens_details"]["cached_tokens"] == USAGE.cached
    assert done.data == "[DONE]"
    assert not any("usage" in event.data for event in streamed(PATH, spoken("", "x"))[:-1])


def test_a_block_that_turns_out_broken_goes_on_as_text() -> None:
    script = [
        Started(Usage(5, 0)),
        Piece(Call(0, "call_1", "f")),
        Piece(Arguments(0, '{"a":')),
        Piece(Broken("cut off", "<markup")),
        Piece(Text(" and more")),
        Finished(Turn(content="<markup and more"), "stop", USAGE),
    ]
    deltas = [event.data["choices"][0]["delta"] for event in streamed(PATH, script)[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == "<markup and more"


def test_logprobs_are_those_of_the_tokens_and_finite() -> None:
    wish = {"logprobs": True, "top_logprobs": 2}
    answer = whole(PATH, spoken("why", "Hi", logprobs=LOGPROBS), **wish)
    ChatCompletion.model_validate(answer)
    assert answer["choices"][0]["logprobs"]["content"] == [
        {
            "token": "Hi",
            "logprob": -0.25,
            "bytes": [72, 105],
            "top_logprobs": [
                {"token": "Hi", "logprob": -0.25, "bytes": [72, 105]},
                {"token": "\ufffd", "logprob": -9999.0, "bytes": [240, 159]},
            ],
        }
    ]
    chunks = [event.data for event in streamed(PATH, spoken("", "Hi", logprobs=LOGPROBS), **wish)[:-1]]
    assert [chunk["choices"][0].get("logprobs") for chunk in chunks] == [
        None,
        answer["choices"][0]["logprobs"],
        None,
    ]


@pytest.mark.parametrize(
    ("wish", "wanted"),
    [
        ({}, None),
        ({"logprobs": False, "top_logprobs": 3}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 99}, 20),
    ],
)
def test_how_many_logprobs_are_wanted(wish: dict[str, object], wanted: int | None) -> None:
    backend = FakeBackend()
    with serving(backend) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="-") as client:
        client.chat.completions.create(model="m", messages=HI, extra_body=wish)
    assert backend.jobs[0].logprobs == wanted


class TestSDK:
    """What the official client makes of it."""

    def test_whole(self) -> None:
        with serving(FakeBackend(spoken("r", "c", CALLS))) as url, _client(url) as client:
            answer = client.chat.completions.create(model="m", messages=HI, tools=[TOOL])
        assert answer.choices[0].message.tool_calls[0].function.name == "get_weather"
        assert answer.usage.prompt_tokens_details.cached_tokens == 60

    def test_stream(self) -> None:
        with (
            serving(FakeBackend(spoken("r", "text", CALLS))) as url,
            _client(url) as client,
            client.chat.completions.stream(
                model="m", messages=HI, tools=[TOOL], stream_options={"include_usage": True}
            ) as stream,
        ):
            answer = stream.get_final_completion()
        message = answer.choices[0].message
        assert message.content == "text" and message.reasoning_content == "r"
        assert [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls] == [
            (call.id, call.name, call.arguments) for call in CALLS
        ]
        assert answer.choices[0].finish_reason == "tool_calls" and answer.usage.completion_tokens == 7

    def test_models(self) -> None:
        with serving(FakeBackend()) as url, _client(url) as client:
            names = [model.id for model in client.models.list()]
            assert names == ["tiny", "deepseek-v4-flash", "deepseek-chat", "deepseek-reasoner"]
            assert client.models.retrieve(names[1]).id == "deepseek-v4-flash"
            with pytest.raises(openai.NotFoundError, match="deepseek-v4-flash"):
                client.models.retrieve("other")


def test_the_llm_command_line_talks_to_it(tmp_path: Path) -> None:
    backend = FakeBackend(spoken("", "Hello there!"))
    with serving(backend) as url:
        model = {"model_id": "ds4", "model_name": "deepseek-v4-flash", "api_base": f"{url}/v1"}
        (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([model]))
        for mode in ([], ["--no-stream"]):
            done = subprocess.run(
                [sys.executable, "-m", "llm", "-m", "ds4", "--key", "local", "--no-log", *mode, "say hello"],
                env=os.environ | {"LLM_USER_PATH": str(tmp_path)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=True,
            )
            assert done.stdout.strip() == "Hello there!"
    assert [job.conversation.stream for job in backend.jobs] == [True, False]


def _client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
