"""A sidecar changes at once or not at all, keeps what it does not know, and goes when it has nothing more to say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest

from kvformat import durable
from kvformat.errors import NotWritten
from kvformat.sidecar import Sidecar, read_sidecar, sidecar_path, update_sidecar


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint's name with a pin; sidecars do not look at the file itself."""
    path = tmp_path / "file.kv"
    update_sidecar(path, pin=True)
    return path


def test_it_goes_with_its_last_word(checkpoint: Path) -> None:
    assert update_sidecar(checkpoint, label="mine") == Sidecar(pin=True, label="mine")
    assert update_sidecar(checkpoint, pin=False) == Sidecar(label="mine")
    assert update_sidecar(checkpoint, label="") == Sidecar()
    assert list(checkpoint.parent.iterdir()) == []


def test_it_does_not_come_with_nothing_to_say(tmp_path: Path) -> None:
    assert update_sidecar(tmp_path / "file.kv", pin=False) == Sidecar()
    assert list(tmp_path.iterdir()) == []


def test_what_we_do_not_know_keeps_it(checkpoint: Path) -> None:
    side = sidecar_path(checkpoint)
    side.write_text('{"pin": true, "note": null}')
    update_sidecar(checkpoint, pin=False)
    assert json.loads(side.read_text()) == {"note": None}


def test_the_removal_is_made_to_last(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[bool] = []
    monkeypatch.setattr(durable, "sync_directory", lambda _: there.append(sidecar_path(checkpoint).exists()))
    update_sidecar(checkpoint, pin=False)
    assert there == [False]


def test_a_removal_that_is_refused_is_said_and_changes_nothing(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise PermissionError(13, "planted")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(NotWritten, match="permission denied"):
        update_sidecar(checkpoint, pin=False)
    assert read_sidecar(checkpoint) == Sidecar(pin=True)
