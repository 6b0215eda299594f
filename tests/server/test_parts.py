"""The pure parts of serving: bytes to tokens, where a prefill pauses, what a stop string hides."""

from __future__ import annotations

import queue

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvformat.policy import Knobs
from kvprompt.conversation import Conversation, Dialect, Message, Sampling, Thinking
from kvprompt.events import Text
from kvprompt.markers import ASSISTANT, BOS, USER
from kvprompt.render import Style, render
from kvserver.generation import Shower
from kvserver.places import cold_points, frontiers, returns
from kvserver.track import Track
from kvserver.wire import Job

CONVERSATION = Conversation(
    Dialect.CHAT,
    "m",
    (
        Message("system", "Be brief. " * 10),
        Message("user", "2+2?"),
        Message("assistant", "4"),
        Message("user", "3+3?"),
        Message("assistant", "6"),
        Message("user", "4+4?"),
    ),
    thinking=Thinking.OFF,
)


def byte_track(text: bytes, start: int = 0) -> Track:
    """One token per byte."""
    track = Track(start, start)
    track.extend([1] * (len(text) - start))
    return track


class TestTrack:
    @given(st.integers(0, 50), st.integers(0, 500), st.lists(st.integers(1, 9), max_size=60), st.data())
    def test_a_byte_lies_between_its_token_and_the_next(
        self, tokens: int, start: int, lengths: list[int], data: st.DataObject
    ) -> None:
        track = Track(tokens, start)
        track.extend(lengths)
        byte = data.draw(st.integers(0, start + sum(lengths) + 5))
        position = track.position(byte)
        if byte < start:
            assert position is None
            return
        assert position is not None and track.byte(position) <= byte
        assert position == track.tokens or byte < track.byte(position + 1)

    def test_tokens_and_bytes_add_up(self) -> None:
        track = Track(7, 30)
        track.extend([2, 3])
        track.extend([4])
        assert (track.tokens, track.nbytes, track.byte(7), track.byte(9)) == (10, 39, 30, 35)


class TestPlaces:
    def test_a_client_may_return_to_the_end_to_the_open_answer_and_to_its_last_two_turns(self) -> None:
        prompt = render(CONVERSATION, Style(4096))
        texts = [prompt.text[:position].decode() for position in returns(prompt, byte_track(prompt.text))]
        assert texts[0] == prompt.text.decode()
        assert [text.rpartition("?")[0][-3:] for text in texts[1:3]] == ["4+4", "3+3"]
        assert texts[1].endswith("4+4?") and texts[2].endswith("6<｜end▁of▁sentence｜>")
        assert texts[3].endswith("4<｜end▁of▁sentence｜>")

    def test_what_was_restored_is_no_place(self) -> None:
        prompt = render(CONVERSATION, Style(4096))
        start = len(prompt.text) - 20
        assert min(returns(prompt, byte_track(prompt.text, start))) > start

    @pytest.mark.parametrize(
        ("prompt", "anchor"),
        [
            (f"{BOS}Be brief.{USER}a{ASSISTANT}", f"{BOS}Be brief."),
            (f"{BOS}Be brief.{USER}a{USER}b{ASSISTANT}c{USER}d{ASSISTANT}", f"{BOS}Be brief.{USER}a"),
            (f"{BOS}Be brief.{USER}a", f"{BOS}Be brief."),
            (f"{BOS}{ASSISTANT}a{USER}", ""),
            ("a completion", ""),
        ],
    )
    def test_the_anchor_is_the_last_user_marker_before_the_first_answer(self, prompt: str, anchor: str) -> None:
        text, knobs = prompt.encode(), Knobs(min_tokens=1, trim=0, align=0)
        saves = cold_points(text, byte_track(text), knobs, cached=0).saves
        assert saves[:-1] == ((len(anchor.encode()),) if anchor else ())

    def test_a_short_prompt_is_saved_whole_but_for_the_opened_answer(self) -> None:
        text = render(CONVERSATION, Style(4096)).text
        (save,) = cold_points(text, byte_track(text), Knobs(min_tokens=len(text) // 2), cached=0).saves
        assert text[save:] == "<｜Assistant｜></think>".encode()

    @given(st.integers(0, 50_000), st.integers(0, 50_000))
    def test_frontiers_are_the_multiples_of_the_step_within(self, start: int, length: int) -> None:
        knobs = Knobs()
        found = list(frontiers(start, start + length, knobs))
        assert found == [p for p in range(0, start + length + 1, knobs.step) if p > start]


class TestStopStrings:
    @given(st.text("abSTOP ", max_size=30), st.lists(st.integers(1, 5), max_size=30))
    def test_nothing_of_it_is_shown_however_the_bytes_come(self, text: str, cuts: list[int]) -> None:
        conversation = Conversation(
            Dialect.COMPLETION, "m", (), thinking=Thinking.OFF, sampling=Sampling(stop=("STOP",))
        )
        shower = Shower(Job(conversation, queue.Queue().put), render(conversation, Style(64)), str)
        data, shown = text.encode(), ""
        for cut in [*cuts, len(data)]:
            piece, data = data[:cut], data[cut:]
            shown += "".join(p.event.text for p in shower.feed(piece) if isinstance(p.event, Text))
            if shower.stop:
                break
        shown += "".join(p.event.text for p in shower.finish() if isinstance(p.event, Text))
        assert shown == text.split("STOP")[0]
        assert (shower.stop is not None) == ("STOP" in text)
