"""What a checkpoint is worth, played to a real server on the built-in model: `make demo`.

A long first turn, a follow-up, a tool call, another conversation that takes the place of the first, a restart, and the
first conversation again. After each turn: what was restored and what was prefilled. At the end: the directory.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LETTER = "The old harbour lies behind the market. In the morning the shops open late. Two boats came in before noon. "
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOL_RESULT = "21 degrees, sunny"

Json = dict[str, Any]


class Server:
    """kvserve on a free port, with its checkpoints in `folder`/kv."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.told = len(self._text())
        say("\n$ kvserve --kv-disk-dir kv")
        command = [sys.executable, "-m", "kvserver", "--port", "0", "--kv-disk-dir", str(folder / "kv")]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log)
        while "ready: " not in (started := self._text()[self.told :]):
            if self.process.poll() is not None:
                sys.exit(f"the server did not start:\n{started}")
            time.sleep(0.05)
        self.url = re.findall(r"listening on (\S+)", started)[-1]
        self.news()

    def post(self, body: Json) -> Json:
        head = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode(), head)
        with urllib.request.urlopen(request, timeout=300) as response:
            return dict(json.load(response))

    def news(self) -> None:
        """Show what the server has logged about the cache since the last time."""
        text = self._text()
        for line in text[self.told :].splitlines():
            if found := re.search(r"(KV cache|kv directory|ready).*", line):
                say(f"      {found[0]}")
        self.told = len(text)

    def stop(self) -> None:
        say("\nThe server is told to stop, and saves what is live.")
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self.news()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()  # does nothing after a stop
        self.process.wait()

    def _text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


@dataclass
class Conversation:
    """One client's conversation, sent whole every time, as clients of these APIs do."""

    name: str
    messages: list[Json] = field(default_factory=list)
    tools: list[Json] = field(default_factory=list)

    @property
    def request(self) -> Json:
        body = {"model": "deepseek-chat", "temperature": 0, "max_tokens": 100, "messages": self.messages}
        return body | ({"tools": self.tools} if self.tools else {})

    def turn(self, server: Server, text: str) -> None:
        """Say `text`, and answer the tool calls that it leads to."""
        self.messages.append({"role": "user", "content": text})
        say(f"\n{self.name}: {text if len(text) < 100 else f'{text[:40]}… {len(text)} characters …{text[-40:]}'}")
        while calls := self.answer(server).get("tool_calls"):
            for call in calls:
                self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": TOOL_RESULT})
                say(f"tool: {TOOL_RESULT}")

    def answer(self, server: Server) -> Json:
        began = time.monotonic()
        reply = server.post(self.request)
        seconds = time.monotonic() - began
        message: Json = reply["choices"][0]["message"]
        self.messages.append(message)
        for call in message.get("tool_calls") or []:
            say(f"model: calls {call['function']['name']} {call['function']['arguments']}")
        if message.get("content"):
            say(f"model: {message['content']}")
        usage = reply["usage"]
        restored = usage["prompt_tokens_details"]["cached_tokens"]
        say(
            f"      {usage['prompt_tokens']} tokens of prompt: {restored} restored, {usage['prompt_tokens'] - restored} "
            f"prefilled; {usage['completion_tokens']} generated; {seconds:.2f} s"
        )
        server.news()
        return message


def say(text: str) -> None:
    print(text, flush=True)


def kvtool(folder: Path, *words: str) -> None:
    say(f"\n$ {shlex.join(['kvtool', *words])}")
    subprocess.run([sys.executable, "-m", "kvtools", *words], cwd=folder, stderr=subprocess.STDOUT, check=False)


def play(folder: Path) -> None:
    """The story, then the directory that it leaves."""
    anna = Conversation("Anna", tools=[{"type": "function", "function": WEATHER}])
    marco = Conversation("Marco")
    with Server(folder) as server:
        anna.turn(server, LETTER * 120 + "I live in Rome.")
        anna.turn(server, LETTER * 25 + "Where do I live?")
        anna.turn(server, "What is the weather in Rome?")
        marco.turn(server, LETTER * 110 + "I live in Paris.")
        server.stop()
    with Server(folder) as server:
        anna.turn(server, "Where do I live?")
        server.stop()
    (folder / "request.json").write_text(json.dumps(anna.request))
    kvtool(folder, "ls", "kv")
    kvtool(folder, "tree", "kv")
    kvtool(folder, "why", "kv", "--request", "request.json")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        play(Path(temporary))
