"""Compare two checkpoints of 1 GB each: python bench/bench_diff.py [--dir DIR]

Flash-shaped states of 72,000 tokens, equal, different in one value, and different everywhere, beside a bare loop that reads
both files and compares them, in the same run. The files are warm. Peak memory is that of the whole kvtool process.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from kvformat import layout
from kvformat.header import Header
from kvformat.shapes import FLASH

TOKENS, CTX = 72_000, 131_072
TEXT = b"four" * TOKENS
PIECE = 1 << 20
KVTOOL = "import sys; from kvtools.cli import main; sys.argv[0] = 'kvtool'; main()"


def make(path: Path, seed: int) -> int:
    """Random logits and layers behind the same header, text and tokens; returns the file's bytes."""
    header = Header(
        layout.KVC_MAGIC, 1, 2, 1, 0, 0, TOKENS, 0, CTX, 2, bytes(3), 1, 1, FLASH.payload_bytes(TOKENS), len(TEXT)
    )
    words = [2, CTX, 4096, 4352, 128, CTX // 4 + 2, TOKENS, FLASH.layers, 512, 128, FLASH.vocab, 128]
    rng = np.random.default_rng(seed)
    block = rng.standard_normal(PIECE, np.float32).tobytes()
    with path.open("wb") as file:
        file.write(header.encode() + TEXT + layout.DSV4_MAGIC + np.array(words, "<u4").tobytes())
        file.write((np.arange(TOKENS, dtype="<u4") % FLASH.vocab).tobytes())
        file.write(rng.standard_normal(FLASH.vocab, np.float32).tobytes())
        file.write(np.array(FLASH.counts(TOKENS), "<u4").tobytes())
        while file.tell() < header.payload_end:
            file.write(block[: header.payload_end - file.tell()])
    return path.stat().st_size


def bare(a: Path, b: Path) -> float:
    """Seconds to read both files a piece at a time and to compare the pieces."""
    started = time.perf_counter()
    with a.open("rb", buffering=0) as left, b.open("rb", buffering=0) as right:
        while (piece := left.read(PIECE)) and piece == right.read(PIECE):
            pass
    return time.perf_counter() - started


def kvtool_diff(a: Path, b: Path) -> tuple[float, float, int]:
    """Seconds, peak MiB and exit code of the command."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", KVTOOL, "diff", str(a), str(b)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    peak = usage.ru_maxrss / (1 << 10 if sys.platform == "linux" else 1 << 20)
    return time.perf_counter() - started, peak, process.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path)
    with tempfile.TemporaryDirectory(dir=parser.parse_args().dir) as name:
        a, same, one, other = (Path(name) / f"{n}.kv" for n in ("a", "same", "one", "other"))
        nbytes = make(a, 1)
        make(same, 1), make(one, 1), make(other, 2)
        with one.open("r+b") as file:
            file.seek(nbytes - 100_000_000)
            file.write(bytes(4))
        print(f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
        print(f"2 x {nbytes:,} bytes, warm; a bare loop over the equal pair takes {bare(a, same):.2f} s")
        print(f"{'':<28}{'seconds':>9}{'peak MiB':>10}{'exit':>6}")
        for title, b in (("equal", same), ("one value differs", one), ("all values differ", other)):
            seconds, peak, code = kvtool_diff(a, b)
            print(f"{title:<28}{seconds:>9.2f}{peak:>10.0f}{code:>6}")


if __name__ == "__main__":
    main()
