"""Every prompt that the real ds4 rendered, byte for byte and token for token, with both wordings of the preamble."""

from __future__ import annotations

import hashlib
import json

import pytest

from kvprompt.conversation import Conversation, Dialect, Message, Thinking, ToolCall
from kvprompt.dialects import PARSERS
from kvprompt.errors import PromptError
from kvprompt.markers import THINK_MAX, Preamble, tools_section
from kvprompt.render import ReplayCount, Style, render, render_continuation
from kvprompt.replay import Source, ToolMemory
from kvprompt.tokenizer import Tokenizer
from kvprompt.volatile import VOLATILE
from prompt.conftest import GOLDEN, golden

OLDER, NEWER = golden("rendered_prompts.json") + golden("think_max.json"), golden("rendered_from_traces.json")
STYLE = Style()


def path_of(record: dict) -> str:
    """Where a recorded request was sent; the records of think_max and of the traces do not say."""
    request = record["request"]
    if "path" in record:
        return str(record["path"])
    if "input" in request:
        return "/v1/responses"
    return "/v1/messages" if request.keys() & {"system", "output_config"} else "/v1/chat/completions"


@pytest.mark.parametrize("ascii_only", [True, False], ids=["escaped", "utf-8"])
@pytest.mark.parametrize("record", OLDER, ids=lambda record: record["name"])
def test_older_preamble(record: dict, ascii_only: bool, tokenizer: Tokenizer):
    body = json.dumps(record["request"], ensure_ascii=ascii_only).encode()
    conversation = PARSERS[path_of(record)](body)
    prompt = render(conversation, Style(record.get("ctx", 4096), Preamble.MAY))
    assert prompt.text.decode() == record["rendered_prompt"]
    assert prompt.thinking == record["think_mode"]
    assert bool(conversation.tools.schemas) == record.get("has_tools", bool(conversation.tools.schemas))
    ids = tokenizer.encode_chat(prompt.text)
    assert len(ids) == record["prompt_tokens"]
    assert ids == record.get("prompt_ids", ids)


@pytest.mark.parametrize("record", NEWER, ids=lambda record: f"{record['scenario']}-{record['run']}")
def test_newer_preamble(record: dict):
    # Run 2 of the tools begins after a restart, with the blocks of run 1 remembered from disk.
    memory = remembered(record) if (record["scenario"], record["run"]) == ("tools_q2", "run2.trace") else None
    prompt = render(PARSERS[path_of(record)](json.dumps(record["request"]).encode()), Style(4096), memory)
    # The traces lack a prompt's last line break.
    assert prompt.text.decode().removesuffix("\n") == record["rendered_prompt"].removesuffix("\n")
    assert prompt.replay.mem == 0 and prompt.replay.disk == (2 if memory else 0)


def remembered(record: dict) -> ToolMemory:
    """The sampled blocks, which run 1 spelled in the model's own order."""
    memory = ToolMemory()
    run1 = [other for other in NEWER if (other["scenario"], other["run"]) == (record["scenario"], "run1.trace")]
    prompt = max((other["rendered_prompt"] for other in run1), key=len)
    blocks = [f"\n\n<{part}</｜DSML｜tool_calls>" for part in between(prompt, "\n\n<", "</｜DSML｜tool_calls><｜end")]
    calls = [m["tool_calls"] for m in record["request"]["messages"] if m.get("tool_calls")]
    for block, made in zip(blocks, calls, strict=True):
        memory.remember((call["id"] for call in made), block.encode(), Source.DISK)
    return memory


def between(text: str, start: str, end: str) -> list[str]:
    return [piece.rsplit(start, 1)[1] for piece in text.split(end)[:-1]]


def test_the_fixed_texts_are_the_protocols():
    def sha(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()

    assert sha(THINK_MAX) == "f7a24f3b3050d4a83781e9b755b316aae2ec1d9dc87562541d90bcb04d7350f7"
    assert sha(tools_section(Preamble.MAY, "")).startswith("16ab98b7cc76cb57b394a631903e6e29")
    assert sha(tools_section(Preamble.AUGUST, "")).startswith("a701e2ce1fee701bb2e602ad1e9ae986")


@pytest.mark.parametrize("reasoning", [None, "", " ", "\n\t"])
@pytest.mark.parametrize("tools", [True, False])
def test_padded_reasoning_is_no_reasoning(reasoning: str | None, tools: bool):
    calls = (ToolCall("c", "f", "{}"),) if tools else ()
    said = Message("assistant", "b", reasoning or "", calls)
    messages = (Message("user", "a"), said)
    assert b"<think></think>b" in render(Conversation(Dialect.CHAT, "ds4", messages), STYLE).text


def test_a_nul_is_a_byte_like_any_other():
    prompt = render(PARSERS["/v1/chat/completions"](b'{"messages":[{"content":"a\\u0000b"}]}'), STYLE)
    assert b"a\0b" in prompt.text


def test_an_answer_that_is_continued_opens_nothing():
    prompt = render(Conversation(Dialect.CHAT, "ds4", (Message("user", "a"), Message("assistant", "b"))), STYLE)
    assert prompt.text.decode().endswith("<think></think>b<｜end▁of▁sentence｜>")
    assert not prompt.opens_thinking


def test_unknown_roles_are_silent_and_results_share_one_user():
    messages = tuple(Message(role, "x") for role in ("user", "critic", "tool", "system", "function", "user"))
    body = render(Conversation(Dialect.CHAT, "ds4", messages, thinking=Thinking.OFF), STYLE).text.decode()
    results = "<tool_result>x</tool_result>" * 2
    assert body.endswith(f"x<｜User｜>x<｜User｜>{results}<｜User｜>x<｜Assistant｜></think>")


def test_results_cannot_break_out():
    conversation = Conversation(Dialect.CHAT, "ds4", (Message("tool", "a</tool_result>&<b>"),))
    assert b"<tool_result>a&lt;/tool_result>&<b></tool_result>" in render(conversation, STYLE).text


def test_a_continuation_begins_with_the_end_of_the_turn_before():
    messages = (Message("assistant", calls=(ToolCall("c", "f", "{}"),)), Message("tool", "1"), Message("tool", "2"))
    text = render_continuation(Conversation(Dialect.RESPONSES, "ds4", messages), 1, STYLE).decode()
    results = "<tool_result>1</tool_result><tool_result>2</tool_result>"
    assert text == f"<｜end▁of▁sentence｜><｜User｜>{results}<｜Assistant｜><think>"


def test_replay_is_counted_as_in_the_trace():
    calls = tuple(ToolCall(id, "f", "{}") for id in "abc")
    messages = (Message("assistant", calls=calls[:1]), Message("assistant", calls=calls[1:]))
    memory = ToolMemory()
    memory.remember(["a"], b"<block>")
    memory.remember(["b"], b"<other>")
    prompt = render(Conversation(Dialect.CHAT, "ds4", messages), STYLE, memory)
    assert str(prompt.replay) == "mem=1 disk=0 canonical=1 missing_ids=1"
    assert render(Conversation(Dialect.CHAT, "ds4", messages), STYLE).replay == ReplayCount(canonical=2, missing_ids=3)


class TestVolatile:
    SYSTEM = "x-anthropic-billing-header: cch={}; v=1\nYou are helpful.\nToday's date: 2026-11-{}\nBe brief."

    def text(self, day: int, *names: str) -> str:
        messages = (Message("system", self.SYSTEM.format(day * 7, day)), Message("user", "a"))
        return render(Conversation(Dialect.CHAT, "ds4", messages), Style(volatile=names)).text.decode()

    def test_the_billing_line_is_stripped_unless_switched_off(self):
        assert "cch=" not in self.text(1, *STYLE.volatile)
        assert "cch=7;" in self.text(1)

    def test_dates_are_stripped_where_asked_for(self):
        assert self.text(1, *STYLE.volatile) != self.text(2, *STYLE.volatile)
        assert self.text(1, "billing", "date") == self.text(2, "billing", "date")
        assert "You are helpful.\nBe brief." in self.text(1, "date")

    def test_only_system_texts_are_touched(self):
        messages = (Message("user", self.SYSTEM),)
        assert self.SYSTEM.encode() in render(Conversation(Dialect.CHAT, "ds4", messages), STYLE).text

    def test_the_list_is_documented(self):
        documentation = (GOLDEN.parents[1] / "docs" / "prompt.md").read_text("utf-8")
        assert all(f"| `{entry.name}` |" in documentation for entry in VOLATILE)
        with pytest.raises(PromptError, match="known are billing, date"):
            self.text(1, "weather")
