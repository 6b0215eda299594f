"""The recogniser: any cut of a stream tells the same, sound calls come through, broken markup is text with a reason."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvprompt.canonical import VALUE_END, write_block
from kvprompt.conversation import ToolCall, Turn
from kvprompt.dsml import Recogniser
from kvprompt.events import Arguments, CallStart, Event, Reasoning, Text, collect
from kvprompt.markers import DSML, SPELLINGS
from kvprompt.rawjson import quote
from kvprompt.stream import MAX_TAG
from prompt import sampled as streams


def told(pieces: list[bytes], *, thinking: bool, tools: bool = True) -> tuple[list[Event], list[bool]]:
    """The events, neighbouring pieces of one run joined, and whether the token after each piece is syntax."""
    recogniser, events, syntax = Recogniser(thinking=thinking, tools=tools), [], []
    for piece in pieces:
        events += recogniser.feed(piece)
        syntax.append(recogniser.syntax)
    joined: list[Event] = []
    for event in events + recogniser.finish():
        last = joined[-1] if joined else None
        if isinstance(event, Text | Reasoning) and type(last) is type(event):
            joined[-1] = type(event)(last.text + event.text)
        elif isinstance(event, Arguments) and isinstance(last, Arguments) and last.index == event.index:
            joined[-1] = Arguments(event.index, last.text + event.text)
        else:
            joined.append(event)
    return joined, syntax


def turn_of(sampled: str, *, thinking: bool = False, tools: bool = True) -> Turn:
    return collect(told([sampled.encode()], thinking=thinking, tools=tools)[0])


def block(body: str, spelling: str = DSML) -> str:
    return f"<{DSML}tool_calls>{body}</{DSML}tool_calls>".replace(DSML, spelling)


INVOKE = f'<{DSML}invoke name="f"><{DSML}parameter name="a" string="true">1</{DSML}parameter></{DSML}invoke>'
CALL = (ToolCall("", "f", '{"a":"1"}'),)


@given(streams.streams(), st.booleans(), st.booleans())
@example(b"<" + b"x" * (MAX_TAG + 5), False, True)
@example(f"<{DSML}tool_calls><{DSML}invoke {'x' * MAX_TAG}>".encode(), False, True)
@example(b"<think><think>a</think>b", True, True)
@example(b"\xe5\xa4 \xa9<tool_calls>", True, True)
def test_every_cut_in_two_tells_the_same(sampled: bytes, thinking: bool, tools: bool):
    whole = told([sampled], thinking=thinking, tools=tools)[0]
    for at in (
        range(len(sampled) + 1) if len(sampled) < 1000 else (1, MAX_TAG - 1, MAX_TAG, MAX_TAG + 1, len(sampled) - 1)
    ):
        assert told([sampled[:at], sampled[at:]], thinking=thinking, tools=tools)[0] == whole


@given(streams.streams(), st.booleans(), st.lists(st.integers(0, 400), max_size=12))
def test_cuts_down_to_bytes_tell_the_same(sampled: bytes, thinking: bool, cuts: list[int]):
    whole = told([sampled], thinking=thinking)[0]
    single, after_byte = told([bytes([byte]) for byte in sampled], thinking=thinking)
    assert single == whole
    edges = [0, *sorted(cut for cut in cuts if cut <= len(sampled)), len(sampled)]
    pieces = [sampled[start:end] for start, end in pairwise(edges)]
    events, after_piece = told(pieces, thinking=thinking)
    assert events == whole
    assert all(after == after_byte[end - 1] for after, end in zip(after_piece, edges[1:], strict=True) if end)


@given(streams.streams())
def test_nothing_that_was_said_is_lost(sampled: bytes):
    turn = collect(told([sampled], thinking=False)[0])
    if not turn.block:
        shown = turn.content + turn.reasoning
        assert len(shown) >= len(sampled.decode("utf-8", "replace")) - len("<think></think>")
    else:
        assert sampled.startswith(b"<think>") or (
            turn.content.encode() + turn.block in sampled or "\ufffd" in turn.content
        )


@given(st.lists(st.tuples(streams.names, streams.arguments), min_size=1, max_size=3), streams.space, streams.text)
def test_what_is_written_is_recognised(calls: list[tuple[str, dict]], space: str, said: str):
    given_calls = [ToolCall(f"id{at}", name, json.dumps(args)) for at, (name, args) in enumerate(calls)]
    written = space + write_block(given_calls)
    turn = turn_of("." + said + "." + written)
    assert turn.content == "." + said + "."
    assert turn.block == written.encode()
    assert [call.name for call in turn.calls] == [name for name, _ in calls]
    assert [json.loads(call.arguments) for call in turn.calls] == [args for _, args in calls]
    assert [list(json.loads(call.arguments)) for call in turn.calls] == [list(args) for _, args in calls]


@given(streams.block(), streams.space, st.sampled_from(("", "Hi", "a<b")))
def test_text_and_block_give_back_the_sampled_bytes(sampled: str, space: str, said: str):
    turn = turn_of(said + space + sampled)
    assert turn.content.encode() + turn.block == (said + space + sampled).encode()
    assert not turn.faults
    for call in turn.calls:
        assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings(spelling: str):
    assert turn_of("Hi\n" + block(INVOKE, spelling)).calls == CALL


class TestThinkingThatWasNotAskedFor:
    """A prompt that closed thinking, and a model that thinks all the same. The first end of thinking tells."""

    @pytest.mark.parametrize("tools", [False, True])
    @pytest.mark.parametrize(
        ("sampled", "reasoning", "content"),
        [
            ("Two and two.</think>Four.", "Two and two.", "Four."),
            ("Two and two.\n\n</think>\n\nFour.", "Two and two.\n\n", "\n\nFour."),
            ("</think>Four.", "", "Four."),
            ("Two and two.</think>", "Two and two.", ""),
            ("a</think>b</think>c", "a", "b</think>c"),
            ("<think>Two and two.</think>Four.", "Two and two.", "Four."),
            ("Sure. <think>Two and two.</think>Four.", "Sure. <think>Two and two.", "Four."),
            ("Sure. <think>Two and two.", "", "Sure. <think>Two and two."),
            ("Two and two.</thin k>Four.", "", "Two and two.</thin k>Four."),
        ],
    )
    def test_what_stands_before_it_is_reasoning(self, sampled: str, reasoning: str, content: str, tools: bool):
        assert turn_of(sampled, tools=tools) == Turn(reasoning, content)

    def test_a_call_behind_it_is_a_call(self):
        turn = turn_of("Let me see.</think>I look.\n\n" + block(INVOKE))
        assert turn == Turn("Let me see.", "I look.", CALL, ("\n\n" + block(INVOKE)).encode())

    def test_a_call_before_it_ends_the_turn(self):
        assert turn_of(f"I look.{block(INVOKE)}</think>Done.") == Turn("", "I look.", CALL, block(INVOKE).encode())

    def test_inside_a_value_it_is_data(self):
        turn = turn_of(block(INVOKE.replace(">1<", ">1</think>2<")))
        assert (turn.reasoning, turn.calls[0].arguments) == ("", '{"a":"1</think>2"}')

    def test_broken_markup_before_it_was_thought_too(self):
        turn = turn_of(f"Like <{DSML}tool_calls>, see?</think>Done.")
        assert (turn.reasoning, turn.content) == (f"Like <{DSML}tool_calls>, see?", "Done.")
        assert turn.faults


class TestThinking:
    def test_a_call_in_open_thinking_ends_it(self):
        turn = turn_of(f"Let me see.\n{block(INVOKE)}\n", thinking=True)
        assert turn == Turn("Let me see.", "", CALL, ("\n" + block(INVOKE)).encode())

    @pytest.mark.parametrize("after", ["`, like this.</think>Done.", " and so on</think>Done.", "</think>Done."])
    def test_a_quoted_example_is_no_call(self, after: str):
        turn = turn_of(f"I write `{block(INVOKE)}{after}", thinking=True)
        assert turn.reasoning == f"I write `{block(INVOKE)}{after.removesuffix('</think>Done.')}"
        assert (turn.content, turn.calls) == ("Done.", ())

    def test_an_example_and_then_a_call(self):
        turn = turn_of(f"Like {block(INVOKE)} this.\n\n{block(INVOKE)}", thinking=True)
        assert (turn.reasoning, turn.calls) == (f"Like {block(INVOKE)} this.", CALL)

    def test_thinking_may_end_inside_broken_markup(self):
        cut = f'<{DSML}tool_calls><{DSML}invoke name="f"><{DSML}parameter name="a">oh'
        turn = turn_of(f"Hm {cut}</think>Done.", thinking=True)
        assert turn == Turn(f"Hm {cut}", "Done.")

    def test_a_repeated_opening_is_dropped(self):
        assert turn_of("<think>a</think>b", thinking=True) == Turn("a", "b")
        assert turn_of("<think>a</think>b", thinking=False) == Turn("a", "b")

    def test_never_closed(self):
        assert turn_of("a b ", thinking=True) == Turn("a b ", "")


class TestBroken:
    @pytest.mark.parametrize(
        ("markup", "reason"),
        [
            (f"<{DSML}tool_calls></{DSML}tool_calls>", "there is no call in it"),
            (block(INVOKE).replace('name="f"', "nom='f'"), "an invoke has no name"),
            (block(INVOKE).replace('name="a"', ""), "a parameter has no name"),
            (block("oops" + INVOKE), "something else came"),
            (block(INVOKE.replace(f"</{DSML}parameter>", "")), "a parameter does not end"),
            (f'<{DSML}tool_calls><{DSML}invoke name="f"', "a tag does not end"),
            (f"<{DSML}tool_calls>\n", "cut off"),
            (block(INVOKE + f'<{DSML}invoke name="g">').removesuffix(f"</{DSML}tool_calls>"), "cut off"),
        ],
    )
    def test_is_text_with_a_reason(self, markup: str, reason: str):
        turn = turn_of("Hi " + markup)
        assert (turn.content, turn.calls) == ("Hi " + markup, ())
        assert reason in turn.faults[0]

    def test_a_sound_block_may_follow(self):
        turn = turn_of(f"<{DSML}tool_calls>oops\n{block(INVOKE)}")
        assert turn.content == f"<{DSML}tool_calls>oops"
        assert turn.calls == CALL

    def test_only_the_end_of_the_block_is_missing(self):
        sampled = block(INVOKE).removesuffix("tool_calls>")
        turn = turn_of(sampled)
        assert turn == Turn(calls=CALL, block=sampled.encode())


class TestValues:
    @pytest.mark.parametrize(
        ("attribute", "value", "expected"),
        [
            (' string="true"', 'a &amp; b <&> \\ "', 'a &amp; b <&> \\ "'),
            ("", "no attribute", "no attribute"),
            (' string="true"', "&lt;" + VALUE_END[1:], VALUE_END),
            (' string="true"', "</parameter>", "</parameter>"),
            (' string="false"', ' [1, 2.50 , {"a" : "b c"}] ', [1, 2.5, {"a": "b c"}]),
            (' string="false"', "", None),
            (' string="false"', "not json", "not json"),
            (' string="false"', '"two\nlines"', "two\nlines"),
        ],
    )
    def test_come_through(self, attribute: str, value: str, expected: object):
        markup = f'<{DSML}invoke name="f"><{DSML}parameter name="a"{attribute}>{value}{VALUE_END}</{DSML}invoke>'
        assert json.loads(turn_of(block(markup)).calls[0].arguments) == {"a": expected}

    def test_an_object_may_be_spelled_out_in_parameters(self):
        leaf = f'<{DSML}parameter name="{{}}" string="{{}}">{{}}{VALUE_END}\n'
        inner = leaf.format("x", "true", "1") + leaf.format("y", "false", "[2]")
        outer = f'<{DSML}parameter name="o">\n{inner}{VALUE_END}' + leaf.format("z", "true", "")
        markup = f'<{DSML}invoke name="f">{outer}</{DSML}invoke>'
        assert turn_of(block(markup)).calls[0].arguments == '{"o":{"x":"1","y":[2]},"z":""}'
        deeper = block(markup.replace(' string="true">1', f'><{DSML}parameter name="p">1{VALUE_END}'))
        assert turn_of(deeper).content == deeper

    def test_the_spelling_of_a_number_is_kept(self):
        markup = f'<{DSML}invoke name="f"><{DSML}parameter name="a" string="false">1.50{VALUE_END}</{DSML}invoke>'
        assert turn_of(block(markup)).calls[0].arguments == '{"a":1.50}'

    def test_names_are_unescaped_and_values_told_as_they_come(self):
        recogniser = Recogniser(thinking=False)
        events = recogniser.feed(
            f'<{DSML}tool_calls><{DSML}invoke name="f&amp;g"><{DSML}parameter name="&lt;">ab'.encode()
        )
        assert events[0] == CallStart(0, "f&g")
        assert "".join(event.text for event in events if isinstance(event, Arguments)) == '{"<":"ab'


def test_without_tools_markup_is_text():
    assert turn_of(block(INVOKE), tools=False) == Turn(content=block(INVOKE))


def test_what_follows_a_block_is_dropped():
    recogniser = Recogniser(thinking=False)
    recogniser.feed((block(INVOKE) + " more").encode())
    assert recogniser.done
    assert recogniser.feed(b"and more") == [] == recogniser.finish()


def test_syntax_is_greedy_and_payload_is_not():
    """One letter per byte: whether the token after it is syntax (S). The closing tag's `<` is still payload."""
    text = f"Hi <{DSML}tool_calls>\n{INVOKE}</{DSML}tool_calls>"
    _, syntax = told([character.encode() for character in text], thinking=False)
    marks = "".join("S" if greedy else "." for greedy in syntax)
    start, value = text.index("tool_calls>") + len("tool_calls>") - 1, text.index("1</")
    assert marks == "." * start + "S" * (value - 1 - start) + "..." + "S" * (len(text) - value - 3) + "."


def test_json_strings_are_payload_and_the_rest_of_json_is_syntax():
    before = f'<{DSML}tool_calls><{DSML}invoke name="f"><{DSML}parameter name="a" string="false">'
    value = '{"k": ["a\\"b</", 1]}'
    _, syntax = told([before.encode(), *(character.encode() for character in value)], thinking=False)
    inside, expected, escaped = False, [True], False
    for character in value:
        if character == '"' and not escaped:
            inside = not inside
        escaped = character == "\\" and not escaped
        expected.append(not inside)
    assert syntax == expected


def test_arguments_are_written_in_the_clients_own_order_and_spelling():
    written = write_block([ToolCall("", 'f"<', '{"z": 1.50, "a": {"k" : [1, 2]}, "z":"x", }')])
    assert '<｜DSML｜invoke name="f&quot;&lt;">' in written
    assert written.index("1.50") < written.index('{"k":[1,2]}') < written.index(">x<")


@pytest.mark.parametrize("arguments", ["not json", "[1]", '"text"', '{"a": nope}', ""])
def test_arguments_that_are_no_object_become_one_parameter(arguments: str):
    assert f'name="arguments" string="true">{arguments}</' in write_block([ToolCall("", "f", arguments)])


def test_the_closing_tag_cannot_be_smuggled_in():
    call = ToolCall("", "f", f'{{"a":{quote(VALUE_END)},"b":[{quote(VALUE_END)}]}}')
    assert write_block([call]).count(VALUE_END) == 2
    assert json.loads(turn_of(write_block([call])).calls[0].arguments) == {"a": VALUE_END, "b": [VALUE_END]}
