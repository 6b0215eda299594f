"""Sampled bytes in, events out: the same events however the bytes are cut.

The white space before a tool block is part of the block, byte for byte, since text and block together must give back what
was sampled. A block in thinking that was never closed is a call only if it is whole and nothing follows it; anything
else is an example that the model quotes. Markup that breaks the grammar becomes text again, with the reason.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache

from .events import Arguments, BlockEnd, Broken, CallEnd, CallStart, Event, Reasoning, Text, WasReasoning
from .markers import SPELLINGS, THINK, UNTHINK
from .rawjson import escape, on_the_wire, quote
from .stream import CutOff, NotABlock, Prose, Steps, Stops, Stream, stops

_THINK, _UNTHINK = THINK.encode(), UNTHINK.encode()
_OPENINGS = tuple(f"<{spelling}tool_calls>".encode() for spelling in SPELLINGS)
_ENTITIES = {b"&lt;": b"<", b"&gt;": b">", b"&quot;": b'"', b"&apos;": b"'", b"&amp;": b"&"}
_ENTITY = re.compile(b"|".join(_ENTITIES))


class _Mode(Enum):
    """What the last byte was part of."""

    PROSE = auto()
    TAGS = auto()
    TEXT_VALUE = auto()
    JSON_VALUE = auto()
    JSON_STRING = auto()


@dataclass(frozen=True, slots=True)
class _Tags:
    """The tags of one block, in the spelling that it began with."""

    block_end: bytes
    invoke: bytes
    invoke_end: bytes
    parameter: bytes
    value_end: bytes
    escaped_value_end: bytes
    in_text: Stops
    in_json: Stops


@cache
def _tags(opening: bytes, in_thinking: bool) -> _Tags:
    start = opening.removesuffix(b"tool_calls>")
    end = b"</" + start[1:]
    value_end, escaped = end + b"parameter>", b"&lt;/" + start[1:] + b"parameter>"
    also = (_UNTHINK,) if in_thinking else ()
    return _Tags(
        block_end=end + b"tool_calls>",
        invoke=start + b"invoke",
        invoke_end=end + b"invoke>",
        parameter=start + b"parameter",
        value_end=value_end,
        escaped_value_end=escaped,
        in_text=stops(value_end, escaped, *also),
        in_json=stops(value_end, *also),
    )


class Recogniser:
    """Tells reasoning, text and tool calls apart while they are sampled.

    `thinking`: the prompt ended in an open `<think>`. `tools`: whether tool markup means anything here.
    """

    def __init__(self, *, thinking: bool, tools: bool = True) -> None:
        self._openings = _OPENINGS if tools else ()
        self._stream = Stream()
        self._mode = _Mode.PROSE
        self._escaped = False
        self._events: list[Event] = []
        self._trial: list[Event] | None = None
        self._done = False
        self._steps = self._turn(thinking)

    @property
    def done(self) -> bool:
        """Whether the turn is over: a tool block has closed, or `finish` was called."""
        return self._done

    @property
    def syntax(self) -> bool:
        """Whether the next token is markup, to be chosen greedily, and not free speech."""
        if self._mode is _Mode.TEXT_VALUE:
            return self._stream.waiting.startswith(b"</")
        return self._mode in (_Mode.TAGS, _Mode.JSON_VALUE)

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete. What follows a tool block is dropped."""
        if not self._done:
            self._stream.waiting += data
            self._done = next(self._steps, self) is self
        events, self._events = self._events, []
        return events

    def finish(self) -> list[Event]:
        """The events that the end of the stream completes."""
        self._stream.ended = True
        return self.feed(b"")

    def _tell(self, event: Event) -> None:
        (self._events if self._trial is None else self._trial).append(event)

    # A turn is reasoning, then text, then perhaps a block.

    def _turn(self, thinking: bool) -> Steps[None]:
        repeated = yield from self._stream.optional(_THINK)
        thinks = thinking or repeated
        called = (yield from self._reasoning()) if thinks else False
        if not called:
            yield from self._text(() if thinks else (_UNTHINK,))

    def _reasoning(self) -> Steps[bool]:
        """Up to the end of thinking. True if the turn ended in a call before thinking did."""
        prose = Prose(lambda text: self._tell(Reasoning(text)))
        ends = stops(_UNTHINK, *self._openings)
        while True:
            stop = yield from self._stream.until(ends, prose.say)
            if stop is None or stop == _UNTHINK:
                prose.end()
                return False
            calls = yield from self._final_block(prose.pause(), stop)
            if calls:
                self._events += calls
                return True
            quoted = self._end_record()
            prose.say(quoted.removesuffix(_UNTHINK))
            if quoted.endswith(_UNTHINK):
                prose.end()
                return False

    def _final_block(self, space: bytes, opening: bytes) -> Steps[list[Event]]:
        """The events of a block in open thinking, if it is whole and the last thing said; else none, and all of it recorded."""
        calls: list[Event] = []
        self._trial = calls
        try:
            yield from self._block(space, opening, in_thinking=True)
            block = bytes(self._stream.record or b"")
            final = yield from self._stream.only_space_follows()
        except NotABlock:
            final = False
        self._trial, self._mode = None, _Mode.PROSE
        return [*calls, BlockEnd(block)] if final else []

    def _text(self, unasked: tuple[bytes, ...]) -> Steps[None]:
        """Up to the end of the turn. `unasked` is the end of thinking where none began; only the first one means anything."""
        prose = Prose(lambda text: self._tell(Text(text)))
        while (opening := (yield from self._stream.until(stops(*self._openings, *unasked), prose.say))) is not None:
            if opening == _UNTHINK:
                prose.end()
                self._tell(WasReasoning())
                unasked = ()
                continue
            try:
                yield from self._block(prose.pause(), opening, in_thinking=False)
            except NotABlock as fault:
                self._mode = _Mode.PROSE
                self._tell(Broken(str(fault), self._end_record().decode("utf-8", "replace")))
            else:
                self._tell(BlockEnd(self._end_record()))
                return
        prose.end()

    def _end_record(self) -> bytes:
        record, self._stream.record = bytes(self._stream.record or b""), None
        return record

    # A block is invokes; an invoke is parameters; a parameter is text or JSON.

    def _block(self, space: bytes, opening: bytes, *, in_thinking: bool) -> Steps[None]:
        self._stream.record = bytearray(space + opening)
        self._mode = _Mode.TAGS
        tags = _tags(opening, in_thinking)
        calls = 0
        while True:
            try:
                tag = yield from self._stream.one_of(tags.invoke, tags.block_end)
            except CutOff:
                if not calls or in_thinking:
                    raise
                # All that is missing is the end of the block; the calls are whole.
                self._stream.take(len(self._stream.waiting))
                break
            if tag == tags.block_end:
                break
            yield from self._invoke(calls, tags)
            calls += 1
        if not calls:
            raise NotABlock("there is no call in it")
        self._mode = _Mode.PROSE

    def _invoke(self, index: int, tags: _Tags) -> Steps[None]:
        self._tell(CallStart(index, self._name((yield from self._stream.attributes()), "an invoke")))
        yield from self._parameters(index, tags, tags.invoke_end)
        self._tell(CallEnd(index))

    def _parameters(self, index: int, tags: _Tags, end: bytes) -> Steps[None]:
        """Parameters up to `end`, as one JSON object."""
        before = "{"
        while (yield from self._stream.one_of(tags.parameter, end)) == tags.parameter:
            attributes = yield from self._stream.attributes()
            self._tell(Arguments(index, f"{before}{quote(self._name(attributes, 'a parameter'))}:"))
            before = ","
            is_text = _attribute(attributes, b"string")
            if is_text is None and end == tags.invoke_end and (yield from self._stream.follows(tags.parameter)):
                yield from self._parameters(index, tags, tags.value_end)  # an object, spelled out; one level of it
            elif is_text in (None, "true"):
                yield from self._text_value(index, tags)
            else:
                yield from self._json_value(index, tags)
            self._mode = _Mode.TAGS
        self._tell(Arguments(index, "{}" if before == "{" else "}"))

    def _text_value(self, index: int, tags: _Tags) -> Steps[None]:
        """A string, told piece by piece as it comes. Only the escaped closing tag means anything but itself."""
        self._mode = _Mode.TEXT_VALUE
        decoder = codecs.getincrementaldecoder("utf-8")("replace")

        def put(data: bytes, final: bool = False) -> None:
            if text := decoder.decode(data, final):
                self._tell(Arguments(index, escape(text)))

        self._tell(Arguments(index, '"'))
        while (stop := (yield from self._stream.until(tags.in_text, put))) == tags.escaped_value_end:
            put(tags.value_end)
        self._check_end(stop, tags)
        put(b"", final=True)
        self._tell(Arguments(index, '"'))

    def _json_value(self, index: int, tags: _Tags) -> Steps[None]:
        """Any other value, told at its end. What turns out not to be JSON is a string."""
        self._mode = _Mode.JSON_VALUE
        value = bytearray()

        def put(data: bytes) -> None:
            nonlocal value
            value += data
            self._follow_strings(data)

        stop = yield from self._stream.until(tags.in_json, put)
        self._check_end(stop, tags)
        text = value.decode("utf-8", "replace")
        self._tell(Arguments(index, (on_the_wire(text) or quote(text)) if text.strip() else "null"))

    def _follow_strings(self, data: bytes) -> None:
        """Keep track of whether the last byte stands inside a string of a JSON value."""
        for byte in data:
            if self._escaped:
                self._escaped = False
            elif byte == ord('"'):
                inside = self._mode is _Mode.JSON_STRING
                self._mode = _Mode.JSON_VALUE if inside else _Mode.JSON_STRING
            else:
                self._escaped = byte == ord("\\") and self._mode is _Mode.JSON_STRING

    def _check_end(self, stop: bytes | None, tags: _Tags) -> None:
        self._escaped = False
        if stop != tags.value_end:
            raise NotABlock("a parameter does not end" if stop is None else "thinking ends inside it")

    def _name(self, attributes: bytes, what: str) -> str:
        name = _attribute(attributes, b"name")
        if name is None or attributes.endswith(_UNTHINK):
            raise NotABlock(f"{what} has no name")
        return name


def _attribute(attributes: bytes, name: bytes) -> str | None:
    found = re.search(name + rb'="([^"]*)"', attributes)
    return found and _ENTITY.sub(lambda entity: _ENTITIES[entity[0]], found[1]).decode("utf-8", "replace")
