"""Where `kvserve` starts: a missing extra is one sentence, not a traceback."""

from __future__ import annotations

import sys
from typing import NoReturn

USAGE = 2


def main() -> NoReturn:
    """Run kvserve, if what it needs is installed."""
    try:
        from .main import main as run
    except ModuleNotFoundError as missing:
        sentence = f"kvserve: the package {missing.name!r} is needed; install it with: pip install 'ds4kv[server]'"
        print(sentence, file=sys.stderr)
        sys.exit(USAGE)
    run()
