"""Open a server over PostgreSQL and S3, with optional workers, in a real browser."""

import asyncio
import json
import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, Page

from comfyrelay.server.http.context import SESSION_COOKIE
from tests.support.chromium import PATIENCE_MS
from tests.support.processes import Service
from tests.support.storage import BUCKET
from tests.support.web_app import DESKTOP, POLICY, PageLog, Screen, Theme, record_page
from tests.support.whole_system import WORKER_CONSTANTS, System, open_system
from tests.support.world import PostgresBackend

__all__ = ["Who", "open_as", "open_server", "open_visitor", "sign_in", "start_workers", "started_by", "url_of"]

# The system creates `admin` and `user`; create other accounts with `system.admin`.
Who = Literal["admin", "user"]
_numbers = count()


@asynccontextmanager
async def open_server(
    folder: Path,
    backend: PostgresBackend,
    s3_server: str,
    *,
    settings: Mapping[str, str] | None = None,
    simulators: int = 2,
    is_empty: bool = False,
) -> AsyncIterator[System]:
    """Open a server with an administrator, a user with tokens and an empty fleet, or with nothing if `is_empty`."""
    async with backend.databases(["main"]) as (central, shards, _clock):
        databases = {"DATABASE_URL": central, "SHARDS": json.dumps(shards)}
        s3 = (s3_server, f"s3://{BUCKET}/web/{next(_numbers)}")
        async with open_system(
            folder, databases, s3=s3, settings=settings, simulators=simulators, quiet=True, is_empty=is_empty
        ) as system:
            yield system


async def start_workers(system: System) -> None:
    """Register one worker per ComfyUI simulator: `gpu-1`, `gpu-2`."""
    await asyncio.gather(
        *(
            system.started(f"gpu-{number}", simulators=[simulator], data_dir=str(system.folder / f"worker-{number}"))
            for number, simulator in enumerate(system.simulators, start=1)
        )
    )


def started_by(command: str, system: System, name: str = "first") -> Service:
    """Run the command that the page shows on a machine whose ComfyUI uses another port."""
    words = shlex.split(command)
    variables = dict(word.split("=", 1) for word in words if "=" in word)
    assert [word for word in words if "=" not in word] == ["comfyrelay", "worker"]
    own = {
        "COMFYUI_BASE_URL": system.simulator.url,
        "COMFYRELAY_WORKER_DATA_DIR": str(system.folder / f"{name}-data"),
        "COMFYRELAY_WORKER_METADATA_URL": "off",
    }
    environment = {**variables, **own}
    log = system.folder / f"{name}.log"
    worker = Service(name, "worker", environment=environment, log=log, constants=WORKER_CONSTANTS)
    system.workers.append(worker)
    return worker


def url_of(system: System) -> str:
    return str(system.http.base_url).rstrip("/")


@asynccontextmanager
async def open_visitor(
    chromium: Browser, system: System, *, theme: Theme = "dark", screen: Screen = DESKTOP, url: str | None = None
) -> AsyncIterator[BrowserContext]:
    """Open a browser context without a session; pass `url` if a proxy is in front of the server."""
    context = await chromium.new_context(
        base_url=url or url_of(system),
        color_scheme=theme,
        reduced_motion="reduce",
        viewport={"width": screen.width, "height": screen.height},
        is_mobile=screen.is_phone,
        has_touch=screen.is_phone,
    )
    context.set_default_timeout(PATIENCE_MS)
    await context.add_init_script(POLICY)
    try:
        yield context
    finally:
        await context.close()


@asynccontextmanager
async def open_as(
    who: Who, chromium: Browser, system: System, *, theme: Theme = "dark", screen: Screen = DESKTOP
) -> AsyncIterator[tuple[Page, PageLog]]:
    """Open a page signed in as `who`; yield it with its recorded messages and requests."""
    async with open_visitor(chromium, system, theme=theme, screen=screen) as context:
        await sign_in(context, system, system.admin_token if who == "admin" else system.user_token)
        page = await context.new_page()
        yield page, record_page(page)


async def sign_in(context: BrowserContext, system: System, token: str) -> None:
    """Sign in with a user's token instead of a session."""
    host = urlsplit(url_of(system)).hostname or ""
    await context.add_cookies(
        [{"name": SESSION_COOKIE, "value": token, "domain": host, "path": "/", "httpOnly": True, "sameSite": "Lax"}]
    )
