"""Time to the first token of a real server: cold, live, rewound, from disk, after a restart; and with no cache at all.

The golden model (5 layers, random weights) stands in for one that nobody can prefill here. What counts is the ratio between
the rows, since every row runs the same engine. Every save is made, also one that adds little to what is on disk. `restore` is
the server's own time to plan and to read the file.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from e2e.process import MODEL, Server

WORDS = "The cache file keeps the prefix of the prompt and the model continues the text from the checkpoint. "
MORE = {"role": "user", "content": "And what then? Tell me a little."}
Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Row:
    """One request: milliseconds to its first token, of them for the restore, and what was prefilled of its prompt."""

    what: str
    ms: float
    restore: float
    prompt: int
    prefilled: int
    answer: str

    @property
    def follow_up(self) -> Messages:
        """The answer quoted, and about twenty tokens more."""
        return [{"role": "assistant", "content": self.answer}, MORE]


def first_token(server: Server, what: str, messages: Messages) -> Row:
    """A streamed chat."""
    body = {"model": "deepseek-chat", "messages": messages, "max_tokens": 1, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}  # fmt: skip
    request = urllib.request.Request(f"{server.url}/v1/chat/completions", json.dumps(body).encode())
    lines, usage, answer = server.text.count("restore="), {}, ""
    started, first = time.perf_counter(), 0.0
    with urllib.request.urlopen(request, timeout=600) as response:
        for event in _events(response):
            answer += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            first = first or (time.perf_counter() if answer else 0.0)
            usage = event.get("usage") or usage
    while server.text.count("restore=") == lines:  # the log line comes after the answer
        time.sleep(0.01)
    restore = float(re.findall(r"restore=(\d+)ms", server.text)[-1])
    prompt = usage["prompt_tokens"]
    prefilled = prompt - usage["prompt_tokens_details"]["cached_tokens"]
    return Row(what, ((first or time.perf_counter()) - started) * 1e3, restore, prompt, prefilled, answer)


def _events(lines: Any) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith(b"data: ") and line != b"data: [DONE]\n":
            yield json.loads(line[6:])


def conversation(tokens: int, seed: str) -> Messages:
    """About so many tokens, unlike any other seed's from the first words on."""
    return [{"role": "user", "content": f"{seed}. " + WORDS * (tokens // 35)}]


def rows(size: int, directory: Path) -> Iterator[Row]:
    """Every way to start, for prompts of about `size` tokens."""
    options = ("-c", "24576", "--kv-disk-dir", str(directory / "kv"), "--kv-cache-min-gain-tokens", "0")
    asked = conversation(size, "One")
    with Server(directory / "log 0", "-c", "24576") as server:
        yield first_token(server, "no cache: a server without a directory", asked)
    with Server(directory / "log 1", *options) as server:
        yield (row := first_token(server, "cold", asked))
        yield first_token(server, "again: rewound to the end of the prompt", asked)
        yield (row := first_token(server, "live: 20 tokens more", asked := asked + row.follow_up))
        first_token(server, "", conversation(size, "Two"))
        time.sleep(1)
        yield (row := first_token(server, "from the evict file: 20 tokens more", asked := asked + row.follow_up))
        server.stop()
    with Server(directory / "log 2", *options) as server:
        first_token(server, "", conversation(64, "Warm up"))
        yield first_token(server, "after a restart, from the shutdown file", asked + row.follow_up)
    with Server(directory / "log 3", *options) as server:
        first_token(server, "", conversation(64, "Warm up"))
        sibling = asked[0]["content"][: -len(WORDS)] + "Another end of the first message."
        yield first_token(server, "from the cold file: another last sentence", [{"role": "user", "content": sibling}])


def per_token(count: int = 400) -> tuple[float, float]:
    """Milliseconds a token of a streamed answer, and of the same engine alone in a loop, one thread each."""
    import torch

    from kvengine import Sampler, Session, load

    with tempfile.TemporaryDirectory() as folder, Server(Path(folder) / "log", "-c", "4096") as server:
        body = {"prompt": "Go on.", "max_tokens": count, "temperature": 1, "seed": 5, "stream": True, "think": False,
                "stream_options": {"include_usage": True}}  # fmt: skip
        request = urllib.request.Request(f"{server.url}/v1/completions", json.dumps(body).encode())
        for _ in range(2):  # the first fills the cache of unpacked experts
            started = time.perf_counter()
            with urllib.request.urlopen(request, timeout=600) as response:
                usage = [event["usage"] for event in _events(response) if event.get("usage")][-1]
            served = (time.perf_counter() - started) * 1e3 / usage["completion_tokens"]
    torch.set_num_threads(1)
    session, sampler = Session(load(MODEL), 4096), Sampler(seed=5)
    session.feed(range(3, 60))
    for _ in range(2):
        started = time.perf_counter()
        for _ in range(count):
            session.feed([session.sample(sampler).token])
        alone = (time.perf_counter() - started) * 1e3 / count
    return served, alone


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
                f"\n{f'prompts of about {size} tokens':46} {'prompt':>7} {'prefilled':>9} {'first token':>12} {'restore':>9}"
            )
            base = 0.0
            for row in rows(size, directory):
                base = base or row.ms
                times = f"{row.ms:9,.0f} ms {row.restore:6,.0f} ms {base / row.ms:8.1f}x"
                print(f"{row.what:46} {row.prompt:7,} {row.prefilled:9,} {times}")
            ms, nbytes = reading(directory / "kv")
            print(f"{'(the largest file, read into memory)':46} {nbytes:17,} bytes {ms:13,.1f} ms")
    served, alone = per_token()
    print(f"\ndecoding: {served:.2f} ms a token through the server, {alone:.2f} ms in the engine alone")


if __name__ == "__main__":
    main()
