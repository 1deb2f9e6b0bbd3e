"""Run the application with uvicorn, until SIGTERM or Ctrl-C."""

import asyncio
import gc
import math
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from typing import cast

import uvicorn
from starlette.applications import Starlette

from comfyrelay.errors import ConfigurationError, DatabaseUnavailable
from comfyrelay.extras import require
from comfyrelay.http_client import listen
from comfyrelay.logs import log_as_json
from comfyrelay.server.app import create_app
from comfyrelay.server.http.connections import ConnectionLimits, LimitedConnection, LimitedWebSocket, ResponseTracker
from comfyrelay.server.http.context import Context
from comfyrelay.server.http.middleware import UnquotedCookies
from comfyrelay.server.http.secrets import Secrets, check_secrets, load_secrets
from comfyrelay.server.lazy_routers import LazyApp
from comfyrelay.services.engine import Engine
from comfyrelay.services.operations.alerts import MAILTO
from comfyrelay.settings import Settings
from comfyrelay.system.signals import on_stop

# Time for pending responses on shutdown.
STOP_SECONDS = 10
# Clients of ComfyUI send one short message.
MAX_MESSAGE_BYTES = 64 * 1024


class _Server(uvicorn.Server):
    """A uvicorn server that answers parked requests on shutdown, before uvicorn waits for them."""

    def __init__(
        self,
        app: Starlette,
        *,
        limits: ConnectionLimits | None = None,
        is_embedded: bool = False,
        on_started: Callable[[], None] = lambda: None,
    ) -> None:
        """An embedded server leaves signals and the warm-up to its caller. `on_started` is called once it answers.
        Servers in one process share their `limits`."""
        self._context: Context = app.state.context
        settings = self._context.settings
        super().__init__(_config(app, settings, limits or ConnectionLimits(settings)))
        self._app = app
        self._is_embedded = is_embedded
        self._on_started = on_started

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Shut down on a signal. uvicorn would raise the signal again afterwards."""
        with nullcontext() if self._is_embedded else on_stop(lambda number: self.handle_exit(number, None)):
            yield

    async def main_loop(self) -> None:
        """Run the warm-ups while the server answers."""
        self._on_started()
        app = self._app
        async with app.warming_up() if isinstance(app, LazyApp) and not self._is_embedded else nullcontext():
            await super().main_loop()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._context.stop_waiting()
        await super().shutdown(sockets)


async def serve(
    settings: Settings,
    *,
    log_level: str = "info",
    on_ready: Callable[[Secrets], None] = lambda _secrets: None,
    on_setup_code: Callable[[str], None] = lambda _code: None,
) -> None:
    """Upgrade the schemas and serve. Returns after SIGTERM or Ctrl-C, once every request is answered.

    `on_setup_code` gets a setup code if there is no administrator.
    """
    check_secrets(settings)
    if settings.output_validation == "fail":
        require("media")
    if settings.validate_asg_instance or settings.cloudwatch_metrics or settings.aws_identity_certificates:
        require("aws")
    if any(not url.startswith(MAILTO) for rule in settings.alerts.values() for url in rule.urls):
        require("alerts")
    log_as_json(log_level)
    engine = Engine(settings)
    engine.operations.alerts.check()
    engine.workers.identities.load()
    listener = listen(settings.host, settings.port)
    comfyui_listener = open_comfyui_listener(settings)
    try:
        await engine.databases.open(settings.database_wait_seconds)
    except BaseException:
        listener.close()
        if comfyui_listener is not None:
            comfyui_listener.close()
        await engine.databases.close()
        raise
    secrets = load_secrets(settings)
    engine.sign_with(secrets.signing)
    limits = ConnectionLimits(settings)

    @asynccontextmanager
    async def background() -> AsyncIterator[None]:
        context: Context = app.state.context
        async with _scaling_fleets(engine, secrets), serving_comfyui(context, comfyui_listener, limits=limits):
            yield

    app = create_app(engine, secrets, background=background)
    setup_code: str | None = None
    # With a read-only database, the server starts without a setup code.
    with suppress(DatabaseUnavailable):
        if await engine.accounts.sign_in.needs_setup():
            setup_code = await engine.accounts.links.create_setup_code()

    def on_started() -> None:
        on_ready(secrets)
        if setup_code is not None:
            on_setup_code(setup_code)

    # Each parked poll has a few hundred objects: collecting them must not scan the objects of the startup as well.
    gc.freeze()
    await _Server(app, limits=limits, on_started=on_started).serve(sockets=[listener])


def _scaling_fleets(engine: Engine, secrets: Secrets) -> AbstractAsyncContextManager[object]:
    """Scale the fleets inside the block, if configured."""
    if not engine.settings.autoscaling:
        return nullcontext()
    from comfyrelay.autoscaling.process import scaling_fleets

    return scaling_fleets(engine, secrets=secrets.fleet)


def open_comfyui_listener(settings: Settings) -> socket.socket | None:
    """Listen for clients of ComfyUI's API, if it has a port."""
    return None if settings.comfyui_api_port is None else listen(settings.host, settings.comfyui_api_port)


@asynccontextmanager
async def serving_comfyui(
    context: Context, listener: socket.socket | None, *, limits: ConnectionLimits
) -> AsyncIterator[None]:
    """Serve ComfyUI's API inside the block, if it has a listener. The engine must outlive the block."""
    if listener is None:
        yield
        return
    # Imported here, because most servers do not need it.
    from comfyrelay.server.comfyui_api.app import create_comfyui_app

    async with serving(create_comfyui_app(context), listener, limits=limits):
        yield


@asynccontextmanager
async def serving(
    app: Starlette, *listeners: socket.socket, limits: ConnectionLimits | None = None
) -> AsyncIterator[None]:
    """Serve an application in the running event loop inside the block, and install no signal handlers."""
    server = _Server(app, limits=limits, is_embedded=True)
    task = asyncio.create_task(server.serve(sockets=list(listeners)))
    try:
        while not server.started:
            # uvicorn has no event for its start, which takes milliseconds.
            await asyncio.wait({task}, timeout=0.01)
            if task.done():
                raise ConfigurationError("The server could not be started. Its log has the reason.")
        yield
    finally:
        server.should_exit = True
        await task


def _config(app: Starlette, settings: Settings, limits: ConnectionLimits) -> uvicorn.Config:
    # uvicorn calls it with the other arguments for each connection.
    connection = partial(LimitedConnection, limits)
    return uvicorn.Config(
        # These wrap the application, because the middleware of a desk reads cookies, too.
        ResponseTracker(UnquotedCookies(app)),
        http=cast(type[asyncio.Protocol], connection),
        # ComfyRelay's own API has no WebSockets.
        ws="none" if isinstance(app, LazyApp) else LimitedWebSocket,
        ws_max_size=MAX_MESSAGE_BYTES,
        # Previews are compressed already.
        ws_per_message_deflate=False,
        lifespan="auto" if isinstance(app, LazyApp) else "off",
        # By default, uvicorn trusts the proxy headers of local callers.
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_SECONDS,
        # `ConnectionLimits` closes idle connections earlier.
        timeout_keep_alive=math.ceil(settings.idle_seconds) + 1,
    )
