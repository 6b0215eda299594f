"""kvserve with a sampler that spells a script, and all else real. Usage: python -m e2e.scripted SCRIPT [OPTION...]

SCRIPT is a JSON list of answers for the requests that bring tools, the last of them for all that follow; the others, which
want a title, get one. The log says when an answer begins.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys

from kvprompt.conversation import Conversation
from kvserver.driver import Driver
from kvserver.generation import Draw
from kvserver.loading import load
from kvserver.main import serve
from kvserver.settings import Settings, read_settings
from server.rig import Spelling

TITLE = "A title it is.</think>hello.py"


def open_backend(settings: Settings) -> Driver:
    """The engine with the model of the settings."""
    loaded, script = load(settings), json.loads(sys.argv[1])
    answers = itertools.chain(script, itertools.repeat(script[-1]))

    def draw(conversation: Conversation) -> Draw:
        text = next(answers) if conversation.tools.schemas else TITLE
        logging.info("spells %s", text[:60])
        return Spelling(loaded.tokenizer, text)

    return Driver(loaded, settings, draw)


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    logging.getLogger("sanic").setLevel(logging.WARNING)
    chosen = read_settings(sys.argv[2:])
    assert isinstance(chosen, Settings)
    sys.exit(serve(chosen, open_backend))
