"""docs/troubleshooting.md: each situation is built here, and each command of the page is run in it and prints what it says."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from console import steps
from kvprompt.dialects import parse_chat
from kvprompt.markers import Preamble
from kvprompt.render import Style, render
from tools_kit import save

PAGE = (Path(__file__).parents[2] / "docs/troubleshooting.md").read_text()
DEAD = 2**22 + 1  # above every process id of Linux and macOS
EOS = "<｜end▁of▁sentence｜>".encode()


SECTIONS = {title: steps(body) for title, body in re.findall(r"^## \d+\. (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)}


# ---- the situations

SYSTEM = "You are an agent. " + "These are the rules that never change. " * 30


def chat(folder: Path, system: str, user: str = "What is to be done?") -> bytes:
    """Put a request there; returns the prompt that it renders to."""
    body = json.dumps({"messages": [{"role": "system", "content": system}, {"role": "user", "content": user}]})
    (folder / "request.json").write_text(body)
    return render(parse_chat(body.encode()), Style(context=32768)).text


def saved(folder: Path, text: bytes, tokens: int, **options: Any) -> Path:
    return save(folder / "kv", text, tokens, ctx=131072, **options)


def stale_anchor(folder: Path) -> None:
    rules = "More rules, which come behind it. " * 30
    yesterday = chat(folder, f"{SYSTEM}Today's date: 2026-11-30\n{rules}")
    saved(folder, yesterday[: yesterday.index(b"What is")], 2000)
    today = chat(folder, f"{SYSTEM}Today's date: 2026-12-01\n{rules}")
    saved(folder, today[: today.index(b"Today")], 600)


def changing_byte(folder: Path) -> None:
    saved(folder, chat(folder, f"Session: 93ab. {SYSTEM}"), 900)
    chat(folder, f"Session: 7f01. {SYSTEM}")


def other_quant(folder: Path) -> None:
    saved(folder, chat(folder, SYSTEM), 600, quant_bits=4)


def larger_ctx(folder: Path) -> None:
    saved(folder, chat(folder, SYSTEM), 40_000)


def other_abi(folder: Path) -> None:
    path = saved(folder, b"x", 600)
    path.write_bytes(old_generation(path.read_bytes()))


def old_generation(data: bytes) -> bytes:
    """The same state as a build before 2026-05-26 writes it: header byte 20 and payload word 1 (FORMAT 9)."""
    payload = 52 + int.from_bytes(data[48:52], "little")
    return data[:20] + b"\0" + data[21 : payload + 4] + b"\1" + data[payload + 5 :]


def unfed_eos(folder: Path) -> None:
    saved(folder, chat(folder, SYSTEM) + b"</think>Nothing." + EOS, 600, key_kind="thinking-visible")


def truncated(folder: Path) -> None:
    path = saved(folder, chat(folder, SYSTEM), 600)
    path.write_bytes(path.read_bytes()[:-1000])


def full_budget(folder: Path) -> None:
    for number in range(3):
        saved(folder, b"Conversation %d" % number, 40_000)


def dead_writer(folder: Path) -> None:
    path = saved(folder, chat(folder, SYSTEM), 600)
    temp = path.with_name(f"{path.name}.tmp.{DEAD}")
    temp.write_bytes(b"KVC half of a file")
    os.utime(temp, (1_790_000_000, 1_790_000_000))


def two_servers(folder: Path) -> None:
    path = saved(folder, chat(folder, SYSTEM), 600)
    for pid in (1, os.getpid()):
        path.with_name(f"{path.name}.tmp.{pid}").write_bytes(b"KVC half of a file")


def two_wordings(folder: Path) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    for number, wording in enumerate(Preamble):
        asked = json.dumps({"messages": [{"role": "user", "content": SYSTEM + wording}], "tools": [tool]}).encode()
        text = render(parse_chat(asked), Style(context=32768, preamble=wording)).text
        saved(folder, text, 900, last_used=1_800_000_000 + number)
        if wording is Preamble.MAY:
            (folder / "request.json").write_bytes(asked)


SITUATIONS: dict[str, Callable[[Path], None]] = {
    "A stale anchor": stale_anchor,
    "An early byte that changes with every request": changing_byte,
    "Files of another quantisation": other_quant,
    "Files of a larger context": larger_ctx,
    "Files of another payload ABI": other_abi,
    "A key that ends in an EOS that the state was not fed": unfed_eos,
    "A truncated file": truncated,
    "A budget that is full": full_budget,
    "Temps of writers that are gone": dead_writer,
    "Two servers on one directory": two_servers,
    "Two wordings of the tool preamble": two_wordings,
}


def test_the_page_and_the_situations_are_the_same() -> None:
    assert [*SECTIONS] == [*SITUATIONS]


@pytest.mark.parametrize("title", SITUATIONS)
def test_what_a_person_types_finds_it(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SECTIONS[title], "the page has no command for it"
    SITUATIONS[title](tmp_path)
    monkeypatch.chdir(tmp_path)
    for step in SECTIONS[title]:
        step.check()
