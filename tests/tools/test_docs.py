"""docs/kvtool.md says all that kvtool can be asked and all that it answers: verbs, options, JSON keys."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from kvtools.cli import kvtool as group
from tools_kit import kvtool, save

PAGE = (Path(__file__).parents[2] / "docs/kvtool.md").read_text()
SECTIONS = dict(re.findall(r"^## kvtool (\S+)[^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
TEXT = b"A text that two files share and then leave. " * 5
BLOCK = b"<tool_calls>x</tool_calls>"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a bit of everything that a verb may have to say."""
    directory = tmp_path / "kv"
    tools = [(b"call_1", BLOCK)]
    save(directory, TEXT, 130, tool_map=tools)
    save(directory, TEXT + b"more", 200, tool_map=[(b"call_1", BLOCK + b" ")])
    save(directory, TEXT + b"and another end", 260, seed=1)
    (directory / "broken.kv").write_bytes(b"KVC")
    (tmp_path / "request.json").write_text(json.dumps({"messages": [{"role": "user", "content": "Hello"}]}))
    (tmp_path / "prompt").write_bytes(TEXT + b"and one more end")
    return directory


def files(place: Path) -> list[Path]:
    return [path for path in sorted(place.glob("*.kv")) if path.name != "broken.kv"]


Example = Callable[[Path], list[list[object]]]
EXAMPLES: dict[str, Example] = {
    "ls": lambda place: [[place]],
    "inspect": lambda place: [[place]],
    "verify": lambda place: [[place]],
    "diff": lambda place: [[a, b] for a in files(place) for b in files(place)],
    "why": lambda place: [
        [place, "--prompt", place.parent / "prompt", "--min-tokens", 1],
        [place, "--prompt", place.parent / "prompt"],
        [place, "--request", place.parent / "request.json"],
    ],
    "tree": lambda place: [[place]],
    "tools": lambda place: [[place]],
    "tokens": lambda place: [[path] for path in files(place)],
    "doctor": lambda place: [[place, "--budget", "1K"]],
    "prune": lambda place: [[place, "--max-size", 0]],
    "pin": lambda place: [files(place)],
    "unpin": lambda place: [files(place)],
}
"""Command lines of each verb, after `--json`, that between them print every key it has."""

VARIABLE = frozenset({"kinds"})
"""Keys whose value is an object with keys that are data."""


def keys_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from () if key in VARIABLE else keys_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_in(inner)


def test_every_verb_has_a_section_and_nothing_else_has() -> None:
    assert SECTIONS.keys() == group.commands.keys()


@pytest.mark.parametrize("verb", sorted(group.commands))
def test_every_option_is_in_its_verbs_section(verb: str) -> None:
    shared = PAGE[: PAGE.index("\n## ")]
    for parameter in group.commands[verb].params:
        if isinstance(parameter, click.Option):
            assert parameter.help
            for option in parameter.opts:
                assert re.search(rf"{option}\b", SECTIONS[verb] + shared), option


def test_every_verb_that_prints_json_has_examples_here() -> None:
    speaking = {name for name, verb in group.commands.items() if any("--json" in p.opts for p in verb.params)}
    assert EXAMPLES.keys() == speaking


@pytest.mark.parametrize("verb", sorted(EXAMPLES))
def test_every_key_is_documented(verb: str, place: Path) -> None:
    section = SECTIONS[verb] + (SECTIONS["ls"] if verb == "inspect" else "")  # which refers to its header keys
    documented = set(re.findall(r"`([^`]+)`", section))
    for arguments in EXAMPLES[verb](place):
        printed = set(keys_in(kvtool(verb, "--json", *arguments).json))
        assert printed <= documented, printed - documented
