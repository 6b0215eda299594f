"""How often our greedy token is ds4-server's, with and without --int8-activations, and what the option costs.

The golden files of the tests: states that the real ds4 saved, and the tokens that it then chose. Each is restored here and fed
those tokens, so that every position is one question. Beside it the speed of the two, one thread, best of three.
"""

from __future__ import annotations

import platform
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from kvengine import Model, Numerics, Session, load

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from engine.test_golden_runs import Step, file_steps

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
RUNS = {
    "files of ABI 0, 32 tokens each": ("kv/index.json", "kv", "greedy32_after_load", None),
    "files of ABI 2, 16 tokens each": ("current/kv_index.json", "current/kv", "greedy16_after_load", None),
}
PROMPT, DECODED = 1024, 32


@cache
def model(int8_activations: bool, kind: str) -> Model:
    """The golden model."""
    return load(GOLDEN / "models" / f"tiny-{kind}.gguf", Numerics(int8_activations=int8_activations))


def agreement(steps: list[Step]) -> str:
    """Positions at which both choose one token."""
    agree = sum(step.agrees for step in steps)
    return f"{agree} ({100 * agree / len(steps):.1f} %)"


def best(run: Callable[[], object]) -> float:
    """Seconds of the best of three."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def speeds(on: bool) -> tuple[str, str]:
    """Tokens per second, prefilled and decoded."""
    session = Session(model(on, "q2"), 4 * PROMPT)
    tokens = [at % session.model.config.vocab for at in range(PROMPT)]

    def prefill() -> None:
        session.clear()
        session.feed(tokens)

    def decode() -> None:
        for token in tokens[:DECODED]:
            session.feed([token])

    return f"{PROMPT / best(prefill):,.0f}", f"{DECODED / best(decode):,.0f}"


def main() -> None:
    torch.set_num_threads(1)
    table = Table(title=f"--int8-activations, golden models ({platform.machine()}, torch {torch.__version__})")
    for heading in ("", "positions", "off", "on"):
        table.add_column(heading, justify="left" if not heading else "right")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(GOLDEN / "kv.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        for name, files in RUNS.items():
            off, on = (list(file_steps(partial(model, switch), Path(folder), *files)) for switch in (False, True))
            table.add_row(f"ds4's token, {name}", str(len(on)), agreement(off), agreement(on))
    for name, off, on in zip(("prefill, tokens/s", "decode, tokens/s"), speeds(False), speeds(True), strict=True):
        table.add_row(name, str(PROMPT if name.startswith("prefill") else DECODED), off, on)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
