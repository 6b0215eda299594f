"""kvtool why --request: what the server would render, and which of the client's fields a byte of it comes from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvformat.nearmiss import common_prefix
from kvprompt.errors import BadRequest
from kvprompt.rawjson import Json, parse_object
from kvtools.requesting import DIALECTS, PREAMBLES, STEERING, VOLATILE, Field, FieldFinder, Request, read_request
from tools_kit import kvtool, save

GOLDEN = Path(__file__).parents[1] / "golden"


def rendered(body: str, dialect: str) -> Request:
    return read_request(body.encode(), dialect=dialect, ctx=32768, find_tools=lambda ids: {})


def strings(node: Json, path: str = "") -> Iterator[tuple[str, int]]:
    """The path of each string that is read into a prompt, and where its first letter stands."""
    if node.kind == "string":
        yield path.removeprefix("."), node.start + 1
    elif node.kind == "object":
        for name, value in node.members():
            if name not in STEERING:
                yield from strings(value, f"{path}.{name}")
    elif node.kind == "array":
        for at, value in enumerate(node.elements()):
            yield from strings(value, f"{path}[{at}]")


class TestTheClientsField:
    """Each dialect's request with one field changed after the file was saved."""

    LONG = "It is a long text of a turn, long enough to be known again. " * 4
    REQUESTS = (
        (
            "chat",
            {"messages": [{"role": "user", "content": "ONE"}, {"role": "assistant", "content": "TWO"},
                          {"role": "system", "content": "THREE"}, {"role": "user", "content": LONG}],
             "tools": [{"type": "function", "function": {"name": "FOUR", "parameters": {}}}]},
            {"ONE": "messages[0].content", "TWO": "messages[1].content", "THREE": "messages[2].content",
             "FOUR": "tools[0].function.name"},
        ),
        (
            "anthropic",
            {"system": [{"type": "text", "text": "ONE"}, {"type": "text", "text": "TWO"}],
             "messages": [{"role": "user", "content": [{"type": "text", "text": "THREE"}]},
                          {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "n", "input": {"k": "FOUR"}}]},
                          {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": LONG}]}]},
            {"ONE": "system[0].text", "TWO": "system[1].text", "THREE": "messages[0].content[0].text",
             "FOUR": "messages[1].content[0].input.k"},
        ),
        (
            "responses",
            {"instructions": "ONE", "input": [{"type": "message", "role": "user", "content": "TWO"},
             {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{\"k\": \"THREE\"}"},
             {"type": "function_call_output", "call_id": "c", "output": "FOUR"},
             {"type": "message", "role": "user", "content": LONG}]},
            {"ONE": "instructions", "TWO": "input[0].content", "THREE": "input[1].arguments", "FOUR": "input[2].output"},
        ),
        ("completion", {"prompt": "ONE" + LONG}, {"ONE": "prompt"}),
    )  # fmt: skip

    @pytest.mark.parametrize(("dialect", "request_", "fields"), REQUESTS, ids=[r[0] for r in REQUESTS])
    def test_it_is_named(self, dialect: str, request_: Any, fields: dict[str, str], tmp_path: Path) -> None:
        from kvprompt.dialects import PARSERS
        from kvprompt.render import Style, render

        body = json.dumps(request_)
        saved = render(PARSERS[DIALECTS[dialect]](body.encode()), Style(context=32768)).text
        save(tmp_path / "kv", saved, 150)
        file = tmp_path / "request.json"
        for word, path in fields.items():
            file.write_text(body.replace(word, word.lower()))
            options = ("--dialect", dialect, "--min-tokens", 1)
            found = kvtool("why", tmp_path / "kv", "--request", file, *options, "--json").json
            assert found["dialect"] == dialect
            assert (found["losses"][0]["field"], found["losses"][0]["behind_field"]) == (path, False), word
            text = kvtool("why", tmp_path / "kv", "--request", file, *options).out
            assert f", in {path}\n" in text

    def test_every_string_of_the_golden_requests_is_found_again(self) -> None:
        """Change the first letter of each: the byte where the rendering parts from the old one leads back to it."""
        named = {path: dialect for dialect, path in DIALECTS.items()}
        rows = json.loads((GOLDEN / "prompt/rendered_prompts.json").read_bytes())
        checked = 0
        for row in rows:
            body = json.dumps(row["request"])
            old = rendered(body, named[row["path"]])
            for path, start in strings(parse_object(body)):
                changed = f"{body[:start]}{'Z' if body[start] == 'Q' else 'Q'}{body[start + 1 :]}"
                if body[start] in '"\\{' or path == "tool_choice":  # empty, escaped, JSON inside, read as another kind
                    continue
                try:
                    new = rendered(changed, named[row["path"]])
                except BadRequest:  # one of a few words
                    continue
                if new.prompt != old.prompt:
                    found = FieldFinder(new).field_at(common_prefix(new.prompt, old.prompt))
                    assert found == Field(path, behind=False), row["name"]
                    checked += 1
        assert checked > 90

    @pytest.mark.parametrize(("dialect", "request_", "fields"), REQUESTS, ids=[r[0] for r in REQUESTS])
    def test_the_dialect_is_seen_by_its_members(self, dialect: str, request_: Any, fields: Any, tmp_path: Path) -> None:
        (tmp_path / "kv").mkdir()
        file = tmp_path / "request.json"
        file.write_text(json.dumps(request_))
        assert kvtool("why", tmp_path / "kv", "--request", file, "--json").json["dialect"] == dialect

    def test_a_field_that_ends_too_early(self, tmp_path: Path) -> None:
        from kvprompt.dialects import PARSERS
        from kvprompt.render import Style, render

        messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi there"}]
        messages.append({"role": "user", "content": self.LONG})
        body = json.dumps({"messages": messages})
        save(tmp_path / "kv", render(PARSERS[DIALECTS["chat"]](body.encode()), Style(context=32768)).text)
        file = tmp_path / "request.json"
        file.write_text(body.replace("Hi there", "Hi"))
        loss = kvtool("why", tmp_path / "kv", "--request", file, "--min-tokens", 1, "--json").json["losses"][0]
        assert (loss["field"], loss["behind_field"]) == ("messages[1].content", True)


class TestTheServersStyle:
    def test_what_the_server_strips(self, tmp_path: Path) -> None:
        """The same request on two days hits if the server strips the date."""
        file = tmp_path / "request.json"
        for day in ("2026-11-30", "2026-12-01"):
            system = f"Today's date: {day}\n" + "Rules. " * 30
            file.write_text(
                json.dumps({"messages": [{"role": "system", "content": system}, {"role": "user", "content": "?"}]})
            )
            if day == "2026-11-30":
                (tmp_path / "kv").mkdir()
                size = kvtool("why", tmp_path / "kv", "--request", file, "--strip-volatile", "date", "--json").json[
                    "prompt_bytes"
                ]
        both = {o: kvtool("why", tmp_path / "kv", "--request", file, "--strip-volatile", o, "--json").json["prompt_bytes"]
                for o in ("date", "none", "billing")}  # fmt: skip
        assert both["date"] == size == both["none"] - len("Today's date: 2026-12-01\n")
        assert both["none"] == both["billing"]
        refused = kvtool("why", tmp_path / "kv", "--request", file, "--strip-volatile", "dates")
        assert (refused.code, "no known volatile text" in refused.err) == (2, True)

    def test_its_wordings_are_all_known(self) -> None:
        from kvprompt.markers import Preamble
        from kvprompt.volatile import VOLATILE as KNOWN

        assert tuple(Preamble) == PREAMBLES
        assert tuple(entry.name for entry in KNOWN) == VOLATILE
