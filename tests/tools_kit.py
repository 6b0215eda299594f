"""What the tests of kvtool's verbs share: a run of the tool in this process, and small checkpoints of any text."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from kvformat.prefix import text_key
from kvformat.shapes import Shape
from kvformat.state import LayerState
from kvformat.writer import Contents
from kvtools.cli import main
from kvtools.findings import Report
from kvtools.judging import Level, Wishes, judge
from strategies import built, random_state

SMALL = Shape("small", (0, 4, 128), head_dim=3, indexer_dim=2, vocab=64, window=8)


@dataclass(frozen=True, slots=True)
class Run:
    """How a command ended and what it said."""

    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.raw, parse_constant=_no_json)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line, parse_constant=_no_json) for line in self.raw.splitlines()]


def _no_json(constant: str) -> float:
    raise AssertionError(f"{constant} is not JSON")


def kvtool(*args: object) -> Run:
    """`kvtool ARGS` with its output in a pipe."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    argv = ["kvtool", *map(str, args)]
    with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    for stream in (out, err):
        stream.flush()
    return Run(code, out.buffer.getvalue(), err.buffer.getvalue().decode())  # type: ignore[attr-defined]


def contents(text: bytes, tokens: int = 130, *, shape: Shape = SMALL, ids: Any = None, ctx: int = 1024, seed: int = 0,
             **fields: Any) -> Contents:  # fmt: skip
    """A sound checkpoint of finite numbers; `fields` go to its header, `tool_map` behind it."""
    state = random_state(shape, tokens, ctx, seed)
    rng = np.random.default_rng(seed)
    layers = tuple(
        LayerState(**{name: rng.standard_normal(array.shape, np.float32) for name, array in layer.arrays()})
        for layer in state.layers
    )
    tokens_ = np.arange(tokens, dtype=np.uint32) % shape.vocab if ids is None else np.array(ids, np.uint32)
    state = replace(state, tokens=tokens_, layers=layers)
    tool_map = fields.pop("tool_map", ())
    key_kind = fields.pop("key_kind", "token-text")
    made = Contents.from_state(
        state, text, reason="cold", quant_bits=2, now=1_790_000_000, tool_map=tool_map, key_kind=key_kind
    )
    return replace(made, header=made.header._replace(**fields))


def save(directory: Path, text: bytes, tokens: int = 130, **options: Any) -> Path:
    """The same as a file under its key."""
    directory.mkdir(exist_ok=True)
    path = directory / f"{text_key(text)}.kv"
    path.write_bytes(built(contents(text, tokens, **options)))
    return path


def save_many(directory: Path, texts: Iterable[bytes]) -> None:
    """Small files of these texts, each used a second after the one before; all hold the same state of one token."""
    directory.mkdir(exist_ok=True)
    made = contents(b"x", 1)
    state = built(made)[made.header.payload_offset :]
    for number, text in enumerate(texts):
        header = made.header._replace(text_bytes=len(text), last_used=1_800_000_000 + number)
        (directory / f"{text_key(text)}.kv").write_bytes(header.encode() + text + state)


def only(path: Path, level: Level = Level.FULL, **wishes: object) -> Report:
    """What `verify` has to say about one file."""
    [report] = judge([path], Wishes(level, **wishes))  # type: ignore[arg-type]
    return report


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]
