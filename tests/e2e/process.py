"""A real kvserve process on a free port, ended by its own id."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
MODEL = TESTS / "golden" / "models" / "tiny-q2.gguf"


class Server:
    """Started with `options`; its log goes to a file, from which the port and the decisions are read.

    With a `script` (e2e.scripted) the model says what it is told.
    """

    def __init__(
        self, log: Path, *options: str, model: Path | None = MODEL, script: Sequence[str] | None = None
    ) -> None:
        self.log = log
        chosen = ["-m", str(model)] if model else []
        program = ["e2e.scripted", json.dumps(script)] if script else ["kvserver"]
        command = [sys.executable, "-m", *program, *chosen, "--port", "0", *options]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join((str(TESTS), *sys.path))}
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(command, stderr=stderr, stdin=subprocess.DEVNULL, env=environment)
        self.url = self._wait()

    def _wait(self) -> str:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.process.poll() is None:
            ready = re.findall(r"listening on (http://\S+)", self.text)
            if ready and re.search(r"ready: ", self.text.split(ready[-1])[-1]):
                return ready[-1]
            time.sleep(0.05)
        self.kill()
        raise AssertionError(f"the server did not start:\n{self.text}")

    @property
    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as response:
                answer: dict[str, Any] = json.load(response)
                return answer
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{error.code}: {error.read().decode()}") from None

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=120)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
