"""Hypothesis profiles (HYPOTHESIS_PROFILE=dev|ci|nightly) and the golden files of the real ds4."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from kvformat.shapes import Shape

GOLDEN = Path(__file__).parent / "golden"

# The golden models (golden/README of the data): every size differs from Flash on purpose.
TINY = Shape("tiny", (0, 0, 4, 128, 4), head_dim=192, indexer_dim=128, vocab=640, window=16)

settings.register_profile("dev", max_examples=100, deadline=None)
settings.register_profile(
    "ci", max_examples=200, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("nightly", max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


@pytest.fixture(scope="session")
def golden_kv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked tree of tests/golden/kv.tar.xz: kv/ (ABI 0), current/ (ABI 2), edge/ (verdicts of the real loader)."""
    target = tmp_path_factory.mktemp("golden")
    with tarfile.open(GOLDEN / "kv.tar.xz") as archive:
        archive.extractall(target, filter="data")
    return target
