"""What a recogniser tells while the model speaks, and how that adds up to a turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .conversation import ToolCall, Turn


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of what the model thinks."""

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of what the model says."""

    text: str


@dataclass(frozen=True, slots=True)
class WasReasoning:
    """An end of thinking that nobody had asked for: all that was told as text so far was reasoning. Told at most once."""


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; its arguments follow."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A piece of a call's arguments. All pieces of a call joined are one compact JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The arguments of a call are complete."""

    index: int


@dataclass(frozen=True, slots=True)
class BlockEnd:
    """The tool block is complete, and with it the turn. `block` is exactly what was sampled, the space before it included."""

    block: bytes


@dataclass(frozen=True, slots=True)
class Broken:
    """What looked like a tool block is none, for this `reason`: its calls are void, and its markup is `text` after all."""

    reason: str
    text: str


Event = Reasoning | Text | WasReasoning | CallStart | Arguments | CallEnd | BlockEnd | Broken


def collect(events: Iterable[Event], new_id: Callable[[], str] = str) -> Turn:
    """The turn that these events tell. Every call gets its id from `new_id`; unless one is given, ids are empty."""
    reasoning, content, faults = [], [], []
    names: list[str] = []
    arguments: list[list[str]] = []
    block = b""
    for event in events:
        match event:
            case Reasoning(text):
                reasoning.append(text)
            case Text(text):
                content.append(text)
            case WasReasoning():
                reasoning += content
                content.clear()
            case CallStart(_, name):
                names.append(name)
                arguments.append([])
            case Arguments(index, text):
                arguments[index].append(text)
            case BlockEnd(sampled):
                block = sampled
            case Broken(reason, text):
                faults.append(reason)
                content.append(text)
                names.clear()
                arguments.clear()
    calls = (ToolCall(new_id(), name, "".join(pieces)) for name, pieces in zip(names, arguments, strict=True))
    return Turn("".join(reasoning), "".join(content), tuple(calls), block, tuple(faults))
