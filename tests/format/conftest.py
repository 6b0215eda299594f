"""A file that stands there already, and a recorder of the system calls that change or sync something."""

from __future__ import annotations

import os
import stat
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvformat import durable

OLD = b"what stood there before"
CALLS = ("pwrite", "ftruncate", "fsync", "posix_fallocate", "open", "rename", "replace", "unlink")


@pytest.fixture
def final(tmp_path: Path) -> Path:
    path = tmp_path / "final.kv"
    path.write_bytes(OLD)
    return path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the calls in order; the sync of a directory is told apart. Everywhere as on a system without F_FULLFSYNC."""
    seen: list[str] = []

    def record(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            is_directory = name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode)
            seen.append("fsync directory" if is_directory else name)
            return real(*args, **options)

        return call

    monkeypatch.setattr(durable, "fcntl", types.SimpleNamespace())
    monkeypatch.setattr(os, "posix_fallocate", getattr(os, "posix_fallocate", lambda *_: None), raising=False)
    for name in CALLS:
        monkeypatch.setattr(os, name, record(name, getattr(os, name)))
    return seen
