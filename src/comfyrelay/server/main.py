"""Serving the application until it is told to stop."""

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

# How long answers that are under way may take once the server is told to stop.
STOP_SECONDS = 10


class _Server(uvicorn.Server):
    """Answers those who wait before it waits for them to be answered."""

    def __init__(self, config: uvicorn.Config, context: Context, *, handles_signals: bool = True) -> None:
        super().__init__(config)
        self._context = context
        self._handles_signals = handles_signals

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Being told to stop is no failure: uvicorn would raise the signal again at the end."""
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
    """Bring the schemas up, listen, and return after SIGTERM or Ctrl-C once every answer is given. Where there is no
    administrator yet, whoever started it is told the code that makes one."""
    # not at the first output, nor never: who is asked to check must be able to
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
    # one that takes no changes now is served all the same, and has a code later
    with suppress(DatabaseUnavailable):
        if await engine.accounts.sign_in.needs_setup():
            on_setup_code(await engine.accounts.links.create_setup_code())
    _collect_garbage_seldom()
    await _Server(_config(app, settings), app.state.context).serve(sockets=[listener])


@asynccontextmanager
async def serving(app: FastAPI, *listeners: socket.socket) -> AsyncIterator[None]:
    """Serve an application in the present loop, until it is left. Signals are somebody else's."""
    context: Context = app.state.context
    server = _Server(_config(app, context.settings), context, handles_signals=False)
    task = asyncio.create_task(server.serve(sockets=list(listeners)))
    try:
        while not server.started:
            # uvicorn tells nobody; it is a matter of milliseconds
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
        # uvicorn would believe whoever calls from this machine, and a variable of its own
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_SECONDS,
        # longer than a parked poll, so that the server does not close a connection that a worker is about to use
        timeout_keep_alive=75,
    )


def _protocol(settings: Settings) -> type[asyncio.Protocol]:
    limits = ConnectionLimits(settings)

    class Protocol(LimitedConnection):
        """uvicorn creates one for each connection, with its own arguments."""

        def __init__(self, **options: Any) -> None:
            super().__init__(limits, **options)

    return Protocol


def _collect_garbage_seldom() -> None:
    """Every parked poll is a few hundred objects; with Python's defaults the collector goes through all of them so
    often that everybody waits for it. What was made to start with is there to stay and need not be looked at."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
