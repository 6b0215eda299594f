"""What the real ds4 computed: step by step (chain, trace), over 64 forced tokens (sessions), and after each file."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.helpers import CTX
from kvengine import Model, Numerics, Session, load

torch.set_num_threads(1)  # tests run side by side

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="session")
def model() -> Callable[..., Model]:
    """The golden model `q2` or `q4` with the given numerics; by default as ds4's CPU path computes."""

    @cache
    def loaded(kind: str, **switches: Any) -> Model:
        return load(GOLDEN / "models" / f"tiny-{kind}.gguf", Numerics(**{"int8_activations": True} | switches))

    return loaded


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked archives: q2/chain, q2/trace, {q2,q4}/*.payload and *.forced64_logits_strict.npy, and their indexes."""
    target = tmp_path_factory.mktemp("sessions")
    for name in ("chain", "sessions"):
        with tarfile.open(GOLDEN / "engine" / f"{name}.tar.xz") as archive:
            archive.extractall(target, filter="data")
    return target


@pytest.fixture(scope="session")
def prompt(golden: Path) -> list[int]:
    """520 token ids in which real text and rare tokens alternate."""
    return json.loads((golden / "q2" / "long_prompt_ids.json").read_text())


@pytest.fixture
def session(model: Callable[..., Model]) -> Session:
    """An empty one, in float32 with the roundings of KV rows, the engine's default."""
    return Session(model("q2", int8_activations=False), CTX)
