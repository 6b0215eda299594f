"""Several agents with one preamble on one server: how many tokens are prefilled, beside ds4-server's rule on the same prompts.

    python bench/bench_agents.py            all tables, some five minutes
    python bench/bench_agents.py --quick    the two runs that ds4-server was measured with

ds4-server keeps one live state: whoever does not continue it has it saved whole and starts from the longest file. That rule
is replayed here on the rendered texts, with every file found again; the real ds4-server prefilled 4,112 and 21,106 tokens for
two agents with the small and the large preamble. `least` is each text once: nobody can prefill less. The golden model says what
it is told: only tokens and bytes are counted, no time.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from e2e.process import MODEL, Server
from kvprompt.dialects import PARSERS
from kvprompt.gguf_header import read_gguf
from kvprompt.markers import ASSISTANT, EOS, USER
from kvprompt.render import Style, render
from kvprompt.tokenizer import Tokenizer

PATH = "/v1/chat/completions"
CTX = 24576
WORDS = "The cache file keeps the prefix of the prompt and the model continues the text from the checkpoint. "
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}
TOKENIZER = Tokenizer.from_gguf(read_gguf(MODEL))

Messages = list[dict[str, Any]]
Script = Callable[["Run"], Iterator[None]]  # pauses where the server may be restarted


@cache
def tokens(text: bytes) -> int:
    return len(TOKENIZER.encode_chat(text))


def body(messages: Messages) -> dict[str, Any]:
    return {"model": "deepseek-chat", "messages": messages, "tools": [TOOL], "max_tokens": 2000}


def rendered(messages: Messages) -> bytes:
    return render(PARSERS[PATH](json.dumps(body(messages)).encode()), Style(CTX)).text


@cache
def preamble(size: int) -> str:
    """A system text that makes `size` tokens of system and tools."""
    text = WORDS * (size // 40)
    while (missing := size - tokens(rendered([{"role": "system", "content": text}]))) > 0:
        text += "x\n" * max(1, missing // 4)
    return text


@dataclass
class Ds4:
    """ds4-server's rule: one live state, saved whole when it is left; the longest file that the prompt begins with."""

    live: bytes = b""
    files: set[bytes] = field(default_factory=set)
    prefilled: int = 0

    def ask(self, prompt: bytes, answer: bytes) -> None:
        start = self.live
        if not start or not prompt.startswith(start):
            self.leave()
            start = max((file for file in self.files if prompt.startswith(file)), key=len, default=b"")
            if not start:
                self.files.add(prompt[: prompt.rfind(USER.encode(), 0, prompt.find(ASSISTANT.encode()))])
        self.prefilled += tokens(prompt) - tokens(start)
        self.live = prompt + answer + EOS.encode()

    def leave(self) -> None:
        """Displaced, or stopped."""
        if self.live:
            self.files.add(self.live)
        self.live = b""


@dataclass
class Run:
    """One server, told a script; what it prefilled, and what ds4's rule would have."""

    server: Server
    ds4: Ds4 = field(default_factory=Ds4)
    known: set[bytes] = field(default_factory=set)  # prefixes of prompts up to each message
    least: int = 0
    asked: int = 0
    prefilled: int = 0

    def turn(self, messages: Messages) -> None:
        """Ask, and append the answer."""
        prompt = rendered(messages)
        answer = self.server.post(PATH, body(messages))
        usage = answer["usage"]
        self.asked += usage["prompt_tokens"]
        self.prefilled += usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        messages.append(answer["choices"][0]["message"])
        self.ds4.ask(prompt, messages[-1]["content"].encode())
        self._count_new(prompt, messages[-1]["content"].encode())

    def _count_new(self, prompt: bytes, answer: bytes) -> None:
        ends = [found.start() for found in re.finditer(USER.encode(), prompt)] + [len(prompt)]
        start = max((end for end in ends if prompt[:end] in self.known), default=0)
        self.least += tokens(prompt) - (tokens(prompt[:start]) if start else 0)
        self.known |= {prompt[:end] for end in ends} | {prompt + answer + EOS.encode()}


@dataclass(frozen=True, slots=True)
class Shape:
    """Tokens of the preamble, and sentences of 35 tokens in an answer."""

    preamble: int
    answered: int

    def opening(self) -> Messages:
        return [{"role": "system", "content": preamble(self.preamble)}]

    def says(self, who: str, turn: int) -> dict[str, str]:
        return {"role": "user", "content": f"{who}: continue with the next prompt, {turn}."}


SMALL, LARGE = Shape(1516, 4), Shape(11_642, 20)


def in_turns(shape: Shape, count: int, turns: int = 6) -> Script:
    """Each agent says something, one after the other."""

    def script(run: Run) -> Iterator[None]:
        agents = [shape.opening() for _ in range(count)]
        for turn in range(turns):
            for number, agent in enumerate(agents):
                agent.append(shape.says(f"Agent {number}", turn))
                run.turn(agent)
            yield

    return script


def sub_agents(shape: Shape) -> Script:
    """The main conversation calls a sub-agent of two turns after each of its own."""

    def script(run: Run) -> Iterator[None]:
        main = shape.opening()
        for turn in range(4):
            main.append(shape.says("Main", turn))
            run.turn(main)
            sub = shape.opening()
            for step in range(2):
                sub.append(shape.says(f"Sub {turn}", step))
                run.turn(sub)
            yield

    return script


def second_thoughts(shape: Shape, *, edits: bool) -> Script:
    """Each turn is asked twice: again as it is, or with other words."""

    def script(run: Run) -> Iterator[None]:
        agent = shape.opening()
        for turn in range(4):
            first = [*agent, shape.says("First", turn)]
            run.turn(first)
            agent.append(shape.says("Second" if edits else "First", turn))
            run.turn(agent)
            yield

    return script


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    sessions: int
    asked: int
    least: int
    ds4: int
    ours: int
    files: str
    mib: float

    def __str__(self) -> str:
        share = f"{100 * self.ours / self.ds4:.0f} %"
        return (
            f"{self.what:<40} {self.sessions:>8} {self.asked:>8,} {self.least:>8,} {self.ds4:>8,} {self.ours:>8,} {share:>6} "
            f"{self.mib:>7.1f}  {self.files}"
        )


def measure(what: str, shape: Shape, script: Script, sessions: int, *options: str, restart: int | None = None) -> Row:
    """Play a script; after pause `restart` the server is stopped and started again."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = ("-c", str(CTX), "--kv-disk-dir", f"{folder}/kv", "--sessions", str(sessions), *options)
        answers = [WORDS * shape.answered]
        logs = [Path(folder) / "log 1", Path(folder) / "log 2"]
        run = Run(Server(logs[0], *chosen, script=answers))
        for pause, _ in enumerate(script(run), 1):
            if pause == restart:
                run.server.stop()
                run.ds4.leave()
                run.server = Server(logs[1], *chosen, script=answers)
        run.server.stop()
        text = "".join(log.read_text() for log in logs if log.exists())
        stored = re.findall(r"kv cache stored reason=(\S+) size=([\d.]+) MiB", text)
    files = ", ".join(f"{n} {reason}" for reason, n in sorted(Counter(reason for reason, _ in stored).items()))
    return Row(
        what,
        sessions,
        run.asked,
        run.least,
        run.ds4.prefilled,
        run.prefilled,
        files,
        sum(float(mib) for _, mib in stored),
    )


def rows(*, quick: bool) -> Iterator[Row]:
    gain = ("--kv-cache-min-gain-tokens", "1")
    for sessions in (1, 2):
        yield measure("2 agents, preamble 1,516, min gain 1", SMALL, in_turns(SMALL, 2), sessions, *gain)
    for sessions in (1, 2):
        yield measure("2 agents, preamble 11,642", LARGE, in_turns(LARGE, 2), sessions)
    if quick:
        return
    for sessions in (1, 2):
        yield measure("  and a restart after turn 3", LARGE, in_turns(LARGE, 2), sessions, restart=3)
    for count in (3, 4, 5):
        for sessions in (1, 2, count):
            yield measure(f"{count} agents, preamble 1,516, min gain 1", SMALL, in_turns(SMALL, count), sessions, *gain)
    for sessions in (1, 2):
        yield measure("sub-agents, preamble 11,642", LARGE, sub_agents(LARGE), sessions)
    for sessions in (1, 2):
        yield measure("each turn asked again, 11,642", LARGE, second_thoughts(LARGE, edits=False), sessions)
        yield measure("each turn edited once, 11,642", LARGE, second_thoughts(LARGE, edits=True), sessions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the two runs that ds4-server was measured with")
    quick = parser.parse_args().quick
    print(f"{platform.processor() or platform.machine()}; prompt tokens asked for, and those that were prefilled\n")
    print(f"{'':<40} {'sessions':>8} {'asked':>8} {'least':>8} {'ds4':>8} {'ours':>8} {'share':>6} {'MiB':>7}  written")
    for row in rows(quick=quick):
        print(row, flush=True)


if __name__ == "__main__":
    main()
