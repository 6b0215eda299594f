"""Law 1: after every finished turn, the client's next request begins with the key that was saved, whoever the client is."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clients import CLIENTS, DIALECTS, MODES, Client, Session
from kvprompt.conversation import Conversation, Dialect, Message, Thinking, Turn
from kvprompt.dialects import PARSERS
from kvprompt.dsml import Recogniser
from kvprompt.events import WasReasoning, collect
from kvprompt.keys import Key, match, next_key, next_keys
from kvprompt.markers import DSML, EOS
from kvprompt.render import Style, render
from kvprompt.replay import ToolMemory
from prompt import sampled as streams

STYLE = Style()
FEW = max(1, settings.default.max_examples // 10)  # of each of the 84 pairings
BLOCK = (
    f'\n\n<{DSML}tool_calls>\n<{DSML}invoke name="f">\n<{DSML}parameter name="z" string="true">é</{DSML}parameter>\n'
    f"</{DSML}invoke>\n</{DSML}tool_calls>"
)


class Server:
    """What the real one does with a request, without a model: the sampled bytes are given."""

    def __init__(self) -> None:
        self.memory = ToolMemory()
        self.ids = count()
        self.keys: set[Key] = set()

    def prompt(self, session: Session):
        conversation = PARSERS[session.path](session.request())
        return conversation, render(conversation, STYLE, self.memory)

    def turn(
        self, session: Session, sampled: bytes, *, remembers: bool = True, streams: bool = False
    ) -> tuple[Turn, Key]:
        conversation, prompt = self.prompt(session)
        recogniser = Recogniser(thinking=prompt.opens_thinking, tools=bool(conversation.tools.schemas))
        events = recogniser.feed(sampled) + recogniser.finish()
        shown = [event for event in events if not (streams and event == WasReasoning())]
        turn = collect(shown, lambda: f"call_{next(self.ids)}")
        if remembers:
            self.memory.remember((call.id for call in turn.calls), turn.block)
        key = next_key(conversation, prompt, turn, sampled, STYLE, self.memory)
        self.keys = next_keys(conversation, prompt, turn, sampled, STYLE, self.memory)
        assert all(other.text.startswith(key.text) for other in self.keys), "a kind of client shares what all share"
        assert key.fed <= len(prompt.text + sampled), "a key never covers what was not fed"
        assert match(key.text, prompt, sampled).text == key.text, "a key is the text of a state on the way"
        return turn, key


def goes_on(session: Session, turn: Turn) -> None:
    session.hears(turn)
    if turn.calls:
        session.answers(turn, "sunny")
    else:
        session.asks("And then?")


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=FEW)
@given(data=st.data(), tools=st.booleans(), remembers=st.booleans(), streamed=st.booleans())
def test_the_next_request_begins_with_the_key(
    client: Client, dialect: str, mode: str, data: st.DataObject, tools: bool, remembers: bool, streamed: bool
):
    server, session = Server(), Session(client, dialect, mode, tools)
    session.asks("Weather?")
    for _ in range(3):
        sampled = data.draw(streams.turns(thinking=mode != "none"))
        turn, key = server.turn(session, sampled, remembers=remembers, streams=streamed)
        goes_on(session, turn)
        _, prompt = server.prompt(session)
        assert prompt.text.startswith(key.text)


@pytest.mark.parametrize(
    ("dialect", "mode", "tools", "sampled", "expected"),
    [
        ("chat", "none", False, "Hello", "[</think>]Hello"),
        ("chat", "none", False, "Hello \n", "[</think>]Hello"),
        ("chat", "none", True, "Hello" + BLOCK, "[</think>]Hello" + BLOCK),
        ("chat", "none", True, "Hello \n" + BLOCK + "\n", "[</think>]Hello \n" + BLOCK),
        ("anthropic", "high", False, "why</think>Hello", "</think>Hello"),
        ("chat", "high", True, "why</think>Hello", "[<think>]"),
        ("chat", "high", True, "\n</think>Hello" + BLOCK, "[<think>]</think>Hello" + BLOCK),
        ("responses", "high", True, "why</think>Hello" + BLOCK, "[<think>]</think>Hello" + BLOCK),
        ("chat", "high", True, "why" + BLOCK, "[<think>]"),
        ("responses", "high", True, "why" + BLOCK, "[<think>]"),
        ("chat", "high", False, "still thinking", None),
        ("chat", "none", False, " \n", None),
        *(
            (dialect, "none", tools, *case)
            for dialect in DIALECTS
            for tools in (False, True)
            for case in (
                ("why</think>Hello", "[</think>]Hello"),
                ("</think>Hello", "[</think>]Hello"),
                ("<think>why</think>Hello", "[</think>]Hello"),
                ("why</think>a</think>Hello", "[</think>]a</think>Hello"),
            )
        ),
    ],
)
def test_the_key_reaches_as_far_as_every_client_agrees(dialect, mode, tools, sampled, expected):
    """In `expected`, brackets hold what the prompt opened; None is a turn that clients may leave out altogether."""
    server, session = Server(), Session(CLIENTS[0], dialect, mode, tools)
    session.asks("Weather?")
    _, prompt = server.prompt(session)
    _, key = server.turn(session, sampled.encode())
    opening = "<think>" if mode == "high" else "</think>"
    base = prompt.text.decode().removesuffix(opening)
    if expected is None:
        assert key.text.decode() == base.removesuffix("<｜Assistant｜>")
    else:
        assert key.text.decode() == base + expected.replace("[", "").replace("]", "")


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("sampled", "content"), [("why</think>Hello", "whyHello"), ("w</think>a</think>Hello", "wa</think>Hello")]
)
def test_reasoning_that_was_streamed_as_content_is_in_the_key_without_its_end(dialect, tools, sampled, content):
    server, session = Server(), Session(CLIENTS[0], dialect, "none", tools)
    session.asks("Weather?")
    _, prompt = server.prompt(session)
    turn, key = server.turn(session, sampled.encode(), streams=True)
    assert turn.content == content
    assert key == Key(prompt.text + content.encode(), len(prompt.text) + len(sampled), key.least)
    goes_on(session, turn)
    assert server.prompt(session)[1].text.startswith(key.text)


def test_a_client_that_has_echoed_reasoning_is_known_to_echo_it():
    server, session = Server(), Session(CLIENTS[0], "anthropic", "high", tools=True)
    session.asks("Weather?")
    turn, _ = server.turn(session, ("why" + "</think>Hello" + BLOCK).encode())
    goes_on(session, turn)
    _, prompt = server.prompt(session)
    _, key = server.turn(session, b"so</think>Sunny.")
    assert key == Key(prompt.text + b"so</think>Sunny.", len(prompt.text) + len(b"so</think>Sunny."))


def test_a_key_ends_where_a_stop_string_cut_the_answer():
    session = Session(CLIENTS[0], "chat", "none", tools=False)
    session.asks("Count")
    conversation, prompt = Server().prompt(session)
    key = next_key(conversation, prompt, Turn(content="1 2"), b"1 2 STOP 3", STYLE, None)
    assert key == Key(prompt.text + b"1 2", len(prompt.text) + 3)


def test_an_eos_that_was_fed_is_part_of_the_key():
    session = Session(CLIENTS[0], "chat", "high", tools=False)
    session.asks("Why?")
    conversation, prompt = Server().prompt(session)
    sampled = ("because</think>Hello" + EOS).encode()
    key = next_key(conversation, prompt, Turn("because", "Hello"), sampled, STYLE, None)
    assert (key.text.endswith(b"Hello" + EOS.encode()), key.fed) == (True, len(prompt.text + sampled))


def test_an_answer_that_was_continued_may_come_back_as_one():
    messages = (Message("user", "Count"), Message("assistant", "1 2"))
    conversation = Conversation(Dialect.CHAT, "ds4", messages, thinking=Thinking.OFF)
    prompt = render(conversation, STYLE)
    key = next_key(conversation, prompt, Turn(content=" 3"), b" 3", STYLE, None)
    assert key.text == prompt.text.removesuffix(EOS.encode())


def test_a_key_without_reasoning_is_cut_together_with_its_state():
    session = Session(CLIENTS[0], "chat", "high", tools=False)
    session.asks("Why?")
    conversation, prompt = Server().prompt(session)
    sampled = b"because</think>Hello"
    key = next_key(conversation, prompt, Turn("because", "Hello"), sampled, STYLE, None)
    assert key.fed == len(prompt.text + sampled)
    assert key.cut(key.fed - 2) == Key(key.text[:-2], key.fed - 2, key.least)
    assert key.cut(key.least).text.endswith(b"</think>")
    assert key.cut(key.least - 1) is None
    assert key.cut(key.fed + 1) is None


def test_unknown_blocks_end_the_key_before_what_a_client_may_rewrite():
    server, session = Server(), Session(CLIENTS[0], "chat", "none", tools=True)
    session.asks("Weather?")
    _, prompt = server.prompt(session)
    _, key = server.turn(session, BLOCK.encode(), remembers=False)
    assert key.text == prompt.text + BLOCK[: BLOCK.index(f"{DSML}parameter")].encode()


def test_a_completion_is_keyed_by_its_prompt():
    conversation = PARSERS["/v1/completions"](b'{"prompt":"Once"}')
    prompt = render(conversation, STYLE)
    key = next_key(conversation, prompt, Turn(content=" upon"), b"</think> upon", STYLE, None)
    assert key.text.endswith("<｜User｜>Once".encode())


def test_the_live_state_is_matched_with_the_request_that_really_comes():
    session = Session(CLIENTS[1], "chat", "high", tools=True)
    session.asks("Weather?")
    server = Server()
    _, prompt = server.prompt(session)
    sampled = ("why</think>Hello" + BLOCK).encode()
    turn, _ = server.turn(session, sampled)
    goes_on(session, turn)
    _, following = server.prompt(session)
    key = match(following.text, prompt, sampled)
    assert key.fed == len(prompt.text + sampled)
    assert key.text == prompt.text + sampled.removeprefix(b"why")


def test_each_kind_of_client_has_a_key_of_its_own_where_they_differ():
    """Whether reasoning comes back is not known after the first turn: the live state waits for both."""
    server, session = Server(), Session(CLIENTS[0], "chat", "high", tools=True)
    session.asks("Weather?")
    _, prompt = server.prompt(session)
    sampled = ("why</think>Hello" + BLOCK).encode()
    server.turn(session, sampled)
    dropped = prompt.text + b"</think>Hello" + BLOCK.encode()
    assert {prompt.text + sampled, dropped} <= {key.text for key in server.keys}
    assert {key.fed for key in server.keys if key.text in (prompt.text + sampled, dropped)} == {
        len(prompt.text + sampled)
    }
