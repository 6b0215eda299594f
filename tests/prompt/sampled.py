"""Streams that a model might sample, sound and broken, for Hypothesis."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from kvprompt.markers import DSML, SPELLINGS

FRAGMENTS = (
    "a", "Hello ", "città 今天 🙂", "\n", "\n\n", " ", "  \n\n\n", "<", "</", "<｜", "<｜DSML｜", "&", "&lt;", "&amp;", '"', "\\",
    "{", "}", ">", "<tool", "<tool_calls", "<invoke name=", "</invoke>", "<think>", "\x00", "\ufffd", f"</{DSML}parameter",
)  # fmt: skip
text = st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join)
space = st.sampled_from(("", "\n", "\n\n", " \n\n\n", "\t"))
names = st.sampled_from(("get_weather", "a&b", 'q"<>', "città"))

json_value = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 10**20) | st.sampled_from((1.5, -0.25)) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
arguments = st.dictionaries(text, json_value, max_size=3)


@st.composite
def block(draw: st.DrawFn) -> str:
    """A sound block in any spelling, in the model's own order, spacing and JSON."""
    spelling = draw(st.sampled_from(SPELLINGS))
    end = f"</{spelling}parameter>"
    out = [f"<{spelling}tool_calls>"]
    for _ in range(draw(st.integers(1, 3))):
        out += [draw(space), f'<{spelling}invoke name="{draw(st.sampled_from(("f", "g&amp;h")))}">']
        for key, value in draw(arguments).items():
            key = key.replace("&", "&amp;").replace('"', "&quot;").replace(">", "&gt;").replace("<", "&lt;")
            if isinstance(value, str):
                attribute, written = (
                    draw(st.sampled_from(('" string="true"', '"'))),
                    value.replace(end, "&lt;" + end[1:]),
                )
            else:
                written = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from((None, 1))))
                attribute, written = '" string="false"', written.replace(end, "\\u003c" + end[1:])
            out += [draw(space), f'<{spelling}parameter name="{key}{attribute}>{written}{end}']
        if draw(st.integers(0, 4)) == 0:
            leaf = f'<{spelling}parameter name="x" string="false">{draw(st.sampled_from(("1", "oops")))}{end}'
            out += [draw(space), f'<{spelling}parameter name="o">', draw(space), leaf, draw(space), end]
        out += [draw(space), f"</{spelling}invoke>"]
    return "".join([*out, draw(space), f"</{spelling}tool_calls>"])


@st.composite
def turns(draw: st.DrawFn, *, thinking: bool) -> bytes:
    """What is sampled in one turn, usually as it should be; now and then it thinks where it should not."""
    thinks = thinking or draw(st.integers(0, 4)) == 0
    reasoning = draw(text) + (draw(block()) if draw(st.integers(0, 9)) == 0 else "") if thinks else ""
    closes = "</think>" if thinks and draw(st.integers(0, 9)) else ""
    said = draw(text) + draw(space)
    tools = draw(block()) if draw(st.booleans()) else ""
    return (reasoning + closes + said + tools).encode()


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Anything: turns with pieces cut out or put in at any byte."""
    sampled = draw(turns(thinking=draw(st.booleans()))) + draw(text).encode()
    for _ in range(draw(st.integers(0, 3))):
        at, length = draw(st.integers(0, len(sampled))), draw(st.integers(0, 12))
        put = draw(st.sampled_from((b"", b"\xff", b"</think>", b"<tool_calls>", b"\xe5\xa4")))
        sampled = sampled[:at] + put + sampled[at + length :]
    return sampled
