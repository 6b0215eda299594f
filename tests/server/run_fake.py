"""kvserve around a script instead of a model, for tests that send it signals. Usage: python -m server.run_fake SCRIPT"""

from __future__ import annotations

import logging
import sys
import time

from kvprompt.events import Text
from kvserver.main import serve
from kvserver.settings import Settings
from kvserver.wire import Piece, Started, Usage
from server.fakes import FakeBackend


class SlowToSave(FakeBackend):
    """A backend whose last save takes two seconds."""

    def close(self) -> None:
        print("saving", flush=True)
        time.sleep(2)
        print("saved", flush=True)


def open_backend(settings: Settings) -> FakeBackend:
    """What was asked for on the command line."""
    if sys.argv[1] == "broken":
        raise ValueError("this is no GGUF file")
    return SlowToSave([Started(Usage(5, 0)), Piece(Text("Hello")), 60.0])


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("sanic").setLevel(logging.WARNING)
    sys.exit(serve(Settings(port=0), open_backend))
