"""Tool schemas: the client's own source text, one line per tool, never minified, sorted or encoded again."""

from __future__ import annotations

from collections.abc import Iterator

from ..conversation import Tool, Tools
from ..errors import BadRequest
from ..rawjson import Json, quote
from .fields import Fields

NO_PARAMETERS = '{"type":"object","properties":{}}'


def read_tools(*lists: Json | None) -> Tools:
    """The schemas of these lists, in order. null is no list."""
    lines: list[str] = []
    by_name: dict[str, Tool] = {}
    for value in lists:
        if value is None or value.kind == "null":
            continue
        if value.kind != "array":
            raise BadRequest("tools must be an array")
        for element in value.elements():
            for line, prompt_name, tool in _entries(element):
                lines.append(line)
                if prompt_name:
                    by_name[prompt_name] = tool
    return Tools("\n".join(lines), by_name)


def _entries(element: Json) -> Iterator[tuple[str, str, Tool]]:
    """The lines that one element of a list becomes, each with the prompt's name and the tool it stands for."""
    if element.kind != "object":
        yield element.raw, "", Tool("")
        return
    function = next((value for key, value in element.members() if key == "function"), None)
    if function is not None:
        name = Fields(function, "a function").text("name") if function.kind == "object" else ""
        yield function.raw, name, Tool(name)
        return
    fields = Fields(element, "a tool")
    kind, name = fields.text("type"), fields.text("name")
    members = list(_namespace(fields)) if kind == "namespace" else []
    if members:
        yield from members
    elif kind == "tool_search":
        description = fields.text("description", "Search available tools.")
        yield _line(kind, description, fields), kind, Tool(kind, kind=kind)
    else:
        yield element.raw, name, Tool(name, kind=kind if kind == "custom" else "function")


def _namespace(fields: Fields) -> Iterator[tuple[str, str, Tool]]:
    namespace = fields.text("name")
    for member in fields.objects("tools"):
        name = member.text("name")
        if name and member.text("type", "function") == "function":
            joined = namespace + name
            yield _line(joined, member.text("description"), member), joined, Tool(name, namespace)


def _line(name: str, description: str, fields: Fields) -> str:
    parameters = fields.get("parameters") or fields.get("input_schema")
    raw = NO_PARAMETERS if parameters is None else parameters.raw
    return f'{{"name":{quote(name)},"description":{quote(description)},"parameters":{raw}}}'
