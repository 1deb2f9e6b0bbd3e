"""Serve the application until SIGTERM or Ctrl-C."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI

from comfyrelay.autoscaling.process import scaling_fleets
from comfyrelay.errors import ConfigurationError, DatabaseUnavailable
from comfyrelay.extras import require
from comfyrelay.http_client import listen
from comfyrelay.logs import log_as_json
from comfyrelay.server.app import create_app
from comfyrelay.server.http.connections import ConnectionLimits, LimitedConnection, ResponseTracker
from comfyrelay.server.http.context import Context
from comfyrelay.server.http.secrets import Secrets
from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings
from comfyrelay.system.signals import on_stop

# How long pending answers may take on shutdown.
STOP_SECONDS = 10


class _Server(uvicorn.Server):
    """Answers parked requests before uvicorn waits for them."""

    def __init__(self, config: uvicorn.Config, context: Context, *, handles_signals: bool = True) -> None:
        super().__init__(config)
        self._context = context
        self._handles_signals = handles_signals

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Shut down without raising the signal again, as uvicorn would."""
        with on_stop(lambda number: self.handle_exit(number, None)) if self._handles_signals else nullcontext():
            yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._context.stop_waiting()
        await super().shutdown(sockets)


async def serve(
    settings: Settings,
    secrets: Secrets,
    *,
    log_level: str = "info",
    on_ready: Callable[[Engine], None] = lambda _engine: None,
    on_setup_code: Callable[[str], None] = lambda _code: None,
) -> None:
    """Upgrade the schemas, serve, and return after SIGTERM or Ctrl-C once every request is answered.

    Without an administrator it prints the setup code.
    """
    # checked now, because media checks must be possible
    if settings.output_validation == "fail":
        require("media")
    if settings.validate_asg_instance or settings.cloudwatch_metrics or settings.aws_identity_certificates:
        require("aws")
    log_as_json(log_level)
    engine = Engine(settings, signing_secrets=secrets.signing)
    engine.fleet.identities.load()
    listener = listen(settings.host, settings.port)
    await engine.databases.open(settings.database_wait_seconds)
    fleets = partial(scaling_fleets, engine, secrets=secrets.fleet) if settings.autoscaling else nullcontext
    app = create_app(engine, secrets, beside=fleets)
    on_ready(engine)
    # a read-only database is served anyway, and gets its code later
    with suppress(DatabaseUnavailable):
        if await engine.accounts.sign_in.needs_setup():
            on_setup_code(await engine.accounts.links.create_setup_code())
    _collect_garbage_seldom()
    await _Server(_config(app, settings), app.state.context).serve(sockets=[listener])


@asynccontextmanager
async def serving(app: FastAPI, *listeners: socket.socket) -> AsyncIterator[None]:
    """Serve an application in the running event loop inside the block, without signal handlers."""
    context: Context = app.state.context
    server = _Server(_config(app, context.settings), context, handles_signals=False)
    task = asyncio.create_task(server.serve(sockets=list(listeners)))
    try:
        while not server.started:
            # uvicorn has no event for it; it takes milliseconds
            await asyncio.wait({task}, timeout=0.01)
            if task.done():
                raise ConfigurationError("The server could not be started; its log says why.")
        yield
    finally:
        server.should_exit = True
        await task


def _config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        ResponseTracker(app),
        http=_protocol(settings),
        ws="none",
        # uvicorn would trust proxy headers of local callers and its own environment variable
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_SECONDS,
        # longer than a parked poll, so that no connection closes just before a worker uses it
        timeout_keep_alive=75,
    )


def _protocol(settings: Settings) -> type[asyncio.Protocol]:
    limits = ConnectionLimits(settings)

    class Protocol(LimitedConnection):
        """uvicorn creates one per connection with its own arguments."""

        def __init__(self, **options: Any) -> None:
            super().__init__(limits, **options)

    return Protocol


def _collect_garbage_seldom() -> None:
    """A parked poll is a few hundred objects, and with Python's defaults the collector would scan all of them too
    often. Objects from the start are frozen."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
