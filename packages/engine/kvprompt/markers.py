"""Every byte that the prompt's protocol fixes, and nothing else: markers, spellings, and the texts that ds4 writes.

The texts are facts of the cache key: one byte off and every saved prompt is missed. Their lengths and hashes are tested.
"""

from __future__ import annotations

from enum import StrEnum

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK = "<think>"
UNTHINK = "</think>"
DSML = "｜DSML｜"

SPECIALS = (BOS, EOS, USER, ASSISTANT, THINK, UNTHINK, DSML)
"""The only strings that are single tokens in rendered text, wherever they stand in it."""

RESULT_OPEN = "<tool_result>"
RESULT_CLOSE = "</tool_result>"
WHITESPACE = " \t\n\v\f\r"

SPELLINGS = (DSML, "DSML｜", "", "|DSML|", "｜｜DSML｜｜")
"""What may stand between `<` and a tag's name. A block keeps the spelling it begins with. Upstream knows the first three."""

COMPLETION_SYSTEM = "You are a helpful assistant"

THINK_MAX = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, "
    "and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n"
)
THINK_MAX_CONTEXT = 393_216
"""Think Max needs a context of at least this many tokens; in a smaller one it is ordinary thinking."""


class Preamble(StrEnum):
    """Which wording of the tool preamble: ds4 changed one sentence on 2026-08-04, and both are keys on people's disks."""

    MAY = "2026-05"
    AUGUST = "2026-08"


_ABOUT_THINKING = {
    Preamble.MAY: (
        "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning "
        "inside <think>...</think> BEFORE any tool calls or final response."
    ),
    Preamble.AUGUST: (
        "When thinking mode is enabled, finish reasoning with </think> before any tool calls or final response."
    ),
}

_TOOLS_HEAD = """\
## Tools

You have access to a set of tools to help answer the user question. You can invoke tools by writing a \
"<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as raw text and set `string="true"`. Preserve characters such as `>`, `&`, and \
`&&` exactly; never replace normal string characters with XML or HTML entity escapes. Only if a string value itself \
contains the exact closing parameter tag `</｜DSML｜parameter>`, write that tag as `&lt;/｜DSML｜parameter>` inside the \
value. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

{about_thinking}

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"""

_TOOLS_TAIL = """

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls. \
Use the exact parameter names from the schemas."""


def tools_section(preamble: Preamble, schemas: str) -> str:
    """The system text that announces the tools; `schemas` holds one schema a line."""
    return _TOOLS_HEAD.replace("{about_thinking}", _ABOUT_THINKING[preamble]) + schemas + _TOOLS_TAIL


def _opening(preamble: Preamble) -> bytes:
    """The tool preamble up to the end of the sentence that its wordings differ in."""
    return (_TOOLS_HEAD.partition("{about_thinking}")[0] + _ABOUT_THINKING[preamble]).encode()


_OPENINGS = {preamble: _opening(preamble) for preamble in Preamble}

PREAMBLE_BYTES = len((BOS + THINK_MAX).encode()) + max(map(len, _OPENINGS.values()))
"""So much of a rendered text at most tells the wording of its tool preamble."""


def preamble_of(text: bytes) -> Preamble | None:
    """The wording of the tool preamble that a rendered text begins with; None if it begins without tools."""
    system = text.removeprefix(BOS.encode()).removeprefix(THINK_MAX.encode())
    return next((preamble for preamble, opening in _OPENINGS.items() if system.startswith(opening)), None)


def tool_result(text: str) -> str:
    """A tool's answer in its wrapper, from which nothing in `text` can break out."""
    return RESULT_OPEN + text.replace(RESULT_CLOSE, "&lt;" + RESULT_CLOSE[1:]) + RESULT_CLOSE
