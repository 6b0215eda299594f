"""kvtool against bare loops over the same bytes: python bench/bench_verify.py [DIR]

`verify --full` beside a loop that only reads and hashes (xxh3-128), both on all cores; `ls` on 5,000 files beside a loop of
scandir and two reads of 52 bytes a file; all without the start of Python. Every figure is the best of fifteen, the page cache
warm; what is compared alternates, so that a slow minute hits it alike. On a busy machine the CPU columns tell more than the
clock. Peak memory is that of a process that does nothing else.
"""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import xxhash
from sparse import write_sparse

from kvformat.prefix import text_key
from kvformat.shapes import FLASH, Shape
from kvformat.state import SessionState, empty_state
from kvformat.writer import Contents, write
from kvtools import listing
from kvtools.judging import Level, Wishes, judge
from kvtools.sweeping import BLOCK, PIECE

ROUNDS = 15
BIG = {"1 file of 70,000 tokens": (70_000, 1), "8 files of 5,120 tokens": (5_120, 8)}
MANY = 5_000


def made_up(shape: Shape, tokens: int) -> SessionState:
    """A state of finite numbers."""
    state = empty_state(shape, tokens, ctx=tokens + 1)
    numbers = np.random.default_rng(tokens)
    for name, array in state.arrays():
        array[...] = (
            numbers.integers(0, 60, array.shape) if name == "tokens" else numbers.random(array.shape, np.float32)
        )
    return state


def fill(directory: Path, shape: Shape, tokens: int, count: int) -> None:
    state = made_up(shape, tokens)
    for _ in range(count):
        text = os.urandom(16).hex().encode() * max(1, tokens // 8)
        contents = Contents.from_state(state, text, reason="evict", quant_bits=2, now=int(time.time()))
        write(directory / f"{text_key(text)}.kv", contents, durable=False)


def bare_hash(directory: Path) -> None:
    """Read and hash, each block by one thread, as verify does."""

    def block(task: tuple[int, int]) -> None:
        fd, start = task
        buffer = memoryview(bytearray(PIECE))
        digest = xxhash.xxh3_128()
        for at in range(start, start + BLOCK, PIECE):
            digest.update(buffer[: os.preadv(fd, [buffer], at)])

    fds = [os.open(path, os.O_RDONLY) for path in directory.glob("*.kv")]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(block, [(fd, at) for fd in fds for at in range(0, os.fstat(fd).st_size, BLOCK)]))
    for fd in fds:
        os.close(fd)


def verified(directory: Path) -> None:
    reports = list(judge([directory], Wishes(Level.FULL)))
    assert reports and all(report.verdict == "ok" for report in reports), reports


def bare_ls(directory: Path) -> None:
    for entry in os.scandir(directory):
        if entry.name.endswith(".kv"):
            fd = os.open(entry.path, os.O_RDONLY)
            os.fstat(fd)
            front = os.read(fd, 52)
            os.pread(fd, 52, 52 + int.from_bytes(front[48:], "little"))
            os.close(fd)


def listed(directory: Path) -> None:
    now = time.time()
    rows = [listing.row(entry, now) for entry in listing.list_directory(directory)]
    assert len(rows) >= MANY


JOBS: dict[str, Callable[[Path], None]] = {f.__name__: f for f in (bare_hash, verified, bare_ls, listed)}


def seconds(job: str, directory: Path) -> tuple[float, float]:
    """By the clock, and of all cores together."""
    started, used = time.perf_counter(), time.process_time()
    JOBS[job](directory)
    return time.perf_counter() - started, time.process_time() - used


def peak_mb(job: str, directory: Path) -> float:
    """Peak memory of one run in a fresh process."""
    run = subprocess.run([sys.executable, __file__, job, str(directory)], check=True, capture_output=True, text=True)
    return float(run.stdout)


def one_run(job: str, directory: Path) -> None:
    JOBS[job](directory)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1 << 20))


def table(title: str, directory: Path, rows: dict[str, str]) -> None:
    """Rows are label → job; the first is what the others are held against."""
    size = sum(path.stat().st_size for path in directory.glob("*.kv"))
    times: dict[str, list[tuple[float, float]]] = {label: [] for label in rows}
    for _ in range(ROUNDS):
        for label, job in rows.items():
            times[label].append(seconds(job, directory))
    best = {label: [min(column) for column in zip(*runs, strict=True)] for label, runs in times.items()}
    bare = best[next(iter(rows))]
    for label, job in rows.items():
        clock, cpu = best[label]
        cells = [
            title,
            label,
            f"{size / 1e6:,.0f}",
            f"{clock * 1e3:,.1f}",
            f"{size / clock / 1e9:.2f}",
            f"{bare[0] / clock:.0%}",
        ]
        cells += [f"{cpu * 1e3:,.1f}", f"{bare[1] / cpu:.0%}", f"{peak_mb(job, directory):.0f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def filled(directory: Path, shape: Shape, tokens: int, count: int) -> None:
    """In a process of its own, since Linux hands the peak memory down to children."""
    if (child := os.fork()) == 0:
        fill(directory, shape, tokens, count)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def main(base: Path | None) -> None:
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, page cache warm, best of {ROUNDS}\n"
    )
    print(
        "| files | what | MB | ms | GB/s | of bare | CPU ms | of bare | peak MB |\n|---|---|---|---|---|---|---|---|---|"
    )
    for title, (tokens, count) in BIG.items():
        with tempfile.TemporaryDirectory(dir=base) as name:
            directory = Path(name)
            filled(directory, FLASH, tokens, count)
            table(title, directory, {"bare read + xxh3-128": "bare_hash", "verify --full": "verified"})
            list(judge([directory], Wishes(seal=True)))
            table(title, directory, {"bare read + xxh3-128": "bare_hash", "verify --full, sealed": "verified"})
    with tempfile.TemporaryDirectory(dir=base) as name:
        directory = Path(name)
        for _ in range(MANY):
            text = os.urandom(1024)
            write_sparse(directory / f"{text_key(text)}.kv", text, len(text))
        table(f"{MANY:,} files", directory, {"bare scandir + two reads": "bare_ls", "ls": "listed"})


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in JOBS:
        one_run(sys.argv[1], Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]) if sys.argv[1:] else None)
