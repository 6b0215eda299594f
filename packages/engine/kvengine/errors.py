"""The one error of the engine: always one sentence for a person, with the file and the remedy when there are any."""

from __future__ import annotations

from kvformat.errors import KVError


class EngineError(KVError):
    """Weights that cannot be used, or a request that the session cannot honour."""

    code = "engine"
