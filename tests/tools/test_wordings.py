"""Both wordings of the tool preamble in one directory: `doctor` says it, and `why` says when a lookup fails for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvprompt.dialects import PARSERS
from kvprompt.markers import Preamble
from kvprompt.render import Style, render
from kvtools.requesting import DIALECTS
from tools_kit import kvtool, save

SCHEMA = {"type": "object", "properties": {}}
FUNCTION = {"name": "look", "description": "Look at it.", "parameters": SCHEMA}
USER = {"role": "user", "content": "What is in the cache file? " * 12}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": [USER], "tools": [{"type": "function", "function": FUNCTION}]},
    "responses": {"input": [USER], "tools": [{"type": "function", **FUNCTION}]},
    "anthropic": {"messages": [USER], "tools": [{"name": "look", "input_schema": SCHEMA}], "max_tokens": 9},
}
MAY, AUGUST = Preamble


def text(dialect: str, wording: Preamble, **changes: Any) -> bytes:
    """The prompt as a server of this wording renders it."""
    body = json.dumps(BODIES[dialect] | changes).encode()
    return render(PARSERS[DIALECTS[dialect]](body), Style(32768, wording)).text


def why(directory: Path, dialect: str, *options: object) -> Any:
    file = directory.parent / "request.json"
    file.write_text(json.dumps(BODIES[dialect]))
    return kvtool("why", directory, "--request", file, "--dialect", dialect, "--min-tokens", 1, "--json", *options).json


class TestDoctor:
    def test_both_are_told_with_the_files_that_are_not_found(self, tmp_path: Path) -> None:
        kv = tmp_path / "kv"
        old = [save(kv, text(dialect, MAY)[:-20], last_used=1_800_000_000) for dialect in ("chat", "anthropic")]
        save(kv, text("chat", AUGUST)[:-20], last_used=1_800_000_001)
        save(kv, b"no tools", last_used=1_800_000_002)
        (ailment,) = (a for a in kvtool("doctor", kv, "--json").json["ailments"] if a["code"] == "mixed-wordings")
        assert ailment["severity"] == "note"
        assert "2 files the wording of 2026-05 and 1 files the wording of 2026-08" in ailment["message"]
        assert "here 2026-08" in ailment["remedy"] and "--tool-preamble" in ailment["remedy"]
        assert set(ailment["files"]) == {path.name for path in old}

    @pytest.mark.parametrize("wording", Preamble)
    def test_one_is_not(self, wording: Preamble, tmp_path: Path) -> None:
        for dialect in BODIES:
            save(tmp_path / "kv", text(dialect, wording))
        save(tmp_path / "kv", b"no tools")
        assert "mixed-wordings" not in kvtool("doctor", tmp_path / "kv").out


@pytest.mark.parametrize("dialect", BODIES)
class TestWhy:
    @pytest.mark.parametrize("wording", Preamble)
    def test_by_itself_it_asks_in_the_directorys(self, dialect: str, wording: Preamble, tmp_path: Path) -> None:
        path = save(tmp_path / "kv", text(dialect, wording)[:-20])
        found = why(tmp_path / "kv", dialect)
        assert (found["start"]["path"], found["tool_preamble"]) == (str(path), wording)

    @pytest.mark.parametrize(("theirs", "ours"), [(MAY, AUGUST), (AUGUST, MAY)])
    def test_the_other_is_named(self, dialect: str, theirs: Preamble, ours: Preamble, tmp_path: Path) -> None:
        save(tmp_path / "kv", text(dialect, theirs)[:-20])
        found = why(tmp_path / "kv", dialect, "--tool-preamble", ours)
        (loss,) = found["losses"]
        assert (found["start"], found["tool_preamble"]) == (None, ours)
        assert loss["reason"].startswith(f"the text differs at byte {loss['byte']}: its tool preamble has the wording")
        assert f"wording of {theirs}, the prompt that of {ours}; see the server's --tool-preamble" in loss["reason"]
        assert (loss["same_conversation"], loss["lost_tokens"], loss["field"]) == (True, 130, None)

    def test_a_difference_elsewhere_is_no_matter_of_the_wording(self, dialect: str, tmp_path: Path) -> None:
        save(tmp_path / "kv", text(dialect, AUGUST).replace(b"cache", b"other"))
        save(tmp_path / "kv", b"\xff" + text(dialect, MAY))
        found = why(tmp_path / "kv", dialect, "--tool-preamble", AUGUST)
        assert found["losses"] and not any("wording" in loss["reason"] for loss in found["losses"])
