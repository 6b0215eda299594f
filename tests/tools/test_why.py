"""kvtool why: the server's own decision, and for each file that came close the reason and the place."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conftest import TINY
from kvformat.header import Header
from kvformat.identity import Identity
from kvformat.prefix import text_key
from kvformat.reader import Reader
from kvformat.room import Options
from kvformat.sidecar import update_sidecar
from kvtools.explaining import Knobs, open_reader, why
from kvtools.requesting import DIALECTS
from strategies import built, patched
from tools_kit import SMALL, contents, kvtool, save, save_many
from zoo import zoo

MODEL = Path(__file__).parents[1] / "golden" / "models" / "tiny-q2.gguf"
REAL = ("--ctx", 4096, "--min-tokens", 32)
RESTARTS = ("basic_q2_run2", "basic_q2_run3", "tools_q2_run2")

CONVERSATION = b"<bos>system text that is long enough. <user>" + b"The same question again and again. " * 20


def asked(directory: Path, prompt: bytes, *options: object) -> Any:
    """`why --prompt --json`, with knobs under which every small file counts."""
    file = directory.parent / "prompt.bin"
    file.write_bytes(prompt)
    run = kvtool("why", directory, "--prompt", file, "--min-tokens", 1, "--json", *options)
    assert run.code == (0 if run.json["start"] else 1), run.err
    return run.json


def recorded(restart: Path) -> list[tuple[str, dict[str, Any]]]:
    return [(name, r) for name in RESTARTS for r in json.loads((restart / name / "run.json").read_bytes())["requests"]]


class TestTheRealServer:
    def test_every_recorded_request_starts_where_it_started_then(self, restart: Path, tmp_path: Path) -> None:
        """No exceptions: none of these requests meets a rule of ours that is not ds4's (a larger ctx, a second candidate)."""
        for name, row in recorded(restart):
            body = tmp_path / "request.json"
            body.write_text(json.dumps(row["request"]))
            run = kvtool("why", restart / name / "kv", "--request", body, *REAL, "--json")
            assert (run.json["start"] or {"tokens": 0})["tokens"] == row["real_cached_tokens"], row["name"]
            assert run.json["dialect"] == {v: k for k, v in DIALECTS.items()}[row["path"]]

    def test_and_so_do_the_prompts_in_its_traces(self, restart: Path) -> None:
        for name in RESTARTS:
            count = (restart / name / "run.trace").read_bytes().count(b"\n--- rendered prompt ---\n")
            assert count
            for number in range(1, count + 1):
                trace = ("--trace", restart / name / "run.trace", "--number", number)
                found = kvtool("why", restart / name / "kv", *trace, *REAL, "--json").json
                assert found["traced"]["number"] == number
                assert (found["start"] or {"tokens": 0})["tokens"] == found["traced"]["cached_tokens"]

    def test_without_a_number_the_last_request_of_a_trace(self, restart: Path) -> None:
        run = kvtool("why", restart / RESTARTS[0] / "kv", "--trace", restart / RESTARTS[0] / "run.trace", *REAL)
        assert "traced  request 3 started at token 205 (disk-text)" in run.out

    def test_the_blocks_on_disk_are_replayed(self, restart: Path, tmp_path: Path) -> None:
        """The client reordered the JSON of its tool calls; only the sampled blocks of the tool maps match the key."""
        row = json.loads((restart / "tools_q2_run2/run.json").read_bytes())["requests"][0]
        for message in row["request"]["messages"]:
            for call in message.get("tool_calls", ()):
                call["id"] = "call_" + "0" * 32
        body = tmp_path / "request.json"
        body.write_text(json.dumps(row["request"]))
        found = kvtool("why", restart / "tools_q2_run2/kv", "--request", body, *REAL, "--json").json
        assert found["start"]["tokens"] < row["real_cached_tokens"]
        assert found["losses"][0]["field"].startswith("messages[2]")


class TestTheDecision:
    def test_it_is_the_readers(self, golden_kv: Path, tmp_path: Path) -> None:
        """For every text of a golden directory and some bytes more, the first usable candidate."""
        directory = golden_kv / "kv/basic_q2"
        for path in sorted(directory.glob("*.kv")):
            header = Header.decode(path.read_bytes()[:52])
            prompt = path.read_bytes()[52 : 52 + header.text_bytes] + b"more"
            reader = open_reader(directory, Knobs(min_tokens=100))
            first = next((m for m in Reader(directory, reader.identity, 32768, Options(min_tokens=100)).candidates(prompt)
                          if m.usable), None)  # fmt: skip
            start = why(reader, prompt).start
            assert (start and start.path) == (first and first.path)

    def test_a_candidate_that_cannot_be_loaded_gives_way_to_a_shorter_one(self, tmp_path: Path) -> None:
        directory = tmp_path / "kv"
        shorter = save(directory, CONVERSATION[:200], 130)
        longer = save(directory, CONVERSATION[:400], 140)
        longer.write_bytes(patched(longer.read_bytes(), (52 + 399, b"#")))
        found = asked(directory, CONVERSATION)
        assert found["start"]["path"] == str(shorter)
        assert found["losses"][0]["path"] == str(longer)
        assert found["losses"][0]["reason"].startswith("cannot be loaded: the text is not the one")
        assert found["losses"][0]["lost_tokens"] == 10

    def test_it_changes_nothing(self, tmp_path: Path) -> None:
        directory = tmp_path / "kv"
        path = save(directory, CONVERSATION[:200])
        before = path.read_bytes()
        asked(directory, CONVERSATION)
        assert [*directory.iterdir()] == [path]
        assert path.read_bytes() == before


class TestLosses:
    def test_an_early_byte_that_changed(self, tmp_path: Path) -> None:
        """The date of yesterday: the conversation is the same behind it, so all of the file is lost."""
        directory = tmp_path / "kv"
        monday, tuesday = (b"<bos>Today is %s. " % day + CONVERSATION for day in (b"Monday", b"Tuesday"))
        save(directory, monday[:-20], 150)
        anchor = save(directory, tuesday[:80], 129)
        found = asked(directory, tuesday)
        assert found["start"]["path"] == str(anchor)
        (loss,) = found["losses"]
        assert (loss["byte"], loss["same_conversation"], loss["lost_tokens"]) == (14, True, 21)
        assert loss["in_prompt"] == tuesday[:34].decode()
        assert loss["in_file"] == monday[:34].decode()
        picture = kvtool("why", directory, "--prompt", tmp_path / "prompt.bin", "--min-tokens", 1).out
        assert "  prompt  <bos>Today is Tuesday" in picture
        assert "  file    <bos>Today is Monday" in picture
        assert f"{' ' * (10 + 14)}^ byte 14" in picture
        assert "21 tokens lost: behind this byte it is the same conversation again" in picture

    def test_another_conversation_from_some_byte_on(self, tmp_path: Path) -> None:
        save(tmp_path / "kv", CONVERSATION[:300] + b"Another turn" * 30, 330)
        (loss,) = asked(tmp_path / "kv", CONVERSATION)["losses"]
        assert (loss["byte"], loss["same_conversation"]) == (300, False)
        assert loss["lost_tokens"] == 330 * 300 // 660

    def test_a_file_that_goes_on_behind_the_prompt(self, tmp_path: Path) -> None:
        save(tmp_path / "kv", CONVERSATION, 200)
        (loss,) = asked(tmp_path / "kv", CONVERSATION[:-10])["losses"]
        assert loss["reason"] == f"the text goes on where the prompt ends, at byte {len(CONVERSATION) - 10}"

    @pytest.mark.parametrize(
        ("change", "options", "reason"),
        [
            ({}, ("--min-tokens", 512), "below 512 tokens"),
            ({}, ("--ctx", 128), "ctx: 130 tokens do not fit into 128"),
            ({"quant_bits": 4}, ("--quant", 2, "--reject-different-quant"), "quant 4"),
            ({"payload_abi": 9}, (), "payload ABI 9"),
            ({"payload_abi": 1}, (), "payload ABI 1"),
            ({"model_id": 4}, (), "another dialect: model byte 4"),
        ],
    )
    def test_refused(self, tmp_path: Path, change: dict[str, int], options: tuple[object, ...], reason: str) -> None:
        save(tmp_path / "kv", CONVERSATION[:300], **change)
        found = asked(tmp_path / "kv", CONVERSATION, *options)
        assert found["start"] is None
        assert reason in found["losses"][0]["reason"]
        assert found["losses"][0]["lost_tokens"] == 130

    def test_another_quant_is_taken_unless_it_is_rejected(self, tmp_path: Path) -> None:
        save(tmp_path / "kv", CONVERSATION[:300], quant_bits=4)
        assert asked(tmp_path / "kv", CONVERSATION, "--quant", 2)["start"]

    def test_another_models_weights(self, tmp_path: Path) -> None:
        ours, theirs = save(tmp_path / "kv", CONVERSATION[:200], last_used=1_800_000_000), save(
            tmp_path / "kv", CONVERSATION[:300], 150
        )  # fmt: skip
        update_sidecar(ours, fingerprint="aa")
        update_sidecar(theirs, fingerprint="bb")
        found = asked(tmp_path / "kv", CONVERSATION)
        assert found["start"]["path"] == str(ours)
        assert found["losses"][0]["reason"] == "other weights"

    def test_a_server_of_other_weights_than_the_file_used_last(self, tmp_path: Path) -> None:
        """Only its model file can say whose it is: shape and quant bits are the same."""
        pytest.importorskip("torch")
        from kvengine import identify

        ours = save(tmp_path / "kv", CONVERSATION[:200], shape=TINY)
        theirs = save(tmp_path / "kv", CONVERSATION[:300], 150, last_used=1_800_000_000, shape=TINY)
        update_sidecar(ours, fingerprint=identify(MODEL).fingerprint)
        update_sidecar(theirs, fingerprint="bb")
        assert asked(tmp_path / "kv", CONVERSATION)["start"]["path"] == str(theirs)
        found = asked(tmp_path / "kv", CONVERSATION, "--model", MODEL)
        assert found["server"]["fingerprint"] == identify(MODEL).fingerprint
        assert found["start"]["path"] == str(ours)
        assert [loss["reason"] for loss in found["losses"]] == ["other weights"]

    def test_a_name_that_is_not_the_hash(self, tmp_path: Path) -> None:
        path = save(tmp_path / "kv", CONVERSATION[:300])
        path.rename(path.with_name(f"{text_key(b'token ids')}.kv"))
        assert "not the SHA1" in asked(tmp_path / "kv", CONVERSATION)["losses"][0]["reason"]

    def test_truncated(self, tmp_path: Path) -> None:
        path = save(tmp_path / "kv", CONVERSATION[:300])
        path.write_bytes(path.read_bytes()[:-100])
        assert "the file ends inside the payload" in asked(tmp_path / "kv", CONVERSATION)["losses"][0]["reason"]

    def test_stripped(self, tmp_path: Path) -> None:
        made = contents(CONVERSATION[:300])
        path = save(tmp_path / "kv", CONVERSATION[:300])
        path.write_bytes(built(replace(made, header=made.header.with_sizes(300, 0), payload=None)))
        assert asked(tmp_path / "kv", CONVERSATION)["losses"][0]["reason"].startswith("stripped")

    def test_the_zoo(self, tmp_path: Path) -> None:
        """Each in turn beside a sound file: never a traceback, and the sound file is always found."""
        directory = tmp_path / "kv"
        for specimen in zoo():
            good = save(directory, b"Hello.\nWorld, and more", 131, last_used=1_900_000_000)
            (directory / specimen.file_name).write_bytes(specimen.data)
            found = asked(directory, b"Hello.\nWorld, and more of it")
            assert found["start"]["path"] == str(good), specimen.name
            for path in directory.iterdir():
                path.unlink()


class TestDirectories:
    def test_empty(self, tmp_path: Path) -> None:
        (tmp_path / "kv").mkdir()
        found = asked(tmp_path / "kv", CONVERSATION)
        assert (found["start"], found["losses"], found["examined"]) == (None, [], 0)
        assert found["server"]["shape"] == "flash"

    def test_five_thousand_files_are_all_looked_at(self, tmp_path: Path) -> None:
        """The nearest miss is the one that was used longest ago."""
        directory = tmp_path / "kv"
        save_many(directory, (b"%04d" % number + CONVERSATION[:60] for number in range(4998)))
        hit = save(directory, CONVERSATION[:100], 128)
        miss = save(directory, CONVERSATION[:500] + b"other words" * 10, 400, last_used=1)
        found = asked(directory, CONVERSATION, "--shape", "0,4,128")
        assert found["examined"] == 5000
        assert found["start"]["path"] == str(hit)
        assert [(loss["path"], loss["byte"]) for loss in found["losses"]] == [(str(miss), 500)]

    def test_no_such_directory(self, tmp_path: Path) -> None:
        file = tmp_path / "prompt"
        file.write_bytes(b"x")
        run = kvtool("why", tmp_path / "no", "--prompt", file)
        assert (run.code, run.err) == (3, f"kvtool: {tmp_path / 'no'}: is not a directory\n")
        assert not (tmp_path / "no").exists()

    def test_the_model_is_that_of_the_file_used_last(self, tmp_path: Path) -> None:
        save(tmp_path / "kv", b"old", 130, last_used=1, quant_bits=2)
        save(tmp_path / "kv", b"new", 130, last_used=1_800_000_000, quant_bits=4, shape=replace(SMALL, ratios=(4, 4)))
        assert open_reader(tmp_path / "kv", Knobs()).identity == Identity(
            replace(SMALL, ratios=(4, 4), name="2-layer"), 4
        )


class TestBadInput:
    def test_one_source_is_needed(self, tmp_path: Path) -> None:
        file = tmp_path / "x"
        file.write_bytes(b"x")
        for options in ((), ("--prompt", file, "--trace", file)):
            run = kvtool("why", tmp_path, *options)
            assert run.code == 2
            assert "give one of --prompt, --request and --trace" in run.err

    def test_no_request(self, tmp_path: Path) -> None:
        file = tmp_path / "x"
        for body in (b"no json", b"{}", b'{"messages": 3}'):
            file.write_bytes(body)
            run = kvtool("why", tmp_path, "--request", file)
            assert run.code == 3
            assert "cannot be used as a request: " in run.err

    def test_no_trace(self, restart: Path, tmp_path: Path) -> None:
        file = tmp_path / "x"
        file.write_bytes(b"no trace")
        run = kvtool("why", tmp_path, "--trace", file)
        assert run.code == 3
        assert "give a file that ds4-server wrote with --trace" in run.err
        run = kvtool("why", tmp_path, "--trace", restart / RESTARTS[0] / "run.trace", "--number", 9)
        assert run.code == 3
        assert "no request 9 with a rendered prompt in this trace; it has 1, 2, 3" in run.err

    def test_a_prompt_that_quotes_a_trace(self, tmp_path: Path) -> None:
        quoted = b"\n\n--- generated text ---\n\n===== request 7 of mine =====\n"
        prompt = b"<bos>" + quoted + b"<think>"
        head = (
            b"\n===== request 1 2026-11-30 15:33:39 =====\nkind: chat\n\n--- cache decision ---\ncache_source: none\n"
        )
        file = tmp_path / "trace"
        file.write_bytes(
            head + b"cached_tokens: 0\n\n--- rendered prompt ---\n" + prompt + b"\n\n--- generated text ---\n\nHi"
        )
        found = kvtool("why", tmp_path, "--trace", file, "--json").json
        assert (found["prompt_bytes"], found["traced"]["cache_source"]) == (len(prompt), "none")
