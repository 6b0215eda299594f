"""Find the longest checkpoint of a prompt in big directories: python bench/bench_lookup.py [--repeats N]

Ours against upstream's method written out directly (list, read every header, hash the prompt once per file) in the same run,
and beside what ds4's C program needed on another machine. Text lengths are spread over the prompt, all distinct, which is
the worst case for both. Cold is a new process's first question (the page cache is warm), warm is any later one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sparse import CTX, write_sparse

from kvformat.header import FRONT_BYTES, Header
from kvformat.identity import Identity
from kvformat.prefix import text_key
from kvformat.shapes import FLASH
from kvformat.store import Store

FILES = (1_000, 5_000)
PROMPTS = (20_000, 200_000, 1_000_000)  # bytes

# ds4's C lookup at these sizes, warm, in ms: golden/bench.json "lookup".warm_find_ms_min, another machine.
C_WARM = {
    (1_000, 20_000): 66.16,
    (1_000, 200_000): 800.46,
    (1_000, 1_000_000): 3941.93,
    (5_000, 20_000): 393.95,
    (5_000, 200_000): 4943.04,
    (5_000, 1_000_000): 14601.33,
}


def fill(directory: Path, files: int, prompt: bytes) -> Path:
    """Sparse checkpoints with texts of `files` distinct lengths; only the one of 90 % of the prompt is its prefix."""
    hit = len(prompt) * 9 // 10
    for number in range(files):
        length = len(prompt) * (number + 1) // files
        key = hashlib.sha1(number.to_bytes(4, "little")).hexdigest()
        write_sparse(directory / f"{key}.kv", b"", length)
    winner = directory / f"{text_key(prompt[:hit])}.kv"
    write_sparse(winner, prompt[:hit], hit)
    return winner


def ours(store: Store, prompt: bytes) -> Path | None:
    return next((match.path for match in store.candidates(prompt) if match.usable), None)


def upstream(directory: Path, prompt: bytes) -> Path | None:
    """As ds4 does it for every request: every header again, and the prompt's start hashed again for every file."""
    best, longest = None, -1
    for name in os.listdir(directory):  # noqa: PTH208
        with (directory / name).open("rb") as file:
            header = Header.decode(file.read(FRONT_BYTES))
        if longest < header.text_bytes <= len(prompt) and text_key(prompt[: header.text_bytes]) == name[:40]:
            best, longest = directory / name, header.text_bytes
    return best


def measure(question: Callable[[], Path | None], expected: Path, repeats: int) -> tuple[float, float]:
    """Best wall and CPU milliseconds of a question, every answer checked. CPU is what a busy machine does not change."""
    walls, cpus = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        answer = question()
        walls.append((time.perf_counter() - wall) * 1e3)
        cpus.append((time.process_time() - cpu) * 1e3)
        assert answer == expected, answer
    return min(walls), min(cpus)


def compare(files: int, prompt: bytes, repeats: int) -> None:
    identity = Identity(FLASH, 2)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        winner = fill(directory, files, prompt)
        store = Store(directory, identity, CTX)
        ours(store, prompt)
        cold = measure(lambda: ours(Store(directory, identity, CTX), prompt), winner, min(repeats, 10))
        warm = measure(lambda: ours(store, prompt), winner, repeats)
        direct = measure(lambda: upstream(directory, prompt), winner, 2)
    times = "".join(f"{wall:>9.1f}{cpu:>7.1f}" for wall, cpu in (cold, warm, direct))
    print(f"{files:>6,}{len(prompt):>11,}{times}{C_WARM[files, len(prompt)]:>10.1f}{direct[1] / warm[1]:>9.0f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    load = os.getloadavg()[0]
    print(
        f"{platform.machine()}, {os.cpu_count()} cores (load {load:.1f}), Python {platform.python_version()}; best ms"
    )
    columns = "".join(f"{name:>9}{'CPU':>7}" for name in ("cold", "warm", "upstream"))
    print(f"{'files':>6}{'prompt B':>11}{columns}{'C warm':>10}{'by CPU':>10}")
    rng = random.Random(1)
    for files in FILES:
        for size in PROMPTS:
            compare(files, rng.randbytes(size), repeats)


if __name__ == "__main__":
    main()
