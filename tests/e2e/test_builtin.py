"""The built-in model, served as a newcomer gets it: no -m, really sampled calls, the official SDKs, a restart, the demo."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import anthropic
import openai
import pytest
import torch

from e2e.process import Server
from kvengine import Session
from kvengine.weights import open_gguf
from kvprompt.gguf_header import read_gguf
from kvserver.loading import BUILT_IN, load_gguf

ROOT = Path(__file__).parents[2]
OPTIONS = ("-c", "4096", "--kv-cache-min-tokens", "64", "--kv-cache-min-gain-tokens", "0")
SCHEMA = {
    "type": "object",
    "properties": {"to": {"type": "string"}, "text": {"type": "string"}},
    "required": ["to", "text"],
}
DESCRIPTION = "Send a message to a person."
REQUEST = "Tell Anna that the train is late."
ARGUMENTS = {"to": "Anna", "text": "the train is late"}
DONE = "I sent it to Anna."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("builtin")
    with Server(folder / "log", *OPTIONS, "--kv-disk-dir", str(folder / "kv"), model=None) as running:
        yield running


def test_it_is_the_real_architecture_and_small() -> None:
    loaded, header = load_gguf(BUILT_IN), read_gguf(BUILT_IN)
    assert BUILT_IN.stat().st_size <= 10 << 20
    assert set(loaded.model.config.ratios) == {0, 4, 128} and loaded.model.config.hash_layers
    assert (loaded.name, loaded.identity.quant_bits) == ("ds4-mini", 4)
    assert header.metadata["deepseek4.context_length"] == 131_072


def test_the_training_computes_what_the_engine_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "training"))
    from generator import dialogue
    from network import Batch, Network, rotary

    loaded, stored = load_gguf(BUILT_IN), open_gguf(BUILT_IN).tensors
    kinds = {name: torch.int32 if name.endswith("tid2eid.weight") else torch.float32 for name in stored}
    network = Network(loaded.model.config, {name: stored[name].unpack(kind) for name, kind in kinds.items()})
    ids = torch.tensor(loaded.tokenizer.encode_chat(dialogue(Random(1), 4, tools=True).text()))
    c = loaded.model.config
    with torch.no_grad():
        theirs = network.logits(network.streams(Batch(ids[:100], ids[None, 100:], torch.arange(len(ids)), c.window)))
    ours = loaded.model.logits(loaded.model.forward(ids, Session(loaded.model, 1024, 1024)._memory))[100:]
    assert (ours - theirs).abs().max() < 0.02 * theirs.abs().max()  # roundings flip here and there

    memory = Session(loaded.model, 1024, 1024)._memory.layers[1].index
    x, q_r, positions = torch.randn(200, c.dim), torch.randn(200, c.q_rank), torch.arange(200)
    turn, indexer = rotary(c, True).turns(positions), loaded.model.layers[1].attention.indexer
    assert indexer is not None and memory is not None
    indexer.compressor(x, 0, memory)
    q, w, rows = network.index("blk.1.", x, q_r, turn, Batch(ids[:1], ids[None, 1:200], positions, c.window))
    queries, weights = indexer.queries(x, q_r, turn)
    for taught, used in ((q[0], queries[1:]), (w[0], weights[1:]), (rows[0], memory.rows[:50])):
        assert ((taught - used).abs() > 1e-5).float().mean() < 1e-3  # FP4 roundings flip, too


def chat_tools(schema: dict[str, Any] = SCHEMA) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": "send_message", "description": DESCRIPTION, "parameters": schema}}
    ]


@pytest.mark.parametrize("model", ["deepseek-chat", "deepseek-reasoner"])
def test_an_openai_tool_loop(server: Server, model: str) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="local", max_retries=0) as client:
        messages: list[dict[str, Any]] = [{"role": "user", "content": REQUEST}]
        ask = {"model": model, "tools": chat_tools(), "temperature": 0, "max_tokens": 200}
        first = client.chat.completions.create(messages=messages, **ask)  # type: ignore[call-overload]
        assert first.choices[0].finish_reason == "tool_calls"
        (call,) = first.choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("send_message", ARGUMENTS)
        messages += [
            first.choices[0].message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "sent"},
        ]
        second = client.chat.completions.create(messages=messages, **ask)  # type: ignore[call-overload]
        assert second.choices[0].message.content == DONE
        assert second.usage.prompt_tokens - second.usage.prompt_tokens_details.cached_tokens < 40


def test_an_anthropic_tool_loop(server: Server) -> None:
    with anthropic.Anthropic(base_url=server.url, api_key="local", max_retries=0) as client:
        messages: list[dict[str, Any]] = [{"role": "user", "content": REQUEST}]
        tools = [{"name": "send_message", "description": DESCRIPTION, "input_schema": SCHEMA}]
        greedy = {"temperature": 0}  # which this SDK no longer offers, and the server still takes
        ask = {"model": "deepseek-chat", "tools": tools, "max_tokens": 200, "extra_body": greedy}
        first = client.messages.create(messages=messages, **ask)  # type: ignore[call-overload]
        assert first.stop_reason == "tool_use"
        (use,) = [block for block in first.content if block.type == "tool_use"]
        assert (use.name, use.input) == ("send_message", ARGUMENTS)
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "sent"}
        messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        second = client.messages.create(messages=messages, **ask)  # type: ignore[call-overload]
        assert [block.text for block in second.content if block.type == "text"] == [DONE]


def test_a_call_is_replayed_as_it_was_sampled_after_a_restart_with_reordered_json(tmp_path: Path) -> None:
    options = (*OPTIONS, "--kv-disk-dir", str(tmp_path / "kv"))
    messages: list[dict[str, Any]] = [{"role": "user", "content": REQUEST}]
    body = {"model": "deepseek-chat", "tools": chat_tools(), "temperature": 0, "max_tokens": 200, "messages": messages}
    with Server(tmp_path / "log 1", *options, model=None) as server:
        answer = server.post("/v1/chat/completions", body)
        messages.append(answer["choices"][0]["message"])
        assert server.stop() == 0
    (call,) = messages[-1]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    call["function"]["arguments"] = json.dumps(dict(reversed(arguments.items())), indent=2)
    messages.append({"role": "tool", "tool_call_id": call["id"], "content": "sent"})
    with Server(tmp_path / "log 2", *options, model=None) as server:
        again = server.post("/v1/chat/completions", body)
    usage = again["usage"]
    restored = answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == restored
    assert again["choices"][0]["message"]["content"] == DONE


def test_what_was_told_thousands_of_tokens_ago_is_known_after_a_restart(tmp_path: Path) -> None:
    """The indexers have to choose: they let 2,048 tokens through."""
    page = (
        "The old harbour lies behind the market. In the morning the shops open late. Two boats came in before noon. "
        * 110
    )
    messages = [{"role": "user", "content": "My name is Anna."}]
    body: dict[str, Any] = {"model": "deepseek-chat", "temperature": 0, "max_tokens": 40, "messages": messages}

    def say(server: Server, text: str = "") -> Any:
        if text:
            messages.append({"role": "user", "content": text})
        answer = server.post("/v1/chat/completions", body)
        messages.append(answer["choices"][0]["message"])
        return answer

    options = ("--kv-disk-dir", str(tmp_path / "kv"))
    with Server(tmp_path / "log 1", *options, model=None) as server:
        assert "Anna" in say(server)["choices"][0]["message"]["content"]
        far = say(server, f"{page} What is ice?")["usage"]["prompt_tokens"]
        assert server.stop() == 0
    with Server(tmp_path / "log 2", *options, model=None) as server:
        answer = say(server, "What is my name?")
    assert answer["choices"][0]["message"]["content"] == "Your name is Anna."
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > far > 2500


def test_the_demo_plays(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, ROOT / "demo" / "story.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("$ kvserve") == 2
    assert "model: You live in Rome." in done.stdout and 'model: calls get_weather {"city":"Rome"}' in done.stdout
    assert "KV cache: hit" in done.stdout.split("$ kvserve")[2]
