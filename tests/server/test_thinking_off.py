"""Thinking is off and the model thinks all the same: what clients are shown, and that their next request is found again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from clients import CLIENTS, Session
from server.fakes import serving
from server.reading import Event, events
from server.rig import SMALL, Rig, rig
from server.test_turns import BLOCK, ROOMY

THOUGHTS = "The person asks for the number of keys. " * 3
ANSWER = "The cache file holds four keys, and each of them is a text. It ends in the state of its last token."
ASKED = "How many keys does it hold? " * 3
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])


@dataclass(frozen=True)
class Shown:
    """What a client sees of an answer, and its usage in the server's own words: prompt, cached, reasoning."""

    reasoning: str
    content: str
    prompt: int
    cached: int
    thought: int | None = None


def _openai_usage(usage: dict[str, Any]) -> tuple[int, int, int]:
    thought = usage["completion_tokens_details"]["reasoning_tokens"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], thought


def _joined(parts: Iterator[str | None]) -> str:
    return "".join(part or "" for part in parts)


def _chat(answer: Any) -> Shown:
    message = answer["choices"][0]["message"]
    return Shown(message.get("reasoning_content", ""), message["content"], *_openai_usage(answer["usage"]))


def _chat_stream(found: list[Event]) -> Shown:
    *chunks, last = [event.data for event in found[:-1]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    texts = (_joined(delta.get(name) for delta in deltas) for name in ("reasoning_content", "content"))
    return Shown(*texts, *_openai_usage(last["usage"]))


def _completion(answer: Any) -> Shown:
    return Shown("", answer["choices"][0]["text"], *_openai_usage(answer["usage"]))


def _completion_stream(found: list[Event]) -> Shown:
    *chunks, last = [event.data for event in found[:-1]]
    return Shown("", _joined(chunk["choices"][0]["text"] for chunk in chunks), *_openai_usage(last["usage"]))


def _responses(answer: Any) -> Shown:
    items = {item["type"]: item for item in answer["output"]}
    summary = items["reasoning"]["summary"] if "reasoning" in items else []
    usage = answer["usage"]
    cached, thought = (
        usage["input_tokens_details"]["cached_tokens"],
        usage["output_tokens_details"]["reasoning_tokens"],
    )
    content = _joined(part["text"] for part in items["message"]["content"])
    return Shown(_joined(part["text"] for part in summary), content, usage["input_tokens"], cached, thought)


def _responses_stream(found: list[Event]) -> Shown:
    shown = _responses(found[-1].data["response"])
    kinds = ("reasoning_summary_text", "output_text")
    deltas = (_joined(e.data["delta"] for e in found if e.data["type"] == f"response.{kind}.delta") for kind in kinds)
    assert (shown.reasoning, shown.content) == tuple(deltas), "what was streamed is what the end says"
    return shown


def _anthropic(answer: Any) -> Shown:
    texts = (_joined(block.get(kind) for block in answer["content"]) for kind in ("thinking", "text"))
    usage = answer["usage"]
    cached = usage["cache_read_input_tokens"]
    return Shown(*texts, cached + usage["cache_creation_input_tokens"], cached)


def _anthropic_stream(found: list[Event]) -> Shown:
    deltas = [event.data["delta"] for event in found if event.name == "content_block_delta"]
    blocks = [{kind: _joined(delta.get(kind) for delta in deltas) for kind in ("thinking", "text")}]
    return _anthropic({"content": blocks, "usage": found[-2].data["usage"]})


@dataclass(frozen=True)
class Dialect:
    """A dialect as a client speaks it: where, how a request looks, and how an answer is read, whole and streamed."""

    path: str
    body: Callable[[list[tuple[str, str]]], dict[str, Any]]
    whole: Callable[[Any], Shown]
    stream: Callable[[list[Event]], Shown]


def _messages(said: list[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"role": role, "content": text} for role, text in said]


USAGE = {"stream_options": {"include_usage": True}}
OFF = {"thinking": {"type": "disabled"}}
DIALECTS = {
    "chat": Dialect(
        "/v1/chat/completions", lambda said: {"messages": _messages(said), **OFF, **USAGE}, _chat, _chat_stream
    ),
    "responses": Dialect(
        "/v1/responses",
        lambda said: {"input": _messages(said), "reasoning": {"effort": "none", "summary": "auto"}},
        _responses,
        _responses_stream,
    ),
    "anthropic": Dialect(
        "/v1/messages",
        lambda said: {"messages": _messages(said), "max_tokens": 900, **OFF},
        _anthropic,
        _anthropic_stream,
    ),
    "completion": Dialect(
        "/v1/completions",
        lambda said: {"prompt": "".join(text for _, text in said), **OFF, **USAGE},
        _completion,
        _completion_stream,
    ),
}
CHATS = ("chat", "responses", "anthropic")


@contextmanager
def talking(directory: Path, *says: str) -> Iterator[Callable[[str, bool, list[tuple[str, str]]], Shown]]:
    """A server over HTTP whose model says these; asked in a dialect, streamed or not, it gives what a client sees."""
    with rig(directory, SMALL) as server, serving(server.driver) as url:
        server.says = list(says)

        def ask(name: str, stream: bool, said: list[tuple[str, str]]) -> Shown:
            dialect = DIALECTS[name]
            answer = httpx2.post(url + dialect.path, json=dialect.body(said) | {"stream": stream}, timeout=120)
            assert answer.status_code == 200, answer.text
            server.settle()
            return dialect.stream(events(answer.text)) if stream else dialect.whole(answer.json())

        yield ask


@STREAMS
@pytest.mark.parametrize("name", DIALECTS)
class TestTheWire:
    @pytest.mark.parametrize("opened", ["", "<think>"])
    def test_the_answer_goes_on_behind_the_thoughts(self, name: str, stream: bool, opened: str, tmp_path: Path) -> None:
        with talking(tmp_path, f"{opened}{THOUGHTS}</think>{ANSWER}") as ask:
            shown = ask(name, stream, [("user", ASKED)])
        if name == "completion":
            assert (shown.reasoning, shown.content) == ("", f"{opened}{THOUGHTS}</think>{ANSWER}")
        elif stream and not opened:
            assert (shown.reasoning, shown.content, shown.thought or 0) == ("", THOUGHTS + ANSWER, 0)
        else:
            assert (shown.reasoning, shown.content) == (THOUGHTS, ANSWER)
            assert shown.thought is None or shown.thought > len(THOUGHTS.split())

    @pytest.mark.parametrize("restarts", [False, True], ids=["live", "from disk"])
    def test_the_next_turn_is_found(self, name: str, stream: bool, restarts: bool, tmp_path: Path) -> None:
        sampled = f"{THOUGHTS}</think>{ANSWER}"
        with talking(tmp_path, sampled, "Yes.") as ask:
            first = ask(name, stream, [("user", ASKED)])
            said = [("user", ASKED), ("assistant", first.content), ("user", "Sure?")]
            if not restarts:
                second = ask(name, stream, said)
        if restarts:
            with talking(tmp_path, "Yes.") as ask:
                second = ask(name, stream, said)
        # A completion is known by its prompt alone, without the answer that the prompt opened.
        known = first.prompt - 2 if name == "completion" else first.prompt + len(_tokens(sampled)) + 1
        assert second.cached == known


def _tokens(text: str) -> list[int]:
    from server.rig import model

    return model().tokenizer.encode_chat(text.encode())


@STREAMS
@pytest.mark.parametrize("tools", [False, True], ids=["no tools", "tools"])
@pytest.mark.parametrize("dialect", CHATS)
class TestClients:
    """Law 1, whatever the client does to the turn."""

    def test_the_next_turn_prefills_little_more_than_what_is_new(self, dialect: str, tools: bool, stream: bool) -> None:
        for client in CLIENTS:
            with rig(settings=ROOMY) as server:
                session = Session(client, dialect, "none", tools)
                session.asks(ASKED)
                server.says = ["They ask for keys.</think>There are four keys.\n", "Nothing."]
                first = ask(server, session, stream)
                session.hears(first.turn)
                session.asks("And then?")
                second = ask(server, session, stream)
                new = second.usage.prompt - first.usage.prompt - first.usage.completion
                assert second.usage.prompt - second.usage.cached <= new + 3, client.name

    def test_a_call_behind_the_thoughts(self, dialect: str, tools: bool, stream: bool) -> None:
        with rig(settings=ROOMY) as server:
            session = Session(CLIENTS[0], dialect, "none", tools=True)
            session.asks(ASKED)
            server.says = [f"{THOUGHTS}</think>{BLOCK.format(n=1)}", "Nothing."]
            first = ask(server, session, stream)
            (call,) = first.turn.calls
            assert (call.name, first.finish) == ("get_weather", "tool_calls")
            assert (first.turn.reasoning, first.turn.content) == (("", THOUGHTS) if stream else (THOUGHTS, ""))
            session.hears(first.turn)
            session.answers(first.turn, "sunny")
            second = ask(server, session, stream)
            assert second.usage.cached == first.usage.prompt + first.usage.completion


def ask(server: Rig, session: Session, stream: bool) -> Any:
    return server.ask(session.path, json.dumps(json.loads(session.request()) | {"stream": stream}).encode())


def test_the_thoughts_are_no_part_of_the_answers_log_probabilities() -> None:
    with rig() as server:
        server.says = [f"{THOUGHTS}</think>Four."]
        body = {"messages": [{"role": "user", "content": ASKED}], **OFF, "logprobs": True}
        done = server.ask("/v1/chat/completions", body)
    assert done.usage.reasoning == len(_tokens(f"{THOUGHTS}</think>"))
    assert done.usage.completion - done.usage.reasoning == len(_tokens("Four."))


def test_a_stop_string_in_the_thoughts_ends_them_and_the_answer() -> None:
    with rig() as server:
        server.says = [f"{THOUGHTS}</think>{ANSWER}"]
        done = server.chat({"role": "user", "content": ASKED}, stop="number", max_tokens=900)
    assert (done.turn.reasoning, done.turn.content) == ("", "The person asks for the ")
