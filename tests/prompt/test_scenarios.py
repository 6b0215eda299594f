"""The recorded conversations: what was sampled gives the recorded response, and comes back to the same bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvprompt.conversation import Conversation, Dialect, ToolCall, Turn
from kvprompt.dialects import PARSERS
from kvprompt.dsml import Recogniser
from kvprompt.events import collect
from kvprompt.keys import next_key
from kvprompt.markers import Preamble
from kvprompt.render import Style, render
from kvprompt.replay import ToolMemory
from kvprompt.tokenizer import Tokenizer
from prompt.conftest import GOLDEN

SCENARIOS = GOLDEN / "prompt" / "scenarios"
REQUESTS = sorted(SCENARIOS.glob("*/*.request.json"))
FORCED = sorted(SCENARIOS.glob("*/*.forced.txt"))
STYLE = Style(4096, Preamble.MAY)


def stem(path: Path) -> str:
    return f"{path.parent.name}/{path.name.split('.')[0]}"


def parsed(path: Path) -> Conversation:
    body = path.read_bytes()
    kinds = {"input": "/v1/responses", "prompt": "/v1/completions", "system": "/v1/messages"}
    path_of = next((route for field, route in kinds.items() if field in json.loads(body)), "/v1/chat/completions")
    return PARSERS[path_of](body)


def said(forced: Path) -> tuple[Conversation, Turn]:
    """The turn that the recorded bytes are, each call with the id that the real server gave it."""
    conversation = parsed(forced.with_name(forced.name.replace(".forced.txt", ".request.json")))
    prompt = render(conversation, STYLE)
    recogniser = Recogniser(thinking=prompt.opens_thinking, tools=bool(conversation.tools.schemas))
    ids = iter([call.id for call in shown(forced).calls])
    return conversation, collect(recogniser.feed(forced.read_bytes()) + recogniser.finish(), lambda: next(ids))


def shown(forced: Path) -> Turn:
    """What the recorded response showed to the client."""
    response = response_to(forced)
    if "choices" in response:
        message = response["choices"][0]["message"]
        calls = [ToolCall(c["id"], **c["function"]) for c in message.get("tool_calls", ())]
        return Turn(message.get("reasoning_content", ""), message["content"], tuple(calls))
    if "output" in response:
        items = response["output"]
        text = "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"])
        made = (item for item in items if item["type"] == "function_call")
        return Turn("", text, tuple(ToolCall(item["call_id"], item["name"], item["arguments"]) for item in made))
    blocks = response["content"]
    text = "".join(block.get("text", "") for block in blocks)
    made = (block for block in blocks if block["type"] == "tool_use")
    return Turn(
        "", text, tuple(ToolCall(b["id"], b["name"], json.dumps(b["input"], separators=(",", ":"))) for b in made)
    )


def response_to(request: Path) -> dict[str, Any]:
    """The recorded response; where the model babbled, it is not all UTF-8."""
    file = request.with_name(request.name.split(".")[0] + ".response")
    return json.loads(file.read_text("utf-8", "replace"), strict=False)


@pytest.mark.parametrize("request_file", REQUESTS, ids=stem)
def test_every_request_renders_to_the_recorded_length(request_file: Path, tokenizer: Tokenizer):
    usage = response_to(request_file)["usage"]
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    cached = details.get("cached_tokens", usage.get("cache_read_input_tokens"))
    written = details.get("cache_write_tokens", usage.get("cache_creation_input_tokens"))
    length = len(tokenizer.encode_chat(render(parsed(request_file), STYLE).text))
    if cached and request_file.parent.name in ("responses_q2", "thinking_q2"):
        assert length < cached + written, "a hit keeps the hidden reasoning that was sampled"
    else:
        assert length == cached + written


@pytest.mark.parametrize("forced", FORCED, ids=stem)
def test_the_sampled_text_gives_the_recorded_response(forced: Path):
    conversation, turn = said(forced)
    expected = shown(forced)
    if response_to(forced).get("choices", [{}])[0].get("finish_reason") == "length":
        turn = replace(turn, content=turn.content[: len(expected.content)])
    assert (turn.content, turn.calls) == (expected.content, expected.calls)
    if conversation.dialect is Dialect.CHAT:
        assert turn.reasoning == expected.reasoning


@pytest.mark.parametrize("forced", [path for path in FORCED if b"tool_calls" in path.read_bytes()], ids=stem)
@pytest.mark.parametrize("spacing", [None, 2])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_rebuilt_json_with_known_ids_renders_to_the_sampled_bytes(forced: Path, spacing: int | None, ascii_only: bool):
    conversation, turn = said(forced)
    memory = ToolMemory()
    memory.remember((call.id for call in turn.calls), turn.block)
    following = next(path for path in later(forced) if turn.calls[0].id in path.read_text())
    text = following.read_text()
    for call in turn.calls:
        arguments = json.loads(call.arguments)
        rebuilt = json.dumps(arguments, sort_keys=True, indent=spacing, ensure_ascii=ascii_only)
        if conversation.dialect is Dialect.ANTHROPIC:
            sent, resent = json.dumps(arguments), rebuilt
        else:
            sent, resent = json.dumps(call.arguments, ensure_ascii=False), json.dumps(rebuilt)
        assert sent in text
        text = text.replace(sent, resent)
    rendered = render(PARSERS[route(conversation.dialect)](text.encode()), STYLE, memory).text
    assert turn.content.encode() + turn.block in rendered
    assert forced.read_bytes().endswith(turn.content.encode() + turn.block)


def later(forced: Path) -> list[Path]:
    """The requests of the same run that were sent afterwards."""
    return [path for path in sorted(forced.parent.glob(forced.name[:4] + "*.request.json")) if path.name > forced.name]


def route(dialect: Dialect) -> str:
    return {"chat": "/v1/chat/completions", "anthropic": "/v1/messages", "responses": "/v1/responses"}[dialect]


@pytest.mark.parametrize("forced", FORCED, ids=stem)
def test_the_recorded_next_request_begins_with_the_predicted_key(forced: Path):
    conversation, turn = said(forced)
    memory = ToolMemory()
    memory.remember((call.id for call in turn.calls), turn.block)
    prompt = render(conversation, STYLE)
    key = next_key(conversation, prompt, turn, forced.read_bytes(), STYLE, memory)
    reply = turn.calls[0].id if turn.calls else turn.content
    followed = [path for path in later(forced) if reply in json.dumps(json.loads(path.read_text()), ensure_ascii=False)]
    assert key.text.startswith(prompt.text.removesuffix(b"<think>"))
    assert key.text.endswith(turn.content.encode() + turn.block)
    for path in followed:
        # Earlier turns' blocks are not remembered here, and were sampled in canonical form.
        assert render(parsed(path), STYLE, memory).text.startswith(key.text)
