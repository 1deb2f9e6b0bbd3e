"""Describe the configured script, and preview its command."""

import asyncio
import shlex
from typing import Annotated

from fastapi import Depends

from comfyrelay.desk.scripts.command import ScriptSettings, command_of, templates
from comfyrelay.desk.scripts.workflow import SLUG
from comfyrelay.desk.state import DeskStateOf
from comfyrelay.errors import NotFound
from comfyrelay.protocol.base import Answer
from comfyrelay.protocol.desk import Script, ScriptCommand, ScriptJob
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Router

router = Router(prefix="/api/desk/script", tags=["desk"])


async def _settings(state: DeskStateOf) -> ScriptSettings:
    if state.script is None:
        raise NotFound("No script is configured: add [desk.script] to comfyrelay.toml.")
    return state.script


SettingsOf = Annotated[ScriptSettings, Depends(_settings)]


@router.get("", responses=error_responses(401, 404))
async def script(settings: SettingsOf, _user: CurrentUser) -> Answer[Script]:
    """Return the configuration in `[desk.script]`."""
    return Answer(
        data=Script.of(
            settings,
            workflow_slug=SLUG,
            default_profile=settings.profile,
            templates=await asyncio.to_thread(templates, settings),
            environment=sorted(settings.environment),
        )
    )


@router.post("/preview", responses=error_responses(401, 403, 404, 422))
async def preview(body: ScriptJob, settings: SettingsOf, _user: CurrentUser) -> Answer[ScriptCommand]:
    """Return the command for these parameters, without running it."""
    argv = await asyncio.to_thread(command_of, settings, body)
    return Answer(data=ScriptCommand(argv=argv, command=shlex.join(argv)))
