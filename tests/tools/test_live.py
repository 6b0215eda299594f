"""The verbs that look into a directory while a server writes, evicts and touches in it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvformat.inplace import touch
from kvformat.prefix import text_key
from kvformat.writer import write
from tools_kit import contents, kvtool, save

TALK = b"A conversation that grows while somebody looks. " * 8


@contextmanager
def server(directory: Path) -> Iterator[None]:
    """Saves and deletes the waypoints of a conversation as fast as it can, and touches the one that stays."""
    stop = threading.Event()
    staying = save(directory, TALK[:100], 128)
    made = {n: contents(TALK[:n], n // 2) for n in range(110, 380, 10)}

    def work() -> None:
        while not stop.is_set():
            for n, checkpoint in made.items():
                write(directory / f"{text_key(TALK[:n])}.kv", checkpoint, durable=False)
                touch(staying, 1_800_000_000 + n)
            for n in made:
                (directory / f"{text_key(TALK[:n])}.kv").unlink()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("verb", ["why", "tree", "tools", "verify", "prune"])
def test_it_gives_an_answer_that_was_true_at_some_moment(verb: str, tmp_path: Path) -> None:
    directory, prompt = tmp_path / "kv", tmp_path / "prompt"
    prompt.write_bytes(TALK)
    options = {"why": ("--prompt", prompt, "--min-tokens", 1), "verify": ("--full",), "prune": ("--max-size", 0)}.get(
        verb, ()
    )
    with server(directory):
        for _ in range(25):
            run = kvtool(verb, directory, *options, "--json")
            assert (run.code, run.err) == (0, "")
            if verb == "why":
                assert run.json["start"]["text_bytes"] >= 100
            elif verb == "verify":
                assert {file["verdict"] for file in run.json["files"]} == {"ok"}
            elif verb == "prune":
                assert text_key(TALK[:100]) + ".kv" in [victim["name"] for victim in run.json["victims"]]
            elif verb == "tree":
                assert text_key(TALK[:100]) + ".kv" in [file["name"] for file in run.json["files"]]
            else:
                assert not any("error" in file for file in run.json["files"])
