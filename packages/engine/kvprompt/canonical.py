"""Tool calls in DSML as ds4 writes them when it has no sampled block: the client's own order, numbers and escapes."""

from __future__ import annotations

from collections.abc import Iterable

from .conversation import ToolCall
from .markers import DSML
from .rawjson import BadJson, Json, compact, parse_object

VALUE_END = f"</{DSML}parameter>"
ESCAPED_VALUE_END = "&lt;" + VALUE_END[1:]
_ATTRIBUTE = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})


def write_block(calls: Iterable[ToolCall]) -> str:
    """The tool block of a message, with the two line breaks before it."""
    invokes = "".join(_invoke(call) for call in calls)
    return f"\n\n<{DSML}tool_calls>\n{invokes}</{DSML}tool_calls>"


def _invoke(call: ToolCall) -> str:
    try:
        parameters = [_parameter(key, value) for key, value in parse_object(call.arguments).members()]
    except BadJson:
        parameters = [_text_parameter("arguments", call.arguments)]
    return f'<{DSML}invoke name="{call.name.translate(_ATTRIBUTE)}">\n{"".join(parameters)}</{DSML}invoke>\n'


def _parameter(key: str, value: Json) -> str:
    if value.kind == "string":
        return _text_parameter(key, value.string())
    return _written(key, "false", compact(value.raw).replace(VALUE_END, "\\u003c" + VALUE_END[1:]))


def _text_parameter(key: str, text: str) -> str:
    return _written(key, "true", text.replace(VALUE_END, ESCAPED_VALUE_END))


def _written(key: str, is_text: str, value: str) -> str:
    return f'<{DSML}parameter name="{key.translate(_ATTRIBUTE)}" string="{is_text}">{value}{VALUE_END}\n'
