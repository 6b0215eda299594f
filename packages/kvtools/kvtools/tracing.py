"""The requests in a trace file of ds4-server (`--trace`), as far as `why` asks: the rendered prompt and what was decided."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from kvformat.envelope import open_regular
from kvformat.errors import Unreadable

# A prompt may quote a trace, so a heading counts only with what always stands next to it.
_REQUEST = re.compile(rb"^===== request (\d+) [^\n]*=====\nkind: ", re.MULTILINE)
_PROMPT = re.compile(rb"^--- rendered prompt ---\n(.*?</?think>)\n+--- generated text ---$", re.MULTILINE | re.DOTALL)
_DECISION = re.compile(rb"^(cache_source|cached_tokens): ([^\n]*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Traced:
    """One request: its number in the trace, its prompt, where the server started and from what (`none`, `disk-text`, …)."""

    number: int
    prompt: bytes
    cached_tokens: int
    cache_source: str


def read_trace(path: Path, number: int | None = None) -> Traced:
    """The request of this number, else the last one. Raises Unreadable where there is none with a rendered prompt."""
    with open_regular(path) as file:
        data = file.read()
    starts = [head.start() for head in _REQUEST.finditer(data)]
    found = [t for start, end in pairwise((*starts, len(data))) if (t := _traced(data[start:end]))]
    wanted = [t for t in found if number in (None, t.number)]
    if not wanted:
        numbers = ", ".join(str(t.number) for t in found)
        remedy = f"it has {numbers}" if found else "give a file that ds4-server wrote with --trace"
        which = "" if number is None else f" {number}"
        raise Unreadable(f"no request{which} with a rendered prompt in this trace", path=path, remedy=remedy)
    return wanted[-1]


def _traced(block: bytes) -> Traced | None:
    head, prompt = _REQUEST.match(block), _PROMPT.search(block)
    if head is None or prompt is None:
        return None
    said = dict(_DECISION.findall(block[: prompt.start()]))
    cached = said.get(b"cached_tokens", b"0")
    return Traced(
        int(head[1]), prompt[1], int(cached) if cached.isdigit() else 0, said.get(b"cache_source", b"").decode()
    )
