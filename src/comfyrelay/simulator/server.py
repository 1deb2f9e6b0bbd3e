"""The simulator, which can be started, stopped, killed and restarted on the same port."""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web
from aiohttp.typedefs import Middleware

from comfyrelay.simulator.cloud.api import CloudApi
from comfyrelay.simulator.folders import Folders
from comfyrelay.simulator.gpu import SimulatedGpuOptions
from comfyrelay.simulator.misbehaviour import ActiveMisbehaviour, ActiveMisbehaviours, Kind, Misbehaviour
from comfyrelay.simulator.options import Options
from comfyrelay.simulator.ports import ListenPort
from comfyrelay.simulator.process import SimulatedProcess
from comfyrelay.simulator.request_log import SimulatorLog
from comfyrelay.simulator.routes.access import USER, check_host, check_secret
from comfyrelay.simulator.routes.control import ControlRoutes, check_origin, misbehaviour_middleware
from comfyrelay.simulator.routes.editor import EditorRoutes
from comfyrelay.simulator.routes.files import FileRoutes
from comfyrelay.simulator.routes.info import InfoRoutes
from comfyrelay.simulator.routes.jobs import JobRoutes
from comfyrelay.simulator.routes.prompts import PromptRoutes
from comfyrelay.system.signals import on_stop

_logger = logging.getLogger("comfyrelay.simulator")
_DEFAULTS = Options()


class Simulator:
    """A server with ComfyUI's API, or with the Comfy API of Comfy Cloud, that runs nodes without weights.

    Use it with `async with`, or call `start` and `stop`. The request log, misbehaviours and files survive a restart;
    queue, history, cache and temp files do not.
    """

    def __init__(
        self,
        *,
        host: str = _DEFAULTS.host,
        port: int = _DEFAULTS.port,
        secret: str | None = None,
        folder: Path | None = None,
        models: Mapping[str, Sequence[str]] = _DEFAULTS.models,
        version: str = _DEFAULTS.version,
        packs: Mapping[str, Sequence[str]] = _DEFAULTS.packs,
        vram_bytes: int = _DEFAULTS.vram_bytes,
        max_upload_bytes: int = _DEFAULTS.max_upload_bytes,
        preview_method: str = _DEFAULTS.preview_method,
        step_seconds: float = _DEFAULTS.step_seconds,
        gpu: SimulatedGpuOptions | None = None,
        arguments: Sequence[str] = (),
        follows_links: bool = False,
        cloud: bool = False,
        api_key: str = _DEFAULTS.api_key,
        misbehaviour: Iterable[Misbehaviour] = (),
    ) -> None:
        self._options = Options(
            host=host,
            port=port,
            secret=secret,
            folder=folder,
            models=models,
            version=version,
            packs=packs,
            vram_bytes=vram_bytes,
            max_upload_bytes=max_upload_bytes,
            preview_method=preview_method,
            step_seconds=step_seconds,
            gpu=gpu,
            arguments=arguments,
            follows_links=follows_links,
            cloud=cloud,
            api_key=api_key,
        )
        self.log = SimulatorLog()
        self._misbehaviours = ActiveMisbehaviours()
        for what in misbehaviour:
            self._misbehaviours.add(what)
        self._port = ListenPort(host=host, number=port)
        self._file_port = ListenPort(host=host, number=0)
        self._folders: Folders | None = None
        self._process: SimulatedProcess | None = None
        self._restarts: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return self._port.url

    @property
    def url_with_login(self) -> str:
        """The URL for clients that send a user name and password."""
        secret = self._options.secret
        return self.url if secret is None else self.url.replace("//", f"//{USER}:{secret}@", 1)

    @property
    def url_with_secret(self) -> str:
        """The URL for programs that accept only an address."""
        secret = self._options.secret
        return self.url if secret is None else f"{self.url}/{secret}"

    @property
    def api_key(self) -> str:
        return self._options.api_key

    @property
    def folder(self) -> Path:
        """The folder with `input`, `output` and `temp`."""
        if self._folders is None:
            raise RuntimeError("The simulator has not been started.")
        return self._folders.base

    @property
    def clients(self) -> list[str]:
        """Client ids with a registered WebSocket."""
        return self._process.sockets.clients if self._process else []

    def misbehave(self, what: Kind) -> ActiveMisbehaviour[Kind]:
        """Inject a fault from now on. The result counts the fault's occurrences and can end it."""
        return self._misbehaviours.add(what)

    def behave(self) -> None:
        """End all misbehaviours."""
        self._misbehaviours.clear()

    async def start(self) -> None:
        if self._process is not None:
            return
        if self._folders is None:
            base = self._options.folder or Path(
                await asyncio.to_thread(tempfile.mkdtemp, prefix="comfyrelay-simulator-")
            )
            self._folders = Folders(base, follows_links=self._options.follows_links)
        await asyncio.to_thread(self._folders.prepare)
        process = SimulatedProcess(
            options=self._options,
            folders=self._folders,
            misbehaviours=self._misbehaviours,
            log=self.log,
            restart=self._begin_restart,
        )
        if self._options.cloud:
            cloud = CloudApi(process, store=self._file_port)
            await self._file_port.open(cloud.store_app(), _logger)
            app = cloud.app()
        else:
            app = _comfyui_app(process)
        try:
            await self._port.open(app, _logger)
        except OSError:
            await self._file_port.close()
            raise
        process.start()
        self._process = process

    async def stop(self) -> None:
        """Stop like a killed process: connections are dropped, and memory is lost."""
        process, self._process = self._process, None
        if process is not None:
            await self._port.close()
            await self._file_port.close()
            await process.stop()

    async def restart(self, *, down_seconds: float = 0.0) -> None:
        await self.stop()
        await asyncio.sleep(down_seconds)
        await self.start()

    async def close(self) -> None:
        """Stop permanently and delete the temporary folder, if any."""
        for task in self._restarts:
            task.cancel()
        await asyncio.gather(*self._restarts, return_exceptions=True)
        await self.stop()
        self._misbehaviours.clear()
        if self._folders is not None and self._options.folder is None:
            await asyncio.to_thread(shutil.rmtree, self._folders.base, ignore_errors=True)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _begin_restart(self, down_seconds: float) -> None:
        # The restart kills its caller, so it needs a separate task.
        task = asyncio.create_task(self.restart(down_seconds=down_seconds))
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)


async def serve(simulator: Simulator, *, on_ready: Callable[[Simulator], None] = lambda _simulator: None) -> None:
    """Serve until cancelled, SIGTERM or Ctrl-C. `on_ready` is called once the port is open."""
    stopped = asyncio.Event()
    with on_stop(lambda _number: stopped.set()):
        async with simulator:
            on_ready(simulator)
            await stopped.wait()


def _comfyui_app(process: SimulatedProcess) -> web.Application:
    options = process.options
    access = [check_host(options.host), *([] if options.secret is None else [check_secret(options.secret)])]
    app = _with_routes(process, *access, misbehaviour_middleware(process), check_origin)
    if options.secret is not None:
        app.add_subapp(f"/{options.secret}", _with_routes(process))
    return app


def _with_routes(process: SimulatedProcess, *middlewares: Middleware) -> web.Application:
    app = web.Application(client_max_size=process.options.max_upload_bytes, middlewares=middlewares)
    for group in (PromptRoutes(process), FileRoutes(process), InfoRoutes(process), EditorRoutes(process)):
        for route in group.routes():
            app.add_routes([route])
            # A real server does not have prefixed variants of these routes either.
            if not route.path.startswith("/internal/"):
                app.add_routes([web.RouteDef(route.method, f"/api{route.path}", route.handler, route.kwargs)])
    app.add_routes([*JobRoutes(process).routes(), *ControlRoutes(process).routes()])
    return app
