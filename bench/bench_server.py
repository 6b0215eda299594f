"""Time to the first token of a real server: cold, live, rewound, from disk, after a restart; and with no cache at all.

The golden model (5 layers, random weights) stands in for one that nobody can prefill here. What counts is the ratio between
the rows, since every row runs the same engine; the disk rows also depend on the size of the state, which is told.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from e2e.process import MODEL, Server

WORDS = "The cache file keeps the prefix of the prompt and the model continues the text from the checkpoint. "
Messages = list[dict[str, str]]


def first_token(server: Server, messages: Messages, tokens: int = 2) -> tuple[float, int, int, str]:
    """Milliseconds to the first token of a streamed chat, prompt and cached tokens, and the answer."""
    body = {"model": "deepseek-chat", "messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}  # fmt: skip
    request = urllib.request.Request(f"{server.url}/v1/chat/completions", json.dumps(body).encode())
    started, first, answer, usage = time.perf_counter(), 0.0, "", {}
    with urllib.request.urlopen(request, timeout=600) as response:
        for event in _events(response):
            for choice in event["choices"]:
                if choice["delta"].get("content"):
                    first = first or time.perf_counter()
                    answer += choice["delta"]["content"]
            usage = event.get("usage") or usage
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return ((first or time.perf_counter()) - started) * 1e3, usage["prompt_tokens"], cached, answer


def _events(lines: Any) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith(b"data: ") and line != b"data: [DONE]\n":
            yield json.loads(line[6:])


def conversation(tokens: int, seed: str) -> Messages:
    """About so many tokens, unlike any other seed's from the first words on."""
    return [{"role": "user", "content": f"{seed}. " + WORDS * (tokens // 35)}]


def rows(size: int, directory: Path) -> Iterator[tuple[str, float, int, int]]:
    """(what, ms to the first token, prompt tokens, prefilled tokens) for prompts of about `size` tokens."""
    options = ("-c", "24576", "--kv-disk-dir", str(directory))
    asked = conversation(size, "One")
    with Server(directory / "log", "-c", "24576") as bare:
        yield _row("no cache: first request of a server without a directory", first_token(bare, asked))
    with Server(directory / "log 1", *options) as server:
        yield _row("cold", cold := first_token(server, asked))
        yield _row("again: rewound to the end of the prompt", first_token(server, asked))
        asked += [{"role": "assistant", "content": cold[3]}, {"role": "user", "content": WORDS}]
        yield _row("live: one turn more", answered := first_token(server, asked))
        first_token(server, conversation(size, "Two"))
        back = [*asked, {"role": "assistant", "content": answered[3]}, {"role": "user", "content": "And what then?"}]
        time.sleep(1)
        yield _row("from the evict file, 20 tokens more", first_token(server, back))
        server.stop()
    with Server(directory / "log 2", *options) as server:
        more = [*back, {"role": "assistant", "content": "?"}, {"role": "user", "content": "Go on."}]
        yield _row("after a restart", first_token(server, more))
    with Server(directory / "log 3", *options) as server:
        sibling = [
            {"role": "user", "content": asked[0]["content"][: -len(WORDS)] + "Another end of the first message."}
        ]
        yield _row("from the cold file, another last sentence", first_token(server, sibling))


def _row(what: str, measured: tuple[float, int, int, str]) -> tuple[str, float, int, int]:
    ms, prompt, cached, _ = measured
    return what, ms, prompt, prompt - cached


def reading(directory: Path) -> tuple[float, int]:
    """Milliseconds to read the largest file of the directory, warm, and its bytes."""
    largest = max(directory.glob("*.kv"), key=lambda path: path.stat().st_size)
    started = time.perf_counter()
    size = len(largest.read_bytes())
    return (time.perf_counter() - started) * 1e3, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000, 4000, 10000, 16000], help="prompt tokens")
    sizes = parser.parse_args().sizes
    print(f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, {MODEL.name}")
    print("one engine thread, warm page cache")
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            directory = Path(folder)
            print(
                f"\n{f'prompt of about {size} tokens':58} {'prompt':>7} {'prefilled':>9} {'first token':>12} {'vs no cache':>11}"
            )
            base = 0.0
            for what, ms, prompt, prefilled in rows(size, directory):
                base = base or ms
                print(f"{what:58} {prompt:7,} {prefilled:9,} {ms:9,.0f} ms {base / ms:10.1f}x")
            ms, nbytes = reading(directory)
            print(f"{'(reading the largest file into memory)':58} {nbytes:17,} bytes {ms:6,.1f} ms")


if __name__ == "__main__":
    main()
