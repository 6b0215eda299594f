"""The document describes the server: schemathesis finds no request that says otherwise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx2

from kvprompt.dialects import PARSERS
from kvserver.openapi import document
from server.fakes import FakeBackend, serving


def test_it_is_served_and_has_every_path() -> None:
    with serving(FakeBackend()) as url:
        answer = httpx2.get(f"{url}/openapi.json")
    assert answer.json() == document()
    assert set(PARSERS) < set(document()["paths"])


def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    with serving(FakeBackend()) as url:
        done = subprocess.run(
            [
                Path(sys.executable).with_name("st"),
                *("run", f"{url}/openapi.json", "--phases", "coverage,fuzzing", "--max-examples", "10", "--seed", "1"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stdout
