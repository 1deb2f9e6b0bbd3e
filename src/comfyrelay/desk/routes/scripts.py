"""The configured script and a preview of its command."""

import asyncio

from fastapi import Request

from comfyrelay.desk.scripts.command import ScriptSettings, command_of, shown, templates
from comfyrelay.desk.scripts.workflow import SLUG
from comfyrelay.errors import NotFound
from comfyrelay.protocol.base import Answer
from comfyrelay.protocol.desk import Script, ScriptCommand, ScriptJob
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Router

router = Router(prefix="/api/desk/script", tags=["desk"])


@router.get("", responses=error_responses(401, 404))
async def script(request: Request, _user: CurrentUser) -> Answer[Script]:
    """The configuration in `[desk.script]`."""
    settings = _settings(request)
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
async def preview(body: ScriptJob, request: Request, _user: CurrentUser) -> Answer[ScriptCommand]:
    """The command for these parameters. Nothing is run."""
    argv = await asyncio.to_thread(command_of, _settings(request), body)
    return Answer(data=ScriptCommand(argv=argv, command=shown(argv)))


def _settings(request: Request) -> ScriptSettings:
    found: ScriptSettings | None = request.app.state.desk.script
    if found is None:
        raise NotFound("No script is configured: add [desk.script] to comfyrelay.toml.")
    return found
