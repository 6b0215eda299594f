"""A writer that is killed at any moment leaves no torn file: bench/kill_saves.py a few times (200 by hand)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "bench" / "kill_saves.py"


def test_no_torn_file_and_nothing_left_behind() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "15"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("15 kills: 0 unreadable files")
