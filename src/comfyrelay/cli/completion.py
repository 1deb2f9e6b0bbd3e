"""Shell completion of workflows, presets and ids, from the chosen ComfyRelay.

It responds quickly or not at all.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from comfyrelay.client import Client, Job

SECONDS = 5.0
MOST = 50
Word = tuple[str, str]


def runnable(incomplete: str) -> list[Word]:
    """Effects, workflows, and files."""

    async def ask(client: Client) -> list[Word]:
        effects = [(effect.slug, effect.name) for effect in await client.effects()]
        return [*effects, *await _workflows(client)]

    return [*_asked(ask, incomplete), *_files(incomplete)]


def workflows(incomplete: str) -> list[Word]:
    return _asked(_workflows, incomplete)


def presets(incomplete: str) -> list[Word]:
    async def ask(client: Client) -> list[Word]:
        return [(preset.name, "") for preset in await client.presets()]

    return _asked(ask, incomplete)


def ids(incomplete: str) -> list[Word]:
    async def ask(client: Client) -> list[Word]:
        return [*await _jobs(client), *await _batches(client)]

    return _asked(ask, incomplete)


def jobs(incomplete: str) -> list[Word]:
    return _asked(_jobs, incomplete)


def batches(incomplete: str) -> list[Word]:
    return _asked(_batches, incomplete)


async def _workflows(client: Client) -> list[Word]:
    found = [workflow for workflow in await client.workflows() if workflow.is_active]
    names = [each.name for each in found]
    # not every shell quotes words with spaces
    is_plain = {name: names.count(name) == 1 and re.fullmatch(r"[\w.-]+", name) for name in names}
    return [(each.name, each.slug) if is_plain[each.name] else (each.slug, each.name) for each in found]


async def _jobs(client: Client) -> list[Word]:
    from comfyrelay.client.labels import Labels
    from comfyrelay.client.render import short

    found: list[Job] = []
    async for job in client.jobs(page=MOST):
        found.append(job)
        if len(found) == MOST:
            break
    labels = await Labels(client).of(found)
    return [(short(each.id), f"{each.status} {labels[each.id]}".strip()) for each in found]


async def _batches(client: Client) -> list[Word]:
    from comfyrelay.client.render import short

    found = await client.some_batches(limit=MOST)
    return [(short(each.id), f"batch {each.label or ''}".strip()) for each in found]


def _asked(ask: Callable[[Client], Awaitable[Iterable[Word]]], incomplete: str) -> list[Word]:
    from comfyrelay.cli.target import address
    from comfyrelay.client import Client
    from comfyrelay.errors import ComfyRelayError
    from comfyrelay.settings import load_settings

    async def run() -> Iterable[Word]:
        where = address(os.environ.get("COMFYRELAY_URL"), load_settings())
        async with asyncio.timeout(SECONDS), Client(where) as client:
            return await ask(client)

    found: Iterable[Word] = ()
    with suppress(ComfyRelayError, TimeoutError):
        found = asyncio.run(run())
    return [each for each in found if each[0].startswith(incomplete)]


def _files(incomplete: str) -> list[Word]:
    """A shell that got words does not complete files; these may be folders on the way."""
    from comfyrelay.comfyui.editor.loading import may_hold_workflow

    folder, _, begun = incomplete.rpartition("/")
    with suppress(OSError):
        found = sorted(Path(f"{folder}/" if folder or incomplete.startswith("/") else ".").iterdir())
        prefix = incomplete.removesuffix(begun)
        named = [each for each in found if each.name.startswith(begun) and not each.name.startswith(".")]
        return [
            (f"{prefix}{each.name}{'/' if each.is_dir() else ''}", "")
            for each in named
            if each.is_dir() or may_hold_workflow(each)
        ]
    return []
