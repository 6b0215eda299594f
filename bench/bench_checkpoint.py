"""Open, read, map, write and verify one big checkpoint: python bench/bench_checkpoint.py [--repeats N] [--dir DIR]

A Flash-shaped state of 20,480 tokens, 305,882,508 bytes of payload, against bare loops over the same buffers and against
safetensors and torch with the same arrays, all in one run and interleaved, so that a busy machine is busy for all of them.
Warm: the file is in the page cache. Cold: it was dropped from there just before (Linux; not an empty disk cache).
Needs the extra `engine`. Writes go to DIR, on whatever lies under it; what a sync costs is its affair.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from kvformat.checkpoint import Checkpoint
from kvformat.prefix import text_key
from kvformat.shapes import FLASH
from kvformat.state import SessionState, empty_state
from kvformat.writer import Contents, write
from kvtools.findings import Verdict
from kvtools.inspecting import describe
from kvtools.verifying import verify

TOKENS, CTX = 20_480, 32_768
PAYLOAD = 305_882_508
TEXT = b"The text of a session of 20,480 tokens. " * 2200  # 4.3 bytes a token
PAGE = 4096


@dataclass(frozen=True, slots=True)
class Job:
    """One line of the table: it reads or makes a file. `base` names the bare loop that it is held against."""

    name: str
    run: Callable[[], object]
    nbytes: int
    base: str = ""
    reads: Path | None = None
    makes: Path | None = None
    cold: bool = False


def random_state() -> SessionState:
    state = empty_state(FLASH, TOKENS, CTX)
    rng = np.random.default_rng(1)
    for _, array in state.arrays():
        if array.dtype == np.uint32:
            array[:] = rng.integers(0, FLASH.vocab, array.shape, np.uint32)
        else:
            rng.standard_normal(array.shape, np.float32, array)
    return state


def bytes_of(array: Any) -> memoryview:
    return memoryview(array).cast("B")


def touch_pages(arrays: list[Any]) -> int:
    """Read one byte of every page, so that all of a mapped array has to come in."""
    return sum(int(array.reshape(-1).view(np.uint8)[::PAGE].sum()) for array in arrays)


# ---- the bare loops


def read_bare(path: Path, buffers: list[memoryview]) -> None:
    with path.open("rb", buffering=0) as file:
        for buffer in buffers:
            done = 0
            while done < len(buffer):
                done += file.readinto(buffer[done:])


def write_bare(path: Path, buffers: list[memoryview], durable: bool) -> None:
    with path.open("wb", buffering=0) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, sum(map(len, buffers)))
        for buffer in buffers:
            done = 0
            while done < len(buffer):
                done += file.write(buffer[done:])
        if durable:
            os.fsync(file.fileno())


# ---- ours


def read_ours(path: Path, state: SessionState) -> None:
    with Checkpoint.open(path) as checkpoint:
        checkpoint.read_into(state)


def map_ours(path: Path, touch: bool) -> int:
    with Checkpoint.open(path) as checkpoint:
        return (
            touch_pages([array for _, array in checkpoint.views().arrays()])
            if touch
            else len(checkpoint.views().layers)
        )


def inspect_ours(path: Path) -> None:
    with Checkpoint.open(path) as checkpoint:
        describe(checkpoint)


# ---- the rivals


def load_torch(path: Path, mapped: bool, touch: bool = False) -> int:
    loaded = torch.load(path, mmap=mapped)
    return touch_pages([tensor.numpy() for tensor in loaded.values()]) if touch else len(loaded)


def jobs(folder: Path, state: SessionState) -> list[Job]:
    contents = Contents.from_state(state, TEXT, reason="cold", quant_bits=2, now=1_790_000_000)
    assert contents.header.payload_bytes == PAYLOAD
    ours, bare = folder / f"{text_key(TEXT)}.kv", folder / "bare.bin"
    tensors, pickled, scratch = folder / "state.safetensors", folder / "state.pt", folder / "scratch"
    arrays = dict(state.arrays())
    torched = {name: torch.from_numpy(array) for name, array in arrays.items()}
    written = [bytes_of(array) for array in arrays.values()]
    target = empty_state(FLASH, TOKENS, CTX)
    buffers = [bytes_of(array) for _, array in target.arrays()]
    size = sum(map(len, written))
    write(ours, contents)
    assert verify(ours).verdict is Verdict.OK
    write_bare(bare, written, durable=True)
    safetensors.numpy.save_file(arrays, tensors)
    torch.save(torched, pickled)
    reads = [
        Job("bare readinto loop", lambda: read_bare(bare, buffers), size, "", bare),
        Job("ours: open, read into buffers", lambda: read_ours(ours, target), size, "bare readinto loop", ours),
        Job("safetensors load_file", lambda: safetensors.numpy.load_file(tensors), size, "bare readinto loop", tensors),
        Job("torch.load", lambda: load_torch(pickled, False), size, "bare readinto loop", pickled),
        Job("ours: mapped views, touched", lambda: map_ours(ours, True), size, "bare readinto loop", ours),
        Job("torch.load mapped, touched", lambda: load_torch(pickled, True, True), size, "bare readinto loop", pickled),
    ]  # fmt: skip
    cold = [
        replace(job, name=f"cold: {job.name}", base=f"cold: {job.base}" if job.base else "", cold=True) for job in reads
    ]
    lazy = [
        Job("ours: mapped views, untouched", lambda: map_ours(ours, False), 0, "", ours),
        Job("torch.load mapped, untouched", lambda: load_torch(pickled, True), 0, "", pickled),
        Job("ours: open and describe", lambda: inspect_ours(ours), 0, "", ours),
        Job("cold: ours: open and describe", lambda: inspect_ours(ours), 0, "", ours, cold=True),
        Job("ours: verify", lambda: verify(ours), 0, "", ours),
        Job("cold: ours: verify", lambda: verify(ours), 0, "", ours, cold=True),
    ]
    quick, synced = "bare write loop", "bare write loop, fsync"
    writes = [
        Job(quick, lambda: write_bare(scratch, written, False), size, "", None, scratch),
        Job("ours: write, not durable", lambda: write(scratch, contents, durable=False), size, quick, None, scratch),
        Job("safetensors save_file", lambda: safetensors.numpy.save_file(arrays, scratch), size, quick, None, scratch),
        Job("torch.save", lambda: torch.save(torched, scratch), size, quick, None, scratch),
        Job(synced, lambda: write_bare(scratch, written, True), size, "", None, scratch),
        Job("ours: write, durable", lambda: write(scratch, contents), size, synced, None, scratch),
    ]
    return reads + cold + lazy + writes


def warm(path: Path) -> None:
    """Bring a file into the page cache."""
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 20):
            pass


def drop(path: Path) -> None:
    """Take a file out of the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(job: Job) -> float:
    """Seconds of one run. What it writes over is gone, and nothing waits to be written back, when it starts."""
    if job.makes:
        job.makes.unlink(missing_ok=True)
        os.sync()
    if job.reads:
        (drop if job.cold else warm)(job.reads)
    started = time.perf_counter()
    job.run()
    return time.perf_counter() - started


PEAK = """
import re, resource, sys
from pathlib import Path
from kvtools.cli import main
sys.argv[0] = "kvtool"
try:
    main()
except SystemExit:
    status = Path("/proc/self/status")  # ru_maxrss of a child also counts its parent there
    if status.exists():
        print(int(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]) * 1024, file=sys.stderr)
    else:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def peak_mib(*args: object) -> float:
    """Peak resident memory of a kvtool process in MiB."""
    done = subprocess.run([sys.executable, "-c", PEAK, *map(str, args)], capture_output=True, text=True, check=True)
    return int(done.stderr.splitlines()[-1]) / (1 << 20)


def report(todo: list[Job], seconds: dict[str, list[float]]) -> None:
    """The table. `x bare` is the median over the rounds of this job's time by its bare loop's in the same round."""
    best = {name: min(times) for name, times in seconds.items()}
    print(f"{'':<44}{'best ms':>10}{'median ms':>11}{'GB/s':>7}{'x bare':>8}")
    for job in todo:
        if job.name not in best:
            continue
        rate = f"{job.nbytes / best[job.name] / 1e9:.2f}" if job.nbytes else ""
        pairs = zip(seconds[job.name], seconds[job.base], strict=True) if job.base else ()
        times = f"{statistics.median(ours / bare for ours, bare in pairs):.2f}" if job.base else ""
        median = statistics.median(seconds[job.name])
        print(f"{job.name:<44}{best[job.name] * 1e3:>10.1f}{median * 1e3:>11.1f}{rate:>7}{times:>8}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        folder = Path(name)
        todo = jobs(folder, random_state())
        if not hasattr(os, "posix_fadvise"):
            todo = [job for job in todo if not job.cold]
        seconds: dict[str, list[float]] = defaultdict(list)
        for job in todo:
            measure(job)  # once for nothing: imports, page cache
        for _ in range(options.repeats):
            for job in todo:
                seconds[job.name].append(measure(job))
        print(
            f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, ",
            end="",
        )
        print(f"numpy {np.__version__}, torch {torch.__version__}, safetensors {safetensors.__version__}")
        print(f"payload {PAYLOAD:,} bytes, {options.repeats} interleaved rounds; warm unless it says cold")
        report(todo, seconds)
        file = next(folder.glob("*.kv"))
        for verb in ("inspect", "verify"):
            print(f"peak memory of kvtool {verb}: {peak_mib(verb, file):.0f} MiB")


if __name__ == "__main__":
    main()
