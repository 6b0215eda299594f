"""Write a small directory of checkpoints, sound and broken, and show kvtool on it: `make demo`."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from kvformat.identity import Identity
from kvformat.policy import Reason
from kvformat.shapes import Shape
from kvformat.state import SessionState, empty_state
from kvformat.store import Options, Store

# Six small layers in Flash's order, so that a state is 0.5 MB instead of 24.
SMALL = Shape("small", (0, 0, 4, 128, 4, 128), head_dim=64, indexer_dim=32, vocab=1000)
SYSTEM = (
    b"<\xef\xbd\x9cbegin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>You are a coding agent.\n"
    + b"Rules of the house. " * 60
)
BLOCK = '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="ls">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'.encode()


def state_of(text: bytes) -> SessionState:
    """A made-up state of one token per four bytes; a model's would hold other numbers in the same places."""
    state = empty_state(SMALL, len(text) // 4, ctx=8192)
    numbers = np.random.default_rng(len(text))
    for name, array in state.arrays():
        array[...] = (
            numbers.integers(0, SMALL.vocab, array.shape) if name == "tokens" else numbers.normal(size=array.shape)
        )
    return state


def fill(directory: Path) -> Path:
    """A cold anchor, the same conversation further on with a tool call, and what crashes and other programs leave behind."""
    store = Store(directory, Identity(SMALL, quant_bits=2), ctx=8192, options=Options(min_tokens=64))
    question = SYSTEM + "<｜User｜>What is in this folder?<｜Assistant｜></think>".encode()
    answer = question + BLOCK + "<｜end▁of▁sentence｜>".encode() + b"<tool_result>README.md</tool_result>" * 120
    store.save(state_of(SYSTEM), SYSTEM, Reason.COLD)
    saved = store.save(state_of(answer), answer, Reason.EVICT, tool_map=[(b"call_0123456789abcdef", BLOCK)])
    assert saved.path is not None
    longest = saved.path.read_bytes()
    (directory / f"{'1' * 40}.kv").write_bytes(longest[:-5000])
    (directory / f"{'2' * 40}.kv").write_bytes(longest[:20] + b"\x07" + longest[21:])
    (directory / f"{'3' * 40}.kv.tmp.999999").write_bytes(longest[:1000])
    return saved.path


def show(*command: str) -> None:
    print(f"\n$ {shlex.join(command)}", flush=True)
    subprocess.run([sys.executable, "-m", "kvtools", *command[1:]], check=False)


if __name__ == "__main__":
    where = Path(sys.argv[1])
    shutil.rmtree(where, ignore_errors=True)
    longest = fill(where)
    show("kvtool", "ls", str(where))
    show("kvtool", "inspect", str(longest))
    show("kvtool", "verify", str(where))
