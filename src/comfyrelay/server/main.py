"""Serving the application until it is told to stop."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
import uvicorn

from comfyrelay.errors import ConfigurationError
from comfyrelay.server.app import create_app
from comfyrelay.server.context import Context
from comfyrelay.server.secrets import Secrets
from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings

__all__ = ["serve"]

# How long answers that are under way may take once the server is told to stop.
STOP_SECONDS = 10


class _Server(uvicorn.Server):
    """Answers those who wait before it waits for them to be answered."""

    def __init__(self, config: uvicorn.Config, context: Context) -> None:
        super().__init__(config)
        self._context = context

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Being told to stop is no failure: uvicorn would raise the signal again at the end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._context.stop_waiting()
        await super().shutdown(sockets)


async def serve(
    settings: Settings,
    secrets: Secrets,
    *,
    log_level: str = "info",
    on_ready: Callable[[Engine], None] = lambda _engine: None,
) -> None:
    """Bring the schemas up, listen, and return after SIGTERM or SIGINT once every answer is given."""
    log_as_json(log_level)
    engine = Engine(settings, signing_secrets=secrets.signing)
    try:
        listener = listen(settings.host, settings.port)
    except OSError as error:
        raise ConfigurationError(
            f"Cannot listen at {settings.host}:{settings.port} ({error.strerror}). Set COMFYRELAY_PORT to another port."
        ) from None
    await engine.databases.upgrade()
    app = create_app(engine, secrets)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_SECONDS,
        # longer than a parked poll, so that the server does not close a connection that a worker is about to use
        timeout_keep_alive=75,
    )
    on_ready(engine)
    await _Server(config, app.state.context).serve(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=4096)


def log_as_json(level: str) -> None:
    """One line of JSON for each event, with the ids of the request that it belongs to."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        cache_logger_on_first_use=True,
    )
