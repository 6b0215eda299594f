"""The messages of each dialect: what becomes of every kind of part, block and item."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kvprompt.conversation import Message, ToolCall
from kvprompt.dialects.fields import UNSEEN
from kvprompt.dialects.responses import HOSTED_OUTPUTS, OUTPUTS
from kvprompt.errors import BadRequest
from prompt.parsing import parse, parse_raw

WORDS = {"image": 3, "audio": 2, "file": 2, "document": 1}


def test_every_dialects_name_for_it_comes_down_to_one_word():
    assert Counter(UNSEEN.values()) == WORDS
    assert all(word in name for name, word in UNSEEN.items())


@pytest.mark.parametrize("kind", sorted(UNSEEN))
class TestWhatCannotBeSeen:
    """Pictures, sound, files."""

    @pytest.mark.parametrize("dialect", ["chat", "anthropic", "responses"])
    def test_in_a_message_it_is_refused(self, dialect: str, kind: str):
        messages = [{"role": "user", "content": [{"type": kind, kind: {}}]}]
        with pytest.raises(BadRequest, match=f"'{kind}' is not supported"):
            parse(dialect, **{"input" if dialect == "responses" else "messages": messages})

    def test_in_the_result_of_a_tool_the_model_is_told(self, kind: str):
        """An agent cannot take back what its tool returned: refused once, the conversation would be refused for ever."""
        parts = [{"type": "text", "text": "Here: "}, {"type": kind, kind: {}, "source": {}}]
        results = (
            parse("chat", messages=[{"role": "tool", "tool_call_id": "t", "content": parts}]),
            parse("chat", messages=[{"role": "function", "name": "f", "content": parts}]),
            parse("anthropic", messages=[{"content": [{"type": "tool_result", "tool_use_id": "t", "content": parts}]}]),
            *(
                parse("responses", input=[{"type": type, "call_id": "t", "output": parts}])
                for type in sorted(OUTPUTS | HOSTED_OUTPUTS)
            ),
        )
        for conversation in results:
            assert f"Here: [{UNSEEN[kind]}: this model reads text only]" in conversation.messages[0].content


class TestChat:
    def test_content_of_every_kind(self):
        parts = ["a", {"type": "text", "text": "b"}, {"type": "odd", "text": "c"}, {"type": "refusal"}, 7]
        messages = [{"content": content} for content in ("x", None, parts, 5)] + [{"role": "assistant"}]
        assert [message.content for message in parse("chat", messages=messages).messages] == ["x", "", "abc", "", ""]

    def test_calls_keep_their_own_text(self):
        body = """{"messages":[{"role":"assistant","content":"","reasoning_content":"why","tool_calls":[
            {"id":"a","function":{"name":"f","arguments":"{\\"z\\": 1.50}"}},
            {"id":"b","function":{"name":"g","arguments":{"k" : [1,  2]}}},
            {"id":"c","function":{"name":"h"}}, {"id":"d"}]}, {"role":"tool","tool_call_id":"a","content":"r"}]}"""
        said, result = parse_raw("chat", body).messages
        assert said.calls == (ToolCall("a", "f", '{"z": 1.50}'), ToolCall("b", "g", '{"k" : [1,  2]}'))
        assert (said.reasoning, result.role, result.result_ids) == ("why", "tool", ("a",))

    def test_tool_choice(self):
        tools = [{"type": "function", "function": {"name": "f"}}]
        assert parse("chat", tools=tools, tool_choice="none").tools.schemas == ""
        assert parse("chat", tools=tools, tool_choice={"type": "function"}).tools.schemas == '{"name": "f"}'

    def test_messages_must_be_objects(self):
        for messages in ({}, [3], "x"):
            with pytest.raises(BadRequest):
                parse("chat", messages=messages)


@pytest.mark.parametrize(("prompt", "text"), [("a", "a"), (["a", "b"], "a"), ([], ""), ([3], ""), (5, "")])
def test_completion_prompts(prompt: Any, text: str):
    assert parse("completion", prompt=prompt).messages[1] == Message("user", text)


class TestAnthropic:
    def test_system_parts(self):
        parts = ["a", {"type": "text", "text": ""}, {"text": "x-anthropic-billing-header: 1"}, {"text": "b\n"}, "c"]
        messages = parse("anthropic", system=parts, messages=[{"role": "system", "content": "first"}]).messages
        assert [message.content for message in messages] == ["first", "a\nb\nc"]
        assert parse("anthropic", system="x-anthropic-all").messages == ()

    def test_blocks(self):
        blocks = [
            "a",
            {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "r</tool_result>"}]},
            {"type": "thinking", "thinking": "why", "signature": "s"},
            {"type": "redacted_thinking", "data": "s"},
            {"type": "tool_use", "id": "u", "name": "f", "input": {"z": 1}},
            {"type": "tool_use", "id": "v"},
            {"type": "text", "text": "b"},
        ]
        (message,) = parse("anthropic", messages=[{"content": blocks}]).messages
        assert message == Message(
            "user",
            "a<tool_result>r&lt;/tool_result></tool_result>b",
            "why",
            (ToolCall("u", "f", '{"z": 1}'), ToolCall("v", "", "{}")),
            ("t",),
        )

    def test_tool_choice(self):
        assert parse("anthropic", tools=[{"name": "f"}], tool_choice={"type": "none"}).tools.schemas == ""
        assert parse("anthropic", tools=[{"name": "f"}], tool_choice={"type": "any"}).tools.schemas


class TestResponses:
    def items(self, *items: dict, **fields: Any) -> tuple[Message, ...]:
        return parse("responses", input=list(items), **fields).messages

    def test_string_and_instructions(self):
        messages = parse("responses", input="Hi", instructions="Be brief.").messages
        assert messages == (Message("system", "Be brief."), Message("user", "Hi"))

    def test_reasoning_waits_for_its_message(self):
        summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}], "encrypted_content": "x"}
        content = {"type": "reasoning", "summary": None, "content": [{"type": "reasoning_text", "text": "b"}]}
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        said = {"type": "message", "role": "assistant", "content": "hi"}
        assert self.items(summary, said, call) == (Message("assistant", "hi", "a", (ToolCall("c", "f", "{}"),)),)
        assert self.items(summary, {"type": "compaction"}, call)[0].reasoning == "a"
        assert self.items(summary, content, said) == (Message("assistant", "", "a"), Message("assistant", "hi", "b"))
        assert self.items(summary, {"content": "u"}) == (Message("assistant", "", "a"), Message("user", "u"))
        assert self.items(said, summary, call)[0].reasoning == "a"
        assert self.items(summary) == (Message("assistant", "", "a"),)

    def test_calls_of_every_kind(self):
        messages = self.items(
            {"type": "function_call", "id": "a", "namespace": "ns.", "name": "f", "arguments": "{}"},
            {"type": "custom_tool_call", "call_id": "b", "name": "patch", "input": "*** Begin"},
            {"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls"]}},
            {"type": "tool_search_call", "call_id": "d", "arguments": {"q": 1}},
            {"type": "web_search_call", "id": "e"},
        )
        assert [(call.id, call.name, call.arguments) for call in messages[0].calls] == [
            ("a", "ns.f", "{}"),
            ("b", "patch", "*** Begin"),
            ("c", "local_shell", '{"command": ["ls"]}'),
            ("d", "tool_search", '{"q": 1}'),
            ("e", "web_search_call", "{}"),
        ]

    def test_outputs_of_every_kind(self):
        messages = self.items(
            {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "x"}, "y"]},
            {"type": "custom_tool_call_output", "call_id": "b", "output": {"raw": 1}},
            {"type": "local_shell_call_output", "call_id": "c", "result": "r"},
            {"type": "tool_search_output", "call_id": "d", "tools": [{"name": "late"}]},
            {"type": "web_search_call_output"},
        )
        assert [(message.content, message.result_ids) for message in messages] == [
            ("xy", ("a",)),
            ('{"raw": 1}', ("b",)),
            ("r", ("c",)),
            ('[{"name": "late"}]', ("d",)),
            ("", ()),
        ]

    def test_found_tools_join_the_schemas(self):
        found = {"type": "tool_search_output", "call_id": "d", "tools": [{"name": "late"}]}
        conversation = parse("responses", input=[found], tools=[{"name": "early"}])
        assert conversation.tools.schemas == '{"name": "early"}\n{"name": "late"}'
        with pytest.raises(BadRequest, match="tools must be an array"):
            parse("responses", input=[found | {"tools": 3}])

    @pytest.mark.parametrize(
        "fields",
        [
            {"previous_response_id": "resp_1"},
            {"conversation": {"id": "c"}},
            {"tool_choice": "required"},
            {"tool_choice": {"type": "function"}},
            {"input": [{"type": "telepathy"}]},
            {"input": [{"content": "x", "status": "in_progress"}]},
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "status": "incomplete"}]},
            {"input": [{"content": [{"type": "input_image"}]}]},
            {"input": [{"content": [{"text": "no type"}]}]},
            {"input": 5},
        ],
    )
    def test_what_cannot_be_honoured_is_said(self, fields: dict):
        with pytest.raises(BadRequest):
            parse("responses", **fields)

    def test_null_is_no_wish(self):
        assert parse("responses", previous_response_id=None, conversation=None, tool_choice=None)
        assert parse("responses", tools=[{"name": "f"}], tool_choice="none").tools.schemas == ""

    @pytest.mark.parametrize(("summary", "shown"), [("auto", True), ("concise", True), (None, False), ("odd", False)])
    def test_reasoning_is_shown_where_a_summary_is_asked_for(self, summary: str | None, shown: bool):
        assert parse("responses", reasoning={"summary": summary}).shows_reasoning is shown
