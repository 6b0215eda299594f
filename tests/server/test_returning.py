"""Retry, edit or another conversation: a table of what clients do, on conversations as they are rendered."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprompt.markers import ASSISTANT, BOS, EOS, UNTHINK, USER, tool_result
from kvserver.returning import Return, returns_as

SYSTEM = "You are a coding agent. "
PAIR = tuple[str, str | None]  # what the client said, and the answer; None: it is asked for


def rendered(*turns: PAIR, system: str = SYSTEM) -> bytes:
    """A conversation; without turns only its preamble."""
    text = BOS + system
    for said, answer in turns:
        text += USER + said + ASSISTANT + UNTHINK + ("" if answer is None else answer + EOS)
    return text.encode()


def shared(one: bytes, other: bytes) -> int:
    """Where a point would stand: the last marker up to which both are equal."""
    common = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return common if common in (len(one), len(other)) else max(0, one.rfind("<｜".encode(), 0, common + 1))


A, B, C = ("list the files", "a.py"), ("read a.py", "import os"), ("run it", "done")
ENV = ("<environment>linux</environment>", None)
CALL = ("fix the bug", "<call>")
LOOP = [CALL, (tool_result("ok"), "<call>"), (tool_result("passed"), "Fixed.")]

CASES: list[tuple[str, Sequence[PAIR], Sequence[PAIR], Return]] = [
    ("the next turn", [A], [A, ("read a.py", None)], Return.CONTINUES),
    ("the next turn of a long one", [A, B, C], [A, B, C, ("again", None)], Return.CONTINUES),
    ("a retry", [A], [("list the files", None)], Return.RETRIES),
    ("a retry of the last of several", [A, B, C], [A, B, ("run it", None)], Return.RETRIES),
    ("going back to an earlier answer", [A, B, C], [A, ("read a.py", None)], Return.RETRIES),
    ("a retry within a tool loop", LOOP, [*LOOP[:2], (tool_result("passed"), None)], Return.RETRIES),
    ("a retry of the task of a tool loop", LOOP, [("fix the bug", None)], Return.RETRIES),
    ("an answer that the client gives back in other words", [A, B], [A, ("read a.py", "import os, sys"), ("go", None)],
     Return.RETRIES),
    ("the last message edited", [A, B], [A, ("read b.py", None)], Return.EDITS),
    ("the last message of a tool loop edited", [A, *LOOP], [A, ("fix the other bug", None)], Return.EDITS),
    ("a tool that was run again", LOOP, [CALL, (tool_result("failed"), None)], Return.EDITS),
    ("another first message", [A], [("write a test", None)], Return.PARTS),
    ("another conversation, further on", [A, B], [("write a test", "def test"), ("run it", None)], Return.PARTS),
    ("the same environment, another task", [ENV, A, B], [ENV, ("write a test", None)], Return.PARTS),
    ("an edit that abandons several turns", [A, B, C], [A, ("read b.py", None)], Return.PARTS),
    ("a fork that comes back", [A, ("read b.py", "x = 1")], [A, B, ("run it", None)], Return.PARTS),
    ("the same task done twice", [*LOOP], [CALL, (tool_result("no"), "<call>"), (tool_result("oh"), None)], Return.PARTS),
]  # fmt: skip


@pytest.mark.parametrize(("held", "asked", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_clients_do(held: Sequence[PAIR], asked: Sequence[PAIR], expected: Return) -> None:
    ours, prompt = rendered(*held), rendered(*asked)
    assert returns_as(prompt, ours, shared(ours, prompt)) is expected


@pytest.mark.parametrize("system", ["You are a reviewer. ", SYSTEM + "Today is Monday. "])
def test_another_preamble_is_another_conversation(system: str) -> None:
    ours, prompt = rendered(A, B), rendered(A, B, ("go on", None), system=system)
    assert returns_as(prompt, ours, shared(ours, prompt)) is Return.PARTS


words = st.text("abc ", min_size=1, max_size=6)
turns = st.lists(st.tuples(words, words), min_size=1, max_size=5)


@given(turns, st.integers(0, 4), st.integers(0, 400))
def test_no_retry_parts_wherever_its_point_stands(held: list[tuple[str, str]], back: int, point: int) -> None:
    kept = held[: len(held) - min(back, len(held) - 1)]
    ours, prompt = rendered(*held), rendered(*kept[:-1], (kept[-1][0], None))
    assert returns_as(prompt, ours, min(point, len(prompt))) is Return.RETRIES


@given(turns, turns, st.integers(0, 400))
def test_who_has_answers_to_another_first_message_parts(
    held: list[tuple[str, str]], other: list[tuple[str, str]], point: int
) -> None:
    ours, prompt = rendered(("x", "y"), *held), rendered(("z", "y"), *other, ("more", None))
    assert returns_as(prompt, ours, min(point, shared(ours, prompt))) is Return.PARTS
