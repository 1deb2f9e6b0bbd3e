"""Routers whose modules are imported when a request needs them, or in the background after the start.

FastAPI reads the parameters of each of about two hundred routes when its module is imported. That takes longer than the
rest of the startup, and the first page needs few of the routes.
"""

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from importlib import import_module
from threading import RLock
from typing import NamedTuple

import structlog
from fastapi import APIRouter, FastAPI
from pydantic.warnings import UnsupportedFieldAttributeWarning
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from comfyrelay.protocol.base import build_models

log = structlog.get_logger(__name__)
# FastAPI suppresses this warning about its own fields while it declares a route, and their models are built later.
warnings.filterwarnings("ignore", "The 'alias' attribute", UnsupportedFieldAttributeWarning)
# One module at a time, because a request may need a router while the background imports another.
_loading = RLock()


class LazyRouter(NamedTuple):
    """A router whose module may not be imported yet."""

    prefix: str
    module: str
    name: str = "router"

    def load(self) -> APIRouter:
        with _loading:
            router: APIRouter = getattr(import_module(self.module), self.name)
        if router.prefix != self.prefix:
            raise TypeError(f"The router of {self.module} has the prefix {router.prefix!r}, not {self.prefix!r}.")
        return router


def lazy_routers(package: str, prefixes: Mapping[str, str]) -> tuple[LazyRouter, ...]:
    """Return the routers of a package. `prefixes` has the prefix of each by its module, or by `module:name`."""
    targets = {target.partition(":"): prefix for target, prefix in prefixes.items()}
    return tuple(
        LazyRouter(prefix, f"{package}.{module}", name or "router") for (module, _, name), prefix in targets.items()
    )


class LazyRoutes(BaseRoute):
    """The routes of one router. FastAPI would match a request against all routes of all routers, and build each route
    twice: when it is declared, and when its router is included."""

    def __init__(self, router: LazyRouter) -> None:
        self.router = router
        self._path_start = router.prefix.partition("{")[0]

    @cached_property
    def _routes(self) -> list[BaseRoute]:
        return self.router.load().routes

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        # A mounted application has a root path.
        if not scope["path"].removeprefix(scope.get("root_path", "")).startswith(self._path_start):
            return Match.NONE, {}
        partial: tuple[Match, Scope] = Match.NONE, {}
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                return match, found
            if match is Match.PARTIAL and partial[0] is Match.NONE:
                partial = match, found
        return partial

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        route: BaseRoute = scope["route"]
        await route.handle(scope, receive, send)


class LazyApp(FastAPI):
    """An application with lazy routers."""

    # Called in a thread once the application answers, so that the first requests need not wait for this work.
    warm_ups: Sequence[Callable[[], object]] = ()

    @property
    def routes(self) -> list[BaseRoute]:
        """All routes, for the API documentation. Reading them imports all modules."""
        included = APIRouter(responses=self.router.responses)
        for route in self.router.routes:
            if isinstance(route, LazyRoutes):
                included.include_router(route.router.load())
            else:
                included.routes.append(route)
        return included.routes

    def include_routers(self, routers: Iterable[LazyRouter]) -> None:
        self.router.routes.extend(map(LazyRoutes, routers))

    @asynccontextmanager
    async def warming_up(self) -> AsyncIterator[asyncio.Task[None]]:
        """Run the warm-ups and import all modules in the background inside the block. Yields the task."""
        task = asyncio.create_task(self._warm_up(), name="warm-up")
        try:
            yield task
        finally:
            task.cancel()

    async def _warm_up(self) -> None:
        imports = [route.router.load for route in self.router.routes if isinstance(route, LazyRoutes)]
        try:
            for work in (*self.warm_ups, *imports, build_models):
                await asyncio.to_thread(work)
        except Exception:
            # A request that needs the failed part fails with the same error.
            log.exception("server.warm_up_failed")
        # These objects live as long as the process, so garbage collection need not scan them.
        gc.freeze()
