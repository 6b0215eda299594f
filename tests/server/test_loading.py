"""The model as the settings want it: which file, and how its activations are rounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvserver.driver import Driver
from kvserver.loading import BUILT_IN, load
from kvserver.settings import Settings, read_settings
from server.rig import MODELS, SMALL, model, rig

ASKED = {"role": "user", "content": "What does the cache file keep? " * 8}
GGUF = MODELS / "tiny-q2.gguf"


def loaded(*options: str):
    settings = read_settings(["-m", str(GGUF), *options])
    assert isinstance(settings, Settings)
    return load(settings)


def test_without_a_model_the_built_in_one() -> None:
    assert load(Settings()).name == BUILT_IN.stem


@pytest.mark.parametrize("on", [False, True])
def test_int8_activations_reach_the_engine(on: bool) -> None:
    found = loaded(*["--int8-activations"] if on else [])
    assert found.model.numerics.int8_activations == on
    assert found.identity == model().identity, "files serve either way"


def test_an_answer_with_them_starts_from_a_file_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rig(tmp_path) as server:
        first = server.chat(ASKED)
    monkeypatch.setattr("server.rig.model", lambda kind: loaded("--int8-activations"))
    with rig(tmp_path, SMALL) as server:
        assert isinstance(server.driver, Driver) and server.driver._loaded.model.numerics.int8_activations
        again = server.chat(ASKED)
    assert again.usage.prompt == first.usage.prompt and again.usage.cached > 0.8 * first.usage.prompt
