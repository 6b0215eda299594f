"""Several agents with one preamble: each goes on where it stopped, in memory or from a file, whoever came in between."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from conftest import TINY
from kvformat import layout
from kvformat.checkpoint import Checkpoint
from server.rig import Rig, rig

SYSTEM = {"role": "system", "content": "The cache file keeps the prefix of the prompt. " * 6}
FEW = 40  # tokens: less than the preamble and any turn but the newest


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is a side request, on the scale of these prompts."""
    for module in ("plan", "serving"):
        monkeypatch.setattr(f"kvserver.{module}.SHORT", 20)


class Agent:
    """A conversation of its own behind the preamble that all share."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.messages: list[dict[str, Any]] = [SYSTEM]
        self.fed = 0  # tokens of the prompt and of the answer, with its EOS

    def turn(self, server: Rig, text: str = "reads the next file") -> int:
        """One turn; how many tokens it prefilled beyond what the conversation did not have before."""
        self.messages.append({"role": "user", "content": f"{self.name} {text}."})
        server.says = [f"{self.name} saw the prompt and the model."]
        before = self.fed
        done = server.chat(*self.messages, max_tokens=60)
        self.messages.append({"role": "assistant", "content": done.turn.content})
        self.fed = done.usage.prompt + done.usage.completion + 1
        return max(0, before - done.usage.cached)


def saved(server: Rig, reason: str) -> int:
    """Files with this reason."""
    return [reason_of(path) for path in server.files].count(reason)


def reason_of(path: Path) -> str:
    with Checkpoint.open(path, (TINY,)) as checkpoint:
        return layout.REASONS[checkpoint.header.reason]


@pytest.mark.parametrize("count", [2, 3, 4, 5])
@pytest.mark.parametrize("sessions", [1, 2])
def test_agents_in_turns_lose_nothing_with_a_directory(tmp_path: Path, count: int, sessions: int) -> None:
    with rig(tmp_path, sessions=sessions) as server:
        agents = [Agent(f"Agent {number}") for number in range(count)]
        for _ in range(4):
            assert [agent.turn(server) for agent in agents] == [0] * count
        assert bool(saved(server, "evict")) == (count > sessions)


@pytest.mark.parametrize("sessions", [2, 3])
def test_agents_that_have_a_session_each_need_no_directory(sessions: int) -> None:
    with rig(sessions=sessions) as server:
        agents = [Agent(f"Agent {number}") for number in range(sessions)]
        for _ in range(4):
            assert [agent.turn(server) for agent in agents] == [0] * sessions


def test_after_a_restart_both_go_on_where_they_were(tmp_path: Path) -> None:
    agents = [Agent("Agent 1"), Agent("Agent 2")]
    for _ in range(3):
        with rig(tmp_path) as server:
            for _ in range(2):
                assert [agent.turn(server) for agent in agents] == [0, 0]
    with rig(tmp_path) as server:
        assert saved(server, "evict") and saved(server, "shutdown")


def test_sub_agents_that_come_and_go_leave_the_main_conversation_in_memory() -> None:
    with rig(sessions=2) as server:
        main = Agent("Main")
        for number in range(4):
            assert main.turn(server) == 0
            sub = Agent(f"Sub {number}")
            assert [sub.turn(server), sub.turn(server)] == [0, 0]


def test_a_fork_costs_each_side_one_message_at_most(tmp_path: Path) -> None:
    with rig(tmp_path) as server:
        one, other = Agent("One"), Agent("Two")
        one.turn(server)
        other.messages, other.fed = list(one.messages), one.fed
        one.turn(server)
        assert other.turn(server) == 0
        assert one.turn(server) < FEW
        for _ in range(3):
            assert [other.turn(server), one.turn(server)] == [0, 0]


@pytest.mark.parametrize("sessions", [1, 2])
def test_a_retry_and_a_late_edit_write_nothing_and_take_no_other_session(tmp_path: Path, sessions: int) -> None:
    with rig(tmp_path, sessions=sessions, kv_cache_cold_max_tokens=0, kv_cache_continued_interval_tokens=0) as server:
        agent = Agent("Agent")
        agent.turn(server)
        long = [*agent.messages, {"role": "user", "content": "What then?"}]
        for last in (long[-1], {"role": "user", "content": "What now?"}, {"role": "user", "content": "And who?"}):
            server.says = ["The cache file keeps the prefix of the prompt and more. " * 20]
            server.chat(*long[:-1], last, max_tokens=400)
        server.chat(*long[:-1], last)
        server.chat(*long[:2])
        assert not server.files
        assert sum(len(slot) > 0 for slot in server.driver.serving.slots) == 1


def test_what_is_declined_is_logged_with_the_option_that_decides_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with rig(tmp_path, kv_cache_min_gain_tokens=1000) as server:
        Agent("One").turn(server)
        Agent("Two").turn(server)
        assert not saved(server, "evict")
    declined = [record.message for record in caplog.records if "--kv-cache-min-gain-tokens" in record.message]
    assert any("reason=evict" in line for line in declined)
    assert any("reason=shutdown" in line for line in declined)
