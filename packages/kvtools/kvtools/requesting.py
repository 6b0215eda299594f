"""From a request body to the bytes that a server renders, and from one of these bytes back to the field it came from.

The only place of `why` that knows prompts: kvprompt does the work and is imported when a request is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from kvformat.nearmiss import common_prefix

if TYPE_CHECKING:
    from kvprompt.rawjson import Json

DIALECTS = {
    "chat": "/v1/chat/completions",
    "completion": "/v1/completions",
    "responses": "/v1/responses",
    "anthropic": "/v1/messages",
}
AUTO = "auto"
PREAMBLES = ("2026-05", "2026-08")
VOLATILE = ("billing", "date")
MARK = "\\u0001"  # put into a string, it shows in the rendering where that place is

# Strings that steer the reading of a request instead of being read into the prompt.
STEERING = frozenset({"role", "type", "id", "call_id", "tool_call_id", "tool_use_id", "status", "model"})

Step = tuple[str, "Json"]
FindTools = Callable[[Iterable[bytes]], dict[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Request:
    """A body, how it is read and rendered (`volatile` None: as by default), and the sampled blocks of its tool calls on disk."""

    body: bytes
    dialect: str
    ctx: int
    preamble: str
    volatile: tuple[str, ...] | None
    blocks: dict[bytes, bytes]

    @property
    def prompt(self) -> bytes:
        """The bytes that a server renders."""
        return _render(self, self.body)


def read_request(
    body: bytes,
    *,
    dialect: str | None,
    ctx: int,
    preamble: str = PREAMBLES[-1],
    volatile: tuple[str, ...] | None = None,
    find_tools: FindTools,
) -> Request:
    """Settle the dialect and fetch the sampled blocks. Raises kvprompt's PromptError for what is no request."""
    from kvprompt.dialects import PARSERS

    dialect = dialect or _guess(body)
    conversation = PARSERS[DIALECTS[dialect]](body)
    ids = {call.id.encode("utf-8", "surrogateescape") for message in conversation.messages for call in message.calls}
    return Request(body, dialect, ctx, preamble, volatile, find_tools(ids) if ids else {})


def _guess(body: bytes) -> str:
    """The dialect by the members that only one of them has; chat where they leave it open."""
    from kvprompt.dialects.fields import read_body

    fields = read_body(body)
    members = {"prompt": "completion", "input": "responses", "system": "anthropic"}
    return next((dialect for name, dialect in members.items() if name in fields), "chat")


def _render(request: Request, body: bytes) -> bytes:
    from kvprompt.dialects import PARSERS
    from kvprompt.markers import Preamble
    from kvprompt.render import Style, render
    from kvprompt.replay import Source, ToolMemory
    from kvprompt.volatile import DEFAULT_VOLATILE

    memory = ToolMemory()
    for name, block in request.blocks.items():
        memory.remember([name.decode("utf-8", "surrogateescape")], block, Source.DISK)
    volatile = DEFAULT_VOLATILE if request.volatile is None else request.volatile
    style = Style(request.ctx, Preamble(request.preamble), volatile)
    return render(PARSERS[DIALECTS[request.dialect]](body), style, memory).text


@dataclass(frozen=True, slots=True)
class Field:
    """A field's path in a request, such as `messages[2].content`; `behind`: the byte follows its text."""

    path: str
    behind: bool


class FieldFinder:
    """Which field of a request a byte of its rendering comes from, for every dialect alike.

    Nothing is known of how a request is rendered: strings are marked in the body, and where the rendering then changes, they
    start. From the outermost member inwards, the part that starts last at or before the byte holds it.
    """

    def __init__(self, request: Request) -> None:
        from kvprompt.rawjson import parse_object

        self._request = request
        self._prompt = request.prompt
        self._text = request.body.decode("utf-8", "surrogateescape")
        self._root = parse_object(self._text)
        self._shown_at = cache(self._shows)

    def field_at(self, byte: int) -> Field | None:
        """The field that holds this byte of the rendering, or ends before it; None for a byte before all of them."""
        path, node = "", self._root
        while inner := self._part_at(node, byte):
            path += inner[0]
            node = inner[1]
        if not path:
            return None
        end = self._shown_at((node.end - 1,)) if node.kind == "string" else None
        return Field(path.removeprefix("."), end is not None and byte >= end)

    def _part_at(self, node: Json, byte: int) -> Step | None:
        """The part of a value that starts last at or before the byte."""
        steps = list(_steps(node))
        in_order = [step for step in steps if node.kind == "array" and not _is_system(step[1])]
        anywhere = [step for step in steps if step not in in_order]
        found = [(start, at, step) for at, step in enumerate(anywhere + self._last_before(in_order, byte))
                 if (start := self._start(step[1])) is not None and start <= byte]  # fmt: skip
        return max(found, key=lambda part: part[:2])[2] if found else None

    def _last_before(self, steps: list[Step], byte: int) -> list[Step]:
        """Of parts that are rendered in their order (or not at all), the last that starts at or before the byte, if any.

        By halving: every look is a rendering of the whole request.
        """
        low, high, last = 0, len(steps), -1
        while low < high:
            middle = (low + high) // 2
            at = next((i for i in range(middle, low - 1, -1) if self._start(steps[i][1]) is not None), None)
            if at is None:
                low = middle + 1
            elif (self._start(steps[at][1]) or 0) <= byte:
                low, last = middle + 1, at
            else:
                high = at
        return steps[last : last + 1] if last >= 0 else []

    def _start(self, part: Json) -> int | None:
        return self._shown_at(tuple(string.start + 1 for string in _strings(part)))

    def _shows(self, places: tuple[int, ...]) -> int | None:
        """Where the rendering changes when these places of the body are marked; None if it does not or cannot be had."""
        from kvprompt.errors import PromptError

        cuts = [0, *places, len(self._text)]
        body = MARK.join(self._text[a:b] for a, b in pairwise(cuts))
        try:
            marked = _render(self._request, body.encode("utf-8", "surrogateescape"))
        except PromptError:  # a string that has to be one of a few words
            return None
        return None if marked == self._prompt else common_prefix(marked, self._prompt)


def _is_system(part: Json) -> bool:
    """Such messages are rendered at the start, wherever they stand."""
    return part.kind == "object" and any(
        name == "role" and value.raw in ('"system"', '"developer"') for name, value in part.members()
    )


def _steps(node: Json) -> Iterator[Step]:
    """The parts of a value, each behind its step of the path."""
    if node.kind == "object":
        yield from ((f".{name}", value) for name, value in node.members() if name not in STEERING)
    elif node.kind == "array":
        yield from ((f"[{at}]", value) for at, value in enumerate(node.elements()))


def _strings(node: Json) -> Iterator[Json]:
    """The strings inside a value, in the order of the source."""
    if node.kind == "string":
        yield node
    for _, part in _steps(node):
        yield from _strings(part)
