"""Shell completion of workflows, presets and ids. The desk or server must answer quickly."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from comfyrelay.cli.jobs.connection import take
from comfyrelay.cli.target import find_url
from comfyrelay.errors import ComfyRelayError

if TYPE_CHECKING:
    from comfyrelay.client import Client

TIMEOUT_SECONDS = 5.0
MAX_JOBS = 50
# The completed word and its help.
Completion = tuple[str, str]


async def _effects(client: Client) -> list[Completion]:
    return [(effect.slug, effect.name) for effect in await client.effects()]


async def _presets(client: Client) -> list[Completion]:
    return [(preset.name, "") for preset in await client.presets()]


async def _workflows(client: Client) -> list[Completion]:
    found = [workflow for workflow in await client.workflows() if workflow.is_active]
    names = [workflow.name for workflow in found]
    # Not every shell quotes words with spaces.
    is_plain = {name: names.count(name) == 1 and re.fullmatch(r"[\w.-]+", name) for name in names}
    return [
        (workflow.name, workflow.slug) if is_plain[workflow.name] else (workflow.slug, workflow.name)
        for workflow in found
    ]


async def _jobs(client: Client) -> list[Completion]:
    from comfyrelay.client.labels import JobLabels
    from comfyrelay.client.render import short_id

    found = await take(client.jobs(page=MAX_JOBS), MAX_JOBS)
    labels = await JobLabels(client).of(found)
    return [(short_id(job.id), f"{job.status} {labels[job.id]}".strip()) for job in found]


async def _batches(client: Client) -> list[Completion]:
    from comfyrelay.client.render import short_id

    found = await client.recent_batches(limit=MAX_JOBS)
    return [(short_id(batch.id), f"batch {batch.label or ''}".strip()) for batch in found]


def _completer(*lookups: Callable[[Client], Awaitable[list[Completion]]]) -> Callable[[str], list[Completion]]:
    """Create a completer from lookups on the desk or server."""

    async def look_up() -> list[Completion]:
        from comfyrelay.client import Client
        from comfyrelay.settings import load_settings

        url = find_url(os.environ.get("COMFYRELAY_URL"), load_settings())
        async with asyncio.timeout(TIMEOUT_SECONDS), Client(url) as client:
            return [completion for lookup in lookups for completion in await lookup(client)]

    def complete(incomplete: str) -> list[Completion]:
        with suppress(ComfyRelayError, TimeoutError):
            return [completion for completion in asyncio.run(look_up()) if completion[0].startswith(incomplete)]
        return []

    return complete


def _files(incomplete: str) -> list[Completion]:
    """Complete files and folders, because a shell that gets words from a completer does not complete files itself."""
    from comfyrelay.comfyui.editor.loading import may_hold_workflow

    folder, _, begun = incomplete.rpartition("/")
    with suppress(OSError):
        found = sorted(Path(f"{folder}/" if folder or incomplete.startswith("/") else ".").iterdir())
        prefix = incomplete.removesuffix(begun)
        paths = [path for path in found if path.name.startswith(begun) and not path.name.startswith(".")]
        return [
            (f"{prefix}{path.name}{'/' if path.is_dir() else ''}", "")
            for path in paths
            if path.is_dir() or may_hold_workflow(path)
        ]
    return []


jobs = _completer(_jobs)
batches = _completer(_batches)
ids = _completer(_jobs, _batches)
presets = _completer(_presets)
workflows = _completer(_workflows)
_effects_and_workflows = _completer(_effects, _workflows)


def runnable(incomplete: str) -> list[Completion]:
    """Complete effects, workflows, and files."""
    return [*_effects_and_workflows(incomplete), *_files(incomplete)]
