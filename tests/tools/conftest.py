"""Golden directories of the real server for kvtool's tests."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

ARCHIVE = Path(__file__).parents[1] / "golden/restart.tar.xz"


@pytest.fixture(scope="session")
def restart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories as the real ds4-server found them at a restart, each with `run.json` and the `run.trace` it then wrote.

    Headers, texts, token ids, counts and tool maps are its own; logits and layers, which no lookup reads, are zeroed.
    """
    target = tmp_path_factory.mktemp("restart")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(target, filter="data")
    return target
