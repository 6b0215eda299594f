"""`--tool-preamble auto`: a request with tools is written as the directory's files are, so that it is found in them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from conftest import TINY
from kvformat.checkpoint import Checkpoint
from kvformat.inplace import touch
from kvformat.sidecar import update_sidecar
from kvprompt.markers import Preamble, preamble_of
from server.rig import Rig, rig

NOW = 1_900_000_000
MAY, AUGUST = "kv/tools_q2", "current/kv/tools_q2"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
PATHS = {"chat": "/v1/chat/completions", "anthropic": "/v1/messages", "responses": "/v1/responses"}


def conversation(dialect: str, *said: tuple[str, str]) -> tuple[str, dict[str, Any]]:
    """A request with one tool in each dialect that has tools, thinking off."""
    messages = [{"role": role, "content": text} for role, text in said]
    if dialect == "anthropic":
        tool = {"name": "look", "input_schema": TOOL["function"]["parameters"]}
        return PATHS[dialect], {
            "messages": messages,
            "tools": [tool],
            "max_tokens": 8,
            "thinking": {"type": "disabled"},
        }
    if dialect == "responses":
        tool = {"type": "function", **TOOL["function"]}
        return PATHS[dialect], {
            "input": messages,
            "tools": [tool],
            "max_output_tokens": 8,
            "reasoning": {"effort": "none"},
        }
    return PATHS[dialect], {"messages": messages, "tools": [TOOL], "max_tokens": 8, "model": "deepseek-chat"}


def wordings(server: Rig) -> set[Preamble | None]:
    """Those of the texts on disk that are long enough to have one."""
    found = set()
    for path in server.files:
        with Checkpoint.open(path, (TINY,)) as checkpoint:
            found.add(preamble_of(checkpoint.text()))
    return found - {None}


def plant(golden_kv: Path, source: str, target: Path, used: int) -> list[Path]:
    """The real server's files of one wording, all used at that time."""
    target.mkdir(exist_ok=True)
    planted = []
    for path in sorted((golden_kv / source).glob("*.kv")):
        planted.append(Path(shutil.copy(path, target)))
        touch(planted[-1], used)
    assert planted
    return planted


def test_an_empty_directory_gets_augusts(tmp_path: Path) -> None:
    with rig(tmp_path) as server:
        assert "tool preamble of 2026-08 (the newest; no file has another)" in server.driver.describe()
        server.says = ["Yes."]
        server.ask(*conversation("chat", ("user", "Is it there?")))
        assert wordings(server) == {Preamble.AUGUST}


def test_so_does_one_of_may_without_tools(golden_kv: Path, tmp_path: Path) -> None:
    plant(golden_kv, "kv/basic_q2", tmp_path, NOW)
    with rig(tmp_path) as server:
        assert "tool preamble of 2026-08 (the newest; no file has another)" in server.driver.describe()


def test_without_a_directory_augusts() -> None:
    with rig() as server:
        assert "no kv directory; tool preamble of 2026-08 (" in server.driver.describe()


@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize("told", Preamble)
def test_a_request_is_found_in_a_directory_of_either_wording(dialect: str, told: Preamble, tmp_path: Path) -> None:
    with rig(tmp_path, tool_preamble=told.value) as server:
        assert f"tool preamble of {told} (--tool-preamble)" in server.driver.describe()
        server.says = ["Yes."]
        first = server.ask(*conversation(dialect, ("user", "Is it there?")))
    with rig(tmp_path) as server:
        assert f"tool preamble of {told} (that of " in server.driver.describe()
        server.says = ["No."]
        again = server.ask(
            *conversation(dialect, ("user", "Is it there?"), ("assistant", "Yes."), ("user", "And there?"))
        )
        assert 0 < first.usage.prompt - again.usage.cached < 12  # what the cold save leaves out
        assert wordings(server) == {told}


class TestMixed:
    """The real server's files of both wordings in one directory."""

    @pytest.mark.parametrize(("older", "newer", "wording"), [(AUGUST, MAY, "2026-05"), (MAY, AUGUST, "2026-08")])
    def test_the_file_used_last_decides(
        self, older: str, newer: str, wording: str, golden_kv: Path, tmp_path: Path
    ) -> None:
        plant(golden_kv, older, tmp_path, NOW)
        last = plant(golden_kv, newer, tmp_path, NOW + 1)
        plant(golden_kv, "kv/basic_q2", tmp_path, NOW + 2)  # no tools: these say nothing
        with rig(tmp_path) as server:
            line = server.driver.describe()
            assert f"tool preamble of {wording} (that of " in line
            assert any(path.name in line for path in last)

    def test_a_file_that_is_not_this_models_decides_nothing(self, golden_kv: Path, tmp_path: Path) -> None:
        plant(golden_kv, AUGUST, tmp_path, NOW)
        for path in plant(golden_kv, MAY, tmp_path, NOW + 1):
            update_sidecar(path, fingerprint="aa")
        with rig(tmp_path) as server:
            assert "tool preamble of 2026-08 (that of " in server.driver.describe()

    def test_nor_does_one_of_another_dialect_or_name(self, golden_kv: Path, tmp_path: Path) -> None:
        plant(golden_kv, AUGUST, tmp_path, NOW)
        named, foreign = plant(golden_kv, MAY, tmp_path, NOW + 1)[:2]
        for path in plant(golden_kv, MAY, tmp_path, NOW + 1)[2:]:
            path.unlink()
        named.rename(tmp_path / "sysprompt.kv")
        data = bytearray(foreign.read_bytes())
        data[20] = 4  # a payload ABI of the forks
        foreign.write_bytes(data)
        with rig(tmp_path) as server:
            assert "tool preamble of 2026-08 (that of " in server.driver.describe()
