"""What upstream reads in every dialect alike, and the sentences for what cannot be honoured."""

from __future__ import annotations

import pytest

from kvprompt.conversation import Conversation, Dialect, Message, Sampling, Thinking, Tool, ToolCall
from kvprompt.errors import BadRequest
from prompt.parsing import ROUTES, parse, parse_raw


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
