"""Turn after turn, in every dialect, thinking mode and kind of client: only what is new is prefilled, also after a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clients import CLIENTS, Client, Session
from kvprompt.conversation import Turn
from kvserver.wire import Finished
from server.rig import SMALL, Rig, rig

DIALECTS = ("chat", "anthropic", "responses")
ROUNDS = 6
BLOCK = (
    '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n'
    '<｜DSML｜parameter name="city" string="true">Rome {n}</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">1.0</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
)
ECHO, REORDERS = CLIENTS[0], next(client for client in CLIENTS if client.name == "reorders JSON")
ROOMY = replace(SMALL, ctx=8192, kv_cache_cold_max_tokens=2000, kv_cache_continued_interval_tokens=0)


def ask(server: Rig, session: Session) -> Finished:
    return server.ask(session.path, session.request())


def tool_rounds(server: Rig, session: Session, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Rounds of a call and its result: for each, the tokens prefilled, and those that are new since the answer before."""
    known = 0
    for n in range(first, last):
        thought = "look" if session.mode != "none" else ""
        server.says = [(f"{thought}</think>" if thought else "") + BLOCK.format(n=n)]
        before = server.prefilled
        done = ask(server, session)
        assert [call.name for call in done.turn.calls] == ["get_weather"]
        yield server.prefilled - before, done.usage.prompt - known
        known = done.usage.prompt + done.usage.completion
        session.hears(done.turn)
        session.answers(done.turn, f"sunny {n}")


class TestToolLoops:
    @pytest.mark.parametrize("mode", ["none", "high"])
    @pytest.mark.parametrize("client", [ECHO, REORDERS], ids=lambda client: client.name)
    def test_all_rounds_prefill_the_same_few_tokens_in_each_dialect(self, client: Client, mode: str) -> None:
        prefilled: dict[str, list[int]] = {}
        for dialect in DIALECTS:
            with rig(settings=ROOMY) as server:
                session = Session(client, dialect, mode, tools=True)
                session.asks("How is the weather?")
                rounds = list(tool_rounds(server, session, 0, ROUNDS))
                assert all(fed <= new + 1 for fed, new in rounds[1:]), (dialect, rounds)
                prefilled[dialect] = [fed for fed, _ in rounds[1:]]
        assert prefilled["chat"] == prefilled["responses"] == prefilled["anthropic"]

    @pytest.mark.parametrize("dialect", DIALECTS)
    def test_a_restart_in_the_middle_with_reordered_json_changes_nothing(self, dialect: str, tmp_path: Path) -> None:
        session = Session(REORDERS, dialect, "high", tools=True)
        session.asks("How is the weather?")
        with rig(tmp_path, ROOMY) as server:
            before = list(tool_rounds(server, session, 0, 3))
        with rig(tmp_path, ROOMY) as server:
            after = list(tool_rounds(server, session, 3, ROUNDS))
        assert after[0][0] <= max(fed for fed, _ in before[1:]) + 1
        assert all(fed <= new + 1 for fed, new in after[1:])


FINISHES: dict[str, dict[str, Any]] = {
    "stop": {},
    "length": {"max_tokens": 6},
    "stop string": {"stop": "ready"},
}


class TestClients:
    """Law 1: whatever the client does to a turn, its next request begins with the text of a point that the server kept."""

    @pytest.mark.parametrize("finish", FINISHES)
    @pytest.mark.parametrize("tools", [False, True], ids=["plain", "tools"])
    @pytest.mark.parametrize("mode", ["none", "high"])
    @pytest.mark.parametrize("dialect", DIALECTS)
    def test_the_next_turn_prefills_little_more_than_what_is_new(
        self, dialect: str, mode: str, tools: bool, finish: str
    ) -> None:
        for client in CLIENTS:
            with rig(settings=ROOMY) as server:
                session = Session(client, dialect, mode, tools)
                session.asks("What is in the cache file? " * 8)
                server.says = [
                    ("Let me see.</think>" if mode == "high" else "") + "The answer is ready now, as you see.  \n"
                ]
                first = server.ask(session.path, _with(session, FINISHES[finish]))
                session.hears(first.turn)
                session.asks("And then?")
                server.says = ["</think>Nothing." if mode == "high" else "Nothing."]
                before = server.prefilled
                second = ask(server, session)
                new = second.usage.prompt - first.usage.prompt
                allowed = new + SMALL.kv_cache_boundary_align_tokens
                assert server.prefilled - before <= allowed, (client.name, new, server.prefilled - before)
                assert second.usage.prompt - second.usage.cached == server.prefilled - before


def _with(session: Session, fields: dict[str, Any]) -> bytes:
    body = json.loads(session.request())
    names = {"anthropic": {"stop": "stop_sequences"}, "responses": {"max_tokens": "max_output_tokens"}}.get(
        session.dialect, {}
    )
    wish = {names.get(name, name): [value] if name == "stop" else value for name, value in fields.items()}
    return json.dumps(body | wish).encode()


class TestKeys:
    def test_a_turn_that_the_client_never_saw_is_no_key(self, tmp_path: Path) -> None:
        """A length stop inside thinking: the next request has no reasoning, so the file must end before it."""
        with rig(tmp_path, ROOMY, kv_cache_cold_max_tokens=0) as server:
            server.says = ["thinking on and on and on and on"]
            done = server.chat({"role": "user", "content": "why? " * 40}, model="deepseek-reasoner", max_tokens=6)
            assert done.finish == "length" and done.turn == Turn(reasoning=done.turn.reasoning)
        for path in server.files:
            assert b"thinking on" not in path.read_bytes()
        with rig(tmp_path, ROOMY, kv_cache_cold_max_tokens=0) as server:
            asked = [{"role": "user", "content": "why? " * 40}, {"role": "assistant", "content": ""}]
            again = server.chat(*asked, {"role": "user", "content": "?"}, model="deepseek-reasoner", max_tokens=1)
            assert again.usage.cached == done.usage.prompt - 2, "all but the opened answer"
