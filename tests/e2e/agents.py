"""The coding agents, each as its makers ship it: where `make agents` puts them, how each is asked, and what it reports.

Each is configured with its file from docs/server.md, so that what users are told to write is what is tested.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".agents" / "node_modules" / ".bin"
PAGE = (ROOT / "docs" / "server.md").read_text()
ADDRESS = "http://127.0.0.1:8000"
FILES = dict(re.findall(r"`~/(\S+)`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL))
QUIET = {"PI_OFFLINE": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}

Events = list[dict[str, Any]]


@dataclass(frozen=True)
class Agent:
    """`start`, `again` where a conversation goes on, `options` and the prompt are its command line; output is JSON lines.

    `tool` and `argument` are what reads a file there, `cached` the tokens that it says came from the cache.
    """

    name: str
    file: str
    start: tuple[str, ...]
    again: tuple[str, ...]
    options: tuple[str, ...]
    tool: str
    argument: str
    cached: Callable[[Events], int]
    titles: int = 0  # requests for one, before the first of the conversation
    whole_thread: bool = False  # `cached` is of all runs of the conversation, not only of this one

    def call(self, file: Path) -> str:
        """What a model says to read a file."""
        value = f"cat {file}" if self.argument == "cmd" else file
        return (
            f'\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="{self.tool}">\n'
            f'<｜DSML｜parameter name="{self.argument}" string="true">{value}</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
        )


def _codex(events: Events) -> int:
    return int(events[-1]["usage"]["cached_input_tokens"])


def _claude(events: Events) -> int:
    return int(events[-1]["usage"]["cache_read_input_tokens"])


def _pi(events: Events) -> int:
    """It takes what was written from what was read, because one provider counts it twice."""
    ends = [event["message"] for event in events if event["type"] == "message_end"]
    usages = [message["usage"] for message in ends if message["role"] == "assistant"]
    return sum(usage["cacheRead"] + usage["cacheWrite"] for usage in usages if usage["cacheRead"])


def _opencode(events: Events) -> int:
    return sum(event["part"]["tokens"]["cache"]["read"] for event in events if event["type"] == "step_finish")


AGENTS = (
    Agent(
        "codex", ".codex/config.toml", ("codex", "exec"), ("resume", "--last"), ("--skip-git-repo-check", "--json"),
        "exec_command", "cmd", _codex, whole_thread=True,
    ),
    Agent(
        "claude", ".claude/settings.json", ("claude",), ("--continue",), ("-p", "--output-format", "json"),
        "Read", "file_path", _claude,
    ),
    Agent("pi", ".pi/agent/models.json", ("pi",), ("-c",), ("-p", "--mode", "json"), "read", "path", _pi),
    Agent(
        "opencode", ".config/opencode/opencode.json", ("opencode", "run"), ("-c",), ("--format", "json"),
        "read", "filePath", _opencode, titles=1,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Desk:
    """One agent with a home and a project of its own, in which a file says hello."""

    agent: Agent
    folder: Path

    def __post_init__(self) -> None:
        self.file.parent.mkdir()
        self.file.write_text('print("hello")\n')

    @property
    def file(self) -> Path:
        return self.folder / "project" / "hello.py"

    def begin(self, url: str, prompt: str, *, again: bool = False) -> subprocess.Popen[str]:
        """The agent at work on a prompt, as the leader of a process group."""
        home, agent = self.folder / "home", self.agent
        settings = home / agent.file
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text(FILES[agent.file].replace(ADDRESS, url))
        command = [*agent.start, *(agent.again if again else ()), *agent.options, prompt]
        command[0] = str(BIN / command[0])
        return subprocess.Popen(
            command,
            cwd=self.file.parent,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb"} | QUIET,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ask(self, url: str, prompt: str, *, again: bool = False) -> Events:
        """What the agent prints until it is done with a prompt."""
        process = self.begin(url, prompt, again=again)
        try:
            out, errors = process.communicate(timeout=300)
        finally:
            interrupt(process, signal.SIGKILL)
        assert process.returncode == 0, out + errors
        return [json.loads(line) for line in out.split("\n") if line.startswith("{")]


def interrupt(process: subprocess.Popen[str], number: signal.Signals = signal.SIGINT) -> None:
    """What Ctrl-C in a terminal does: the signal goes to the whole group."""
    if process.poll() is None:
        os.killpg(process.pid, number)
        process.communicate(timeout=60)
