"""The application: every route over one engine."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from fastapi import FastAPI

from comfyrelay import __version__
from comfyrelay.protocol.refusals import Problem
from comfyrelay.server import admin, user, worker
from comfyrelay.server.base.context import Context, Owner
from comfyrelay.server.base.measuring import Latencies
from comfyrelay.server.base.middleware import RequestLog, SecurityHeaders
from comfyrelay.server.base.problems import add_problem_handlers
from comfyrelay.server.base.secrets import Secrets
from comfyrelay.server.operation import docs, files, health, metrics, payments
from comfyrelay.services.engine import Engine
from comfyrelay.settings import Settings
from comfyrelay.storage.objects import LocalObjects

ROUTERS = (worker.router, *user.ROUTERS, *admin.ROUTERS, payments.router, health.router, metrics.router, docs.router)


def create_app(
    engine: Engine,
    secrets: Secrets,
    *,
    owner: Owner | None = None,
    beside: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
) -> FastAPI:
    """Make the application. Its engine is started and stopped with it, and so is what runs `beside` it. `owner` is whom
    a desk serves."""
    context = Context(engine=engine, secrets=secrets, owner=owner)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with engine:
            await engine.start()
            async with beside():
                yield
            await context.stop_waiting()

    app = FastAPI(
        title="ComfyRelay",
        version=__version__,
        summary="One queue for all your ComfyUI GPUs.",
        lifespan=lifespan,
        # FastAPI's own pages load their scripts from elsewhere
        docs_url=None,
        redoc_url=None,
        responses={422: {"model": Problem}},
    )
    app.state.context = context
    add_problem_handlers(app)
    _add_middleware(app, engine.settings)
    app.add_middleware(Latencies, metrics=context.metrics)
    for router in ROUTERS:
        app.include_router(router)
    if isinstance(engine.objects, LocalObjects):
        app.include_router(files.router)
    return app


def _add_middleware(app: FastAPI, settings: Settings) -> None:
    # the last one added is the outermost
    app.add_middleware(files.CrossOrigin, allowed_origins=settings.allowed_origins)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(RequestLog)
