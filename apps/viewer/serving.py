"""How the viewer's page is served: by uvicorn, with as little of HTTP as the page needs."""

import asyncio

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 10.0
"""In which a request must have come, from its first byte to its last."""


class _Timed(H11Protocol):
    """A connection that is closed when a request does not come in time: uvicorn waits for ever."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._expect_more(True)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_more(self.conn.their_state in (h11.IDLE, h11.SEND_BODY))

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_more(False)
        super().connection_lost(exc)

    def _expect_more(self, is_expected: bool) -> None:
        if is_expected and self._late is None:
            self._late = self.loop.call_later(SECONDS, self.transport.close)
        elif not is_expected and self._late is not None:
            self._late.cancel()
            self._late = None


def server_of(app: ASGIApp) -> uvicorn.Server:
    """Return a server for the viewer's application."""
    plain = {"ws": "none", "lifespan": "off", "log_level": "error", "access_log": False}
    return uvicorn.Server(uvicorn.Config(app, http=_Timed, **plain))
