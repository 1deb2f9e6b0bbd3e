"""A listening port that can be closed and reopened under the same number."""

import logging

from aiohttp import web


class ListenPort:
    def __init__(self, *, host: str, number: int) -> None:
        self._host = host
        self._number = number
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._number}"

    async def open(self, app: web.Application, logger: logging.Logger) -> None:
        # A value of zero would wait for open requests without limit.
        runner = web.AppRunner(app, access_log=None, logger=logger, shutdown_timeout=0.01)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._number, reuse_address=True).start()
        except OSError:
            await runner.cleanup()
            raise
        self._number = runner.addresses[0][1]
        self._runner = runner

    async def close(self) -> None:
        """Close the port and drop every connection, as a process exit does."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        if runner.server is not None:
            for connection in runner.server.connections:
                if connection.transport is not None:
                    connection.transport.abort()
        await runner.cleanup()
