"""JSON whose every value still knows its own source text: spacing, key order, duplicate keys and number spelling survive.

The prompt is made of the client's own bytes, so a value is never re-encoded on the way. As lenient as ds4: between the
members that are read here commas are optional, and what follows the outermost value is ignored. Text is `str` with
surrogateescape, so that bytes which are no UTF-8 come out of the renderer as they went in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from .markers import WHITESPACE


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


# Only spans and scalars are taken from it. Floats throughout, because int() refuses a number of 5,000 digits.
_DECODER = json.JSONDecoder(strict=False, parse_int=float, parse_constant=_refuse)

_SPACE_OUTSIDE_STRINGS = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\n\r\v\f]+', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(
    r"\\(?:(?P<pair>u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
_BETWEEN = WHITESPACE + ","
_KINDS = {"{": "object", "[": "array", '"': "string", "t": "bool", "f": "bool", "n": "null"}
_ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_CONTROL = re.compile(r"[\x00-\x1f]")
_MUST_ESCAPE = re.compile(r'["\\\x00-\x1f]')


class BadJson(ValueError):
    """The text is not JSON, or a value is not of the kind that was asked for."""


@dataclass(frozen=True, slots=True)
class Json:
    """One value inside `text`, from `start` to `end`."""

    text: str
    start: int
    end: int

    @property
    def kind(self) -> str:
        """object, array, string, bool, null or number."""
        return _KINDS.get(self.text[self.start], "number")

    @property
    def raw(self) -> str:
        """The source text, untouched."""
        return self.text[self.start : self.end]

    def members(self) -> Iterator[tuple[str, Json]]:
        """Keys and values of an object in the order of the source, duplicates included."""
        at = _skip(self.text, self.start + 1, _BETWEEN)
        while not self.text.startswith("}", at):
            key = _value(self.text, at)
            at = _skip(self.text, key.end)
            if key.kind != "string" or not self.text.startswith(":", at):
                raise BadJson("a member of an object lacks its name")
            value = _value(self.text, _skip(self.text, at + 1))
            yield key.string(), value
            at = _skip(self.text, value.end, _BETWEEN)

    def elements(self) -> Iterator[Json]:
        """The values of an array."""
        at = _skip(self.text, self.start + 1, _BETWEEN)
        while not self.text.startswith("]", at):
            value = _value(self.text, at)
            yield value
            at = _skip(self.text, value.end, _BETWEEN)

    def string(self) -> str:
        """The text of a string; half a surrogate pair becomes U+FFFD."""
        raw = self.raw
        if _SURROGATE.search(raw):
            raw = _ESCAPE.sub(lambda found: "\\ufffd" if found["lone"] else found[0], raw)
        return str(_DECODER.decode(raw))


def parse_object(text: str) -> Json:
    """The object at the start of `text`. Its members are judged when they are read; what follows it does not count."""
    start = _skip(text, 0)
    if not text.startswith("{", start):
        raise BadJson("this is not a JSON object")
    return Json(text, start, len(text))


def compact(raw: str) -> str:
    """The same source without the white space outside strings."""
    return _SPACE_OUTSIDE_STRINGS.sub(lambda found: found[1] or "", raw)


def on_the_wire(raw: str) -> str | None:
    """`raw` compacted, if it is one JSON value and nothing else; line breaks inside its strings are escaped."""
    try:
        value = _value(raw, _skip(raw, 0))
    except BadJson:
        return None
    if _skip(raw, value.end) != len(raw):
        return None
    return _CONTROL.sub(_escaped, compact(raw))


def escape(text: str) -> str:
    """`text` as the inside of a JSON string, the way ds4 writes it: what need not be escaped is not."""
    return _MUST_ESCAPE.sub(_escaped, text)


def quote(text: str) -> str:
    """`text` as a JSON string."""
    return f'"{escape(text)}"'


def _escaped(found: re.Match[str]) -> str:
    return _ESCAPED.get(found[0]) or f"\\u{ord(found[0]):04x}"


def _skip(text: str, at: int, over: str = WHITESPACE) -> int:
    while at < len(text) and text[at] in over:
        at += 1
    return at


def _value(text: str, at: int) -> Json:
    try:
        _, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError) as fault:
        raise BadJson(f"this is not JSON: {fault}") from None
    return Json(text, at, end)
