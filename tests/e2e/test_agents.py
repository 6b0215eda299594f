"""Real coding agents on a real kvserve process with the built-in model, as their users run them. Opt-in: make agents"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.agents import AGENTS, BIN, Desk, interrupt
from e2e.process import Server

pytestmark = pytest.mark.agents

CONTEXT = ("-c", "65536")  # what the agents' files in docs/server.md say
ANSWER = "It prints hello."
REPORT = re.compile(r"(\w+) source=(\w+) start=(\d+) prefilled=(\d+) generated=(\d+) finish=(\w+)")
BROKEN_OFF = re.compile(r"start=(\d+) prefilled=(\d+) of (\d+): the client has gone")


@dataclass(frozen=True)
class Step:
    """One request, as the log reports it."""

    source: str
    start: int
    prefilled: int
    generated: int
    finish: str

    @property
    def prompt(self) -> int:
        return self.start + self.prefilled


def steps(server: Server) -> list[Step]:
    """The requests of the conversation, in order, once the server has ended and all that it answered are in its log."""
    assert server.stop() == 0
    told = [Step(s, int(a), int(b), int(c), end) for _, s, a, b, c, end in REPORT.findall(server.text)]
    return [step for step in told if step.prompt > max(told, key=lambda step: step.prompt).prompt / 2]  # no titles


def until(condition: Callable[[], bool], server: Server) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, server.text
        time.sleep(0.01)


@pytest.fixture(params=AGENTS, ids=lambda agent: agent.name)
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Desk:
    assert (BIN / request.param.start[0]).exists(), "`make agents` installs the agents and runs these tests"
    return Desk(request.param, tmp_path)


def test_a_conversation_with_the_model_goes_on_after_a_restart(desk: Desk, tmp_path: Path) -> None:
    """As a newcomer gets it: default options, and whatever the model says."""
    options = (*CONTEXT, "--kv-disk-dir", str(tmp_path / "kv"), "--trace", str(tmp_path / "trace"))
    with Server(tmp_path / "log 1", *options, model=None) as server:
        desk.ask(server.url, "say hello")
        before = steps(server)
    with Server(tmp_path / "log 2", *options, model=None) as server:
        desk.ask(server.url, "and again", again=True)
        first, after = before[0], steps(server)[0]
    assert after.source == "disk" and after.start > 0.95 * first.prompt
    prompts = (tmp_path / "trace").read_bytes().split(b"--- rendered prompt ---\n")[1:]
    size = max(len(prompt.split(b"\n--- generated text ---")[0]) for prompt in prompts[: desk.agent.titles + 1])
    print(f"\n| {desk.agent.name} | {size:,} | {first.prompt:,} | {after.prompt:,} | {after.prefilled:,} |")


def test_a_tool_loop_is_replayed_exactly_live_and_after_a_restart(desk: Desk, tmp_path: Path) -> None:
    options = (*CONTEXT, "--kv-disk-dir", str(tmp_path / "kv"), "--kv-cache-min-gain-tokens", "0")
    traced = (*options, "--trace", str(tmp_path / "trace"))
    script = [f"I look.</think>{desk.agent.call(desk.file)}", f"I see.</think>{ANSWER}"]
    with Server(tmp_path / "log 1", *traced, model=None, script=script) as server:
        events = desk.ask(server.url, "what does hello.py print?")
        *_, called, answered = before = steps(server)
    assert ANSWER in json.dumps(events[-3:])
    assert (called.finish, answered.source, answered.finish) == ("tool_calls", "live", "stop")
    assert answered.start == called.prompt + called.generated
    result = (tmp_path / "trace").read_text().split("<tool_result>")[-1]
    assert 'print("hello")' in result.split("</tool_result>")[0]

    with Server(tmp_path / "log 2", *options, model=None, script=["No.</think>Never mind."]) as server:
        later = desk.ask(server.url, "anything else?", again=True)
        (after,) = steps(server)
    assert "Never mind." in json.dumps(later)
    assert (after.source, after.start) == ("disk", answered.prompt + answered.generated + 1), "with the end of the turn"
    told = [step.start for step in [*before, after]] if desk.agent.whole_thread else [after.start]
    assert desk.agent.cached(later) == sum(told)
    assert desk.agent.cached(events) == sum(step.start for step in before)


def test_who_hangs_up_comes_back_to_what_was_computed(desk: Desk, tmp_path: Path) -> None:
    """Ctrl-C in the prefill, Ctrl-C in the answer, and a third time with patience."""
    options = (*CONTEXT, "--prefill-chunk", "128", "--kv-disk-dir", str(tmp_path / "kv"))
    script = ["On and on. " * 2000, f"Yes.</think>{ANSWER}"]
    with Server(tmp_path / "log", *options, model=None, script=script) as server:
        asking = desk.begin(server.url, "count to a million")
        until(lambda: server.text.count("KV cache: miss") > desk.agent.titles, server)
        time.sleep(0.1)
        interrupt(asking)
        until(lambda: "the client has gone" in server.text, server)
        ((start, fed, suffix),) = BROKEN_OFF.findall(server.text)
        assert 0 < int(fed) < int(suffix)

        asking = desk.begin(server.url, "count to a million")
        until(lambda: "spells On and on" in server.text, server)
        interrupt(asking)
        until(lambda: "finish=cancelled" in server.text, server)

        events = desk.ask(server.url, "count to a million")
        *_, left, back = steps(server)
    assert ANSWER in json.dumps(events)
    assert (left.finish, back.finish) == ("cancelled", "stop")
    assert left.start >= int(start) + int(fed)
    assert (back.start, back.prompt) == (left.prompt, left.prompt)
