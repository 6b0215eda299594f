"""The fields that the dialects share. null is as good as missing; another wrong kind is a sentence that names the field."""

from __future__ import annotations

from collections.abc import Iterator

from ..conversation import Sampling, Thinking
from ..errors import BadRequest
from ..rawjson import BadJson, Json, parse_object

DEFAULT_MODEL = "deepseek-v4-flash"
INT_MAX = 2**31 - 1
EFFORTS = {
    "max": Thinking.MAX,
    "xhigh": Thinking.HIGH,
    "high": Thinking.HIGH,
    "medium": Thinking.HIGH,
    "low": Thinking.HIGH,
    "minimal": Thinking.HIGH,
    "none": Thinking.OFF,
}
MODELS_THAT_SAY = {"deepseek-chat": False, "deepseek-reasoner": True}
UNSEEN = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "audio": "audio",
    "input_audio": "audio",
    "file": "file",
    "input_file": "file",
    "document": "document",
}
"""Types of parts that the model has no eyes or ears for, by each dialect's name, and what each of them is in a word."""


class Fields:
    """The members of one object, last one winning, read by name and kind."""

    def __init__(self, value: Json, what: str) -> None:
        if value.kind != "object":
            raise BadRequest(f"{what} must be an object")
        try:
            self._members = dict(value.members())
        except BadJson as fault:
            raise BadRequest(f"{what} cannot be read: {fault}") from None
        self._what = what

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def get(self, name: str) -> Json | None:
        """The value as it stands, or None if there is none."""
        return self._members.get(name)

    def given(self, *names: str) -> Json | None:
        """The first of these that is there and is not null."""
        values = (self._members.get(name) for name in names)
        return next((value for value in values if value is not None and value.kind != "null"), None)

    def require(self, name: str) -> Json:
        """The value of a field that a request cannot do without."""
        value = self.given(name)
        if value is None:
            raise BadRequest(f"missing {name}")
        return value

    def text(self, name: str, default: str = "") -> str:
        """A string."""
        value = self._known(name, "string")
        return default if value is None else value.string()

    def flag(self, name: str) -> bool | None:
        """True or false, None if the field is missing."""
        value = self._known(name, "bool")
        return None if value is None else value.raw == "true"

    def number(self, name: str) -> float | None:
        """A number, None if the field is missing."""
        value = self._known(name, "number")
        return None if value is None else float(value.raw)

    def integer(self, name: str) -> int | None:
        """A whole number, brought between 0 and 2^31-1, None if the field is missing."""
        number = self.number(name)
        return None if number is None else int(min(max(number, 0), INT_MAX))

    def objects(self, name: str) -> Iterator[Fields]:
        """The objects of an array; a missing array has none."""
        value = self._known(name, "array")
        elements = () if value is None else value.elements()
        return (Fields(element, f"an element of {name}") for element in elements)

    def object(self, name: str) -> Fields | None:
        """The fields of an object, None if there is none or something else stands there."""
        value = self._members.get(name)
        return None if value is None or value.kind != "object" else Fields(value, name)

    def _known(self, name: str, kind: str) -> Json | None:
        value = self.given(name)
        if value is not None and value.kind != kind:
            raise BadRequest(f"'{name}' in {self._what} must be of kind {kind}, and is of kind {value.kind}")
        return value


def read_body(body: bytes) -> Fields:
    """The members of a request's body."""
    try:
        return Fields(parse_object(body.decode("utf-8", "surrogateescape")), "the request")
    except BadJson as fault:
        raise BadRequest(f"invalid JSON request: {fault}") from None


def content_text(value: Json | None, *, result: bool = False) -> str:
    """The text of a content field: a string, or the strings and `text` members of an array joined without a seam.

    In the `result` of a tool, what cannot be seen is named (see `unseen`).
    """
    if value is None or value.kind not in ("string", "array"):
        return ""
    if value.kind == "string":
        return value.string()
    return "".join(part_text(part, result=result) for part in value.elements())


def part_text(part: Json, *, result: bool = False) -> str:
    """The text of one content part."""
    if part.kind != "object":
        return part.string() if part.kind == "string" else ""
    fields = Fields(part, "a content part")
    return unseen(fields, result=result) or fields.text("text")


def text_or_raw(value: Json) -> str:
    """A string's text, or another value's own source."""
    return value.string() if value.kind == "string" else value.raw


def unseen(part: Fields, *, result: bool = False) -> str:
    """What stands for a part of an `UNSEEN` type; "" for any other.

    Such a part is not dropped in silence. In a message it is refused. In the result of a tool the model is told instead:
    the agent cannot take it out of its history, and would be refused for ever.
    """
    kind = part.get("type")
    if kind is None or kind.kind != "string" or kind.string() not in UNSEEN:
        return ""
    if result:
        return f"[{UNSEEN[kind.string()]}: this model reads text only]"
    raise BadRequest(f"content of type '{kind.string()}' is not supported, only text is; remove it from the history")


def stop_strings(value: Json | None) -> tuple[str, ...]:
    """A string or an array of them; empty ones and other kinds count for nothing."""
    if value is None or value.kind not in ("string", "array"):
        return ()
    values = [value] if value.kind == "string" else value.elements()
    return tuple(text for item in values if item.kind == "string" and (text := item.string()))


def sampling(
    body: Fields, *, max_tokens: tuple[str, ...], stop: str = "", ignored: frozenset[str] = frozenset()
) -> Sampling:
    """What the sampler is asked for, by this dialect's names and without what the dialect ignores."""
    limits = [limit for name in max_tokens if (limit := body.integer(name)) is not None]
    return Sampling(
        max_tokens=limits[-1] if limits else None,
        temperature=body.number("temperature"),
        top_p=body.number("top_p"),
        top_k=None if "top_k" in ignored else body.integer("top_k"),
        min_p=None if "min_p" in ignored else body.number("min_p"),
        seed=0 if "seed" in ignored else body.integer("seed") or 0,
        stop=stop_strings(body.get(stop)),
    )


def include_usage(body: Fields) -> bool:
    """Whether the client asks for usage at the end of a stream."""
    options = body.object("stream_options")
    return options is not None and bool(options.flag("include_usage"))


def effort(fields: Fields, name: str) -> Thinking | None:
    """A named reasoning effort, None if none is given."""
    word = fields.text(name)
    if word and word not in EFFORTS:
        raise BadRequest(f"'{name}' must be one of {', '.join(EFFORTS)}")
    return EFFORTS.get(word)


def thinking_switch(body: Fields) -> bool | None:
    """`thinking` (a flag, or an object that says enabled or disabled) and `think` (a flag); None if neither is there."""
    switch = True if "thinking" in body else None
    value, says = body.get("thinking"), body.object("thinking")
    if value is not None and value.kind == "bool":
        switch = value.raw == "true"
    elif says is not None:
        switch = says.text("type") != "disabled"
    flag = body.flag("think")
    return switch if flag is None else flag


def thinking(model: str, switch: bool | None, wish: Thinking | None) -> Thinking:
    """`switch` is what the request says about thinking at all; where it is silent, some models' names are not."""
    enabled = MODELS_THAT_SAY.get(model, True) if switch is None else switch
    return (wish or Thinking.HIGH) if enabled else Thinking.OFF
