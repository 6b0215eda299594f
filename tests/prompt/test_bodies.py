"""Any body at all: it is rendered or refused, and what is kept of it is the client's own text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprompt.errors import BadRequest
from kvprompt.rawjson import BadJson, compact, escape, parse_object
from kvprompt.render import Style, render
from prompt.parsing import ROUTES, parse, parse_raw

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
