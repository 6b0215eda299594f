"""How a connection ends after a refusal: only when the client has had its say, or the kernel would drop what it was told.

A socket that is closed while bytes of the client are unread, or still come, answers with a reset, and a reset takes away what the
client has not read yet. So the answer goes out, then the end of our side, and what still comes is thrown away.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from sanic.http import Http

PATIENCE = 5.0  # seconds without a byte
MOST = 1 << 30  # bytes in all


class Lingering(Http):
    """Sanic's HTTP/1.1 with an end that clients can read."""

    async def http1(self) -> None:
        await super().http1()
        if self.response is not None and self.response.status >= 400 and not self.protocol.transport.is_closing():
            await self._linger()

    async def _linger(self) -> None:
        """Read on. When the client closes its side, Sanic cancels this; until then it is bounded in bytes and in silence."""
        self.protocol.transport.write_eof()
        left = MOST
        with suppress(TimeoutError):
            while left > 0:
                left -= len(self.recv_buffer)
                self.recv_buffer.clear()
                async with asyncio.timeout(PATIENCE):
                    await self._receive_more()
