"""The known client bytes that change from request to request near the start of a prompt, and a switch for each.

A changing byte in the system text makes every saved prompt behind it useless. What carries no meaning for the model is
stripped unless it is switched off; what does carry some (a date) is stripped only when it is switched on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .errors import PromptError


@dataclass(frozen=True, slots=True)
class Volatile:
    """One kind of changing line: which it is, who writes it, and whether it is stripped without being asked."""

    name: str
    line: re.Pattern[str]
    written_by: str
    by_default: bool


VOLATILE = (
    Volatile(
        "billing",
        re.compile(r"^x-anthropic-[^\n]*\n?", re.MULTILINE),
        "Claude Code: a billing header with a nonce, inside a system text",
        by_default=True,
    ),
    Volatile(
        "date",
        re.compile(r"^[ \t]*(?:Today's date|Current date|Today is|The current date is)\b[^\n]*\n?", re.MULTILINE),
        "coding agents: the day, or the minute, in their environment section",
        by_default=False,
    ),
)
DEFAULT_VOLATILE = tuple(entry.name for entry in VOLATILE if entry.by_default)


def strip_volatile(text: str, names: Iterable[str]) -> str:
    """`text` without the lines that these names stand for. Raises PromptError for a name that is not in the list."""
    by_name = {entry.name: entry for entry in VOLATILE}
    for name in names:
        if name not in by_name:
            raise PromptError(f"'{name}' is no known volatile text; known are {', '.join(by_name)}")
        text = by_name[name].line.sub("", text)
    return text
