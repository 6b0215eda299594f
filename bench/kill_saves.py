"""Kill a process that saves, at random moments, and look at what it left: python bench/kill_saves.py [KILLS]

Fails if an unreadable file stands under a final name, or if the next store does not sweep what the dead writer left.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from kvformat.checkpoint import Checkpoint
from kvformat.errors import KVError
from kvformat.governor import Limits
from kvformat.identity import Identity
from kvformat.policy import Reason
from kvformat.shapes import Shape
from kvformat.state import empty_state
from kvformat.store import Options, Store

SHAPE = Shape("small", (0, 4, 128), head_dim=64, indexer_dim=32, vocab=200_000)
TOKENS = 4_000  # a file has about 3 MB
BUDGET = 20_000_000  # so that evictions are among what is cut short
LONGEST_LIFE = 0.1  # seconds


def open_store(directory: Path, ahead: float = 0.0) -> Store:
    options = Options(budget=BUDGET, min_tokens=1, limits=Limits(min_gain=0))
    return Store(directory, Identity(SHAPE, 2, fingerprint="aa11"), 8_192, options, lambda: time.time() + ahead)


def save_for_ever(directory: Path) -> None:
    """New texts, texts that are there already, and growing tool maps; says when it begins."""
    store, state = open_store(directory), empty_state(SHAPE, TOKENS, 8_192)
    for _, array in state.arrays():
        array[...] = np.ones((), array.dtype)
    print("saving", flush=True)
    for number in itertools.count():
        text = b"%d of %d " % (number // 2, os.getpid())
        store.save(state, text * 1_000, Reason.EVICT, tool_map=[(b"call_%d" % number, b"<A>" * 10_000)])


def kill_one(directory: Path, seconds: float) -> None:
    command = [sys.executable, __file__, "--save", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"saving\n"
        time.sleep(seconds)
        process.kill()


def unreadable(directory: Path) -> list[str]:
    found = []
    for path in directory.glob("*.kv"):
        try:
            with Checkpoint.open(path, (SHAPE,)) as checkpoint:
                if checkpoint.text_key() != checkpoint.name_key or checkpoint.trailer_problem:
                    found.append(f"{path}: {checkpoint.trailer_problem or 'the name is not that of the text'}")
        except KVError as error:
            found.append(str(error))
    return found


def main(kills: int) -> int:
    rng, seen = random.Random(), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for number in range(kills):
            print(f"\rkill {number + 1} of {kills}", end="", file=sys.stderr, flush=True)
            kill_one(directory, rng.uniform(0, LONGEST_LIFE))
            bad = unreadable(directory)
            seen.update(unreadable=len(bad), temps=len(list(directory.glob("*.tmp.*"))))
            print(*bad, sep="\n", end="")
            open_store(directory, ahead=3_600).room.trim()
            seen.update(unswept=len(list(directory.glob("*.tmp.*"))), files=len(list(directory.glob("*.kv"))))
    print(file=sys.stderr)
    print(
        f"{kills} kills: {seen['unreadable']} unreadable files under a final name, {seen['temps']} temps left behind, "
        f"{seen['unswept']} of them not swept; {seen['files'] / kills:.1f} sound files on average"
    )
    return int(seen["unreadable"] + seen["unswept"] > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--save"]:
        save_for_ever(Path(sys.argv[2]))
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 200))
