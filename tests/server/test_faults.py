"""What goes wrong on the way: clients that hang up, files that cannot be used, disks that refuse, deltas without a state."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import TINY
from kvengine import Session
from kvformat import layout
from kvformat.checkpoint import Checkpoint
from kvformat.errors import NotWritten
from kvformat.store import Store
from kvserver.wire import Failed, Finished
from server.rig import SMALL, Rig, last, rig
from server.test_starts import SYSTEM, reply, user
from server.test_turns import BLOCK, ROOMY

LONG = [{"role": "system", "content": "The cache file keeps the prefix of the prompt. " * 20}, user("go")]


class TestHangingUp:
    def test_a_retry_resumes_where_the_prefill_was_when_the_client_left(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "kvserver")
        with rig(settings=SMALL, prefill_chunk=64) as server:
            fed = _cancel_after(server, chunks=2)
            again = server.chat(*LONG)
            assert again.usage.cached == fed > 0
        assert f"prefilled={fed} of {again.usage.prompt}: the client has gone" in caplog.text

    def test_a_retry_resumes_at_the_answer_that_the_client_left(self, caplog: pytest.LogCaptureFixture) -> None:
        """Whoever hangs up is no fault of the engine, and the log does not read like one."""
        caplog.set_level("INFO", "kvserver")
        with rig() as server:
            body = {"model": "deepseek-chat", "messages": LONG, "max_tokens": 3000, "temperature": 0}
            job, messages = server.submit("/v1/chat/completions", body)
            for _ in range(3):
                messages.get(timeout=60)
            job.cancelled.set()
            last(messages)
            server.settle()
            again = server.chat(*LONG)
            assert again.usage.cached == again.usage.prompt
        assert "finish=cancelled" in caplog.text and "finish=error" not in caplog.text

    def test_a_client_that_left_while_it_waited_costs_nothing(self) -> None:
        with rig() as server:
            first = {"model": "deepseek-chat", "messages": LONG, "max_tokens": 30, "temperature": 0}
            server.submit("/v1/chat/completions", first)
            job, _ = server.submit("/v1/chat/completions", {"messages": [user("x")]})
            job.cancelled.set()
            done = server.chat(*LONG)
            assert done.usage.cached == done.usage.prompt, "the cancelled job displaced nobody"

    def test_stopping_ends_a_running_answer_properly_and_saves_it(self, tmp_path: Path) -> None:
        with rig(tmp_path, kv_cache_cold_max_tokens=0, kv_cache_continued_interval_tokens=0) as server:
            body = {"messages": LONG, "max_tokens": 3000, "temperature": 0}
            _, messages = server.submit("/v1/chat/completions", body)
            for _ in range(3):
                messages.get(timeout=60)
            server.driver.stop()
            done = last(messages)
            assert isinstance(done, Finished) and done.finish == "error"
        assert [_reason(path) for path in tmp_path.glob("*.kv")] == ["shutdown"]


def _cancel_after(server: Rig, chunks: int) -> int:
    """Submit LONG and hang up after so many chunks of its prefill; returns the tokens that were fed by then."""
    session = server.driver.serving.slots.main[0].session
    job_box: list[Any] = []
    feed = session.feed

    def counting(tokens: Any, **kw: Any) -> int:
        inner, seen = kw.get("progress"), [0]

        def progress(done: int, total: int) -> None:
            if inner:
                inner(done, total)
            seen[0] += 1
            if seen[0] == chunks:
                job_box[0].cancelled.set()

        return feed(tokens, **kw | {"progress": progress})

    session.feed = counting  # type: ignore[method-assign]
    ready = threading.Event()
    server.driver.serving.prompts.render = _after(ready, server.driver.serving.prompts.render)  # type: ignore[method-assign]
    job, messages = server.submit(
        "/v1/chat/completions", {"model": "deepseek-chat", "messages": LONG, "temperature": 0}
    )
    job_box.append(job)
    ready.set()
    assert isinstance(last(messages), Failed)
    server.settle()
    session.feed = feed  # type: ignore[method-assign]
    return len(session)


def _after(ready: threading.Event, function: Callable[..., Any]) -> Callable[..., Any]:
    def waiting(*args: Any) -> Any:
        ready.wait()
        return function(*args)

    return waiting


def _reason(path: Path) -> str:
    with Checkpoint.open(path, (TINY,)) as checkpoint:
        return layout.REASONS[checkpoint.header.reason]


class TestFiles:
    def test_a_state_that_cannot_be_fed_is_dropped_and_the_request_succeeds(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """CASES 2: the first prefill after a restore fails; the file is not tried again, and is not deleted."""
        with rig(tmp_path) as server:
            server.says = ["Four."]
            server.chat(SYSTEM, user("2+2?"))
        feed = Session.feed

        def failing(self: Session, tokens: Any, **kw: Any) -> int:
            if len(self):
                self.clear()
                raise RuntimeError("planted")
            return feed(self, tokens, **kw)

        with rig(tmp_path) as server:
            files = server.files
            monkeypatch.setattr(Session, "feed", failing)
            body = {"messages": [SYSTEM, user("2+2?"), reply("Four."), user("3?")], "max_tokens": 0}
            done = server.ask("/v1/chat/completions", body)
            monkeypatch.undo()
            assert done.usage.cached == 0
            assert set(files) <= set(server.files)
        assert "the prefill after its restore failed" in caplog.text

    def test_a_failed_save_never_fails_a_request(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """CASES 37."""

        def full(*_: Any, **__: Any) -> None:
            raise NotWritten("no space left on device", path=tmp_path, remedy=None, disk_full=True)

        monkeypatch.setattr("kvformat.store.write", full)
        with rig(tmp_path) as server:
            server.says = ["Four."]
            assert server.chat(SYSTEM, user("2+2?")).turn.content == "Four."
            assert server.files == []
        assert sum("store failed" in record.message for record in caplog.records) == 1

    def test_a_save_that_breaks_in_an_unforeseen_way_does_not_take_the_saver_along(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        save, calls = Store.save, [0]

        def once(self: Store, *args: Any, **kw: Any) -> Any:
            calls[0] += 1
            if calls[0] == 1:
                raise ZeroDivisionError
            return save(self, *args, **kw)

        monkeypatch.setattr(Store, "save", once)
        with rig(tmp_path) as server:
            server.chat(SYSTEM, user("2+2?"))
            server.files  # noqa: B018  waits for the saver
        assert calls[0] > 1 and server.files

    def test_metrics_may_be_asked_for_while_a_save_ends(self, tmp_path: Path) -> None:
        class Late(str):
            def __format__(self, _: str) -> str:  # while this entry is read, the first save of another kind ends
                outcomes["evict", "stored"] += 1
                return "cold"

        with rig(tmp_path) as server:
            outcomes = server.driver.serving.keeper.outcomes
            outcomes[Late("cold"), "stored"] = 1
            saves = next(m for m in server.driver.serving.metrics() if m.name == "saves_total")
            assert saves.values == {"cold stored": 1}

    def test_what_is_saved_while_the_session_goes_on_is_the_state_of_that_moment(self, tmp_path: Path) -> None:
        with rig(tmp_path) as server, rig() as fresh:
            server.says = ["Something long that goes on for a while after the cold file was begun."]
            server.chat(*LONG, max_tokens=60)
            for path in server.files:
                with Checkpoint.open(path, (TINY,)) as checkpoint:
                    ids, saved = list(checkpoint.token_ids()), checkpoint.views()
                session = fresh.driver.serving.slots.main[0].session
                session.clear()
                session.feed(ids)
                assert (session.state().tokens == saved.tokens).all()
                assert abs(session.state().logits - saved.logits).max() < 1e-2


BODY: dict[str, Any] = {
    "model": "m",
    "max_tokens": 400,
    "thinking": {"type": "disabled"},
    "tools": [{"name": "get_weather", "input_schema": {}}],
}


class TestDeltas:
    """CASES 56: clients that send only results; with the state at hand they are served, without it they are told."""

    def test_results_alone_continue_the_live_state(self) -> None:
        with rig(settings=ROOMY) as server:
            server.says = [BLOCK.format(n=1), "Sunny."]
            first = server.ask("/v1/messages", BODY | {"messages": [user("weather?")]})
            results = [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"} for call in first.turn.calls]
            done = server.ask("/v1/messages", BODY | {"messages": [user(results)]})  # type: ignore[arg-type]
            assert done.turn.content == "Sunny."
            assert done.usage.cached >= first.usage.prompt + first.usage.completion

    def test_without_a_state_the_client_is_told_to_send_everything(self) -> None:
        with rig(settings=ROOMY) as server:
            results = [{"type": "tool_result", "tool_use_id": "toolu_unknown", "content": "sunny"}]
            _, messages = server.submit("/v1/messages", BODY | {"messages": [user(results)]})  # type: ignore[arg-type]
            failed = last(messages)
            assert isinstance(failed, Failed) and failed.status == 400
            assert "toolu_unknown" in failed.message and "replay" in failed.message


class TestMarks:
    def test_points_beyond_the_memory_are_dropped_least_recently_used_first(self) -> None:
        with rig(mark_memory_mb=1) as server:
            for n in range(12):
                server.chat(SYSTEM, user("2+2?"), *[reply("Four."), user("3+3?")] * n, max_tokens=1)
            slots = server.driver.serving.slots
            marks = [point.mark.nbytes for slot in slots for point in slot.points]
            assert sum(marks) <= (1 << 20) + max(marks)
