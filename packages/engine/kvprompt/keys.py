"""The key is what the client will send next.

The model's reasoning is in the state but seldom in the client's next request, so a finished turn is saved under the text
that this request will begin with. It is not predicted by rules of its own: the next requests of every kind of client are
built and rendered, and what they share is compared with what was fed. A key never speaks of a byte that was not fed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce

from .conversation import SYSTEM_ROLES, Conversation, Dialect, Message, Turn
from .markers import THINK, UNTHINK, tool_result
from .render import RenderedPrompt, Style, render
from .replay import ToolMemory

_THINK, _UNTHINK = THINK.encode(), UNTHINK.encode()


@dataclass(frozen=True, slots=True)
class Key:
    """`text` names the state that was fed the first `fed` bytes of prompt and sampled text.

    Where reasoning is left out, `text` is shorter than that. It can be cut back byte by byte, together with the state,
    down to `least` fed bytes.
    """

    text: bytes
    fed: int
    least: int = 0

    def cut(self, fed: int) -> Key | None:
        """The key of an earlier state, None if this key has none there."""
        if not self.least <= fed <= self.fed:
            return None
        return Key(self.text[: len(self.text) - (self.fed - fed)], fed, self.least)


def match(text: bytes, prompt: RenderedPrompt, sampled: bytes) -> Key:
    """The longest key that `text` begins with, of all states on the way through `prompt` and `sampled`."""
    fed = prompt.text + sampled
    shared = _shared(text, fed)
    best = Key(text[:shared], shared)
    closing = sampled.find(_UNTHINK)
    if closing < 0:
        return best
    least = len(prompt.text) + closing + len(_UNTHINK)
    for start, end in _unseen(prompt, closing):
        shared = _shared(text, fed[:start] + fed[end:])
        if shared + end - start >= least and shared > len(best.text):
            best = Key(text[:shared], shared + end - start, least)
    return best


def _unseen(prompt: RenderedPrompt, closing: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """What clients may leave out of prompt and sampled text, from where to where; thinking ends `closing` bytes into the latter.

    Reasoning, without or with the marker that opens it. Where thinking is off, the prompt has closed it already: reasoning and
    the second closing marker, or, once the reasoning was streamed as content, that marker alone.
    """
    sampled = len(prompt.text)
    end = sampled + closing
    if prompt.opens_thinking:
        return (sampled, end), (sampled - len(_THINK), end)
    return (sampled, end + len(_UNTHINK)), (end, end + len(_UNTHINK))


def next_key(
    conversation: Conversation,
    prompt: RenderedPrompt,
    turn: Turn,
    sampled: bytes,
    style: Style,
    memory: ToolMemory | None,
) -> Key:
    """The longest key that every client's next request begins with, once `turn` was shown and its block remembered."""
    texts = _next_texts(conversation, turn, style, memory)
    return match(reduce(lambda one, other: one[: _shared(one, other)], texts), prompt, sampled)


def next_keys(
    conversation: Conversation,
    prompt: RenderedPrompt,
    turn: Turn,
    sampled: bytes,
    style: Style,
    memory: ToolMemory | None,
) -> set[Key]:
    """For each kind of client the longest key that its next request begins with. What they share is `next_key`."""
    return {match(text, prompt, sampled) for text in _next_texts(conversation, turn, style, memory)}


def _next_texts(conversation: Conversation, turn: Turn, style: Style, memory: ToolMemory | None) -> list[bytes]:
    return [render(request, style, memory).text for request in _next_requests(conversation, turn, memory)]


def _next_requests(conversation: Conversation, turn: Turn, memory: ToolMemory | None) -> Iterator[Conversation]:
    """What clients make of the turn. Each differs from the first in one thing, so that together they differ in all."""
    before = conversation.messages
    follow_up = _follow_up(conversation.dialect, turn)
    replies = list(_replies(conversation, turn, memory))
    for reply in replies:
        yield replace(conversation, messages=(*before, reply, *follow_up))
    at = max((at for at, message in enumerate(before) if message.role not in SYSTEM_ROLES), default=-1)
    last = before[at] if at >= 0 else Message("user")
    merged = replace(last, content=last.content + "\n\n")
    if last.role == "assistant":
        yield replace(conversation, messages=(*before[:at], merged, *before[at + 1 :], *follow_up))
    if not (turn.calls or turn.content.strip()) or conversation.dialect is Dialect.COMPLETION:
        yield replace(conversation, messages=(*before, *follow_up))
        yield replace(conversation, messages=(*before[:at], merged, *before[at + 1 :]))


def _replies(conversation: Conversation, turn: Turn, memory: ToolMemory | None) -> Iterator[Message]:
    """The turn as clients send it back."""
    echoed = Message("assistant", turn.content, turn.reasoning, turn.calls)
    dropped = replace(echoed, reasoning="")
    echoes = any(message.reasoning.strip() for message in conversation.messages)
    reply = echoed if conversation.shows_reasoning else dropped
    yield reply
    if not echoes:
        yield dropped
    yield replace(reply, reasoning=reply.reasoning.strip())
    yield replace(reply, content=reply.content.strip())
    if turn.calls and (memory is None or memory.recall(turn.calls).block is None):
        yield replace(reply, calls=tuple(replace(call, arguments="{}") for call in turn.calls))


def _follow_up(dialect: Dialect, turn: Turn) -> tuple[Message, ...]:
    if not turn.calls:
        return (Message("user"),)
    if dialect is Dialect.ANTHROPIC:
        return (Message("user", tool_result("")),)
    return tuple(Message("tool") for _ in turn.calls)


def _shared(one: bytes, other: bytes) -> int:
    """How many bytes both begin with, by halving: comparing slices is fast where comparing bytes is not."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
