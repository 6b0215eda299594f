"""Every field that upstream reads, in every dialect, and the sentences for what cannot be honoured."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprompt.conversation import Conversation, Dialect, Message, Sampling, Thinking, Tool, ToolCall
from kvprompt.dialects import PARSERS
from kvprompt.errors import BadRequest
from kvprompt.rawjson import BadJson, compact, escape, parse_object
from kvprompt.render import Style, render

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


class TestCommonFields:
    @pytest.mark.parametrize(
        ("dialect", "fields", "expected"),
        [
            ("chat", {"max_tokens": 5}, Sampling(max_tokens=5)),
            ("chat", {"max_tokens": 5, "max_completion_tokens": 7}, Sampling(max_tokens=7)),
            ("completion", {"max_tokens": 5.9}, Sampling(max_tokens=5)),
            ("responses", {"max_output_tokens": -5}, Sampling(max_tokens=0)),
            ("responses", {"max_tokens": 10**20}, Sampling(max_tokens=2**31 - 1)),
            ("anthropic", {"temperature": 0, "top_p": 0.5, "top_k": 4}, Sampling(None, 0, 0.5, 4)),
            ("chat", {"min_p": 0.1, "seed": 3, "top_k": 1}, Sampling(min_p=0.1, seed=3, top_k=1)),
            ("chat", {"seed": -3}, Sampling()),
            ("anthropic", {"min_p": 0.1, "seed": 3}, Sampling()),
            ("responses", {"min_p": 0.1, "seed": 3, "top_k": 1, "stop": "x"}, Sampling()),
            ("chat", {"stop": ["a", "", 3, "b"]}, Sampling(stop=("a", "b"))),
            ("completion", {"stop": "a"}, Sampling(stop=("a",))),
            ("anthropic", {"stop_sequences": ["a"], "stop": "b"}, Sampling(stop=("a",))),
            ("chat", {"stop": {"no": 1}, "temperature": None}, Sampling()),
        ],
    )
    def test_sampling(self, dialect: str, fields: dict, expected: Sampling):
        assert parse(dialect, **fields).sampling == expected

    @pytest.mark.parametrize("dialect", ROUTES)
    def test_model_stream_and_unknown_fields(self, dialect: str):
        conversation = parse(dialect, model="m", stream=True, service_tier={"any": [1]}, metadata=None)
        assert (conversation.model, conversation.stream, conversation.dialect) == ("m", True, dialect)
        assert parse(dialect).model == "deepseek-v4-flash"

    def test_usage_in_streams(self):
        assert parse("chat", stream_options={"include_usage": True}).include_usage
        assert not parse("completion", stream_options=7).include_usage

    @pytest.mark.parametrize("dialect", ROUTES)
    @pytest.mark.parametrize("fields", [{"temperature": "hot"}, {"stream": 1}, {"model": 3}])
    def test_wrong_kinds_are_named(self, dialect: str, fields: dict):
        with pytest.raises(BadRequest, match=f"'{next(iter(fields))}' in the request must be of kind") as refusal:
            parse(dialect, **fields)
        assert refusal.value.status == 400

    @pytest.mark.parametrize("dialect", ROUTES)
    @pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a"', b'{"a":}', b"\xff", b'{"a":' + b"[" * 100_000])
    def test_what_is_no_json_object(self, dialect: str, body: bytes):
        with pytest.raises(BadRequest):
            parse_raw(dialect, body)

    @pytest.mark.parametrize(
        ("dialect", "field"),
        [("chat", "messages"), ("anthropic", "messages"), ("completion", "prompt"), ("responses", "input")],
    )
    def test_what_must_be_there(self, dialect: str, field: str):
        with pytest.raises(BadRequest, match=f"missing {field}"):
            parse_raw(dialect, "{}")
        with pytest.raises(BadRequest, match=f"missing {field}"):
            parse(dialect, **{field: None})


class TestThinking:
    @pytest.mark.parametrize(
        ("dialect", "fields", "expected"),
        [
            ("chat", {}, "high"),
            ("chat", {"model": "deepseek-chat"}, "none"),
            ("chat", {"model": "deepseek-chat", "reasoning_effort": "high"}, "none"),
            ("chat", {"model": "deepseek-chat", "thinking": None}, "high"),
            ("chat", {"model": "deepseek-reasoner", "think": False}, "none"),
            ("completion", {"thinking": False}, "none"),
            ("chat", {"thinking": {"type": "disabled"}, "reasoning_effort": "max"}, "none"),
            ("anthropic", {"thinking": {"type": "enabled", "budget_tokens": 9}}, "high"),
            ("anthropic", {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "max"),
            ("anthropic", {"output_config": None, "reasoning_effort": "none"}, "none"),
            ("responses", {"reasoning": {"effort": "none"}}, "none"),
            ("responses", {"model": "deepseek-chat", "reasoning": {"effort": "minimal"}}, "high"),
            ("responses", {"model": "deepseek-chat", "reasoning": {"effort": None}}, "none"),
            ("responses", {"reasoning": {"effort": "max"}, "thinking": False, "think": False}, "max"),
        ],
    )
    def test_wish(self, dialect: str, fields: dict, expected: str):
        assert parse(dialect, **fields).thinking == expected

    def test_max_needs_room(self):
        assert Thinking.MAX.within(393_216) is Thinking.MAX
        assert Thinking.MAX.within(393_215) is Thinking.HIGH
        assert Thinking.OFF.within(1) is Thinking.OFF

    @pytest.mark.parametrize("fields", [{"reasoning_effort": "extreme"}, {"reasoning_effort": 3}])
    def test_unknown_efforts(self, fields: dict):
        with pytest.raises(BadRequest, match="reasoning_effort"):
            parse("chat", **fields)


class TestChat:
    def test_content_of_every_kind(self):
        parts = ["a", {"type": "text", "text": "b"}, {"type": "odd", "text": "c"}, {"type": "refusal"}, 7]
        messages = [{"content": content} for content in ("x", None, parts, 5)] + [{"role": "assistant"}]
        assert [message.content for message in parse("chat", messages=messages).messages] == ["x", "", "abc", "", ""]

    @pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
    def test_what_cannot_be_seen_is_refused(self, kind: str):
        with pytest.raises(BadRequest, match=f"'{kind}' is not supported"):
            parse("chat", messages=[{"content": [{"type": kind, kind: {}}]}])

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

    @pytest.mark.parametrize("where", ["message", "result"])
    def test_pictures_are_refused(self, where: str):
        image = {"type": "image", "source": {}}
        block = image if where == "message" else {"type": "tool_result", "tool_use_id": "t", "content": [image]}
        with pytest.raises(BadRequest, match="'image' is not supported"):
            parse("anthropic", messages=[{"content": [block]}])

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
            {"input": [{"content": "x", "status": "incomplete"}]},
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


class TestTools:
    def schemas(self, *tools: str) -> tuple[str, dict[str, Tool]]:
        tools_read = parse_raw("responses", f'{{"input":"","tools":[{",".join(tools)}]}}').tools
        return tools_read.schemas, tools_read.by_name

    def test_raw_text_is_kept(self):
        function = '{ "name" : "f",\n "x":"\\u00e9", "a":1.50}'
        assert self.schemas(f'{{"type":"function","function":{function},"strict":true}}') == (
            function,
            {"f": Tool("f")},
        )
        custom = '{"type":"custom", "name":"patch","format":{}}'
        assert self.schemas(custom, '{"type":"web_search"}', '"odd"')[0] == f'{custom}\n{{"type":"web_search"}}\n"odd"'
        assert self.schemas(custom)[1] == {"patch": Tool("patch", kind="custom")}

    def test_namespaces(self):
        members = '{"name":"f","description":"a\\"b","parameters":{ "p":1}},{"type":"custom","name":"no"},{"name":""},'
        members += '{"name":"g","type":"function","input_schema":[]},{"name":"h"}'
        text, by_name = self.schemas(f'{{"type":"namespace","name":"ns_","tools":[{members}]}}')
        assert text.splitlines() == [
            '{"name":"ns_f","description":"a\\"b","parameters":{ "p":1}}',
            '{"name":"ns_g","description":"","parameters":[]}',
            '{"name":"ns_h","description":"","parameters":{"type":"object","properties":{}}}',
        ]
        assert by_name["ns_f"] == Tool("f", "ns_")
        empty = '{"type":"namespace","name":"ns","tools":[]}'
        assert self.schemas(empty)[0] == empty

    def test_tool_search(self):
        text, by_name = self.schemas('{"type":"tool_search"}')
        assert text.startswith('{"name":"tool_search","description":"Search available tools.","parameters":{"type":')
        assert by_name == {"tool_search": Tool("tool_search", kind="tool_search")}

    @pytest.mark.parametrize("dialect", ["chat", "anthropic", "responses"])
    def test_kinds_of_lists(self, dialect: str):
        assert parse(dialect, tools=None).tools.schemas == ""
        with pytest.raises(BadRequest, match="tools must be an array"):
            parse(dialect, tools={})


class TestConversation:
    def test_orphans_are_results_without_their_call(self):
        messages = (
            Message("tool", result_ids=("x",)),
            Message("assistant", calls=(ToolCall("a", "f", "{}"),)),
            Message("tool", result_ids=("a",)),
        )
        assert Conversation(Dialect.RESPONSES, "m", messages).orphans == ("x",)
        assert Conversation(Dialect.CHAT, "m", messages).orphans == ()

    def test_results_in_an_anthropic_message_make_no_tool_context(self):
        blocks = [{"type": "tool_result", "tool_use_id": "t", "content": "r"}]
        assert not parse("anthropic", messages=[{"content": blocks}]).tool_context
        assert parse("chat", messages=[{"role": "tool"}]).tool_context


FIELDS = [
    "model",
    "messages",
    "input",
    "prompt",
    "system",
    "role",
    "content",
    "type",
    "text",
    "tools",
    "function",
    "name",
    "arguments",
    "tool_calls",
    "id",
    "thinking",
    "think",
    "reasoning",
    "reasoning_effort",
    "effort",
    "output_config",
    "stop",
    "stream_options",
    "tool_choice",
    "instructions",
    "summary",
    "call_id",
    "output",
    "status",
    "input_schema",
    "namespace",
    "result",
    "temperature",
    "max_tokens",
    "seed",
    "reasoning_content",
    "tool_call_id",
    "tool_use_id",
]
KINDS = [
    "user",
    "assistant",
    "tool",
    "system",
    "function",
    "tool_use",
    "tool_result",
    "thinking",
    "message",
    "reasoning",
    "function_call",
    "namespace",
]
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=3)
    | st.sampled_from(KINDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("dialect", ROUTES)
@given(fields=st.dictionaries(st.sampled_from(FIELDS), anything, max_size=5))
def test_any_request_is_rendered_or_refused(dialect: str, fields: dict):
    try:
        render(parse(dialect, **fields), Style())
    except BadRequest as refusal:
        assert refusal.status == 400 and str(refusal)


class TestRawJson:
    def test_surrogates(self):
        body = '{"messages":[{"content":"\\ud83d\\ude42 \\ud800x \\udc00 \\\\ud800"}]}'
        assert parse_raw("chat", body).messages[0].content == "🙂 \ufffdx \ufffd \\ud800"

    def test_bytes_that_are_no_utf8_pass_through(self):
        content = parse_raw("chat", b'{"messages":[{"content":"a\xff\xe5\xa4"}]}').messages[0].content
        assert content.encode("utf-8", "surrogateescape") == b"a\xff\xe5\xa4"

    def test_commas_are_optional_where_members_are_read(self):
        members = parse_object('{"a":1 "b":[1,2],,"a":"x",} trailing').members()
        assert [(key, value.raw) for key, value in members] == [("a", "1"), ("b", "[1,2]"), ("a", '"x"')]

    @pytest.mark.parametrize(
        "text", ["", "[]", "{", '{"a"}', "{a:1}", '{"a":NaN}', '{"a":[1,]}', '{"a":' + "[" * 10**5]
    )
    def test_what_is_no_object(self, text: str):
        with pytest.raises(BadJson):
            list(parse_object(text).members())

    @given(st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
    def test_compact_changes_space_and_nothing_else(self, value: Any):
        for indent in (None, 1):
            raw = json.dumps(value, indent=indent, ensure_ascii=False)
            assert compact(raw) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    @given(st.text())
    def test_escape_is_undone_by_json(self, text: str):
        assert json.loads(f'"{escape(text)}"') == text
