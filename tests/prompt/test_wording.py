"""The wording of a tool preamble, known again from the first bytes of a text."""

from __future__ import annotations

import pytest

from kvprompt.markers import BOS, PREAMBLE_BYTES, THINK_MAX, USER, Preamble, preamble_of, tools_section
from prompt.conftest import golden

RENDERED = [(record, Preamble.MAY) for record in golden("rendered_prompts.json") + golden("think_max.json")] + [
    (record, Preamble.AUGUST) for record in golden("rendered_from_traces.json")
]


@pytest.mark.parametrize(("record", "preamble"), RENDERED)
def test_of_every_prompt_of_the_real_server(record: dict, preamble: Preamble) -> None:
    text = record["rendered_prompt"].encode()
    has_tools = b"### Available Tool Schemas" in text
    assert preamble_of(text[:PREAMBLE_BYTES]) == preamble_of(text) == (preamble if has_tools else None)


@pytest.mark.parametrize("thinking", ["", THINK_MAX])
@pytest.mark.parametrize("preamble", Preamble)
def test_it_takes_the_whole_sentence_and_no_byte_more(preamble: Preamble, thinking: str) -> None:
    text = (BOS + thinking + tools_section(preamble, "{}")).encode()
    told = [length for length in range(len(text)) if preamble_of(text[:length])]
    assert told == list(range(told[0], len(text)))
    assert text[: told[0]].endswith(b"final response.") and told[0] <= PREAMBLE_BYTES


def test_not_where_somebody_quotes_it() -> None:
    assert preamble_of((BOS + USER + tools_section(Preamble.MAY, "{}")).encode()) is None
