"""The document's example, told to a real server process with all its default knobs.

A prompt of 5,000 tokens, a follow-up, a long continuation, another conversation, a restart. What is reused, what is saved
and what is said about it must agree everywhere: in the usage numbers, the log, the trace and `kvtool ls`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.process import MODEL, Server
from kvprompt.gguf_header import read_gguf
from kvprompt.tokenizer import Tokenizer

WORDS = "The cache file keeps the prefix of the prompt and the model continues the text from the checkpoint. "


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(read_gguf(MODEL))


def text_of(tokenizer: Tokenizer, tokens: int, start: str = "") -> str:
    """A text of exactly so many tokens; single letters with a space before them are one token each here."""
    text = start
    while len(tokenizer.encode((text + WORDS).encode())) <= tokens:
        text += WORDS
    while len(tokenizer.encode(text.encode())) < tokens:
        text += "\n"
        if len(tokenizer.encode(text.encode())) < tokens:
            text += "x"
    assert len(tokenizer.encode(text.encode())) == tokens
    return text


def checkpoints(directory: Path) -> dict[str, list[int]]:
    """Reason → token counts, as `kvtool ls` tells them."""
    command = [sys.executable, "-m", "kvtools", "ls", "--json", str(directory)]
    entries = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["entries"]
    found: dict[str, list[int]] = {}
    for entry in entries:
        if entry["kind"] == "good":
            found.setdefault(entry["header"]["reason"], []).append(entry["header"]["tokens"])
    return found


def eventually(condition: Callable[[], bool]) -> bool:
    """Saves are written in the background."""
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


class Talk:
    """One conversation, resent whole each time. Tells the tokens prefilled as the client can see them."""

    def __init__(self, *texts: str) -> None:
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": text} for text in texts]

    def turn(self, server: Server) -> tuple[int, int]:
        body = {"model": "deepseek-chat", "messages": self.messages, "max_tokens": 3, "temperature": 0}
        answer = server.post("/v1/chat/completions", body)
        self.messages.append(answer["choices"][0]["message"])
        usage = answer["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return usage["prompt_tokens"], usage["prompt_tokens"] - cached

    def says(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})


def test_the_story(tmp_path: Path, tokenizer: Tokenizer) -> None:
    kv, trace = tmp_path / "kv", tmp_path / "trace"
    options = ("-c", "16384", "--kv-disk-dir", str(kv), "--trace", str(trace))
    talk = Talk(text_of(tokenizer, 4996))  # and BOS, User, Assistant, </think>
    with Server(tmp_path / "log", *options) as server:
        assert talk.turn(server) == (5000, 5000)
        assert eventually(lambda: checkpoints(kv) == {"cold": [4064]})
        assert re.search(r"KV cache: miss for sha1=[0-9a-f]{40} \(reason: no checkpoint\)", server.text)

        talk.says(text_of(tokenizer, 196, "And now?"))
        prompt, prefilled = talk.turn(server)
        assert 200 <= prefilled <= prompt - 5000 < 210

        talk.says(text_of(tokenizer, 6000, "Go on."))
        prompt, prefilled = talk.turn(server)
        assert prompt > 10_240 and 6000 <= prefilled < 6010
        assert eventually(lambda: checkpoints(kv).get("continued") == [10_240])
        longest = prompt

        other = Talk("Something else. " + text_of(tokenizer, 5500))
        assert other.turn(server)[1] > 5500
        assert eventually(lambda: "evict" in checkpoints(kv))
        assert longest <= checkpoints(kv)["evict"][0] <= longest + 4
        assert server.stop() == 0
        assert len(checkpoints(kv)["shutdown"]) == 1

    same = Talk()
    same.messages = talk.messages[:-1]
    talk.says("And after the restart?")
    for run, (conversation, expected) in enumerate([(talk, range(1, 40)), (same, range(1, longest - 10_240 + 1))]):
        with Server(tmp_path / f"log {run}", *options) as server:
            assert re.search(r"kv directory \S+: \d+ files, \d+ of 4096 MiB, oldest used", server.text)
            prompt, prefilled = conversation.turn(server)
            assert prefilled in expected
            sha, loaded = re.findall(r"KV cache: hit for sha1=([0-9a-f]{40}) \(loaded (\d+) tokens\)", server.text)[-1]
            assert (kv / f"{sha}.kv").exists() and int(loaded) == prompt - prefilled
            assert server.stop() == 0
        assert _last_cached(trace) == prompt - prefilled


def test_two_conversations_of_one_system_text(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """With ds4's flags, word for word: all four reasons are on disk, and neither conversation starts at the system text."""
    kv = tmp_path / "kv"
    flags = {"ctx": 16384, "kv-disk-dir": kv, "kv-disk-space-mb": 4096, "kv-cache-min-tokens": 512,
             "kv-cache-cold-max-tokens": 30000, "kv-cache-continued-interval-tokens": 10000,
             "kv-cache-boundary-trim-tokens": 32, "kv-cache-boundary-align-tokens": 2048}  # fmt: skip
    options = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    system = {"role": "system", "content": text_of(tokenizer, 4000)}
    one, other = talks = [Talk(), Talk()]
    for talk in talks:
        talk.messages.append(system)

    def says(talk: Talk, tokens: int) -> int:
        """How much is prefilled beyond what is new."""
        talk.says(text_of(tokenizer, tokens, "One. " if talk is one else "Two. "))
        return talk.turn(server)[1] - tokens

    with Server(tmp_path / "log", *options) as server:
        assert says(one, 1000) > 4000
        assert max(says(one, 200), says(one, 6000)) < 20
        for talk in (other, one, other, one):
            assert says(talk, 600) < 20
        assert server.stop() == 0
    assert checkpoints(kv).keys() == {"cold", "continued", "evict", "shutdown"}
    with Server(tmp_path / "log 2", *options) as server:
        assert max(says(talk, 100) for talk in talks) < 20
        assert server.stop() == 0


def _last_cached(trace: Path) -> int:
    return int(re.findall(r"^cached_tokens: (\d+)$", trace.read_text(errors="replace"), re.MULTILINE)[-1])
