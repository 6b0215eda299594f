"""Where requests start, and that it is the best place there is: live, rewound, branched, from disk."""

from __future__ import annotations

import json
import logging
import shutil
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest

from conftest import TINY
from kvformat import layout
from kvformat.checkpoint import Checkpoint
from kvformat.store import Store
from kvserver.saving import Saver
from server.rig import SMALL, Rig, last, rig

GOLDEN = Path(__file__).parents[1] / "golden"
SYSTEM = {"role": "system", "content": "The cache file keeps the prefix of the prompt. " * 6}
RESTARTS = ("basic_q2_run2", "basic_q2_run3", "tools_q2_run2")


OTHER = {"role": "system", "content": "Another agent with other rules. " * 12}


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is a side request, on the scale of these prompts."""
    for module in ("plan", "serving"):
        monkeypatch.setattr(f"kvserver.{module}.SHORT", 200)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def reply(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def reason(path: Path) -> str:
    with Checkpoint.open(path, (TINY,)) as checkpoint:
        return layout.REASONS[checkpoint.header.reason]


class TestRestart:
    """A directory as the real ds4 left it, its options, its requests: ours reuses at least what the real one did."""

    @pytest.fixture(scope="class")
    @staticmethod
    def restarts(tmp_path_factory: pytest.TempPathFactory) -> Path:
        target = tmp_path_factory.mktemp("restart")
        with tarfile.open(GOLDEN / "server" / "restart.tar.xz") as archive:
            archive.extractall(target, filter="data")
        return target / "restart"

    @pytest.mark.parametrize("name", RESTARTS)
    def test_reuses_what_the_real_server_reused(self, restarts: Path, name: str) -> None:
        run = json.loads((restarts / name / "run.json").read_text())
        command = run["command"].split()
        ctx = int(command[command.index("-c") + 1])
        with rig(restarts / name / "kv", SMALL, ctx=ctx) as server:
            for request in run["requests"]:
                done = server.ask(request["path"], request["request"])
                assert done.usage.cached >= request["real_cached_tokens"], request["name"]
                assert done.usage.prompt == request["real_prompt_tokens"], request["name"]

    @pytest.mark.parametrize(("wording", "found"), [("auto", True), ("2026-05", True), ("2026-08", False)])
    def test_what_was_written_in_may_is_found_in_its_own_wording(
        self, wording: str, found: bool, restarts: Path, tmp_path: Path
    ) -> None:
        run = json.loads((restarts / "tools_q2_run2" / "run.json").read_text())
        (request,) = run["requests"]
        shutil.copytree(restarts / "tools_q2_run2" / "kv", tmp_path / "kv")
        with rig(tmp_path / "kv", SMALL, tool_preamble=wording) as server:
            done = server.ask(request["path"], request["request"])
        assert (done.usage.cached >= request["real_cached_tokens"]) == found


class TestLive:
    def test_the_next_turn_feeds_only_what_is_new(self) -> None:
        with rig() as server:
            server.says = ["Four.", "Six."]
            first = server.chat(SYSTEM, user("2+2?"))
            before = server.prefilled
            second = server.chat(SYSTEM, user("2+2?"), reply("Four."), user("3+3?"))
            assert second.usage.cached == first.usage.prompt + first.usage.completion + 1  # and the EOS
            assert server.prefilled - before == second.usage.prompt - second.usage.cached < 12

    def test_a_retry_prefills_nothing_and_says_the_same(self) -> None:
        with rig() as server:
            first, again = server.chat(SYSTEM, user("2+2?")), server.chat(SYSTEM, user("2+2?"))
            assert again.usage.cached == again.usage.prompt
            assert again.turn == first.turn

    def test_an_edited_last_message_starts_at_the_turn_before(self) -> None:
        with rig() as server:
            server.says = ["Four.", "Six.", "Eight."]
            server.chat(SYSTEM, user("2+2?"))
            server.chat(SYSTEM, user("2+2?"), reply("Four."), user("3+3?"))
            edited = server.chat(SYSTEM, user("2+2?"), reply("Four."), user("4+4?"))
            assert edited.usage.prompt - edited.usage.cached < 12

    def test_a_rewound_answer_is_that_of_a_server_that_never_went_on(self) -> None:
        with rig() as server, rig() as fresh:
            server.says = ["Something long that has to be forgotten again."]
            server.chat(SYSTEM, user("2+2?"))
            assert server.chat(SYSTEM, user("2+2?")).turn == fresh.chat(SYSTEM, user("2+2?")).turn

    def test_a_short_stranger_displaces_nobody(self) -> None:
        with rig() as server:
            server.says = ["Four.", "A title.", "Six."]
            server.chat(SYSTEM, user("2+2?"))
            server.chat(user("Give this chat a title"))
            third = server.chat(SYSTEM, user("2+2?"), reply("Four."), user("3+3?"))
            assert third.usage.prompt - third.usage.cached < 12

    @pytest.mark.parametrize("system", [[], [{"role": "system", "content": "Be brief."}]], ids=["none", "shared"])
    def test_nor_does_one_with_the_same_first_words(self, system: list[dict[str, Any]]) -> None:
        """CASES 36: titles and summaries often share a short system prompt, or none, with the conversation."""
        long = user("What does the cache file keep? " * 20)
        with rig() as server:
            server.says = ["The prefix.", "A title.", "Yes."]
            server.chat(*system, long)
            server.chat(*system, user("Give this chat a title"))
            third = server.chat(*system, long, reply("The prefix."), user("Sure?"))
            assert third.usage.prompt - third.usage.cached < 12

    def test_a_long_stranger_with_the_same_first_words_displaces_to_disk(self, tmp_path: Path) -> None:
        brief = {"role": "system", "content": "Be brief."}
        first, second = user("What does the cache file keep? " * 20), user("Where does the prompt end? " * 20)
        with rig(tmp_path) as server:
            server.says = ["The prefix.", "Here.", "Yes."]
            one = server.chat(brief, first)
            server.chat(brief, second)
            assert "evict" in {reason(path) for path in server.files}
            back = server.chat(brief, first, reply("The prefix."), user("Sure?"))
            assert back.usage.cached == one.usage.prompt + one.usage.completion + 1

    def test_two_sessions_keep_two_conversations(self) -> None:
        with rig(sessions=2) as server:
            server.says = ["Four.", "Done.", "Six.", "Next."]
            server.chat(SYSTEM, user("2+2?"))
            server.chat(OTHER, user("begin"))
            one = server.chat(SYSTEM, user("2+2?"), reply("Four."), user("3+3?"))
            two = server.chat(OTHER, user("begin"), reply("Done."), user("go on"))
            assert max(done.usage.prompt - done.usage.cached for done in (one, two)) < 12

    def test_a_prompt_longer_than_the_context_is_refused_before_anything_is_displaced(self) -> None:
        with rig() as server:
            server.says = ["Four."]
            server.chat(SYSTEM, user("2+2?"))
            _, messages = server.submit("/v1/chat/completions", {"messages": [user("word " * 9000)]})
            failed = last(messages)
            assert (failed.status, failed.code) == (400, "context_length_exceeded")
            members = failed.members
            words = f"prompt is too long: {members['n_prompt_tokens']} tokens > {members['n_ctx'] - 1} maximum"
            assert members["n_ctx"] == 4096
            assert failed.message.startswith(words), "agents compact the conversation when they read these words"
            again = server.chat(SYSTEM, user("2+2?"))
            assert again.usage.cached == again.usage.prompt


class TestDisk:
    def test_a_restart_goes_on_from_the_file(self, tmp_path: Path) -> None:
        with rig(tmp_path) as server:
            server.says = ["Four."]
            first = server.chat(SYSTEM, user("2+2?"))
        with rig(tmp_path) as server:
            done = server.chat(SYSTEM, user("2+2?"), reply("Four."), user("3+3?"))
            assert done.usage.cached == first.usage.prompt + first.usage.completion + 1

    def test_another_conversation_evicts_to_disk_and_the_first_comes_back(self, tmp_path: Path) -> None:
        with rig(tmp_path) as server:
            server.says = ["Four.", "Done.", "Six."]
            first = server.chat(SYSTEM, user("2+2?"))
            server.chat(OTHER, user("begin"))
            assert "evict" in {reason(path) for path in server.files}
            back = server.chat(SYSTEM, user("2+2?"), reply("Four."), user("3+3?"))
            assert back.usage.cached == first.usage.prompt + first.usage.completion + 1

    def test_a_save_under_way_that_is_then_declined_does_not_stand_for_the_one_that_displaces(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """CASES 54: an answer's continued save adds too little to the cold file, but is declined only when the slot is taken."""
        save, taken = Store.save, threading.Event()

        def late(*args: Any, **kw: Any) -> Any:
            assert taken.wait(600)
            return save(*args, **kw)

        monkeypatch.setattr(Store, "save", late)
        with rig(tmp_path) as server:
            server.says = ["The prefix of the cache file is kept. " * 4 + "So.", "Done.", "Six."]
            first = server.chat(SYSTEM, user("2+2?"), max_tokens=100)
            server.chat(OTHER, user("begin"))
            taken.set()
            assert "evict" in {reason(path) for path in server.files}
            assert server.driver.serving.keeper.outcomes["continued", "declined"]
            back = server.chat(SYSTEM, user("2+2?"), reply(first.turn.content), user("3+3?"))
            assert back.usage.cached == first.usage.prompt + first.usage.completion + 1

    def test_a_conversation_that_comes_back_before_its_file_is_written_waits_for_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save, flush, awaited = Store.save, Saver.flush, threading.Event()

        def late(*args: Any, **kw: Any) -> Any:
            assert awaited.wait(600)
            return save(*args, **kw)

        def waiting(saver: Saver) -> None:
            awaited.set()
            flush(saver)

        monkeypatch.setattr(Store, "save", late)
        monkeypatch.setattr(Saver, "flush", waiting)
        with rig(tmp_path) as server:
            server.says = ["Four.", "Done.", "Six."]
            first = server.chat(SYSTEM, user("2+2?"))
            server.chat(OTHER, user("begin"))
            back = server.chat(SYSTEM, user("2+2?"), reply("Four."), user("3+3?"))
            awaited.set()
            assert back.usage.cached == first.usage.prompt + first.usage.completion + 1

    @pytest.mark.parametrize("where", [10, 60, 400, 3000, -1])
    def test_a_damaged_file_is_left_for_the_next_in_the_same_request(self, tmp_path: Path, where: int) -> None:
        with rig(tmp_path) as server:
            server.says = ["Four.", "Six."]
            server.chat(SYSTEM, user("2+2?"))
            clean = server.chat(SYSTEM, user("2+2?"), reply("Four."), user("3+3?"))
            assert len(server.files) > 1
        with rig(tmp_path) as server:
            longest = max(server.files, key=lambda path: path.stat().st_size)
            data = bytearray(longest.read_bytes())
            data[where] ^= 0xFF
            longest.write_bytes(data if where >= 0 else data[:-100])
            server.says = ["Six."]
            done = server.chat(SYSTEM, user("2+2?"), reply("Four."), user("3+3?"))
            assert done.turn == clean.turn
            assert longest.exists(), "a hit never deletes"

    def test_the_log_says_hit_and_miss_in_the_document_s_words(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "kvserver")
        with rig(tmp_path) as server:
            server.says = ["Four."]
            server.chat(SYSTEM, user("2+2?"))
        assert "(reason: no checkpoint)" in caplog.text
        caplog.clear()
        with rig(tmp_path) as server:
            done = server.chat(SYSTEM, user("2+2?"), reply("Four."), user("3+3?"))
            server.chat({"role": "system", "content": "The cache file loses everything. " * 6}, user("x"))
        hit = next(record.message for record in caplog.records if "hit for" in record.message)
        assert hit.endswith(f"(loaded {done.usage.cached} tokens)") and hit.startswith("KV cache: hit for sha1=")
        assert "reason: prefix mismatch at byte" in caplog.text

    def test_an_upstream_visible_key_gets_its_missing_eos(self, golden_kv: Path, tmp_path: Path) -> None:
        """CASES 80: the text ends in EOS, the payload one token before."""
        for source in (golden_kv / "kv" / "thinking_q2").glob("*.kv"):
            with Checkpoint.open(source, (TINY,)) as checkpoint:
                text, ids = checkpoint.text(), list(checkpoint.token_ids())
                if not text.endswith("<｜end▁of▁sentence｜>".encode()) or ids[-1] == 1:
                    continue
            (tmp_path / source.name).write_bytes(source.read_bytes())
            with rig(tmp_path) as server:
                _restored_then(server, text)
                slot = server.driver.serving.slots.main[0]
                assert slot.session.tokens[: len(ids) + 1] == [*ids, 1]
            return
        raise AssertionError("no such golden file")


def _restored_then(server: Rig, text: bytes) -> None:
    """Take the state up for a prompt that begins with `text`."""
    from kvserver.plan import decide

    serving = server.driver.serving
    prompt = text + "<｜User｜>more<｜Assistant｜></think>".encode()
    plan = decide(prompt, serving.slots, serving.store)
    assert plan.source == "disk"
    serving._go_to(plan, prompt)
