"""/v1/responses: PROMPT 5.4 completed by what the official SDK's types demand."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from kvprompt.conversation import ToolCall
from kvserver.wire import Failed, Finish, Logprob, Started, Usage
from server.fakes import FakeBackend, serving, spoken
from server.reading import streamed, whole

PATH = "/v1/responses"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
NAMESPACE = {"type": "namespace", "name": "mcp__", "tools": [{"type": "function", "name": "read"}]}
TOOLS = [
    {"type": "function", "name": "get_weather"},
    {"type": "custom", "name": "patch"},
    {"type": "tool_search"},
    NAMESPACE,
]
WEATHER = ToolCall("call_1", "get_weather", '{"city":"Rome"}')
PATCH = ToolCall("call_2", "patch", '{"arguments":"*** Begin\\n"}')
SEARCH = ToolCall("call_3", "tool_search", '{"query":"mail"}')
READ = ToolCall("call_4", "mcp__read", "{}")


def types(script: list[Any], **more: object) -> list[str]:
    """The types of the events, sound by the SDK's types and numbered without a gap."""
    found = streamed(PATH, script, **more)
    for number, event in enumerate(found):
        assert event.name == ""
        assert event.data["sequence_number"] == number
        EVENT.validate_python(event.data)
    return [event.data["type"].removeprefix("response.") for event in found]


def outline(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer without what differs from run to run."""
    return {key: value for key, value in answer.items() if key not in ("id", "created_at", "output")} | {
        "output": [{key: value for key, value in item.items() if key != "id"} for item in answer["output"]]
    }


def test_a_whole_answer() -> None:
    answer = whole(PATH, spoken("I think.", "Well", [WEATHER]), tools=TOOLS)
    Response.model_validate(answer)
    assert answer["id"].startswith("resp_") and len(answer["id"]) == 29
    assert [item["id"].split("_")[0] for item in answer["output"]] == ["rs", "msg", "fc"]
    assert outline(answer) == {
        "object": "response",
        "status": "completed",
        "model": "deepseek-v4-flash",
        "error": None,
        "incomplete_details": None,
        "output": [
            {
                "type": "reasoning",
                "status": "completed",
                "summary": [{"type": "summary_text", "text": "I think."}],
            },
            {
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Well", "annotations": []}],
            },
            {
                "type": "function_call",
                "status": "completed",
                "name": "get_weather",
                "call_id": "call_1",
                "arguments": '{"city":"Rome"}',
            },
        ],
        "usage": {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 40},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 3},
            "total_tokens": 107,
        },
        "max_output_tokens": None,
        "temperature": None,
        "top_p": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def test_reasoning_is_shown_only_when_a_summary_is_asked_for() -> None:
    hidden = {"reasoning": {"effort": "high"}}
    assert [item["type"] for item in whole(PATH, spoken("r", "c"), **hidden)["output"]] == ["message"]
    assert types(spoken("reasoning", "c"), **hidden)[2:4] == ["output_item.added", "content_part.added"]


def test_a_stream_opens_items_as_they_come_and_closes_them_at_the_end() -> None:
    assert types(spoken("why", "text", [WEATHER]), tools=TOOLS) == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]


def test_the_last_event_is_the_answer_that_a_client_without_stream_gets() -> None:
    script = spoken("why", "text", [WEATHER, PATCH, SEARCH, READ])
    last = streamed(PATH, script, tools=TOOLS)[-1].data
    assert outline(last["response"]) == outline(whole(PATH, script, tools=TOOLS))


def test_calls_come_back_as_the_kind_that_their_tool_was_declared_as() -> None:
    answer = whole(PATH, spoken("", "", [WEATHER, PATCH, SEARCH, READ]), tools=TOOLS)
    Response.model_validate(answer)
    assert outline(answer)["output"] == [
        {
            "type": "function_call",
            "status": "completed",
            "name": "get_weather",
            "call_id": "call_1",
            "arguments": '{"city":"Rome"}',
        },
        {
            "type": "custom_tool_call",
            "status": "completed",
            "name": "patch",
            "call_id": "call_2",
            "input": "*** Begin\n",
        },
        {
            "type": "tool_search_call",
            "status": "completed",
            "call_id": "call_3",
            "execution": "client",
            "arguments": {"query": "mail"},
        },
        {
            "type": "function_call",
            "status": "completed",
            "name": "read",
            "namespace": "mcp__",
            "call_id": "call_4",
            "arguments": "{}",
        },
    ]


def test_the_events_of_custom_and_search_calls() -> None:
    assert types(spoken("", "", [PATCH, SEARCH]), tools=TOOLS) == [
        "created",
        "in_progress",
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "output_item.added",
        "output_item.done",
        "completed",
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"input":"x"}', "x"), ('{"a":"x","b":"y"}', '{"a":"x","b":"y"}'), ('{"a":1}', '{"a":1}'), ("{}", "{}")],
)
def test_free_form_input_is_the_one_text_among_the_arguments(arguments: str, text: str) -> None:
    answer = whole(PATH, spoken("", "", [ToolCall("c", "patch", arguments)]), tools=TOOLS)
    assert answer["output"][0]["input"] == text


@pytest.mark.parametrize("stream", [False, True])
def test_a_length_stop_makes_the_answer_and_its_last_item_incomplete(stream: bool) -> None:
    script = spoken("why", "", finish="length")
    answer = streamed(PATH, script)[-1].data["response"] if stream else whole(PATH, script)
    Response.model_validate(answer)
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in answer["output"]] == ["incomplete"]


@pytest.mark.parametrize("finish", ["stop", "length", "error"])
@pytest.mark.parametrize(("reasoning", "text"), [("why", ""), ("why", "x"), ("", "x")])
def test_what_was_answered_can_be_sent_back(finish: Finish, reasoning: str, text: str) -> None:
    """Codex does, also when the answer was cut off: refused then, its conversation would be refused for ever."""
    answer = whole(PATH, spoken(reasoning, text, finish=finish))
    assert answer["output"]
    assert whole(PATH, spoken("", "y"), input=[*answer["output"], {"role": "user", "content": "go on"}])["output"]


def test_an_error_of_the_engine_is_a_failed_response() -> None:
    assert whole(PATH, spoken("", "x", finish="error"))["error"] == {
        "code": "server_error",
        "message": "generation failed",
    }
    assert types(spoken("", "x", finish="error"))[-1] == "failed"


def test_a_failure_after_the_headers_is_a_failed_response_too() -> None:
    failed = [Started(Usage(5, 0)), Failed(500, "no memory")]
    assert types(failed) == ["created", "in_progress", "failed"]
    assert streamed(PATH, failed)[-1].data["response"]["error"] == {"code": "server_error", "message": "no memory"}


def test_logprobs() -> None:
    script = spoken("why", "Hi", logprobs=[Logprob(b"Hi", -0.5, ((b"Hi", -0.5),))])
    answer = whole(PATH, script, top_logprobs=1)
    Response.model_validate(answer)
    (entry,) = answer["output"][1]["content"][0]["logprobs"]
    assert entry["token"] == "Hi" and entry["top_logprobs"][0]["logprob"] == -0.5
    (delta,) = [
        event.data
        for event in streamed(PATH, script, top_logprobs=1)
        if event.data["type"].endswith("output_text.delta")
    ]
    assert delta["logprobs"] == [entry]


def test_the_sdk_reads_both() -> None:
    script = spoken("why", "text", [WEATHER, PATCH])
    with (
        serving(FakeBackend(script)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client,
    ):
        answer = client.responses.create(model="m", input="hi", reasoning={"summary": "auto"}, tools=TOOLS)
        assert answer.output_text == "text"
        with client.responses.stream(model="m", input="hi", reasoning={"summary": "auto"}, tools=TOOLS) as stream:
            final = stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "custom_tool_call"]
    assert final.output[3].input == "*** Begin\n"
    assert final.usage.input_tokens_details.cached_tokens == 60
