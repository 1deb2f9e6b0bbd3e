"""The FastAPI application: all routes of one engine."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from comfyrelay import __version__
from comfyrelay.protocol.problems import Problem
from comfyrelay.server import admin, comfy_api, operations, user, worker
from comfyrelay.server.http.context import Context, Owner
from comfyrelay.server.http.fast_routes import FastRoutes
from comfyrelay.server.http.metrics import Latencies
from comfyrelay.server.http.middleware import RequestLog, SecurityHeaders
from comfyrelay.server.http.problems import add_problem_handlers, error_responses, handle_http_exception
from comfyrelay.server.http.secrets import Secrets
from comfyrelay.server.lazy_routers import LazyApp
from comfyrelay.server.operations import files, monitoring
from comfyrelay.services.engine import Engine
from comfyrelay.storage.objects import LocalObjects
from comfyrelay.web import app_files

ROUTERS = (*worker.ROUTERS, *comfy_api.ROUTERS, *user.ROUTERS, *admin.ROUTERS, *operations.ROUTERS)


def create_app(
    engine: Engine,
    secrets: Secrets,
    *,
    owner: Owner | None = None,
    background: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
) -> LazyApp:
    """Create the application. Its lifespan runs the engine and the tasks of `background`. A desk has an `owner`."""
    context = Context(engine, secrets, owner)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with engine, _publish_metrics(engine):
            await engine.start()
            async with background():
                yield
            await context.stop_waiting()

    app = LazyApp(
        title="ComfyRelay",
        version=__version__,
        summary="One queue for all your ComfyUI GPUs.",
        lifespan=lifespan,
        # A redirect would contain the host of the request, which anyone can choose.
        redirect_slashes=False,
        # FastAPI's own pages load scripts from a CDN, and it serializes the schema for each request.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        # Every route can refuse invalid input and connections over the limit.
        responses={422: {"model": Problem}, **error_responses(429)},
    )
    app.state.context = context
    app.warm_ups = (engine.databases.compile_statements,)
    add_problem_handlers(app)
    app.add_exception_handler(404, _not_found)
    app.add_exception_handler(HTTPException, _framework_error)
    # The middleware that is added last is the outermost.
    app.add_middleware(FastRoutes, routers=(*worker.ROUTERS, user.JOBS))
    app.add_middleware(files.CrossOrigin, allowed_origins=engine.settings.allowed_origins)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(RequestLog)
    app.add_middleware(Latencies, metrics=context.metrics)
    # Routers are tried in order, so the most frequent ones come first.
    if isinstance(engine.objects, LocalObjects):
        app.include_routers(operations.FILE_ROUTERS)
    app.include_routers(ROUTERS)
    app.include_router(monitoring.router)
    app.include_router(app_files.make_router(_storage_origins))
    return app


async def _storage_origins(request: Request) -> Sequence[str]:
    context: Context = request.app.state.context
    return await context.storage_origins()


async def _not_found(request: Request, error: Exception) -> Response:
    page = await app_files.not_found_page(request, _storage_origins)
    return page or await _framework_error(request, error)


async def _framework_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if request.url.path.startswith(comfy_api.PREFIX):
        from comfyrelay.server.comfy_api.problems import http_problem

        return await http_problem(request, error)
    return await handle_http_exception(request, error)


@asynccontextmanager
async def _publish_metrics(engine: Engine) -> AsyncIterator[None]:
    """Publish fleet metrics to CloudWatch inside the block, if configured."""
    settings = engine.settings
    if not settings.cloudwatch_metrics:
        yield
        return
    from comfyrelay.autoscaling.cloudwatch import CloudWatch, Publisher

    publisher = Publisher(engine.autoscaling.metrics, CloudWatch(namespace=settings.cloudwatch_namespace))
    task = asyncio.create_task(publisher.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
